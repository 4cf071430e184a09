"""Models on OpenVINO: what they compute, how configurations are completed from them, and what is refused."""

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset13

from tests.serving import onnx_files
from tests.serving.backends.openvino.models import (
    classifier,
    completed,
    config,
    convert,
    executors,
    opened,
    parameters,
)
from tests.serving.counted_models import MODELS
from tests.serving.onnx_files import graph, node, value
from tpx.errors import ConfigError, ExecutionError, InvalidRequest, LoadError
from tpx.protocol.datatypes import BY_NAME
from tpx.serving.backends.contract import InstanceSpec
from tpx.serving.backends.openvino.execution import reason


def run(directory: Path, text: str = "", **inputs: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """The outputs of the model in `directory`."""
    return executors(directory, text)[0].execute(dict(inputs))


NUMBERS = [name for name in BY_NAME if name not in ("BYTES", "BF16")]


@pytest.mark.parametrize("datatype", NUMBERS)
def test_every_number_comes_back_as_it_went_in(tmp_path: Path, datatype: str) -> None:
    convert(onnx_files.identity(datatype), tmp_path)
    given = np.array([[0, 1], [1, 0], [100, 3]]).astype(BY_NAME[datatype].numpy)
    out = run(tmp_path, x=given)["y"]
    assert out.dtype == given.dtype
    assert out.tolist() == given.tolist()


def test_bfloat16_is_computed_bit_by_bit(tmp_path: Path) -> None:
    model = graph(
        [node("Add", ["x", "x"], ["y"])], [value("x", "BF16", "batch", 2)], [value("y", "BF16", "batch", 2)]
    )
    convert(model, tmp_path)
    out = run(tmp_path, x=np.array([[0x3F80, 0xC000]], dtype=np.uint16))["y"]
    assert out.dtype == np.uint16
    assert out.tolist() == [[0x4000, 0xC080]]


def test_what_varies_in_the_model_varies_in_the_configuration(tmp_path: Path) -> None:
    full = completed(convert(classifier(), tmp_path))
    assert full.max_batch_size == 4
    assert full.WhichOneof("scheduling_choice") == "dynamic_batching"
    [image] = full.input
    assert (image.name, image.data_type, list(image.dims)) == ("image", 11, [1, 8, 8])
    scores, digit = full.output
    assert (scores.name, scores.data_type, list(scores.dims)) == ("scores", 11, [10])
    assert (digit.name, digit.data_type, list(digit.dims)) == ("digit", 9, [1])
    assert digit.HasField("reshape")


def test_a_model_with_a_fixed_first_dimension_gets_no_batches_unasked(tmp_path: Path) -> None:
    full = completed(convert(classifier(1), tmp_path))
    assert full.max_batch_size == 0
    assert list(full.input[0].dims) == [1, 1, 8, 8]
    assert list(full.output[0].dims) == [1, 10]


def test_a_fixed_first_dimension_becomes_one_of_batches_where_they_are_asked_for(tmp_path: Path) -> None:
    images = np.random.default_rng(1).normal(size=(3, 1, 8, 8)).astype(np.float32)
    alone = run(convert(classifier(1), tmp_path / "a"), image=images[:1])["scores"]
    out = run(convert(classifier(1), tmp_path / "b"), "max_batch_size: 8 ", image=images)["scores"]
    assert out.shape == (3, 10)
    assert np.allclose(out[:1], alone, atol=1e-5)


def test_a_layout_tells_that_the_first_dimension_is_a_batch(tmp_path: Path) -> None:
    parameter = opset13.parameter([1, 3], ov.Type.f32, name="x")
    model = ov.Model([opset13.result(opset13.relu(parameter), name="y")], [parameter])
    model.outputs[0].set_names({"y"})
    for node_ in (*model.get_parameters(), *model.get_results()):
        node_.layout = ov.Layout("NC")
    ov.save_model(model, tmp_path / "model.xml")
    full = completed(tmp_path)
    assert (full.max_batch_size, list(full.input[0].dims), list(full.output[0].dims)) == (4, [3], [3])
    assert run(tmp_path, x=np.full((2, 3), -1, np.float32))["y"].tolist() == [[0, 0, 0]] * 2


def test_configured_dims_without_the_first_one_mean_batches_and_with_it_none(tmp_path: Path) -> None:
    convert(onnx_files.doubling("batch", 2), tmp_path)
    tensor = "[{ name: '%s' data_type: TYPE_FP32 dims: [ %s ] }] "
    assert completed(tmp_path, "input " + tensor % ("x", "2")).max_batch_size == 4
    full = completed(tmp_path, "input " + tensor % ("x", "-1, 2"))
    assert (full.max_batch_size, list(full.output[0].dims)) == (0, [-1, 2])
    with pytest.raises(ConfigError, match="contradicting each other in terms of whether batching"):
        completed(tmp_path, "input " + tensor % ("x", "2") + "output " + tensor % ("y", "-1, 2"))


def test_a_tensor_that_is_only_named_is_completed(tmp_path: Path) -> None:
    full = completed(convert(classifier(), tmp_path), "output [{ name: 'scores' label_filename: 'l.txt' }]")
    [scores] = full.output
    assert (scores.data_type, list(scores.dims), scores.label_filename) == (11, [10], "l.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "input [{ name: 'z' data_type: TYPE_FP32 dims: [ 2 ] }]",
            "unexpected inference input 'z', allowed inputs are: x",
        ),
        (
            "input [{ name: 'x' data_type: TYPE_INT8 dims: [ 2 ] }]",
            "configuration expects datatype TYPE_INT8 for input 'x', model provides TYPE_FP32",
        ),
        ("input [{ name: 'x' data_type: TYPE_FP32 dims: [ 3 ] }]", r"the model expects 2 dimensions"),
        ("input [{ name: 'x' data_type: TYPE_FP32 dims: [ 2 ] optional: true }]", "needs all inputs"),
    ],
)
def test_a_configuration_that_is_not_the_models_is_refused(tmp_path: Path, text: str, message: str) -> None:
    convert(onnx_files.doubling("batch", 2), tmp_path)
    with pytest.raises(ConfigError, match=message):
        completed(tmp_path, "max_batch_size: 4 " + text)


