"""Outputs leave the runtime's arena where many are held: it would keep their memory for ever."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from tests.serving.onnx_files import doubling, save
from tpx.serving.backends.onnxruntime.execution import ArrayExecutor, LentOutputs
from tpx.serving.backends.onnxruntime.options import shrinking_options
from tpx.serving.backends.onnxruntime.signature import OnnxTensor
from tpx.serving.heap import resident_bytes

MB = 1 << 20


def output(size_bytes: int) -> npt.NDArray[np.uint8]:
    return np.zeros(size_bytes, np.uint8)


def test_outputs_are_lent_until_many_bytes_of_them_are_held_and_copied_from_then_on() -> None:
    lent = LentOutputs()
    held = [output(8 * MB) for _ in range(6)]
    got = [lent.outputs([array])[0] for array in held]
    assert [one is other for one, other in zip(got, held, strict=True)] == [True] * 4 + [False] * 2
    assert all((one == other).all() for one, other in zip(got, held, strict=True))


def test_what_was_given_back_can_be_lent_again() -> None:
    lent = LentOutputs()
    held = [lent.outputs([output(8 * MB)])[0] for _ in range(4)]
    view = held.pop().reshape(2, -1)[1:]
    del held
    again = [output(8 * MB) for _ in range(4)]
    got = [lent.outputs([array])[0] is array for array in again]
    assert got == [True, True, True, False], "a view holds what it is of"
    assert view.size == 4 * MB


def test_an_output_that_is_alone_is_lent_however_large_and_small_ones_are_not_counted() -> None:
    lent = LentOutputs()
    large = output(100 * MB)
    assert lent.outputs([large])[0] is large
    small = [output(1024) for _ in range(10)]
    assert all(one is other for one, other in zip(lent.outputs(list(small)), small, strict=True))


def test_the_first_small_run_after_a_very_large_output_returns_the_arenas_memory(tmp_path: Path) -> None:
    session = ort.InferenceSession(save(doubling("batch", "n"), tmp_path / "model.onnx"))
    inputs = [OnnxTensor.of(node) for node in session.get_inputs()]
    outputs = [OnnxTensor.of(node) for node in session.get_outputs()]
    executor = ArrayExecutor(session, inputs, outputs, ort.RunOptions(), shrinking_options())
    small, large = np.zeros((1, 4), np.float32), np.zeros((1, 50 * MB), np.float32)
    executor.execute({"x": small})  # the first part of the arena always stays
    before = resident_bytes()
    executor.execute({"x": large})
    assert resident_bytes() - before > 150 * MB
    executor.execute({"x": small})
    assert resident_bytes() - before < 50 * MB
