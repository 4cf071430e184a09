"""Execution with bound inputs and outputs; the device is the CPU, which takes the same path of the real ONNX
Runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from onnx import numpy_helper

from tests.serving import onnx_files
from tests.serving.onnx_files import graph, node, value
from tpx.errors import ExecutionError
from tpx.protocol.datatypes import BY_NAME
from tpx.serving.backends.onnxruntime.execution import BoundExecutor
from tpx.serving.backends.onnxruntime.signature import OnnxTensor


def bound(directory: Path, model: Any) -> BoundExecutor:
    """An executor of this model."""
    path = onnx_files.save(model, directory / "model.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = [*session.get_inputs(), *session.get_overridable_initializers()]
    given, made = ([OnnxTensor.of(item) for item in items] for items in (inputs, session.get_outputs()))
    return BoundExecutor(session, given, made, onnxruntime.RunOptions(), ("cpu", 0))


def rows(count: int, width: int = 3) -> npt.NDArray[np.float32]:
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


@pytest.mark.parametrize("datatype", [name for name in BY_NAME if name not in ("BYTES", "BF16")])
def test_every_number_comes_back_as_it_went_in(tmp_path: Path, datatype: str) -> None:
    executor = bound(tmp_path, onnx_files.identity(datatype))
    given = np.array([[0, 1], [1, 0], [100, 3]]).astype(BY_NAME[datatype].numpy)
    out = executor.execute({"x": given})["y"]
    assert (out.dtype, out.tolist()) == (given.dtype, given.tolist())


def test_shapes_may_change_from_request_to_request(tmp_path: Path) -> None:
    executor = bound(tmp_path, onnx_files.doubling("batch", "n"))
    for count in (1, 3, 2, 3, *range(1, 40), 1):
        assert executor.execute({"x": rows(count)})["y"].tolist() == (rows(count) * 2).tolist()


def test_what_a_client_sent_is_not_written_to(tmp_path: Path) -> None:
    executor = bound(tmp_path, onnx_files.doubling("batch", "n"))
    first, second = rows(2), rows(2) + 7
    executor.execute({"x": first})
    executor.execute({"x": second})
    assert first.tolist() == rows(2).tolist()


def test_outputs_do_not_point_into_memory_that_the_next_run_reuses(tmp_path: Path) -> None:
    executor = bound(tmp_path, onnx_files.identity())
    outs = [executor.execute({"x": np.full((1, 2), n, dtype=np.float32)})["y"] for n in range(20)]
    assert [out[0, 0] for out in outs] == list(range(20))


def test_data_that_is_not_contiguous_is_computed_rightly(tmp_path: Path) -> None:
    executor = bound(tmp_path, onnx_files.doubling("batch", "n"))
    given = rows(4, 6)[::2, ::3]
    assert executor.execute({"x": given})["y"].tolist() == (given * 2).tolist()


@pytest.mark.parametrize("shape", [(0, 2), (2, 0)])
def test_empty_tensors_come_back(tmp_path: Path, shape: tuple[int, ...]) -> None:
    executor = bound(tmp_path, onnx_files.doubling("batch", "n"))
    assert executor.execute({"x": np.zeros(shape, np.float32)})["y"].shape == shape


def test_a_scalar_is_one_element_for_the_client(tmp_path: Path) -> None:
    model = graph([node("Neg", ["x"], ["y"])], [value("x", "FP32")], [value("y", "FP32")])
    assert bound(tmp_path, model).execute({"x": np.array([3], np.float32)})["y"].tolist() == [-3]


def test_an_optional_input_of_one_request_is_not_that_of_the_next(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.array([1, 1, 1], dtype=np.float32), "w")
    io = [value("x", "FP32", "batch", 3), value("w", "FP32", 3)], [value("y", "FP32", "batch", 3)]
    executor = bound(tmp_path, graph([node("Mul", ["x", "w"], ["y"])], *io, [weight]))
    own = np.array([2, 3, 4], dtype=np.float32)
    assert executor.execute({"x": rows(1), "w": own})["y"].tolist() == [[0, 3, 8]]
    assert executor.execute({"x": rows(1)})["y"].tolist() == [[0, 1, 2]]


def test_an_error_of_the_model_leaves_it_usable(tmp_path: Path) -> None:
    model = graph(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", "FP32", "a", "b"), value("w", "FP32", "c", "d")],
        [value("y", "FP32", "a", "d")],
    )
    executor = bound(tmp_path, model)
    with pytest.raises(ExecutionError, match="onnx runtime error: "):
        executor.execute({"x": rows(2), "w": rows(2)})
    assert executor.execute({"x": rows(2), "w": rows(3)})["y"].shape == (2, 3)


def test_outputs_beside_bfloat16_do_not_change_with_the_next_run(tmp_path: Path) -> None:
    model = graph(
        [node("Identity", ["x"], ["y"]), node("Identity", ["n"], ["m"])],
        [value("x", "BF16", 1), value("n", "FP32", 1)],
        [value("y", "BF16", 1), value("m", "FP32", 1), value("n", "FP32", 1)],
    )
    executor = bound(tmp_path, model)
    outs = [
        executor.execute({"x": np.array([at], np.uint16), "n": np.array([at], np.float32)}) for at in range(5)
    ]
    assert [[out[name].tolist() for name in "ymn"] for out in outs] == [[[at]] * 3 for at in range(5)]
