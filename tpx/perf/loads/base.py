"""The interface between measuring and load generation, and the limits of this machine on what it can open."""

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
from tpx.perf.inputs.feed import ALL, Share
from tpx.perf.inputs.requests import Requests
from tpx.perf.levels import Level, LevelRange
from tpx.perf.pace import PaceSpec
from tpx.perf.records import Records
from tpx.perf.settings import LevelSettings


class Load(Protocol):
    """A running load of one level; `records` grows while it runs."""

    records: Records

    @property
    def failed(self) -> int:
        """Failed requests so far."""

    @property
    def processor_ns(self) -> int:
        """CPU time of the sending process so far; the mean if several processes send."""

    @property
    def skipped(self) -> int:
        """Requests that an open loop has skipped so far because they were late."""

    @property
    def resent(self) -> int:
        """Requests sent again so far, because their connection closed before a byte of the response."""

    @property
    def connections(self) -> int:
        """Connection slots open now."""

    @property
    def unfinished(self) -> Set[int]:
        """Sequences that were ended early; complete once the load has stopped."""

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:
        """Send until stopped, or `count` requests. A schedule counts from `origin_ns`; 0 means now."""

    async def finished(self) -> None:
        """Wait until `count` requests were sent and each has ended."""

    async def settled(self, until_ns: int) -> None:
        """Wait until `records` has every request that ended by `until_ns`.

        Raises MeasurementError if a worker is gone.
        """

    async def stop(self, patience_s: float) -> None:
        """Stop sending, wait up to `patience_s` for requests in flight, then abandon the rest."""

    def failures(self) -> Mapping[int, Failure]:
        """Return the first failure of each status that occurred."""


class Loadable(Protocol):
    """A client and the requests that it sends."""

    @property
    def client(self) -> Client: ...
    @property
    def requests(self) -> Requests: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """A request to open a load: a level, or one worker's share of it."""

    level: Level
    settings: LevelSettings
    share: Share = ALL
    warming: bool = False
    """True for a warm-up, which is not measured. With a fixed schedule it sends the first steps."""


async def open_load(target: Loadable, load_request: LoadRequest) -> Load:
    """Open a load and its connections. Raises WireError if the server refuses connections."""
    target.requests.feed.begin(load_request.level, load_request.share)
    module, _, function = load_request.level.kind.opener.partition(":")
    opener: Callable[[Loadable, LoadRequest], Awaitable[Load]] = getattr(
        import_module(f"tpx.perf.loads.{module}"), function
    )
    return await opener(target, load_request)


FILES_BESIDE = 64
"""Open files that are not connections of a load: standard streams, shared memory, reports, libraries."""
SLOT_BYTES = 1024
"""Minimum memory per request in flight."""
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


FEWEST_AHEAD, MOST_AHEAD = 16, 512
"""Bounds on the idle connections of an open loop; servers commonly allow 1024 open files."""
AHEAD_S = 1.0
"""Time for which an open loop holds idle connections ready: one for each request due within it.

A stalled server accepts no new connections, so those needed during a stall must be open before it.
"""


@dataclass(frozen=True, slots=True)
class Limit:
    """A named upper limit on connections or requests in flight."""

    name: str
    most: int


def workers_for(levels: LevelRange, settings: LevelSettings, processors: int | None = None) -> int:
    """Return the number of worker processes.

    This is the number set by the user, or one per `per_worker` of the load, at most half of the
    processors and at most one per open sequence.
    """
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
    """Raise UsageError, naming the limit, if a level needs more than this machine can open."""
    slots = int(level.value)
    if level.kind.open_loop:
        slots = settings.sequences or slots_ahead(level, settings.pace)
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


def connection_limits(processes: int = 1, ports: Path = PORT_RANGE) -> Iterator[Limit]:
    """Yield the limits on connections to one server, over all processes."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY:
        yield Limit(f"RLIMIT_NOFILE {files}, see ulimit -n", max(0, files - FILES_BESIDE) * processes)
    try:
        first, last = (int(word) for word in ports.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return  # not on Linux
    yield Limit(f"ephemeral ports {first} to {last}, see net.ipv4.ip_local_port_range", last - first + 1)


def memory_limit() -> Limit:
    """Return the number of requests in flight that fit into memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Limit(f"{memory >> 20} MiB of memory", memory // SLOT_BYTES)


def slots_ahead(level: Level, pace: PaceSpec, times_ns: Sequence[int] = ()) -> int:
    """Return the number of slots that an open loop holds ready, over all workers.

    The slots suffice for the requests due within AHEAD_S. `times_ns` is a fixed schedule.
    """
    due = max(level.value * AHEAD_S, pace.burst_size)
    if times_ns:
        times = np.asarray(times_ns, np.int64)
        ends = np.searchsorted(times, times + int(AHEAD_S * 1e9), side="right")
        due = int((ends - np.arange(len(times))).max())
    return min(pace.max_connections, max(FEWEST_AHEAD, math.ceil(min(due, MOST_AHEAD))))
