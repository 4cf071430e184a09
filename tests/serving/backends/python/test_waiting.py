"""How processes of models wait: awake for a moment where that pays, asleep otherwise."""

import socket
import threading
from pathlib import Path

import pytest

from tpx.processors import usable_processors
from tpx.serving.backends.python.worker.waiting import Waiting


def _waiting(spin_ns: int) -> tuple[Waiting, socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    waiting = Waiting(ours.fileno())
    waiting.spin_for(spin_ns)
    return waiting, ours, theirs


def _wait(waiting: Waiting, theirs: socket.socket, delay_s: float) -> None:
    """Wait for a byte that comes after this time."""
    later = threading.Timer(delay_s, theirs.send, (b"x",))
    later.start()
    waiting.until_readable()
    later.join()


def test_waiting_ends_with_the_first_byte() -> None:
    waiting, ours, theirs = _waiting(1_000_000)
    with ours, theirs:
        assert not waiting.here()
        _wait(waiting, theirs, 0.01)
        assert waiting.here()
        waiting.until_readable()


def test_long_waits_are_slept_through() -> None:
    waiting, ours, theirs = _waiting(1_000_000)
    with ours, theirs:
        for _ in range(5):
            _wait(waiting, theirs, 0.03)
            ours.recv(1)
            assert not waiting.awake


def test_after_short_waits_it_stays_awake_until_one_is_long() -> None:
    waiting, ours, theirs = _waiting(50_000_000)
    with ours, theirs:
        for _ in range(4):
            _wait(waiting, theirs, 0.002)
            ours.recv(1)
        assert waiting.awake
        for _ in range(3):
            _wait(waiting, theirs, 0.12)
            ours.recv(1)
        assert not waiting.awake


def test_without_a_time_it_does_not_wait_at_all() -> None:
    waiting, ours, theirs = _waiting(0)
    with ours, theirs:
        waiting.until_readable()  # whoever reads sleeps


@pytest.mark.parametrize(("text", "most"), [("50000 100000", 0.5), ("max 100000", 1e9), ("", 1e9)])
def test_a_container_has_the_processors_that_it_is_allowed(tmp_path: Path, text: str, most: float) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text(text)
    free = usable_processors(tmp_path / "absent")
    assert free >= 1
    assert usable_processors(limit) == min(free, most)
