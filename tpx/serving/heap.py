"""The C library's heap: how much of what was freed it keeps."""

import asyncio
import ctypes
import gc
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tpx.protocol.memory_budget import MemoryBudget

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_WORTH_BYTES = 48 << 20
"""Freed memory that is worth giving back."""
_VAIN_S = (30, 600)
"""Until the next attempt after one in vain, at first and at last."""
_POOLS = 2
"""One for the event loop, and one for all other threads: instances compute in memory of their runtimes."""


def keep_few_pools() -> None:
    """From now on threads share what they free, instead of each keeping some megabytes of its own.

    MALLOC_ARENA_MAX in the environment goes before. Called before there are threads.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        _call("mallopt", _M_ARENA_MAX, _POOLS)


def keep_freed_memory() -> None:
    """Have the allocator keep what the bodies of requests have used, instead of asking for zeroed pages anew.

    glibc gets there by itself, to these very bounds, but only after a body of this size; before that several
    large requests at a time cost more in page faults than in anything else. Unloading gives all of it back.
    """
    _call("mallopt", _M_MMAP_THRESHOLD, 32 << 20)
    _call("mallopt", _M_TRIM_THRESHOLD, 64 << 20)


def give_memory_back() -> None:
    """Return to the system what was freed: the C library keeps it otherwise, for allocations to come.

    Objects that the collector was told to leave alone (`gc.freeze`) are left alone here, too, which keeps
    this short: a model that is closed must leave no cycle behind.
    """
    gc.collect()
    _call("malloc_trim", 0)


class Trimmer:
    """Returns memory to the system once the requests and answers that needed it are gone.

    `held` tells how many bytes of them there are. While much is held the freed memory will be needed again,
    and so it stays.
    """

    def __init__(self, held: Callable[[], int], resident: Callable[[], int] | None = None) -> None:
        self._held = held
        self._resident = resident or resident_bytes
        self._least = self._resident()
        self._lately = [0, 0]
        self._held_then = 0
        self._pause_s = self._vain_s = 0

    def is_due(self) -> bool:
        """Tell whether to trim now; called once a second."""
        self._lately = [*self._lately[1:], self._held()]
        most = max(self._lately)
        if self._pause_s and most > self._held_then - _WORTH_BYTES:
            self._pause_s -= 1
            return False
        grown = self._resident() - self._least
        return grown > _WORTH_BYTES and most < grown // 4

    def trim(self) -> None:
        """Do it; takes its time, in any thread."""
        before = self._resident()
        self._held_then = max(self._lately)
        _call("malloc_trim", 0)
        # what is in use, by models mostly, is not given back: there is no need to try again soon
        in_vain = before - self._resident() < _WORTH_BYTES // 4
        self._vain_s = min(_VAIN_S[1], max(_VAIN_S[0], 2 * self._vain_s)) if in_vain else 0
        self._pause_s = self._vain_s or 2


class MemoryWatch:
    """Look every second which requests wait for memory for too long, and whether some can be given back."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._trimmer = Trimmer(lambda: budget.held)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(1, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(1, self._look)
        self._budget.advance()
        if self._trimmer.is_due():
            loop.run_in_executor(None, self._trimmer.trim)


def resident_bytes() -> int:
    """The memory that this process has."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


def available_bytes() -> int:
    """The memory that this process may use: the machine's, or what its control groups allow."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([most, *_group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _group_limits(membership: Path, root: Path) -> Iterator[int]:
    """The memory limits of the control groups that a process is in, of both versions and at every level."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder, file = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        parts = Path(path.lstrip("/")).parts
        for count in range(len(parts) + 1):
            with suppress(OSError, ValueError):  # "max" is no limit, and not every level has one
                yield int(folder.joinpath(*parts[:count], file).read_text(encoding="ascii"))


def _call(name: str, *words: int) -> None:
    """A function of glibc; musl and other systems have none of them."""
    function: Any = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*words)
