"""A concurrency that grows while it is measured, by the responses of streams.

It begins with some requests, and whenever every request of the newest ones has had a number of responses, so
many more are sent, until there are as many as there shall be. Requests are not replaced. perf_analyzer:
periodic_concurrency_manager.cc, which ends short of or beyond the end where the start is no step.
"""

import asyncio
from collections.abc import Mapping, Sequence
from time import perf_counter_ns, thread_time_ns
from typing import Any

from tpx.errors import WireError
from tpx.perf.clients.base import LOST, TIMED_OUT, Client, Failure, Lane, nobody_listens
from tpx.perf.inputs.feed import Feed, Source
from tpx.perf.loads.base import LoadRequest
from tpx.perf.loads.endings import end_sequences
from tpx.perf.loads.expiry import Expiry
from tpx.perf.loads.outcomes import Outcomes
from tpx.perf.plan import PeriodicRange
from tpx.perf.records import Records

EARLY = -3
"""The status of a request whose stream ended before it had the responses of a period."""
RENEWAL_S = 1.0


class _Request:
    """One request on a lane of its own."""

    __slots__ = ("_load", "_period", "call", "lane", "left", "over", "sent_ns", "source", "start_ns")

    def __init__(self, load: "PeriodicLoad", lane: Lane, source: Source, period: int) -> None:
        self._load = load
        self._period = period
        self.lane = lane
        self.source = source
        self.left = period
        """Responses that it needs before more requests are sent."""
        self.over = False
        self.start_ns = self.sent_ns = 0
        self.call: object = None
        lane.on_lost = self.on_lost

    def send(self) -> None:
        """Raises WireError where the stream has ended."""
        self.start_ns = perf_counter_ns()
        self.call = self.lane.send(self.source.next(), self.on_end)
        self.sent_ns = perf_counter_ns()

    def on_arrival(self) -> None:
        self.left -= 1
        if not self.left:
            self._load.period_over()

    def on_end(self, response: Any) -> None:
        if not self.over:
            self.over = True
            self._load.ended(self, response, early=len(response.arrivals) < self._period)

    def on_lost(self, error: WireError) -> None:
        self.fail(LOST, str(error))

    def fail(self, status: int, message: str) -> None:
        if self.start_ns and not self.over:
            self.over = True
            self._load.failed_without_end(self, status, message)


async def open_load(asked: LoadRequest) -> "PeriodicLoad":
    """A level's growing concurrency; its value is the end."""
    target, end = asked.target, int(asked.level.value)
    plan = asked.settings.load.periodic or PeriodicRange(start=end, end=end)
    lanes = await target.client.open(end)
    return PeriodicLoad(target.client, lanes, target.feed, plan, asked.settings.timeout_s)


class PeriodicLoad:
    """Implements Load. `lanes` are as many as the range has at its end."""

    def __init__(
        self,
        client: Client,
        lanes: Sequence[Lane],
        feed: Feed,
        plan: PeriodicRange,
        timeout_s: float = 0.0,
    ) -> None:
        self.outcomes = Outcomes(client, feed.check)
        self.records: Records = self.outcomes.records
        self._client = client
        self._plan = plan
        self._requests = [_Request(self, lane, feed.source(i), plan.period) for i, lane in enumerate(lanes)]
        self._sent = 0
        self._over = 0
        self._behind = 0
        self._stopped = False
        self._expiry = Expiry(timeout_s, self._expire)
        self._at_rest = asyncio.Event()

    @property
    def failed(self) -> int:
        return self.outcomes.failed

    @property
    def processor_ns(self) -> int:
        return thread_time_ns()

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:  # noqa: ARG002 (all, at once)
        for request in self._requests:
            request.lane.connection.on_arrival = self._arrived
        self._by_call: dict[object, _Request] = {}
        self._send(self._plan.start)
        self._expiry.start()

    async def finished(self) -> None:
        await self._at_rest.wait()

    async def settled(self, until_ns: int) -> None:
        """Every row is there as soon as its request has ended."""

    async def stop(self, patience_s: float) -> None:
        self._stopped = True
        self._notice_rest()
        try:
            async with asyncio.timeout(patience_s):
                await self._at_rest.wait()
        except TimeoutError:
            await self._give_up()
        self._expiry.stop()
        await end_sequences([(r.lane, r.source) for r in self._requests if r.start_ns], patience_s)
        for request in self._requests:
            request.lane.on_lost = nobody_listens
            request.lane.connection.on_arrival = None

    def failures(self) -> Mapping[int, Failure]:
        return self.outcomes.failures()

    def period_over(self) -> None:
        """One of the newest requests has had its period; the last one of them calls for more."""
        self._behind -= 1
        if not self._behind and not self._stopped:
            self._send(min(self._plan.step, len(self._requests) - self._sent))

    def ended(self, request: _Request, response: Any, *, early: bool) -> None:
        """A request has had its last response."""
        if early and response.status == self.outcomes.success:
            message = (
                f"the stream ended after {len(response.arrivals)} responses: --request-period wants more"
            )
            self._record_failure(request, EARLY, message)
        else:
            source, row = request.source, len(self.records)
            self.outcomes.append_streamed(
                request.start_ns, request.start_ns, request.sent_ns, response, source.step, source.sequence
            )
            self.outcomes.compare(row, source.step, response)
        self._one_over(request)

    def failed_without_end(self, request: _Request, status: int, message: str) -> None:
        """A request whose connection broke, or that took too long."""
        self._record_failure(request, status, message)
        self._one_over(request)

    def _record_failure(self, request: _Request, status: int, message: str) -> None:
        now_ns = perf_counter_ns()
        self.outcomes.count_local_failure(status, message)
        start_ns, source = request.start_ns, request.source
        sent_ns = request.sent_ns or start_ns
        self.outcomes.append(
            start_ns, start_ns, sent_ns, now_ns, now_ns, status, 0, source.step, source.sequence
        )

    def _one_over(self, request: _Request) -> None:
        self._over += 1
        self._by_call.pop((id(request.lane.connection), request.call), None)
        if request.left > 0:
            request.left = 0
            self.period_over()
        self._notice_rest()

    def _send(self, count: int) -> None:
        fresh = self._requests[self._sent : self._sent + count]
        self._sent += len(fresh)
        self._behind = len(fresh)
        for request in fresh:
            try:
                request.send()
            except WireError as exc:
                request.fail(LOST, str(exc))
            else:
                self._by_call[id(request.lane.connection), request.call] = request

    def _arrived(self, connection: object, call: object) -> None:
        request = self._by_call.get((id(connection), call))
        if request is not None:
            request.on_arrival()

    def _notice_rest(self) -> None:
        if self._over == self._sent and (self._stopped or self._sent == len(self._requests)):
            self._at_rest.set()

    async def _give_up(self) -> None:
        """What is still in flight is cancelled, and not counted."""
        for request in self._requests[: self._sent]:
            if not request.over:
                request.over = True
                async with asyncio.timeout(RENEWAL_S):
                    await self._client.renew(request.lane, request.call)

    def _expire(self, before_ns: int) -> None:
        for request in self._requests[: self._sent]:
            if request.start_ns < before_ns:
                request.fail(TIMED_OUT, "the request took longer than --timeout")
