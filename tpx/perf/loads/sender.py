"""One lane of an open loop: it carries one request at a time, and says when it is free again."""

from time import perf_counter_ns
from typing import Any, Protocol

from tpx.errors import WireError
from tpx.perf.clients.base import LOST, TIMED_OUT, Lane
from tpx.perf.inputs.feed import Source
from tpx.perf.loads.outcomes import Outcomes
from tpx.perf.records import SUCCESS


class Owner(Protocol):
    """Whoever gives requests to senders."""

    def released(self, sender: "Sender", now_ns: int) -> None:
        """The sender has its answer and may be given another request."""

    def lost(self, sender: "Sender", call: object) -> None:
        """The sender gave up the request `call`, whose answer may still come."""


class Sender:
    """A lane with at most one request in flight."""

    __slots__ = (
        "_append", "_call", "_load", "_on_response", "_outcomes", "_plain", "_sent_ns", "_sequence", "_step",
        "_success", "_using", "intended_ns", "lane", "source", "start_ns",
    )  # fmt: skip

    def __init__(self, load: Owner, outcomes: Outcomes, lane: Lane, source: Source) -> None:
        self._load = load
        self._outcomes = outcomes
        self._append = outcomes.append
        self._success = outcomes.success
        self._plain = self.on_streamed if outcomes.streams else self.on_response
        self._on_response = self.on_checked if outcomes.check else self._plain
        self._call: object = None
        self._sent_ns = 0
        self._step = 0
        self._sequence = 0
        self.lane = lane
        self.source = source
        self._using = source
        """Whose request is in flight, where sources are shared."""
        self.intended_ns = 0
        self.start_ns = 0
        """When the request in flight was sent; 0 where there is none."""
        lane.on_lost = self.on_lost

    def send(self, intended_ns: int, source: Source) -> bool:
        """Send; False where the connection was closed, which loses nothing."""
        self.intended_ns = intended_ns
        self._using = source
        request = source.next()
        self._step, self._sequence = source.step, source.sequence
        self.start_ns = perf_counter_ns()
        try:
            self._call = self.lane.send(request, self._on_response)
        except WireError:
            self.start_ns = 0
            source.take_back()
            return False
        self._sent_ns = perf_counter_ns()
        return True

    def on_response(self, response: Any) -> None:
        start_ns = self.start_ns
        if not start_ns:
            return  # the answer to a request that was given up
        self.start_ns = 0
        self._append(
            start_ns,
            self.intended_ns,
            self._sent_ns,
            response.first_byte_ns,
            response.end_ns,
            SUCCESS if response.status == self._success else self._failed(response),
            1,
            self._step,
            self._sequence,
        )
        self._load.released(self, perf_counter_ns())

    def on_streamed(self, response: Any) -> None:
        """The last response of a request that may have several, or the news that none follows."""
        start_ns = self.start_ns
        if not start_ns:
            return
        self.start_ns = 0
        if response.status != self._success:
            self._using.failed(self._sequence)
        self._outcomes.append_streamed(
            start_ns, self.intended_ns, self._sent_ns, response, self._step, self._sequence
        )
        self._load.released(self, perf_counter_ns())

    def on_checked(self, response: Any) -> None:
        """An answer that is compared with what was expected, once the lane has gone on."""
        if self.start_ns:
            step, row = self._step, len(self._outcomes.records)
            self._plain(response)
            self._outcomes.compare(row, step, response)

    def on_lost(self, error: WireError) -> None:
        if self.start_ns:
            self._give_up(LOST, str(error))

    def expire(self, before_ns: int) -> None:
        """Give up a request that was sent before `before_ns`."""
        if 0 < self.start_ns < before_ns:
            self._give_up(TIMED_OUT, "the request took longer than --timeout")

    def _failed(self, response: Any) -> int:
        self._using.failed(self._sequence)
        return self._outcomes.count_failure(response)

    def _give_up(self, status: int, message: str) -> None:
        now_ns = perf_counter_ns()
        self._using.failed(self._sequence)
        self._outcomes.count_local_failure(status, message)
        sent_ns = max(self._sent_ns, self.start_ns)
        self._append(
            self.start_ns, self.intended_ns, sent_ns, now_ns, now_ns, status, 0, self._step, self._sequence
        )
        self.start_ns = 0
        self._load.lost(self, self._call)

    def abandon(self) -> None:
        """Forget the request in flight; it is not counted."""
        self.start_ns = 0
        self._load.lost(self, self._call)
