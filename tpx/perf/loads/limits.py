"""Limits of this machine: processes that send a load, open files, ephemeral ports, memory. A level beyond
them is refused before anything is opened."""

import math
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpx.errors import UsageError
from tpx.perf.levels import Level, LevelRange
from tpx.perf.loads.rate import slots_ahead
from tpx.perf.settings import LevelSettings

FILES_BESIDE = 64
"""Open files that are no connections of a load: standard streams, shared memory, reports, libraries."""
SLOT_BYTES = 1024
"""The least memory that a request in flight takes."""
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


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
