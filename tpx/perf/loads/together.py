"""A closed loop of queries: several requests leave together, and the next query when the last of them is
answered. MLPerf's MultiStream."""

import asyncio
from collections.abc import Mapping, Sequence
from time import perf_counter_ns, thread_time_ns
from typing import Any

from tpx.errors import WireError
from tpx.perf.clients.base import LOST, MISMATCH, TIMED_OUT, Client, Failure, Lane, nobody_listens
from tpx.perf.inputs.feed import Feed, Source
from tpx.perf.loads.base import LoadRequest
from tpx.perf.loads.endings import end_sequences
from tpx.perf.loads.expiry import Expiry
from tpx.perf.loads.outcomes import Outcomes
from tpx.perf.loads.renewals import Renewals
from tpx.perf.records import SUCCESS

NEVER = 1 << 62


class _Strand:
    """One request of each query, on a lane of its own."""

    __slots__ = ("_load", "call", "lane", "source", "waiting")

    def __init__(self, load: "QueryLoad", lane: Lane, source: Source) -> None:
        self._load = load
        self.lane = lane
        self.source = source
        self.call: object = None
        self.waiting = False
        lane.on_lost = self.on_lost

    def send(self) -> bool:
        """False where the connection has been closed, which fails nothing yet."""
        self.waiting = True
        try:
            self.call = self.lane.send(self.source.next(), self.on_response)
        except WireError:
            self.waiting = False
            self.source.take_back()
        return self.waiting

    def on_response(self, response: Any) -> None:
        if self.waiting:
            self.waiting = False
            self._load.answered(self, response)

    def on_lost(self, error: WireError) -> None:
        if self.waiting:
            self.give_up(LOST, str(error))

    def give_up(self, status: int, message: str) -> None:
        self.waiting = False
        self._load.lost(self, status, message)


async def open_load(asked: LoadRequest) -> "QueryLoad":
    """A level's queries; its value is how many requests each has."""
    target = asked.target
    lanes = await target.client.open(int(asked.level.value))
    return QueryLoad(target.client, lanes, target.feed, asked.settings.timeout_s)


class QueryLoad:
    """Implements Load: one query in flight, of a request on each of `lanes`. A row is a query: it ends with
    its last answer, and has failed where one of its requests has."""

    def __init__(self, client: Client, lanes: Sequence[Lane], feed: Feed, timeout_s: float = 0.0) -> None:
        self.outcomes = Outcomes(client, feed.check)
        self.records = self.outcomes.records
        self._renewals = Renewals(client, self._refused)
        self._strands = [_Strand(self, lane, feed.source(i)) for i, lane in enumerate(lanes)]
        self._left = 0
        self._missing = 0
        self._renewing = 0
        self._start_ns = self._sent_ns = self._first_ns = 0
        self._status = SUCCESS
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._expiry = Expiry(timeout_s, self._expire)

    @property
    def failed(self) -> int:
        return self.outcomes.failed

    @property
    def processor_ns(self) -> int:
        return thread_time_ns()

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:  # noqa: ARG002 (begins at once)
        self._left = NEVER if count is None else count
        self._at_rest.clear()
        self._next()
        self._expiry.start()

    async def finished(self) -> None:
        await self._at_rest.wait()

    async def settled(self, until_ns: int) -> None:
        """Every row is there as soon as its query has ended."""

    async def stop(self, patience_s: float) -> None:
        self._left = 0
        try:
            async with asyncio.timeout(patience_s):
                await self._at_rest.wait()
        except TimeoutError:
            self._abandon()
        self._expiry.stop()
        await self._renewals.close(patience_s)
        await end_sequences([(strand.lane, strand.source) for strand in self._strands], patience_s)
        for strand in self._strands:
            strand.lane.on_lost = nobody_listens

    def failures(self) -> Mapping[int, Failure]:
        return self.outcomes.failures()

    def answered(self, strand: _Strand, response: Any) -> None:
        """One of the query's requests has its answer."""
        if not self._first_ns:
            self._first_ns = response.first_byte_ns
        if response.status != self.outcomes.success and self._status == SUCCESS:
            strand.source.failed(strand.source.sequence)
            self._status = self.outcomes.count_failure(response)
        self._compare(strand, response)
        self._one_less()

    def _compare(self, strand: _Strand, response: Any) -> None:
        check = self.outcomes.check
        if check is None or self._status != SUCCESS:
            return
        wrong = check(strand.source.step, response)
        if wrong:
            self._status = MISMATCH
            self.outcomes.count_local_failure(MISMATCH, wrong)

    def lost(self, strand: _Strand, status: int, message: str) -> None:
        """One of the query's requests has failed without an answer."""
        if self._status == SUCCESS:
            self._status = status
            self.outcomes.count_local_failure(status, message)
        self._renew(strand)
        self._one_less()

    def _one_less(self) -> None:
        self._missing -= 1
        if self._missing:
            return
        end_ns = perf_counter_ns()
        start_ns, count = self._start_ns, len(self._strands)
        self.outcomes.append(
            start_ns, start_ns, self._sent_ns, self._first_ns or end_ns, end_ns, self._status, count
        )
        self._next()

    def _next(self) -> None:
        """Send the next query, once every lane is there."""
        if self._renewing:
            return
        if self._left <= 0:
            self._at_rest.set()
            return
        self._left -= 1
        self._status, self._first_ns = SUCCESS, 0
        self._missing = len(self._strands)
        self._start_ns = perf_counter_ns()
        closed = [strand for strand in self._strands if not strand.send()]
        self._sent_ns = perf_counter_ns()
        for strand in closed:
            self._renew(strand, resend=True)

    def _expire(self, before_ns: int) -> None:
        if self._start_ns >= before_ns:
            return
        for strand in list(self._strands):
            if strand.waiting:
                strand.give_up(TIMED_OUT, "the request took longer than --timeout")

    def _abandon(self) -> None:
        """Forget the query in flight; it is not counted."""
        for strand in self._strands:
            if strand.waiting:
                strand.waiting = False
                self._renew(strand)

    def _renew(self, strand: _Strand, *, resend: bool = False) -> None:
        fresh = _Strand(self, strand.lane, strand.source)
        self._strands[self._strands.index(strand)] = fresh
        self._renewing += 1

        def renewed() -> None:
            self._renewing -= 1
            if not resend:
                self._next_if_over()
            elif not fresh.send():
                self._renew(fresh, resend=True)

        self._renewals.renew(strand.lane, strand.call, renewed)

    def _next_if_over(self) -> None:
        if not self._missing and not self._at_rest.is_set():
            self._next()

    def _refused(self, error: WireError) -> bool:
        """A server that takes no connection costs a query an attempt."""
        if self._left <= 0:
            self._at_rest.set()
            return False
        self._left -= 1
        self.outcomes.append_refused(error)
        return True
