"""An open loop: every request has a due time that does not depend on earlier responses.

There is no coordinated omission: a request that is due while no connection is free waits, keeps its
intended time in its row, and is sent as soon as a connection is free.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from time import perf_counter_ns

import numpy as np

from tpx.errors import UsageError, WireError
from tpx.perf.clients.base import Client, Slot
from tpx.perf.inputs.feed import Feed
from tpx.perf.levels import FIXED_SCHEDULE, LATE_NS
from tpx.perf.loads.base import Loadable, LoadRequest, slots_ahead
from tpx.perf.loads.schedules import NEVER, Alarm, Offsets, Timetable, alarm, listed, offsets
from tpx.perf.loads.senders import Sender, SlotLoad
from tpx.perf.settings import LevelSettings

SENDS_A_TURN = 64
"""Maximum requests sent per turn of the event loop, so that responses are read in between."""
SLOTS_A_STEP = 8
"""Slots opened per step; opening more at once would delay due requests."""
GROWTH_RETRY_S = 1.0
"""Pause after a slot could not be opened."""


async def open_rate(target: Loadable, load_request: LoadRequest) -> "RateLoad":
    """Open a load of requests per second, at the user's intervals, or of every step at its own time.

    Steps sent to warm up are not sent again; the first remaining step is due immediately.
    """
    level, settings, share = load_request.level, load_request.settings, load_request.share
    times_ns, count = target.requests.timestamps_ns, settings.warmup_requests
    if load_request.warming:
        times_ns = times_ns[:count]
    elif count and times_ns[count:]:
        times_ns = tuple(t - times_ns[count] for t in times_ns[count:])
    scheduled = level.kind is FIXED_SCHEDULE
    most = max(1, share.part(settings.sequences or settings.pace.max_connections))
    ahead = min(most, max(1, share.part(slots_ahead(level, settings.pace, times_ns))))
    return RateLoad(
        target.client,
        await target.client.open(most if settings.sequences else ahead),
        target.requests.feed,
        listed(np.asarray(times_ns, np.int64), share) if scheduled else offsets(level, settings, share),
        settings,
        most=most,
        ahead=ahead,
    )


def check_timestamps(timestamps_ns: tuple[int, ...]) -> None:
    """Raise UsageError if a fixed schedule is empty, has a negative time, or goes back in time."""
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


class RateLoad(SlotLoad):
    """Implements Load: sends at the times of a schedule.

    `slots` are those open at first, `ahead` of them are held ready in case the server stalls. Once half of
    these are in use, more are opened, up to `most`. A request that is more than a millisecond late is sent
    immediately, or skipped and counted in `skipped`, as the settings say.
    """

    def __init__(
        self,
        client: Client,
        slots: Sequence[Slot],
        feed: Feed,
        schedule: Iterator[Offsets],
        settings: LevelSettings,
        *,
        most: int,
        ahead: int = 0,
    ) -> None:
        super().__init__(client, feed, settings.timeout_s)
        self._feed = feed
        self._skips = settings.pace.on_late == "skip"
        self._most = most
        self._free: deque[Sender] = deque()
        # each slot continues its own sequence, which waits for a response before its next request, so that
        # the order of arrival is certain; without sequences, the most recently used slot performs best
        self._take = self._free.popleft if settings.sequences else self._free.pop
        self._add_senders(slots[: self._most])
        self._timetable = Timetable(schedule)
        self._starved = False
        self._alarm: Alarm | None = None
        self._few = ahead // 2
        """Number of free slots at or below which more are opened."""
        self._enough = max(1, ahead)
        self._growth: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        """Slots that carry a request or are being renewed."""
        return len(self.senders) - len(self._free)

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:
        """Send by the schedule; its times count from `origin_ns`, or from now if that is 0."""
        self._alarm = alarm(self._send_due)
        self._timetable.begin(count, origin_ns or perf_counter_ns())
        self._send_due()
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
        """Send the waiting request on a slot that became free, or mark the slot as free."""
        now_ns = perf_counter_ns()
        if self._timetable.due_ns <= now_ns:
            self._skip_late(now_ns)
            if self._timetable.due_ns <= now_ns:
                self._send_with(sender)
                return
        self._free.append(sender)
        if self._starved:
            self._starved = False
            self._send_due()
        if self._timetable.due_ns == NEVER:
            self._notice_rest()

    def refused(self, sender: Sender, error: WireError) -> bool:  # noqa: ARG002 (all slots are alike)
        """Fail the request that is due, unless another slot has taken it; the slot cannot be renewed."""
        if self._timetable.over:
            return False
        if self._timetable.due_ns <= perf_counter_ns():
            self.append_refused(error, self._timetable.due_ns)
            self._timetable.advance()
        return True

    def _send_due(self) -> None:
        """Send due requests while slots are free."""
        free = self._free
        now_ns = perf_counter_ns()
        self._skip_late(now_ns)
        for _ in range(SENDS_A_TURN):
            if self._timetable.due_ns > now_ns:
                break
            if not free:
                self._starved = True
                self._start_growth()
                return
            self._send_with(self._take())
        if len(free) <= self._few:
            self._start_growth()
        if self._timetable.due_ns == NEVER:
            self._notice_rest()  # the last request may have been skipped while every slot was free
        elif self._alarm is not None:
            # a time that has passed fires in the loop's next turn, after responses were read
            self._alarm.set(self._timetable.due_ns)

    def _send_with(self, sender: Sender) -> None:
        sender.intended_ns = self._timetable.due_ns
        try:
            sender.send()
        except WireError:
            self.renew(sender)  # the request stays due, for another slot
        else:
            self._timetable.advance()

    def _skip_late(self, now_ns: int) -> None:
        if self._skips:
            self.skipped += self._timetable.skip(now_ns - LATE_NS)

    def _notice_rest(self) -> None:
        if self._timetable.due_ns == NEVER and not self.in_flight:
            self.at_rest.set()

    def _add_senders(self, slots: Sequence[Slot]) -> None:
        for number, slot in enumerate(slots, len(self.senders)):
            self.senders.append(Sender(self, slot, self._feed.source(number)))
            self._free.append(self.senders[-1])

    def _start_growth(self) -> None:
        """Open slots in steps in the background until enough are free, unless that is already running.

        A connection that a stalled server does not accept delays only the others of its step.
        """

        async def open_more() -> None:
            while len(self._free) < self._enough and (held := len(self.senders)) < self._most:
                try:
                    slots = await self.client.open(min(self._most, held + SLOTS_A_STEP))
                except WireError:
                    await asyncio.sleep(GROWTH_RETRY_S)
                    continue
                self._add_senders(slots[held:])
                if self._starved:
                    self._starved = False
                    self._send_due()
            self._growth = None

        if self._growth is None and len(self.senders) < self._most:
            self._growth = asyncio.get_running_loop().create_task(open_more())
