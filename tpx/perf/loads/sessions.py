"""Conversations that run at the same time, the turns of each one after the other.

A turn leaves when the one before it is answered and that one's delay is over; when a conversation ends the
next one begins, each once. A turn that fails ends its conversation, because what would follow depends on its
answer. perf_analyzer: session_concurrency_manager.cc, where the whole run ends with it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np

from tpx.errors import WireError
from tpx.perf.clients.base import LOST, TIMED_OUT, Client, Failure, Lane, nobody_listens
from tpx.perf.inputs.conversations import Conversation
from tpx.perf.loads.base import LoadRequest
from tpx.perf.loads.expiry import Expiry
from tpx.perf.loads.outcomes import Outcomes
from tpx.perf.loads.renewals import Renewals
from tpx.perf.records import Records, Rows, succeeded
from tpx.perf.results import Sessions

UNLIMITED = 1 << 62


class _Seat:
    """Room for one conversation at a time, on a lane of its own."""

    __slots__ = (
        "_at", "_call", "_conversation", "_load", "_sent_ns", "_timer", "lane", "renewals", "start_ns",
    )  # fmt: skip

    def __init__(self, load: "SessionLoad", client: Client, lane: Lane) -> None:
        self._load = load
        self.renewals = Renewals(client, self._refused)
        self.lane = lane
        self._conversation: Conversation = ()
        self._at = 0
        self._timer: asyncio.TimerHandle | None = None
        self._call: object = None
        self._sent_ns = 0
        self.start_ns = 0
        """When the turn in flight was sent; 0 where there is none."""
        lane.on_lost = self._on_lost

    def begin(self) -> None:
        """Send the first turn of the next conversation, or rest where none is left."""
        self._take_next()
        self._send()

    def hush(self) -> None:
        """Wait for no delay any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._send()

    def expire(self, before_ns: int) -> None:
        """Give up a turn that was sent before `before_ns`."""
        if 0 < self.start_ns < before_ns:
            self._give_up(TIMED_OUT, "the request took longer than --timeout")

    def abandon(self) -> None:
        """Forget the turn in flight; it is not counted."""
        if self.start_ns:
            self.start_ns = 0
            self.renewals.renew(self.lane, self._call, self._load.seat_rests)

    def _take_next(self) -> None:
        self._conversation, self._at = self._load.next_conversation(), 0

    def _send(self) -> None:
        load = self._load
        self._timer = None
        if load.allowance <= 0 or not self._conversation:
            load.seat_rests()
            return
        load.allowance -= 1
        self.start_ns = perf_counter_ns()
        try:
            self._call = self.lane.send(self._conversation[self._at].request, self._on_end)
        except WireError:
            # the connection was closed between two turns: none was lost, so none is counted
            load.allowance += 1
            self.start_ns = 0
            self.renewals.renew(self.lane, self._call, self._send)
            return
        self._sent_ns = perf_counter_ns()

    def _on_end(self, response: Any) -> None:
        start_ns, outcomes = self.start_ns, self._load.outcomes
        if not start_ns:
            return  # the answer to a turn that was given up
        self.start_ns = 0
        turn = self._conversation[self._at]
        outcomes.append_streamed(start_ns, start_ns, self._sent_ns, response, turn.step, 0)
        self._at += 1
        if response.status != outcomes.success or self._at == len(self._conversation):
            self.begin()
        elif turn.delay_ns:
            self._timer = asyncio.get_running_loop().call_later(turn.delay_ns / 1e9, self._send)
        else:
            self._send()

    def _on_lost(self, error: WireError) -> None:
        if self.start_ns:
            self._give_up(LOST, str(error))

    def _give_up(self, status: int, message: str) -> None:
        now_ns, start_ns = perf_counter_ns(), self.start_ns
        outcomes, step = self._load.outcomes, self._conversation[self._at].step
        outcomes.count_local_failure(status, message)
        outcomes.append(start_ns, start_ns, max(self._sent_ns, start_ns), now_ns, now_ns, status, 0, step)
        self.start_ns = 0
        self._take_next()
        self.renewals.renew(self.lane, self._call, self._send)

    def _refused(self, error: WireError) -> bool:
        """An attempt to renew the lane has failed, and with it the turn that was to be sent."""
        if self._load.allowance <= 0 or not self._conversation:
            return False
        self._load.outcomes.append_refused(error)
        self._take_next()
        return bool(self._conversation)


async def open_load(asked: LoadRequest) -> "SessionLoad":
    """A level's conversations at a time."""
    target = asked.target
    lanes = await target.client.open(int(asked.level.value))
    return SessionLoad(target.client, lanes, target.conversations, asked.settings.timeout_s)


class SessionLoad:
    """Implements Load: as many of the conversations at a time as there are lanes."""

    def __init__(
        self,
        client: Client,
        lanes: Sequence[Lane],
        conversations: Sequence[Conversation],
        timeout_s: float = 0.0,
    ) -> None:
        self.outcomes = Outcomes(client)
        self.records: Records = self.outcomes.records
        self.allowance = 0
        self._left = iter(conversations)
        self._seats = [_Seat(self, client, lane) for lane in lanes]
        self._resting = len(self._seats)
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
        for seat in self._seats:
            seat.begin()
        self._expiry.start()

    async def finished(self) -> None:
        await self._all_rest.wait()

    async def settled(self, until_ns: int) -> None:
        """Every row is there as soon as its request has ended."""

    async def stop(self, patience_s: float) -> None:
        self.allowance = 0
        for seat in self._seats:
            seat.hush()
        try:
            async with asyncio.timeout(patience_s):
                await self._all_rest.wait()
        except TimeoutError:
            for seat in self._seats:
                seat.abandon()
        self._expiry.stop()
        await asyncio.gather(*(seat.renewals.close(patience_s) for seat in self._seats))
        for seat in self._seats:
            seat.lane.on_lost = nobody_listens

    def failures(self) -> Mapping[int, Failure]:
        return self.outcomes.failures()

    def next_conversation(self) -> Conversation:
        """The next one that has not begun; without turns where none is left."""
        return next(self._left, ())

    def seat_rests(self) -> None:
        """A seat has sent its last turn and has its answer."""
        self._resting += 1
        if self._resting == len(self._seats):
            self._all_rest.set()

    def _expire(self, before_ns: int) -> None:
        for seat in self._seats:
            seat.expire(before_ns)


def session_figures(rows: Rows, conversations: Sequence[Conversation]) -> Sessions:
    """What became of conversations; every turn that was due has its row."""
    last = [turns[-1].step for turns in conversations]
    return Sessions(
        total=len(conversations),
        finished=int(np.isin(last, succeeded(rows)["step"]).sum()),
        unsent_turns=sum(map(len, conversations)) - len(rows),
    )
