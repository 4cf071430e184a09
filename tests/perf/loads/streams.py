"""A stream whose responses come when a test says so."""

from time import perf_counter_ns
from typing import Any

from tests.perf.conftest import FakeClient
from tpx.perf.clients.base import NO_USAGE, OnResponse, Slot
from tpx.perf.inputs.feed import RoundRobin
from tpx.perf.levels import PeriodicRange
from tpx.perf.loads.closed import PeriodicLoad


class StreamedAnswer:
    """Implements StreamedResponse."""

    def __init__(self) -> None:
        self.status = 200
        self.first_byte_ns = self.end_ns = 0
        self.arrivals: list[int] = []
        self.units = 0
        self.usage = NO_USAGE


class FakeStream:
    """What many slots have as their connection."""

    def __init__(self) -> None:
        self.on_arrival: Any = None
        self.open: list[tuple[StreamedAnswer, OnResponse]] = []

    def send(self, request: Any, on_response: OnResponse) -> int:
        self.open.append((StreamedAnswer(), on_response))
        return len(self.open) - 1

    def arrive(self, number: int) -> None:
        """A response to a request."""
        answer = self.open[number][0]
        answer.arrivals.append(perf_counter_ns())
        answer.end_ns = answer.first_byte_ns = answer.arrivals[-1]
        self.on_arrival(self, number)

    def end(self, number: int) -> None:
        """Nothing follows."""
        answer, on_response = self.open[number]
        on_response(answer)


def periodic(stream: FakeStream, start: int, end: int, step: int, period: int) -> PeriodicLoad:
    """A load whose slots are all on that stream."""
    slots = [Slot(stream, stream.send) for _ in range(end)]
    plan = PeriodicRange(start=start, end=end, step=step, period=period)
    return PeriodicLoad(FakeClient(), slots, RoundRobin((b"request",)), plan)
