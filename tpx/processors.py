"""How many processors this process may use: what it may run on, and what its container is allowed."""

import os
from pathlib import Path

_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def schedulable_processors() -> int:
    """Return how many processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_processors(limit: Path = _LIMIT) -> float:
    """A container that is allowed half of a processor has 0.5; `limit` is the file that says so."""
    count = float(schedulable_processors())
    try:
        quota, period = limit.read_text(encoding="ascii").split()
        return min(count, int(quota) / int(period))
    except (OSError, ValueError):  # there is none: not in a container, or "max"
        return count
