"""An open loop: every request has a time of its own, whatever becomes of those before it.

Nothing is coordinated with the server: a request that is due while no connection is free waits with its
intended time, which its row keeps, and goes out as soon as one is.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter_ns

import numpy as np

from tpx.errors import UsageError, WireError
from tpx.perf.clients.base import Client, Slot
from tpx.perf.inputs.feed import Feed
from tpx.perf.loads.base import Load, Loadable, LoadRequest, slots_ahead
from tpx.perf.loads.pacing import Alarm, alarm
from tpx.perf.loads.schedules import NEVER, Offsets, Timetable, at_once, listed, offsets
from tpx.perf.loads.senders import Sender, SlotLoad
from tpx.perf.plan import LATE_NS, LatePolicy
from tpx.perf.records import Rows, succeeded
from tpx.perf.results import OpenLoop
from tpx.perf.statistics.latency import summarize

SENDS_A_TURN = 64
"""The most requests that are sent before answers are read again."""
SLOTS_A_STEP = 8
"""New slots are taken into use in steps of this size; more at a time would delay what is due."""
GROWTH_RETRY_S = 1.0
"""Pause after a slot could not be opened."""


async def open_rate(target: Loadable, asked: LoadRequest) -> "RateLoad":
    """Requests per second, or at a user's intervals."""
    return await _open(target, asked, offsets(asked.level, asked.settings, asked.share))


async def open_at_once(target: Loadable, asked: LoadRequest) -> "RateLoad":
    """All requests at the start."""
    settings = asked.settings
    return await _open(target, asked, at_once(settings.request_count, asked.share, settings.sequences))


async def open_schedule(target: Loadable, asked: LoadRequest) -> "RateLoad":
    """Every step of the data at its own time. What is sent to warm up is not sent again; what is left behind
    it begins at once."""
    times_ns, count = target.timestamps_ns, asked.settings.warmup_requests
    if asked.warming:
        times_ns = times_ns[:count]
    elif count and times_ns[count:]:
        times_ns = tuple(t - times_ns[count] for t in times_ns[count:])
    return await _open(target, asked, listed(np.asarray(times_ns, np.int64), asked.share), times_ns)


async def _open(
    target: Loadable, asked: LoadRequest, schedule: Iterator[Offsets], times_ns: tuple[int, ...] = ()
) -> "RateLoad":
    settings, share, client = asked.settings, asked.share, target.client
    most = max(1, share.part(settings.sequences or settings.pace.max_connections))
    ahead = min(most, max(1, share.part(slots_ahead(asked.level, settings.pace, times_ns))))
    return RateLoad(
        client,
        await client.open(most if settings.sequences else ahead),
        target.feed,
        schedule,
        OpenLoopSettings(
            timeout_s=asked.settings.timeout_s,
            late=settings.pace.on_late,
            max_connections=most,
            ahead=ahead,
            in_turn=settings.sequences > 0,
        ),
    )


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
    """The limits and the policy of an open loop."""

    timeout_s: float = 0.0
    late: LatePolicy = "send"
    max_connections: int = 1024
    ahead: int = 0
    """Free slots held ready for a stall of the server."""
    in_turn: bool = False
    """Free slots take turns, because each has a sequence that is to go on. A sequence waits for an answer
    before its next request: only then is the order sure in which its requests arrive."""


