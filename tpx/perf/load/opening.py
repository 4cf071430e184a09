"""From a level to the load that puts it on: which loop, over how many lanes, by which schedule."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from tpx.errors import UsageError
from tpx.perf.clients.base import Client
from tpx.perf.inputs.conversations import Conversation
from tpx.perf.inputs.feed import Feed
from tpx.perf.load.base import Load
from tpx.perf.load.concurrency import ConcurrencyLoad
from tpx.perf.load.periodic import PeriodicLoad
from tpx.perf.load.rate import OpenLoopSettings, RateLoad
from tpx.perf.load.schedules import ALL, Offsets, Share, at_once, listed, offsets
from tpx.perf.load.sessions import SessionLoad
from tpx.perf.load.together import QueryLoad
from tpx.perf.plan import LoadPlan
from tpx.perf.records import Records
from tpx.perf.settings import Level, LevelSettings

FEWEST_AHEAD, MOST_AHEAD = 16, 512
"""Bounds of the connections that an open loop holds ready; servers commonly take 1024 open files."""
AHEAD_S = 1.0
"""An open loop holds connections ready for all requests that are due in this time, so that a server which
stalls for as long holds none of them back: a stalled server accepts no new connections either."""


class Loadable(Protocol):
    """What a load is put on."""

    @property
    def client(self) -> Client: ...

    @property
    def feed(self) -> Feed: ...

    @property
    def timestamps_ns(self) -> tuple[int, ...]:
        """Of `--fixed-schedule`, when each step of the data is due, from the beginning of the run."""

    @property
    def conversations(self) -> tuple[Conversation, ...]:
        """Of `--session-concurrency`, in the order in which they begin."""


async def open_load(
    target: Loadable,
    level: Level,
    settings: LevelSettings,
    share: Share = ALL,
    records: Records | None = None,
    *,
    warming: bool = False,
) -> Load:
    """The load of a level, or one worker's share of it, over lanes that are open.

    `warming` is for what is sent before the level is measured: of a fixed schedule, its first steps.

    Raises WireError where the server takes no connections.
    """
    plan, client = settings.load, target.client
    target.feed.begin(level)
    if level.mode == "multi_stream":
        lanes = await client.open(int(level.value))
        return QueryLoad(client, lanes, target.feed, settings.timeout_s, records)
    if level.mode == "periodic_concurrency" and plan.periodic is not None:
        lanes = await client.open(plan.periodic.end)
        return PeriodicLoad(client, lanes, target.feed, plan.periodic, settings.timeout_s)
    if level.mode == "session_concurrency":
        lanes = await client.open(int(level.value))
        return SessionLoad(client, lanes, target.conversations, settings.timeout_s)
    if not level.open_loop:
        lanes = await client.open(share.part(int(level.value)))
        return ConcurrencyLoad(client, lanes, target.feed, settings.timeout_s, records)
    most = max(1, share.part(plan.sequences or plan.max_connections))
    times_ns = _stretch(target.timestamps_ns, settings, warming=warming)
    ahead = min(most, max(1, share.part(lanes_ahead(level, plan, times_ns))))
    return RateLoad(
        client,
        await client.open(most if plan.sequences else ahead),
        target.feed,
        schedule_of(level, settings, times_ns, share),
        OpenLoopSettings(
            timeout_s=settings.timeout_s,
            late=plan.late,
            max_connections=most,
            ahead=ahead,
            sequences=share.part(plan.sequences),
            # the order in which they arrive is only sure for requests that wait for each other
            serial=plan.serial or plan.sequences > 0,
        ),
        records,
    )


def _stretch(times_ns: tuple[int, ...], settings: LevelSettings, *, warming: bool) -> tuple[int, ...]:
    """What is sent to warm up, or what is left behind it, which begins at once."""
    count = settings.warmup_requests
    if warming:
        return times_ns[:count]
    return tuple(t - times_ns[count] for t in times_ns[count:]) if count and times_ns[count:] else times_ns


def lanes_ahead(level: Level, plan: LoadPlan, times_ns: Sequence[int]) -> int:
    """Return how many lanes an open loop holds ready, all workers together: enough for what is due in
    AHEAD_S. `times_ns` is a fixed schedule."""
    if level.mode == "offline":
        return plan.max_connections
    due = max(level.value * AHEAD_S, plan.arrivals.burst)
    if level.mode == "fixed_schedule" and times_ns:
        times = np.asarray(times_ns, np.int64)
        ends = np.searchsorted(times, times + int(AHEAD_S * 1e9), side="right")
        due = int((ends - np.arange(len(times))).max())
    return min(plan.max_connections, max(FEWEST_AHEAD, math.ceil(min(due, MOST_AHEAD))))


def schedule_of(
    level: Level, settings: LevelSettings, timestamps_ns: tuple[int, ...], share: Share = ALL
) -> Iterator[Offsets]:
    """The times of an open loop's requests."""
    if level.mode == "offline":
        return at_once(settings.request_count, share, settings.load.sequences)
    if level.mode == "fixed_schedule":
        return listed(np.asarray(timestamps_ns, np.int64), share)
    return offsets(level, settings.load, share)


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
