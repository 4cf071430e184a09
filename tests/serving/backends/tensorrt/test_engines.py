"""Engines, as far as that can be seen without a GPU: what is called with what, and what is told of failures.

TensorRT and the driver are stood for by what has their names and parameters.
"""

import ast
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.backends.tensorrt import fake_tensorrt
from tests.serving.backends.tensorrt.conftest import Driver
from tests.serving.backends.tensorrt.opened import ALL, GROUP, Opened, X, Y
from tpx.errors import ConfigError, ExecutionError, InvalidRequest, LoadError
from tpx.serving.backends import tensorrt as package
from tpx.serving.backends.contract import ModelFiles, OnGpus
from tpx.serving.backends.parameters import instance_specs
from tpx.serving.backends.tensorrt.backend import TensorRtBackend
from tpx.serving.repository.configuration import fill_defaults


def rows(*shape: int) -> Any:
    """Values to compute with."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# what the real bindings have


def test_the_fake_has_the_parameters_of_the_real_bindings() -> None:
    for name, methods in fake_tensorrt.SIGNATURES.items():
        made = getattr(fake_tensorrt, name)
        for method, parameters in methods.items():
            if hasattr(made, method):
                found = tuple(inspect.signature(getattr(made, method)).parameters)[1:]
                assert found == parameters, f"{name}.{method}"


def test_the_backend_calls_only_what_the_real_bindings_have() -> None:
    known = set(fake_tensorrt.FUNCTIONS).union(
        *fake_tensorrt.SIGNATURES.values(), *fake_tensorrt.PROPERTIES.values()
    )
    directory = Path(package.__path__[0])
    called = {
        node.attr
        for path in directory.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("engine", "context", "runtime")
    }
    assert called
    assert called <= known


# completing and checking


def test_batches_are_as_large_as_the_profiles_of_the_instances(opened: Opened) -> None:
    config = opened.completed()
    assert (config.max_batch_size, config.WhichOneof("scheduling_choice")) == (4, "dynamic_batching")
    assert [list(each.dims) for each in (*config.input, *config.output)] == [[-1], [-1]]
    assert opened.completed(ALL).max_batch_size == 8


def test_an_engine_of_fixed_shapes_has_no_batches(opened: Opened) -> None:
    opened.write([{**X, "shape": [3, 2], "profiles": [[[3, 2]] * 3]}, {**Y, "shape": [3, 2]}])
    config = opened.completed()
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [3, 2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max_batch_size: 5 " + GROUP % "",
            "autofill failed for model 'net': configuration specified max-batch 5 but TensorRT engine only "
            "supports max-batch 4",
        ),
        (
            "input [{ name: 'x' data_type: TYPE_FP32 dims: [ 3 ] }] " + GROUP % "",
            "model configuration specified invalid shape for input 'x' for model net. Error details: model "
            "expected the shape of dimension 0 to be between 2 and 2 but received 3",
        ),
        (
            "input [{ name: 'x' data_type: TYPE_FP32 dims: [ 2 ] }] output [{ name: 'y' data_type: TYPE_FP32 "
            "dims: [ -1, 2 ] }] " + GROUP % "",
            "unable to autofill for 'net', model tensor configurations are contradicting each other in terms "
            "of whether batching is supported",
        ),
        (
            GROUP % "profile: '2'",
            "unable to autofill for 'net', configuration specified invalid profile 2 . Number of profiles "
            "supported by TensorRT engine: 2",
        ),
        (
            "input [{ name: 'x' data_type: TYPE_FP16 dims: [ 2 ] }] " + GROUP % "",
            "unable to load model 'net', configuration expects datatype TYPE_FP16 for input 'x', model "
            "provides TYPE_FP32",
        ),
        (
            "instance_group [{ name: 'net' kind: KIND_CPU count: 1 }]",
            "instance 'net_0' of model 'net' has kind KIND_CPU, but TensorRT computes on GPUs only: use "
            "KIND_GPU",
        ),
        (
            "instance_group [{ name: 'net' kind: KIND_GPU count: 1 gpus: [ 2 ] }]",
            "instance 'net_0' of model 'net' specifies invalid or unsupported gpu id 2: there are 2 GPUs",
        ),
        (
            "input [{ name: 'x' data_type: TYPE_FP32 dims: [ 2 ] is_shape_tensor: true }] " + GROUP % "",
            "is_shape_tensor of 'x' of model 'net' must be false, as in the engine",
        ),
        (
            "input [{ name: 'x' data_type: TYPE_FP32 dims: [ 2 ] optional: true }] " + GROUP % "",
            "input 'x' of model 'net' is optional, but TensorRT needs all inputs: remove optional",
        ),
        (
            "parameters { key: 'enable_multi_device' value { string_value: 'true' } }" + GROUP % "",
            "parameter 'enable_multi_device' of model 'net': tpx runs an engine on one GPU",
        ),
    ],
)
def test_a_configuration_that_is_not_the_engines_is_refused(opened: Opened, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        opened.completed(text)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"dtype": "FP8"}, "'x' of model 'net' has TensorRT's type FP8, which no client can send"),
        ({"format": "CHW32"}, "tensor 'x' of model 'net' is not stored row by row"),
    ],
)
def test_an_engine_that_no_client_could_use_is_refused(
    opened: Opened, tensor: dict[str, Any], message: str
) -> None:
    opened.write([{**X, **tensor}, Y])
    with pytest.raises(LoadError, match=message):
        opened.completed()


def test_without_words_an_instance_is_on_every_gpu(opened: Opened, driver: Driver) -> None:
    backend = TensorRtBackend(opened.trt, driver.path)
    assert isinstance(backend, OnGpus)
    config = opened.config("backend: 'tensorrt'")
    fill_defaults(config, backend)
    assert [(spec.kind, spec.device_id) for spec in instance_specs(config)] == [
        ("KIND_GPU", 0),
        ("KIND_GPU", 1),
    ]


def test_without_a_gpu_that_is_said(opened: Opened, driver: Driver, tmp_path: Path) -> None:
    backend = TensorRtBackend(opened.trt, str(tmp_path / "nothing.so"))
    with pytest.raises(ConfigError, match="has kind KIND_GPU but no GPUs are available"):
        fill_defaults(opened.config(""), backend)
    with pytest.raises(LoadError, match="tensorrt cannot be used for model 'net': no CUDA driver"):
        backend.open(ModelFiles(model_name="net", version=1, directory=tmp_path), opened.config(GROUP % ""))


# computing


def test_a_batch_is_computed_on_the_device(opened: Opened) -> None:
    [executor] = opened.executors()
    for count in (1, 4, 2):
        given = rows(count, 2)
        assert executor.execute({"x": given})["y"].tolist() == (given * 2).tolist()


def test_outputs_stay_as_they_are_when_the_next_batch_comes(opened: Opened) -> None:
    [executor] = opened.executors()
    first = executor.execute({"x": np.ones((2, 2), np.float32)})["y"]
    executor.execute({"x": np.zeros((2, 2), np.float32)})
    assert first.tolist() == [[2, 2], [2, 2]]


def test_a_shape_that_no_profile_takes_is_the_requests_fault(opened: Opened) -> None:
    [executor] = opened.executors()
    with pytest.raises(InvalidRequest) as caught:
        executor.execute({"x": rows(1, 3)})
    assert caught.value.message == (
        "request specifies invalid shape for input 'x' for net. Error details: model expected the shape of "
        "dimension 1 to be between 2 and 2 but received 3"
    )
    assert executor.execute({"x": rows(1, 2)})["y"].tolist() == [[0, 2]]


def test_each_shape_is_computed_with_the_profile_that_was_made_for_it(opened: Opened) -> None:
    [executor] = opened.executors(ALL)
    assert executor.execute({"x": rows(2, 2)})["y"].shape == (2, 2)
    assert executor.execute({"x": rows(6, 16)})["y"].tolist() == (rows(6, 16) * 2).tolist()
    with pytest.raises(InvalidRequest, match="dimension 1 to be between 2 and 2 but received 17"):
        executor.execute({"x": rows(1, 17)})


def test_instances_of_a_device_share_an_engine_and_have_contexts_of_their_own(
    opened: Opened, driver: Driver
) -> None:
    text = "instance_group [{ name: 'net' kind: KIND_GPU count: 2 gpus: [ 0, 1 ] profile: [ '0', '1' ] }] "
    executors = opened.executors(text + "optimization { priority: PRIORITY_MAX }")
    model = opened.model(text)
    engines = {id(model._load_engine(device, opened.config(text))) for device in (0, 0, 1, 1)}
    assert (len(executors), len(engines)) == (4, 2)
    assert driver.functions.fake_streams() == 4
    assert driver.functions.fake_priority() == -5
    for executor in executors:
        assert executor.execute({"x": rows(3, 2)})["y"].tolist() == (rows(3, 2) * 2).tolist()


def test_an_output_may_be_as_large_as_its_values_want(opened: Opened) -> None:
    dims = {"shape": [-1], "profiles": [[[0], [8], [100]]]}
    opened.write([{**X, **dims}, {**Y, "shape": [-1]}], "positive")
    config = "max_batch_size: 0 input [{ name: 'x' data_type: TYPE_FP32 dims: [ -1 ] }] "
    [executor] = opened.executors(config + GROUP % "")
    assert executor.execute({"x": np.array([1, -1, 2], np.float32)})["y"].tolist() == [1, 2]
    assert executor.execute({"x": rows(100)})["y"].shape == (99,)
    assert executor.execute({"x": np.zeros(3, np.float32)})["y"].tolist() == []


SHAPES: list[dict[str, Any]] = [
    {
        "name": "s",
        "mode": "INPUT",
        "dtype": "INT32",
        "shape": [2],
        "is_shape": True,
        "values": [[[1, 1], [2, 2], [4, 3]]],
    },
    {"name": "y", "mode": "OUTPUT", "dtype": "FLOAT", "shape": [-1, -1]},
    {"name": "t", "mode": "OUTPUT", "dtype": "INT32", "shape": [2], "is_shape": True},
]


def test_shape_tensors_are_read_and_written_in_the_hosts_memory(opened: Opened) -> None:
    opened.write(SHAPES, "fill")
    config = opened.completed()
    assert [each.is_shape_tensor for each in (*config.input, *config.output)] == [True, False, True]
    [executor] = opened.executors()
    out = executor.execute({"s": np.array([4, 3], np.int32)})
    assert out["y"].tolist() == [[7, 7, 7]] * 4
    assert out["t"].tolist() == [4, 3]
    with pytest.raises(InvalidRequest, match="shape value at index 1 is expected to be in range from 1 to 3"):
        executor.execute({"s": np.array([4, 4], np.int32)})


def test_shape_tensors_in_batches_are_refused(opened: Opened) -> None:
    opened.write(SHAPES, "fill")
    with pytest.raises(ConfigError, match="has shape tensors, which tpx supports without batching only"):
        opened.completed("max_batch_size: 2 " + GROUP % "")


def test_a_kernel_that_fails_is_the_requests_error(opened: Opened) -> None:
    opened.write([X, Y], "fail")
    [executor] = opened.executors()
    with pytest.raises(ExecutionError, match="tensorrt cannot execute: the kernel has failed"):
        executor.execute({"x": rows(1, 2)})


def test_memory_that_is_not_there_is_an_error(opened: Opened, driver: Driver) -> None:
    [executor] = opened.executors()
    driver.functions.fake_memory(0)
    with pytest.raises(ExecutionError, match="cuMemAlloc_v2 failed"):
        executor.execute({"x": rows(1, 2)})
