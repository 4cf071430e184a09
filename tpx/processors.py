"""The processor, and the number of its cores that this process may use, by affinity and container limit."""

import os
import platform
from pathlib import Path

_LIMIT = Path("/sys/fs/cgroup/cpu.max")


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


def processor_name() -> str:
    """Return the name of the processor, or its architecture if the system does not report one."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
