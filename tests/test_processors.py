"""What of the processor a thread gets."""

import threading
import time
from pathlib import Path

import pytest

from tpx.processors import waited_ns


def test_threads_that_share_a_core_wait_for_it(tmp_path: Path) -> None:
    if not Path("/proc/thread-self/schedstat").exists():
        pytest.skip("this system keeps no statistics of its scheduler")
    began_ns, ended = waited_ns(), threading.Event()
    assert waited_ns() >= began_ns

    def spin() -> None:
        while not ended.is_set():
            sum(range(1000))

    others = [threading.Thread(target=spin) for _ in range(2)]
    for other in others:
        other.start()
    deadline_ns = time.monotonic_ns() + 20_000_000_000
    while waited_ns() == began_ns and time.monotonic_ns() < deadline_ns:
        sum(range(100_000))
    ended.set()
    for other in others:
        other.join()
    assert waited_ns() > began_ns
    assert waited_ns(tmp_path / "absent") == 0
    (tmp_path / "other").write_text("what?")
    assert waited_ns(tmp_path / "other") == 0
