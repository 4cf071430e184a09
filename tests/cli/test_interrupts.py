"""Ctrl-C while a library polls."""

import contextlib
import signal
from collections.abc import Iterator

import pytest

from tpx.cli.interrupts import until_interrupted


def test_ctrl_c_that_a_library_swallows_ends_the_polling() -> None:
    def poll() -> Iterator[int]:
        yield 1
        with contextlib.suppress(KeyboardInterrupt):  # as Ray does in a callback
            signal.raise_signal(signal.SIGINT)
        yield 2
        pytest.fail("polled on")

    before = signal.getsignal(signal.SIGINT)  # ignored, where the tests run in the background of a shell
    polling = until_interrupted(poll())
    assert next(polling) == 1
    with pytest.raises(KeyboardInterrupt):
        next(polling)
    assert signal.getsignal(signal.SIGINT) is before
