"""An open loop: every request has a time of its own, whatever becomes of those before it.

Nothing is coordinated with the server: a request that is due while no connection is free waits with its
intended time, which its row keeps, and goes out as soon as one is.
"""

import asyncio
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter_ns, thread_time_ns

import numpy as np

from tpx.errors import UsageError, WireError
from tpx.perf.clients.base import Client, Failure, Lane, nobody_listens
from tpx.perf.inputs.feed import Feed, Source
from tpx.perf.levels import Level
from tpx.perf.loads.base import LoadRequest
from tpx.perf.loads.endings import end_sequences
from tpx.perf.loads.expiry import Expiry
from tpx.perf.loads.outcomes import Outcomes
from tpx.perf.loads.pacing import Alarm, alarm
from tpx.perf.loads.renewals import Renewals
from tpx.perf.loads.schedules import Offsets, at_once, listed, offsets
from tpx.perf.loads.sender import Sender
from tpx.perf.loads.timetable import NEVER, Timetable
from tpx.perf.plan import LATE_NS, LatePolicy, LoadPlan

SENDS_A_TURN = 64
"""So many requests that are due at once are sent before answers are read again."""
LANES_A_STEP = 8
"""New lanes are taken into use after so many have been opened; more at a time would delay what is due."""
GROWTH_RETRY_S = 1.0
"""Opening lanes is tried again so long after one could not be opened."""
FEWEST_AHEAD, MOST_AHEAD = 16, 512
"""Bounds of the connections that an open loop holds ready; servers commonly take 1024 open files."""
AHEAD_S = 1.0
"""An open loop holds connections ready for all requests that are due in this time, so that a server which
stalls for as long holds none of them back: a stalled server accepts no new connections either."""


async def open_rate(asked: LoadRequest) -> "RateLoad":
    """Requests per second, or at a user's intervals."""
    return await _open(asked, offsets(asked.level, asked.settings.load, asked.share))


async def open_at_once(asked: LoadRequest) -> "RateLoad":
    """All requests at the start."""
    settings = asked.settings
    return await _open(asked, at_once(settings.request_count, asked.share, settings.load.sequences))


async def open_schedule(asked: LoadRequest) -> "RateLoad":
    """Every step of the data at its own time. What is sent to warm up is not sent again; what is left behind
    it begins at once."""
    times_ns, count = asked.target.timestamps_ns, asked.settings.warmup_requests
    if asked.warming:
        times_ns = times_ns[:count]
    elif count and times_ns[count:]:
        times_ns = tuple(t - times_ns[count] for t in times_ns[count:])
    return await _open(asked, listed(np.asarray(times_ns, np.int64), asked.share), times_ns)


async def _open(
    asked: LoadRequest, schedule: Iterator[Offsets], times_ns: tuple[int, ...] = ()
) -> "RateLoad":
    plan, share, client = asked.settings.load, asked.share, asked.target.client
    most = max(1, share.part(plan.sequences or plan.max_connections))
    ahead = min(most, max(1, share.part(lanes_ahead(asked.level, plan, times_ns))))
    return RateLoad(
        client,
        await client.open(most if plan.sequences else ahead),
        asked.target.feed,
        schedule,
        OpenLoopSettings(
            timeout_s=asked.settings.timeout_s,
            late=plan.late,
            max_connections=most,
            ahead=ahead,
            sequences=share.part(plan.sequences),
            # the order in which they arrive is only sure for requests that wait for each other
            serial=plan.serial or plan.sequences > 0,
        ),
    )


def lanes_ahead(level: Level, plan: LoadPlan, times_ns: Sequence[int] = ()) -> int:
    """Return how many lanes an open loop holds ready, all workers together: enough for what is due in
    AHEAD_S. `times_ns` is a fixed schedule."""
    if level.kind.at_once:
        return plan.max_connections
    due = max(level.value * AHEAD_S, plan.arrivals.burst)
    if times_ns:
        times = np.asarray(times_ns, np.int64)
        ends = np.searchsorted(times, times + int(AHEAD_S * 1e9), side="right")
        due = int((ends - np.arange(len(times))).max())
    return min(plan.max_connections, max(FEWEST_AHEAD, math.ceil(min(due, MOST_AHEAD))))


