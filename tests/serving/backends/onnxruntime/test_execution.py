"""Outputs leave the runtime's arena where many are held: it would keep their memory for ever."""

import numpy as np
import numpy.typing as npt

from tpx.serving.backends.onnxruntime.execution import LentOutputs

MB = 1 << 20


def output(size_bytes: int) -> npt.NDArray[np.uint8]:
    return np.zeros(size_bytes, np.uint8)


def test_outputs_are_lent_until_many_bytes_of_them_are_held_and_copied_from_then_on() -> None:
    lent = LentOutputs()
    held = [output(8 * MB) for _ in range(6)]
    got = [lent.lend([array])[0] for array in held]
    assert [one is other for one, other in zip(got, held, strict=True)] == [True] * 4 + [False] * 2
    assert all((one == other).all() for one, other in zip(got, held, strict=True))


def test_what_was_given_back_can_be_lent_again() -> None:
    lent = LentOutputs()
    held = [lent.lend([output(8 * MB)])[0] for _ in range(4)]
    view = held.pop().reshape(2, -1)[1:]
    del held
    again = [output(8 * MB) for _ in range(4)]
    got = [lent.lend([array])[0] is array for array in again]
    assert got == [True, True, True, False], "a view holds what it is of"
    assert view.size == 4 * MB


def test_an_output_that_is_alone_is_lent_however_large_and_small_ones_are_not_counted() -> None:
    lent = LentOutputs()
    large = output(100 * MB)
    assert lent.lend([large])[0] is large
    small = [output(1024) for _ in range(10)]
    assert all(one is other for one, other in zip(lent.lend(list(small)), small, strict=True))