def test_strings_are_refused_when_the_model_is_loaded(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.identity("BYTES"), tmp_path / "model.onnx")
    with pytest.raises(LoadError, match="'x' has OpenVINO's type string, which tpx does not support"):
        completed(tmp_path, "default_model_filename: 'model.onnx' ")


def test_an_onnx_file_is_read_where_the_configuration_names_it(tmp_path: Path) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "other.onnx")
    out = run(tmp_path, "default_model_filename: 'other.onnx' ", x=np.array([[1, 2]], np.float32))
    assert out["y"].tolist() == [[2, 4]]


def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"unable to find '.*model\.xml' for model 'net'"):
        opened(tmp_path)
    (tmp_path / "model.xml").write_text("<net>", encoding="utf-8")
    with pytest.raises(LoadError, match=r"openvino cannot read '.*model\.xml' for model 'net'"):
        opened(tmp_path)
    with pytest.raises(ConfigError, match=r"default_model_filename '\.\./x' is outside"):
        opened(tmp_path, "default_model_filename: '../x' ")


def test_dims_are_the_configurations_where_it_says_so(tmp_path: Path) -> None:
    convert(onnx_files.doubling(1, 2), tmp_path)
    dims = "dims: [ -1, 5 ] }] "
    text = f"input [{{ name: 'x' data_type: TYPE_FP32 {dims} output [{{ name: 'y' data_type: TYPE_FP32 {dims}"
    with pytest.raises(ConfigError, match="the model expects 2 dimensions"):
        completed(tmp_path, text)
    text += parameters(RESHAPE_IO_LAYERS="yes")
    assert run(tmp_path, text, x=np.ones((3, 5), np.float32))["y"].tolist() == [[2] * 5] * 3


def test_dims_that_the_model_cannot_take_are_refused(tmp_path: Path) -> None:
    convert(classifier(), tmp_path)
    text = "input [{ name: 'image' data_type: TYPE_FP32 dims: [ 2, 8, 8 ] }] max_batch_size: 2 "
    with pytest.raises(ConfigError, match=r"model 'net' cannot accept inputs of the shapes \[\?,2,8,8\]"):
        completed(tmp_path, text + parameters(RESHAPE_IO_LAYERS="YES"))


