"""How far a thread runs ahead of a client that does not read."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.waiting import eventually
from tpx.serving.backpressure import AHEAD_BYTES, RESPONSE_BYTES, ResponseBackpressure

MB = 1 << 20


class Producer:
    """A thread that makes responses of a size until nobody wants more."""

    def __init__(self, backpressure: ResponseBackpressure, size: int) -> None:
        self.made = 0
        self._backpressure = backpressure
        self._size = size
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self) -> None:
        while self._backpressure.advance(self._size):
            self.made += 1

    def stops_at(self, count: int) -> None:
        """It makes so many, and then no more."""
        eventually(lambda: self.made >= count)
        self.thread.join(0.02)
        assert (self.made, self.thread.is_alive()) == (count, True)


@contextmanager
def producing(backpressure: ResponseBackpressure, size: int) -> Iterator[Producer]:
    producer = Producer(backpressure, size)
    try:
        yield producer
    finally:
        backpressure.end()
        producer.thread.join(5)
        assert not producer.thread.is_alive()


@pytest.mark.parametrize(("size", "most"), [(0, 1025), (64 << 10, 16), (8 * MB, 1)])
def test_a_thread_runs_ahead_by_bytes_and_never_by_less_than_one_response(size: int, most: int) -> None:
    backpressure = ResponseBackpressure()
    with producing(backpressure, size) as producer:
        producer.stops_at(most)
        assert most * size <= AHEAD_BYTES + size
        for _ in range(3):
            backpressure.delivered(size)
        producer.stops_at(most + 3)


def test_a_stalled_client_stops_the_thread_and_an_eased_one_lets_it_go_on() -> None:
    backpressure = ResponseBackpressure()
    backpressure.stall(True)
    with producing(backpressure, 100) as producer:
        producer.stops_at(0)
        backpressure.stall(False)
        producer.stops_at(AHEAD_BYTES // (100 + RESPONSE_BYTES) + 1)


@pytest.mark.parametrize("stalled", [True, False])
def test_the_end_releases_the_thread_at_once(stalled: bool) -> None:
    backpressure = ResponseBackpressure()
    backpressure.stall(stalled)
    with producing(backpressure, MB) as producer:
        made = 0 if stalled else 1
        producer.stops_at(made)
        backpressure.end()
        producer.thread.join(10)
        assert not producer.thread.is_alive()
        assert producer.made == made
        assert not backpressure.advance(1)


def test_time_passes_unless_the_end_comes_first() -> None:
    backpressure = ResponseBackpressure()
    assert backpressure.wait(0.001)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(backpressure.wait, 900)  # longer than a test may take
        backpressure.end()
        assert not waiting.result(20)
