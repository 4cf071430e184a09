"""Busy polling: when the event loop stays awake, on a clock of the test's own."""

from collections.abc import Callable

import pytest

from tpx.serving.polling import BusyPolling, polling_time_ns

POLL_NS = 50_000


class Loop:
    """An event loop whose iterations without work take 2 us."""

    def __init__(self, poll_ns: int = POLL_NS) -> None:
        self.now_ns = 10**9
        self.due: list[Callable[[], None]] = []
        self.polling = BusyPolling(poll_ns, self.due.append, lambda: self.now_ns)

    def wait(self, ns: int) -> int:
        """Let time pass without work; return for how long the loop polled instead of sleeping."""
        ends_ns, began_ns = self.now_ns + ns, self.now_ns
        while self.due and self.now_ns < ends_ns:
            due, self.due[:] = list(self.due), []
            for callback in due:
                callback()
            self.now_ns += 2000
        polled_ns, self.now_ns = self.now_ns - began_ns, ends_ns
        return min(polled_ns, ns)

    def compute(self, ns: int = 10_000) -> None:
        self.now_ns += ns
        self.polling.computed(self.now_ns - ns, self.now_ns)

    def polled(self, gap_ns: int, count: int = 100) -> list[int]:
        """For how long the loop polled before each request of a client that waits `gap_ns` in between."""
        out = []
        for _ in range(count):
            self.compute()
            out.append(self.wait(gap_ns))
        return out


def test_the_loop_polls_for_a_client_that_sends_one_request_after_the_other() -> None:
    polled = Loop().polled(30_000)
    assert polled[:8] == [0] * 8
    assert set(polled[9:]) == {30_000}


@pytest.mark.parametrize(("together", "polls"), [(1, True), (8, True), (9, False), (64, False)])
def test_the_loop_polls_only_after_few_requests(together: int, polls: bool) -> None:
    loop = Loop()
    polled = []
    for _ in range(100):
        for _ in range(together):
            loop.wait(1000)
            loop.compute()
        polled.append(loop.wait(30_000))
    assert any(polled) == polls

    loop = Loop()
    for _ in range(100):
        loop.now_ns += 10_000
        loop.polling.computed(loop.now_ns - 10_000, loop.now_ns, together)
        polled = [loop.wait(30_000)]
    assert any(polled) == polls


@pytest.mark.parametrize("gap_ns", [101_000, 1_000_000])
def test_the_loop_sleeps_between_requests_that_come_later(gap_ns: int) -> None:
    assert not any(Loop().polled(gap_ns))


def test_polls_in_vain_are_few() -> None:
    """A gap of which only waking up makes the end come too late for a poll."""
    polled = Loop().polled(80_000, 1000)
    assert sum(map(bool, polled)) in range(50, 120)
    assert max(polled) <= POLL_NS + 4000


def test_a_pause_ends_the_polling_at_once_and_trust_has_to_be_earned_anew() -> None:
    loop = Loop()
    loop.polled(30_000)
    loop.compute()
    assert loop.wait(10**9) <= POLL_NS + 4000
    assert loop.due == []
    assert loop.polled(30_000)[:8] == [0] * 8


def test_without_time_to_poll_the_loop_never_does() -> None:
    loop = Loop(0)
    assert not any(loop.polled(0))
    loop.compute(0)
    assert loop.due == []


@pytest.mark.parametrize(
    ("processors", "expected_ns"), [(0.5, 0), (1, 0), (1.9, 0), (2, 50_000), (64, 50_000)]
)
def test_a_single_processor_is_left_to_the_client(
    processors: float, expected_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpx.serving.polling.usable_processors", lambda: processors)
    assert polling_time_ns(50) == expected_ns