def test_a_fixed_batch_is_refused_or_padded_when_it_is_not_full(tmp_path: Path) -> None:
    convert(onnx_files.doubling("batch", 2), tmp_path)
    text = "max_batch_size: 4 " + parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES")
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert run(tmp_path, text, x=rows)["y"].tolist() == (rows * 2).tolist()
    with pytest.raises(ExecutionError, match="expected requests with batch size '4', got '3'"):
        run(tmp_path, text, x=rows[:3])
    text += parameters(ENABLE_BATCH_PADDING="YES")
    assert run(tmp_path, text, x=rows[:3])["y"].tolist() == (rows[:3] * 2).tolist()


def test_a_scalar_is_one_element_for_the_client(tmp_path: Path) -> None:
    model = graph(
        [node("Add", ["x", "s"], ["y"]), node("Identity", ["s"], ["t"])],
        [value("x", "FP32", 2), value("s", "FP32")],
        [value("y", "FP32", 2), value("t", "FP32")],
    )
    out = run(convert(model, tmp_path), x=np.ones(2, np.float32), s=np.array([3], np.float32))
    assert (out["y"].tolist(), out["t"].tolist()) == ([4, 4], [3])


@pytest.mark.parametrize(("datatype", "far"), [("INT64", 2**31), ("INT64", -(2**31) - 1), ("UINT64", 2**31)])
def test_integers_that_openvino_would_cut_off_are_refused(tmp_path: Path, datatype: str, far: int) -> None:
    convert(onnx_files.identity(datatype), tmp_path)
    dtype = BY_NAME[datatype].numpy
    assert run(tmp_path, x=np.array([[2**31 - 1, 0]], dtype))["y"].tolist() == [[2**31 - 1, 0]]
    with pytest.raises(InvalidRequest, match="input 'x' has values beyond 32 bits"):
        run(tmp_path, x=np.array([[0, far]], dtype))


def test_outputs_stay_as_they_are_when_the_next_request_comes(tmp_path: Path) -> None:
    [executor] = executors(convert(onnx_files.doubling("batch", 40_000), tmp_path))
    first = executor.execute({"x": np.full((1, 40_000), 1, np.float32)})["y"]
    executor.execute({"x": np.full((1, 40_000), 5, np.float32)})
    assert (first == 2).all()


@pytest.mark.slow
def test_memory_of_large_inputs_is_not_kept(tmp_path: Path) -> None:
    [executor] = executors(convert(onnx_files.doubling("batch", 40_000), tmp_path))
    given = np.ones((1, 40_000), np.float32)
    watched = weakref.ref(given)
    executor.execute({"x": given})
    del given
    gc.collect()
    assert watched() is None


def test_memory_that_must_not_be_written_is_read(tmp_path: Path) -> None:
    convert(onnx_files.doubling(), tmp_path)
    given = np.frombuffer(np.array([1, 2], np.float32).tobytes(), np.float32).reshape(1, 2)
    assert not given.flags.writeable
    assert run(tmp_path, x=given)["y"].tolist() == [[2, 4]]


def test_empty_batches_and_data_that_is_not_aligned_are_computed(tmp_path: Path) -> None:
    [executor] = executors(convert(onnx_files.doubling("n", 3), tmp_path))
    assert executor.execute({"x": np.zeros((0, 3), np.float32)})["y"].shape == (0, 3)
    data = bytearray(1) + bytearray(np.arange(6, dtype=np.float32).tobytes())
    view: npt.NDArray[Any] = np.ndarray((2, 3), np.float32, memoryview(data)[1:])
    assert executor.execute({"x": view})["y"].tolist() == [[0, 2, 4], [6, 8, 10]]


def test_an_error_of_the_model_is_an_execution_error_and_the_next_request_is_computed(tmp_path: Path) -> None:
    model = graph(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", "FP32", "batch", "n"), value("w", "FP32", "m", "k")],
        [value("y", "FP32", "batch", "k")],
    )
    [executor] = executors(convert(model, tmp_path))
    with pytest.raises(ExecutionError, match="openvino error: "):
        executor.execute({"x": np.ones((1, 3), np.float32), "w": np.ones((2, 2), np.float32)})
    out = executor.execute({"x": np.ones((1, 2), np.float32), "w": np.ones((2, 2), np.float32)})
    assert out["y"].tolist() == [[2, 2]]


