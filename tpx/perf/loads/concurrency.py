"""A closed loop: a fixed number of requests in flight, each answered one replaced at once."""

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
from tpx.perf.loads.renewals import Renewals
from tpx.perf.records import SUCCESS

UNLIMITED = 1 << 62


class _Slot:
    """One unit of concurrency: sends on its lane, and sends again from within the callback of the answer.

    What is in a slot is called through a local: that spares Python a search of the class.
    """

    __slots__ = (
        "_append", "_call", "_load", "_next", "_on_response", "_outcomes", "_plain", "_sent_ns", "_success",
        "lane", "source", "start_ns",
    )  # fmt: skip

    def __init__(self, load: "ConcurrencyLoad", lane: Lane, source: Source) -> None:
        self._load = load
        self._outcomes = outcomes = load.outcomes
        self._append = outcomes.append
        self._success = outcomes.success
        self.source = source
        self._next = source.next
        self.lane = lane
        self._plain = self.on_streamed if outcomes.streams else self.on_response
        self._on_response = self.on_checked if outcomes.check else self._plain
        self._call: object = None
        self._sent_ns = 0
        self.start_ns = 0
        """When the request in flight was sent; 0 where there is none."""
        lane.on_lost = self.on_lost

    def send(self) -> None:
        """Send the next request, or rest where no more may be sent."""
        load = self._load
        if load.allowance <= 0:
            self.start_ns = 0
            load.slot_rests()
            return
        load.allowance -= 1
        send, request = self.lane.send, self._next()
        self.start_ns = perf_counter_ns()
        try:
            self._call = send(request, self._on_response)
        except WireError:
            # the connection was closed between two requests: none was lost, so none is counted
            load.allowance += 1
            self.start_ns = 0
            self.source.take_back()
            load.renew(self.lane, self._call, self.send)
            return
        self._sent_ns = perf_counter_ns()

    def on_response(self, response: Any) -> None:
        start_ns = self.start_ns
        if not start_ns:
            return  # the answer to a request that was given up
        source, append = self.source, self._append
        append(
            start_ns,
            start_ns,
            self._sent_ns,
            response.first_byte_ns,
            response.end_ns,
            SUCCESS if response.status == self._success else self._failed(response),
            1,
            source.step,
            source.sequence,
        )
        self.send()

    def on_streamed(self, response: Any) -> None:
        """The last response of a request that may have several, or the news that none follows."""
        start_ns = self.start_ns
        if not start_ns:
            return
        source = self.source
        if response.status != self._success:
            source.failed(source.sequence)
        self._outcomes.append_streamed(
            start_ns, start_ns, self._sent_ns, response, source.step, source.sequence
        )
        self.send()

    def on_checked(self, response: Any) -> None:
        """An answer that is compared with what was expected, once the next request is on its way."""
        if self.start_ns:
            step, row = self.source.step, len(self._outcomes.records)
            self._plain(response)
            self._outcomes.compare(row, step, response)

    def on_lost(self, error: WireError) -> None:
        """The connection broke: a request in flight has failed; the slot goes on when the lane is renewed."""
        if self.start_ns:
            self._give_up(LOST, str(error))

    def expire(self, before_ns: int) -> None:
        """Give up a request that was sent before `before_ns`."""
        if 0 < self.start_ns < before_ns:
            self._give_up(TIMED_OUT, "the request took longer than --timeout")

    def abandon(self) -> None:
        """Forget the request in flight; it is not counted."""
        self.start_ns = 0
        self._load.renew(self.lane, self._call, self._load.slot_rests)

    def detach(self) -> None:
        self.lane.on_lost = nobody_listens

    def _failed(self, response: Any) -> int:
        self.source.failed(self.source.sequence)
        return self._outcomes.count_failure(response)

    def _give_up(self, status: int, message: str) -> None:
        now_ns = perf_counter_ns()
        load = self._load
        self.source.failed(self.source.sequence)
        self._outcomes.count_local_failure(status, message)
        sent_ns = max(self._sent_ns, self.start_ns)
        step, sequence = self.source.step, self.source.sequence
        self._append(self.start_ns, self.start_ns, sent_ns, now_ns, now_ns, status, 0, step, sequence)
        self.start_ns = 0
        load.renew(self.lane, self._call, load.replace(self, self.lane).send)


async def open_load(asked: LoadRequest) -> "ConcurrencyLoad":
    """A level's requests in flight, or one worker's share of them."""
    target = asked.target
    lanes = await target.client.open(asked.share.part(int(asked.level.value)))
    return ConcurrencyLoad(target.client, lanes, target.feed, asked.settings.timeout_s)


class ConcurrencyLoad:
    """Implements Load: `len(lanes)` requests in flight, each slot sending what its source of `feed` gives.

    Requests that outlive `timeout_s` (0: none does) fail; so does the one in flight on a connection that
    breaks.
    """

    def __init__(self, client: Client, lanes: Sequence[Lane], feed: Feed, timeout_s: float = 0.0) -> None:
        self.outcomes = Outcomes(client, feed.check)
        self.records = self.outcomes.records
        self.allowance = 0
        self._renewals = Renewals(client, self._refused)
        self.renew = self._renewals.renew
        self._slots = [_Slot(self, lane, feed.source(i)) for i, lane in enumerate(lanes)]
        self._resting = len(self._slots)
        self._all_rest = asyncio.Event()
        self._all_rest.set()
        self._expiry = Expiry(timeout_s, self._expire)

    @property
    def failed(self) -> int:
        return self.outcomes.failed

    @property
    def processor_ns(self) -> int:
        return thread_time_ns()

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:  # noqa: ARG002 (begins at once)
        self.allowance = UNLIMITED if count is None else count
        self._resting = 0
        self._all_rest.clear()
        for slot in self._slots:
            slot.send()
        self._expiry.start()

    async def finished(self) -> None:
        await self._all_rest.wait()

    async def settled(self, until_ns: int) -> None:
        """Every row is there as soon as its request has ended."""

    async def stop(self, patience_s: float) -> None:
        self.allowance = 0
        try:
            async with asyncio.timeout(patience_s):
                await self._all_rest.wait()
        except TimeoutError:
            for slot in self._slots:
                if slot.start_ns:
                    slot.abandon()
        self._expiry.stop()
        await self._renewals.close(patience_s)
        await end_sequences([(slot.lane, slot.source) for slot in self._slots], patience_s)
        for slot in self._slots:
            slot.detach()

    def failures(self) -> Mapping[int, Failure]:
        return self.outcomes.failures()

    def replace(self, slot: _Slot, lane: Lane) -> _Slot:
        """A new slot on the lane of one whose request was given up, so that a late answer meets nobody."""
        fresh = _Slot(self, lane, slot.source)
        self._slots[self._slots.index(slot)] = fresh
        return fresh

    def slot_rests(self) -> None:
        """A slot has sent its last request and has its answer."""
        self._resting += 1
        if self._resting == len(self._slots):
            self._all_rest.set()

    def _refused(self, error: WireError) -> bool:
        """Every attempt to renew a lane that fails is a failed request."""
        if self.allowance <= 0:
            return False
        self.allowance -= 1
        self.outcomes.append_refused(error)
        return True

    def _expire(self, before_ns: int) -> None:
        for slot in list(self._slots):
            slot.expire(before_ns)
