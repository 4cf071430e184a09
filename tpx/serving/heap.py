"""The heap of the C library: how much freed memory it keeps."""

import asyncio
import ctypes
import gc
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tpx.protocol.memory_budget import MemoryBudget

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_WORTH_BYTES = 48 << 20
"""Minimum freed memory that is worth returning to the system."""
_VAIN_S = (30, 600)
"""Seconds until the next attempt after one that freed little: first and maximum."""
_POOLS = 2
"""Number of malloc arenas: the event loop's, and one for other threads, whose runtimes have their own."""


def keep_few_pools() -> None:
    """Limit the number of malloc arenas, each of which would keep several megabytes of freed memory.

    MALLOC_ARENA_MAX in the environment takes precedence. Call before starting threads.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        _call_glibc("mallopt", _M_ARENA_MAX, _POOLS)


def keep_freed_memory() -> None:
    """Make the allocator keep memory of request bodies, instead of requesting zeroed pages again.

    glibc adapts to the same thresholds by itself, but only after a body of this size; before that,
    several concurrent large requests cost more in page faults than in anything else. Unloading returns
    all of it.
    """
    _call_glibc("mallopt", _M_MMAP_THRESHOLD, 32 << 20)
    _call_glibc("mallopt", _M_TRIM_THRESHOLD, 64 << 20)


def give_memory_back() -> None:
    """Return freed memory to the system, which the C library would otherwise keep.

    Objects excluded from collection by `gc.freeze` are skipped, which keeps this short: a closed model
    must not leave a reference cycle behind.
    """
    gc.collect()
    _call_glibc("malloc_trim", 0)


class Trimmer:
    """Returns memory to the system once the requests and responses that used it are gone.

    `held` returns the bytes they occupy. While that is much, freed memory will be reused soon and is
    kept.
    """

    def __init__(self, held: Callable[[], int], resident: Callable[[], int] | None = None) -> None:
        self._held = held
        self._resident = resident or resident_bytes
        self._least = self._resident()
        self._lately = [0, 0]
        self._held_then = 0
        self._pause_s = self._vain_s = 0

    def is_due(self) -> bool:
        """Return whether to trim now; called once per second."""
        self._lately = [*self._lately[1:], self._held()]
        most = max(self._lately)
        if self._pause_s and most > self._held_then - _WORTH_BYTES:
            self._pause_s -= 1
            return False
        grown = self._resident() - self._least
        return grown > _WORTH_BYTES and most < grown // 4

    def trim(self) -> None:
        """Trim the heap; may take long, in any thread."""
        before = self._resident()
        self._held_then = max(self._lately)
        _call_glibc("malloc_trim", 0)
        # most memory is in use, by models: do not retry soon
        in_vain = before - self._resident() < _WORTH_BYTES // 4
        self._vain_s = min(_VAIN_S[1], max(_VAIN_S[0], 2 * self._vain_s)) if in_vain else 0
        self._pause_s = self._vain_s or 2


class MemoryWatch:
    """Check every second which requests waited too long for memory, and whether some can be returned."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._trimmer = Trimmer(lambda: budget.held)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(1, self._check_memory)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check_memory(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(1, self._check_memory)
        self._budget.advance()
        if self._trimmer.is_due():
            loop.run_in_executor(None, self._trimmer.trim)


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


def buffered_bytes(limit: int) -> int:
    """Return the size of the memory budget for requests and responses; `limit` is the option, or 0."""
    return limit or available_bytes() // 4


def available_bytes() -> int:
    """Return the memory that this process may use: the machine's, or its control groups' limit."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([most, *_iter_group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _iter_group_limits(membership: Path, root: Path) -> Iterator[int]:
    """Return the memory limits of a process' control groups, both versions and all levels."""
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


def _call_glibc(name: str, *words: int) -> None:
    """Call a function of glibc; do nothing with musl and on other systems."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*words)


def tree_resident_bytes() -> int:
    """Return the resident memory of this process and its children, in bytes."""
    import psutil  # imported late: only needed with a limit

    process = psutil.Process()
    total: int = process.memory_info().rss
    for child in process.children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.Error:
            continue
    return total