def test_instances_are_requests_of_one_compiled_model_with_a_stream_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    convert(onnx_files.doubling(), tmp_path)
    text = "instance_group [{ name: 'net' kind: KIND_CPU count: 2 }]"
    model, full = opened(tmp_path, text), config(text)
    model.complete(full, default_max_batch_size=4)
    model.check(full)
    pair = [model.executor(InstanceSpec(name=f"net_{i}", kind="KIND_CPU"), full) for i in range(2)]
    results: dict[int, Any] = {}

    def compute(index: int) -> None:
        for _ in range(50):
            results[index] = pair[index].execute({"x": np.full((1, 2), index, np.float32)})["y"].tolist()

    threads = [threading.Thread(target=compute, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: [[0, 0]], 1: [[2, 2]]}
    [told] = [message for message in caplog.messages if "is compiled" in message]
    assert "compiled for CPU: NUM_STREAMS 2," in told
    assert model.divides_as(full)
    assert not model.divides_as(config())


def test_what_is_computed_does_not_depend_on_the_machine_unless_it_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    executors(convert(onnx_files.doubling(), tmp_path))
    assert "INFERENCE_PRECISION_HINT f32" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            parameters(TARGET_DEVICE="NPU"),
            r"asks for TARGET_DEVICE NPU, which OpenVINO does not find \(it has: ",
        ),
        (parameters(NO_SUCH_PROPERTY="1"), "NO_SUCH_PROPERTY"),
        (parameters(INFERENCE_PRECISION_HINT="f7"), "openvino cannot compile it for CPU for model 'net'"),
        ("instance_group [{ name: 'net' kind: KIND_GPU count: 1 gpus: [ 0 ] }]", "TARGET_DEVICE"),
    ],
)
def test_what_openvino_cannot_do_is_refused_when_the_model_is_loaded(
    tmp_path: Path, text: str, message: str
) -> None:
    convert(onnx_files.doubling(), tmp_path)
    with pytest.raises(LoadError, match=message):
        executors(tmp_path, text)


def test_an_extension_is_a_library_beside_the_model_or_where_the_command_line_says(tmp_path: Path) -> None:
    version = convert(onnx_files.doubling(), tmp_path / "net" / "1")
    with pytest.raises(
        LoadError, match=r"has no library of operators 'ops\.so' \(CPU_EXTENSION_PATH\); looked for"
    ):
        opened(version, parameters(CPU_EXTENSION_PATH="ops.so"))
    (tmp_path / "net" / "ops.so").write_text("no library", encoding="utf-8")
    with pytest.raises(
        LoadError, match=r"openvino cannot load the extension '.*net/ops\.so' for model 'net'"
    ):
        opened(version, parameters(CPU_EXTENSION_PATH="ops.so"))
    other = tmp_path / "elsewhere" / "ops.so"
    other.parent.mkdir()
    other.write_text("no library", encoding="utf-8")
    text = parameters(CPU_EXTENSION_PATH=str(other))
    with pytest.raises(ConfigError, match=r"--backend-config=openvino,extension-directories=.*elsewhere"):
        opened(version, text)
    with pytest.raises(LoadError, match=r"cannot load the extension '.*elsewhere/ops\.so'"):
        opened(version, text, {"extension-directories": str(other.parent)})


def test_where_in_its_sources_openvino_was_is_left_out_of_messages() -> None:
    exc = RuntimeError("Exception from src/a.cpp:1:\nException from src/b.cpp:2:\nNotFound: it\n\n")
    assert reason(exc) == "NotFound: it"


@pytest.mark.parametrize("name", [name for name in MODELS if name != "as large as an input says"])
def test_work_that_values_decide_is_not_done_on_the_event_loop(tmp_path: Path, name: str) -> None:
    depends, model = MODELS[name]
    onnx_files.save(model, tmp_path / "model.onnx")
    assert opened(tmp_path, "default_model_filename: 'model.onnx'").inline is not depends
