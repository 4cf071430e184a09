"""The processor, and what of it this process may use and gets, by affinity, container limit and scheduler."""

import os
import platform
from pathlib import Path

_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_SCHEDULER_STATISTICS = Path("/proc/thread-self/schedstat")


def schedulable_processors() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_processors(limit: Path = _LIMIT) -> float:
    """Return the cores that this process may use, 0.5 with a container limit of half a core; `limit` is
    the limit's file.
    """
    count = float(schedulable_processors())
    try:
        quota, period = limit.read_text(encoding="ascii").split()
        return min(count, int(quota) / int(period))
    except (OSError, ValueError):  # no limit: not in a container, or "max"
        return count


def waited_ns(statistics: Path = _SCHEDULER_STATISTICS) -> int:
    """Return how long the calling thread has waited for a core since it began, preempted or held back by
    its container's limit; 0 if the system does not tell. `statistics` is the file of Linux that does.
    """
    try:
        return int(statistics.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def processor_name() -> str:
    """Return the name of the processor, or its architecture if the system does not report one."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