class RateLoad(SlotLoad):
    """Implements Load: sends at the times of a schedule.

    `slots` are what is open at first; more are opened, up to `max_connections`, once half of those that are
    held ready (`settings.ahead`) are in use. A request that is late by more than a millisecond is sent at
    once, or skipped and counted in `skipped`, as `settings.late` says.
    """

    def __init__(
        self,
        client: Client,
        slots: Sequence[Slot],
        feed: Feed,
        schedule: Iterator[Offsets],
        settings: OpenLoopSettings,
    ) -> None:
        super().__init__(client, feed, settings.timeout_s)
        self._feed = feed
        self._settings = settings
        self._most = settings.max_connections
        self._free: deque[Sender] = deque()
        # other slots do best when the last one that was used is used again
        self._take = self._free.popleft if settings.in_turn else self._free.pop
        self._add(slots[: self._most])
        self._timetable = Timetable(schedule)
        self._starved = False
        self._alarm: Alarm | None = None
        self._few = settings.ahead // 2
        """At this number of free slots or fewer, more are opened."""
        self._enough = max(1, settings.ahead)
        self._growth: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        """How many slots carry a request, or are being renewed."""
        return len(self.senders) - len(self._free)

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:
        """Send by the schedule, whose times count from `origin_ns`, or from now."""
        self._alarm = alarm(self._fire)
        self._timetable.begin(count, origin_ns or perf_counter_ns())
        self._fire()
        self._notice_rest()
        self.watch()

    async def stop(self, patience_s: float) -> None:
        self.cease()
        if self._growth is not None:
            self._growth.cancel()
            await asyncio.wait([self._growth])
        await super().stop(patience_s)

    def cease(self) -> None:
        self._timetable.end()
        if self._alarm is not None:
            self._alarm.close()
        self._notice_rest()

    def ready(self, sender: Sender) -> None:
        """Give a slot that has its answer the request that waits, or let it wait itself."""
        now_ns = perf_counter_ns()
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

    def refused(self, sender: Sender, error: WireError) -> bool:  # noqa: ARG002 (all slots are alike)
        """A slot that cannot be renewed takes no request: those that are due wait for others, or fail here
        where there are none."""
        if self._timetable.over:
            return False
        if self._timetable.due_ns <= perf_counter_ns():
            self.append_refused(error, self._timetable.due_ns)
            self._timetable.advance()
        return True

    def _fire(self) -> None:
        """Send what is due, as far as slots are free."""
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
            self._notice_rest()  # the last one may have been skipped while every slot was free
        elif self._alarm is not None:
            self._alarm.set(self._timetable.due_ns)

    def _send_on(self, sender: Sender) -> None:
        sender.intended_ns = self._timetable.due_ns
        try:
            sender.send()
        except WireError:
            self.renew(sender)
        else:
            self._timetable.advance()

    def _skip_late(self, now_ns: int) -> None:
        if self._settings.late == "skip":
            self.skipped += self._timetable.skip(now_ns - LATE_NS)

    def _notice_rest(self) -> None:
        if self._timetable.due_ns == NEVER and not self.in_flight:
            self.at_rest.set()

    def _add(self, slots: Sequence[Slot]) -> None:
        for number, slot in enumerate(slots, len(self.senders)):
            self.senders.append(Sender(self, slot, self._feed.source(number)))
            self._free.append(self.senders[-1])

    def _grow(self) -> None:
        """Open further connections in the background, unless that is under way."""
        if self._growth is None and len(self.senders) < self._most:
            self._growth = asyncio.get_running_loop().create_task(self._open_more())

    async def _open_more(self) -> None:
        """Open slots step by step until enough are free: a connection that a stalled server does not take
        holds up only those of its own step."""
        while len(self._free) < self._enough and (held := len(self.senders)) < self._most:
            try:
                slots = await self.client.open(min(self._most, held + SLOTS_A_STEP))
            except WireError:
                await asyncio.sleep(GROWTH_RETRY_S)
                continue
            self._add(slots[held:])
            if self._starved:
                self._starved = False
                self._fire()
        self._growth = None


def open_loop_figures(rows: Rows, duration_ns: int, load: Load) -> OpenLoop | None:
    """Return what only an open loop's rows tell; None where no request succeeded."""
    good = succeeded(rows)
    if not len(good):
        return None
    slip = rows["start_ns"] - rows["intended_ns"]
    return OpenLoop(
        service_latency=summarize(good["end_ns"] - good["start_ns"]),
        slip=summarize(slip),
        delayed=int(np.count_nonzero(slip > LATE_NS)),
        sent_per_s=len(rows) * 1e9 / max(duration_ns, 1),
        skipped=load.skipped,
        connections=load.connections,
    )