def check_timestamps(timestamps_ns: tuple[int, ...]) -> None:
    """Raise UsageError where a fixed schedule goes back in time."""
    if not timestamps_ns:
        raise UsageError("The dataset provided is empty. --fixed-schedule needs a timestamp in every step.")
    if min(timestamps_ns) < 0:
        raise UsageError("--fixed-schedule: a timestamp is below 0")
    for number, (before, after) in enumerate(pairwise(timestamps_ns), 1):
        if after < before:
            raise UsageError(
                f"--fixed-schedule: the timestamp of step {number} ({after / 1e6:g} ms) is before that of "
                f"the step before it ({before / 1e6:g} ms)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoopSettings:
    """What an open loop may do."""

    timeout_s: float = 0.0
    late: LatePolicy = "send"
    max_connections: int = 1024
    ahead: int = 0
    """How many free lanes are held ready for a time in which the server stalls."""
    sequences: int = 0
    """How many sequences are open at a time; 0 where requests belong to none."""
    serial: bool = False
    """Whether a sequence waits for an answer before its next request."""


class RateLoad:
    """Implements Load: sends at the times of a schedule.

    `lanes` are what is open at first; more are opened, up to `max_connections`, once half of those that are
    held ready (`settings.ahead`) are in use. A request that is late by more than a millisecond is sent at
    once, or skipped and counted in `skipped`, as `settings.late` says.
    """

    def __init__(
        self,
        client: Client,
        lanes: Sequence[Lane],
        feed: Feed,
        schedule: Iterator[Offsets],
        settings: OpenLoopSettings,
    ) -> None:
        self.outcomes = Outcomes(client, feed.check)
        self.records = self.outcomes.records
        self.skipped = 0
        self._client = client
        self._feed = feed
        self._settings = settings
        self._most = settings.sequences if settings.serial else settings.max_connections
        self._renewals = Renewals(client, self._refused)
        sequences = 0 if settings.serial else settings.sequences
        self._shared = deque(feed.source(i) for i in range(sequences))
        self._senders: list[Sender] = []
        self._free: deque[Sender] = deque()
        # sequences take turns; other lanes do best when the last one that was used is used again
        self._take = self._free.popleft if settings.serial and settings.sequences else self._free.pop
        self._add(lanes[: self._most])
        self._timetable = Timetable(schedule)
        self._starved = False
        self._alarm: Alarm | None = None
        self._few = settings.ahead // 2
        """With so many free lanes, or fewer, more are opened."""
        self._enough = max(1, settings.ahead)
        self._growth: asyncio.Task[None] | None = None
        self._all_rest = asyncio.Event()
        self._expiry = Expiry(settings.timeout_s, self._expire)

    @property
    def failed(self) -> int:
        return self.outcomes.failed

    @property
    def processor_ns(self) -> int:
        return thread_time_ns()

    @property
    def connections(self) -> int:
        """How many lanes there are by now."""
        return len(self._senders)

    @property
    def in_flight(self) -> int:
        """How many lanes carry a request, or are being renewed."""
        return len(self._senders) - len(self._free)

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:
        """Send by the schedule, whose times count from `origin_ns`, or from now."""
        self._alarm = alarm(self._fire)
        self._timetable.begin(count, origin_ns or perf_counter_ns())
        self._fire()
        self._notice_rest()
        self._expiry.start()

    async def finished(self) -> None:
        await self._all_rest.wait()

    async def settled(self, until_ns: int) -> None:
        """Every row is there as soon as its request has ended."""

    async def stop(self, patience_s: float) -> None:
        self._timetable.end()
        if self._alarm is not None:
            self._alarm.close()
        if self._growth is not None:
            self._growth.cancel()
            await asyncio.wait([self._growth])
        self._notice_rest()
        try:
            async with asyncio.timeout(patience_s):
                await self._all_rest.wait()
        except TimeoutError:
            for sender in list(self._senders):
                if sender.start_ns:
                    sender.abandon()
        self._expiry.stop()
        await self._renewals.close(patience_s)
        await end_sequences(self._open_sources(), patience_s)
        for sender in self._senders:
            sender.lane.on_lost = nobody_listens

    def failures(self) -> Mapping[int, Failure]:
        return self.outcomes.failures()

    def released(self, sender: Sender, now_ns: int) -> None:
        """A lane has its answer: it takes what waits, or waits itself."""
        if self._timetable.due_ns <= now_ns:
            self._skip_late(now_ns)
            if self._timetable.due_ns <= now_ns:
                self._send_on(sender)
                return
        self._free.append(sender)
        if self._starved:
            self._starved = False
            self._fire()
        if self._timetable.due_ns == NEVER:
            self._notice_rest()

    def lost(self, sender: Sender, call: object) -> None:
        """A lane whose request was given up; a new sender on it meets no late answer."""
        fresh = Sender(self, self.outcomes, sender.lane, sender.source)
        self._senders[self._senders.index(sender)] = fresh
        self._renew(fresh, call)

    def _renew(self, sender: Sender, call: object = None) -> None:
        self._renewals.renew(sender.lane, call, lambda: self.released(sender, perf_counter_ns()))

    def _refused(self, error: WireError) -> bool:
        """A lane that cannot be renewed takes no request: those that are due wait for others, or fail here
        where there are none."""
        if self._timetable.over:
            return False
        if self._timetable.due_ns <= perf_counter_ns():
            self.outcomes.append_refused(error, self._timetable.due_ns)
            self._timetable.advance()
        return True

    def _fire(self) -> None:
        """Send what is due, as far as lanes are free."""
        free = self._free
        now_ns = perf_counter_ns()
        self._skip_late(now_ns)
        for _ in range(SENDS_A_TURN):
            if self._timetable.due_ns > now_ns:
                break
            if not free:
                self._starved = True
                self._grow()
                return
            self._send_on(self._take())
        if len(free) <= self._few:
            self._grow()
        if self._timetable.due_ns == NEVER:
            self._notice_rest()  # the last one may have been skipped while every lane was free
        elif self._alarm is not None:
            self._alarm.set(self._timetable.due_ns)

    def _send_on(self, sender: Sender) -> None:
        intended_ns = self._timetable.due_ns
        shared = self._shared
        if shared:
            source = shared[0]
            shared.rotate(-1)
        else:
            source = sender.source
        if sender.send(intended_ns, source):
            self._timetable.advance()
        else:
            if shared:
                shared.rotate(1)
            self._renew(sender)

    def _skip_late(self, now_ns: int) -> None:
        if self._settings.late == "skip":
            self.skipped += self._timetable.skip(now_ns - LATE_NS)

    def _notice_rest(self) -> None:
        if self._timetable.due_ns == NEVER and not self.in_flight:
            self._all_rest.set()

    def _add(self, lanes: Sequence[Lane]) -> None:
        first = len(self._senders)
        fresh = [Sender(self, self.outcomes, lane, self._source(i)) for i, lane in enumerate(lanes, first)]
        self._senders += fresh
        self._free += fresh

    def _source(self, number: int) -> Source:
        return self._shared[number % len(self._shared)] if self._shared else self._feed.source(number)

    def _open_sources(self) -> list[tuple[Lane, Source]]:
        if not self._shared:
            return [(sender.lane, sender.source) for sender in self._senders]
        return [(self._senders[i % len(self._senders)].lane, s) for i, s in enumerate(self._shared)]

    def _grow(self) -> None:
        """Open further connections in the background, unless that is under way."""
        if self._growth is None and len(self._senders) < self._most:
            self._growth = asyncio.get_running_loop().create_task(self._open_more())

    async def _open_more(self) -> None:
        """Open lanes step by step until enough are free: a connection that a stalled server does not take
        holds up only those of its own step."""
        while len(self._free) < self._enough and (held := len(self._senders)) < self._most:
            try:
                lanes = await self._client.open(min(self._most, held + LANES_A_STEP))
            except WireError:
                await asyncio.sleep(GROWTH_RETRY_S)
                continue
            self._add(lanes[held:])
            if self._starved:
                self._starved = False
                self._fire()
        self._growth = None

    def _expire(self, before_ns: int) -> None:
        for sender in list(self._senders):
            sender.expire(before_ns)
