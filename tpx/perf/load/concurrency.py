"""A closed loop: a fixed number of requests in flight, each answered one replaced at once."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

from tpx.errors import WireError
from tpx.perf.clients.base import LOST, TIMED_OUT, Client, Failure, Lane, nobody_listens
from tpx.perf.inputs.feed import Feed, Source
from tpx.perf.records import SUCCESS, Records

UNLIMITED = 1 << 62
FIRST_RETRY_S = 0.02
LAST_RETRY_S = 1.0


class _Slot:
    """One unit of concurrency: sends on its lane, and sends again from within the callback of the answer."""

    __slots__ = ("_call", "_lane", "_load", "_next", "_on_response", "_sent_ns", "source", "start_ns")

    def __init__(self, load: "ConcurrencyLoad", lane: Lane, source: Source) -> None:
        self._load = load
        self.source = source
        self._next = source.next
        self._lane = lane
        self._on_response = self.on_response
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
        self.start_ns = perf_counter_ns()
        try:
            self._call = self._lane.send(self._next(), self._on_response)
        except WireError as exc:
            load.allowance += 1
            self._not_sent(exc)
            return
        self._sent_ns = perf_counter_ns()

    def on_response(self, response: Any) -> None:
        end_ns = perf_counter_ns()
        load = self._load
        start_ns = self.start_ns
        if not start_ns:
            return  # the answer to a request that was given up
        status = SUCCESS if response.status == load.success else load.count_failure(response)
        source = self.source
        load.append(
            start_ns,
            start_ns,
            self._sent_ns,
            response.first_byte_ns,
            end_ns,
            status,
            1,
            source.step,
            source.sequence,
        )
        self.send()

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
        self._load.renew(self._lane, self._call, self._load.slot_rests)

    def detach(self) -> None:
        self._lane.on_lost = nobody_listens

    def _give_up(self, status: int, message: str) -> None:
        now_ns = perf_counter_ns()
        load = self._load
        load.count_local_failure(status, message)
        sent_ns = max(self._sent_ns, self.start_ns)
        step, sequence = self.source.step, self.source.sequence
        load.append(self.start_ns, self.start_ns, sent_ns, now_ns, now_ns, status, 0, step, sequence)
        self.start_ns = 0
        load.renew(self._lane, self._call, load.replace(self, self._lane).send)

    def _not_sent(self, _: WireError) -> None:
        """The connection was closed between two requests: none was lost, so none is counted."""
        self.start_ns = 0
        self._load.renew(self._lane, self._call, self.send)


class ConcurrencyLoad:
    """`len(lanes)` requests in flight, each slot sending what its source of `feed` gives.

    Requests that outlive `timeout_s` (0: none does) fail; so does the one in flight on a connection that
    breaks.
    """

    def __init__(self, client: Client, lanes: Sequence[Lane], feed: Feed, timeout_s: float = 0.0) -> None:
        self.records = Records()
        self.append = self.records.append
        self.success = client.success
        self.allowance = 0
        self.failed = 0
        self._client = client
        self._slots = [_Slot(self, lane, feed.source(i)) for i, lane in enumerate(lanes)]
        self._failures: dict[int, Failure] = {}
        self._resting = len(self._slots)
        self._all_rest = asyncio.Event()
        self._all_rest.set()
        self._renewals: set[asyncio.Task[None]] = set()
        self._timeout_ns = int(timeout_s * 1e9)
        self._expiry: asyncio.TimerHandle | None = None

    def start(self, count: int | None = None) -> None:
        self.allowance = UNLIMITED if count is None else count
        self._resting = 0
        self._all_rest.clear()
        for slot in self._slots:
            slot.send()
        if self._timeout_ns:
            self._expire()

    async def finished(self) -> None:
        await self._all_rest.wait()

    async def stop(self, patience_s: float) -> None:
        self.allowance = 0
        try:
            async with asyncio.timeout(patience_s):
                await self._all_rest.wait()
        except TimeoutError:
            for slot in self._slots:
                if slot.start_ns:
                    slot.abandon()
        if self._expiry is not None:
            self._expiry.cancel()
        for slot in self._slots:
            slot.detach()
        if self._renewals:
            await asyncio.wait(self._renewals, timeout=patience_s)
        for task in self._renewals:
            task.cancel()

    def failures(self) -> Mapping[int, Failure]:
        return dict(self._failures)

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

    def count_failure(self, response: Any) -> int:
        """Count an unsuccessful response; returns its status."""
        self.failed += 1
        status = int(response.status)
        if status not in self._failures:
            self._failures[status] = self._client.failure(response)
        return status

    def count_local_failure(self, status: int, message: str) -> None:
        self.failed += 1
        code = "connection lost" if status == LOST else "timeout"
        self._failures.setdefault(status, Failure(code, message))

    def renew(self, lane: Lane, call: object, then: Any) -> None:
        """Renew a lane in the background, and go on with `then`."""
        task = asyncio.get_running_loop().create_task(self._renew(lane, call))
        self._renewals.add(task)
        task.add_done_callback(partial(self._renewed, then))

    def _renewed(self, then: Any, task: asyncio.Task[None]) -> None:
        self._renewals.discard(task)
        if not task.cancelled():
            task.result()
            then()

    async def _renew(self, lane: Lane, call: object) -> None:
        """Until it works, or the load has been stopped; every attempt but the first that fails is a failed
        request."""
        pause_s = FIRST_RETRY_S
        while True:
            try:
                await self._client.renew(lane, call)
            except WireError as exc:
                if self.allowance <= 0:
                    return
                self.allowance -= 1
                now_ns = perf_counter_ns()
                self.count_local_failure(LOST, str(exc))
                self.append(now_ns, now_ns, now_ns, now_ns, now_ns, LOST, 0)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LAST_RETRY_S)
            else:
                return

    def _expire(self) -> None:
        before_ns = perf_counter_ns() - self._timeout_ns
        for slot in self._slots:
            slot.expire(before_ns)
        self._expiry = asyncio.get_running_loop().call_later(min(self._timeout_ns / 1e10, 0.1), self._expire)
