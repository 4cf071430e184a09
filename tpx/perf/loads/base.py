"""The seam between measuring and loading: opening what keeps a server under load and records each request, as
far as this machine can hold it."""

import math
import os
import resource
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

import numpy as np

from tpx.errors import UsageError
from tpx.perf.clients.base import Client, Failure
from tpx.perf.inputs.feed import Conversation, Feed
from tpx.perf.levels import Level, LevelRange
from tpx.perf.plan import ALL, PaceSpec, Share
from tpx.perf.records import Records
from tpx.perf.settings import LevelSettings


class Load(Protocol):
    """A load at one level. `records` grows while it runs."""

    records: Records

    @property
    def failed(self) -> int:
        """Requests that did not succeed, so far."""

    @property
    def processor_ns(self) -> int:
        """Time on a processor of what sends, so far; where several do, their mean."""

    @property
    def skipped(self) -> int:
        """Requests that an open loop left out because they were late, so far."""

    @property
    def connections(self) -> int:
        """How many connection slots there are by now."""

    @property
    def unfinished(self) -> Set[int]:
        """Sequences that were ended before their time; complete once the load is stopped."""

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:
        """Send requests until stopped, or `count` of them; a schedule counts from `origin_ns`, 0 is now."""

    async def finished(self) -> None:
        """Return when `count` requests were sent and each has ended."""

    async def settled(self, until_ns: int) -> None:
        """Return when `records` has what ended until then. Raises MeasurementError if a sender has gone."""

    async def stop(self, patience_s: float) -> None:
        """Send no more, wait for the answers that are due, and give up the rest after `patience_s`."""

    def failures(self) -> Mapping[int, Failure]:
        """The first failure of each status that occurred."""


class Loadable(Protocol):
    """A client and what it sends, which a load is put on."""

    @property
    def client(self) -> Client: ...

    @property
    def feed(self) -> Feed: ...

    @property
    def timestamps_ns(self) -> tuple[int, ...]:
        """Return when each step of a fixed schedule is due, from the beginning of the run."""

    @property
    def conversations(self) -> tuple[Conversation, ...]:
        """Return the conversations in the order in which they begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """A load that is to be opened: of a level, or one worker's share of it."""

    level: Level
    settings: LevelSettings
    share: Share = ALL
    warming: bool = False
    """The load warms up and is not measured: of a fixed schedule, the first steps."""


async def open_load(target: Loadable, asked: LoadRequest) -> Load:
    """Make a load whose connections are open. Raises WireError where the server takes no connections."""
    target.feed.begin(asked.level, asked.share)
    module, _, function = asked.level.kind.opener.partition(":")
    opener: Callable[[Loadable, LoadRequest], Awaitable[Load]] = getattr(
        import_module(f"tpx.perf.loads.{module}"), function
    )
    return await opener(target, asked)


FILES_BESIDE = 64
"""Open files that are no connections of a load: standard streams, shared memory, reports, libraries."""
SLOT_BYTES = 1024
"""The least memory that a request in flight takes."""
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


FEWEST_AHEAD, MOST_AHEAD = 16, 512
"""Bounds of the connections that an open loop holds ready; servers commonly take 1024 open files."""
AHEAD_S = 1.0
"""An open loop holds connections ready for all requests that are due in this time, so that a server which
stalls for as long holds none of them back: a stalled server accepts no new connections either."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How many connections, or requests in flight, something allows."""

    name: str
    most: int


def workers_for(levels: LevelRange, settings: LevelSettings, processors: int | None = None) -> int:
    """Return how many processes send: the number asked for, or one per `per_worker` of the load, at most half
    of the processors and at most one per open sequence."""
    if settings.pace.workers:
        return settings.pace.workers
    most = (processors or os.cpu_count() or 1) // 2
    if settings.pace.max_threads:
        most = min(most, settings.pace.max_threads)
    if settings.sequences and levels.kind.open_loop:
        most = min(most, settings.sequences)
    return max(1, min(most, math.ceil((levels.highest or levels.start) / levels.kind.per_worker)))


def check_openable(
    level: Level, settings: LevelSettings, slots_per_connection: float, processes: int = 1
) -> None:
    """Raise UsageError, naming the limit, where a level needs more than this machine can open."""
    slots = slots_needed(level, settings)
    connections = math.ceil(slots / slots_per_connection)
    for limit in connection_limits(processes):
        if connections > limit.most:
            through = "" if connections == slots else f" over {connections} connections"
            raise UsageError(
                f"{level.mode}: {slots} requests in flight{through} are more than this machine can open: "
                f"{limit.most} connections ({limit.name})"
            )
    memory = memory_limit()
    if slots > memory.most:
        raise UsageError(
            f"{level.mode}: {slots} requests in flight are more than this machine can hold: "
            f"{memory.most} ({memory.name})"
        )


def slots_needed(level: Level, settings: LevelSettings) -> int:
    """Return how many slots a level opens before it begins."""
    if not level.kind.open_loop:
        return int(level.value)
    return settings.sequences or slots_ahead(level, settings.pace)


def connection_limits(processes: int = 1, ports: Path = PORT_RANGE) -> Iterator[Limit]:
    """Yield what limits the connections to one server, of all processes together."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY:
        yield Limit(f"RLIMIT_NOFILE {files}, see ulimit -n", max(0, files - FILES_BESIDE) * processes)
    try:
        first, last = (int(word) for word in ports.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return  # not Linux
    yield Limit(f"ephemeral ports {first} to {last}, see net.ipv4.ip_local_port_range", last - first + 1)


def memory_limit() -> Limit:
    """Return how many requests in flight fit into the machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Limit(f"{memory >> 20} MiB of memory", memory // SLOT_BYTES)


def slots_ahead(level: Level, pace: PaceSpec, times_ns: Sequence[int] = ()) -> int:
    """Return how many slots an open loop holds ready, all workers together: enough for what is due in
    AHEAD_S. `times_ns` is a fixed schedule."""
    if level.kind.at_once:
        return pace.max_connections
    due = max(level.value * AHEAD_S, pace.burst_size)
    if times_ns:
        times = np.asarray(times_ns, np.int64)
        ends = np.searchsorted(times, times + int(AHEAD_S * 1e9), side="right")
        due = int((ends - np.arange(len(times))).max())
    return min(pace.max_connections, max(FEWEST_AHEAD, math.ceil(min(due, MOST_AHEAD))))
