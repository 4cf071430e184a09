"""The C library's heap: how much of what was freed it keeps."""

import ctypes
import gc
import os
import sys
from typing import Any

_M_ARENA_MAX = -8
_POOLS = 2
"""One for the event loop, and one for all other threads: instances compute in memory of their runtimes."""


def keep_few_pools() -> None:
    """From now on threads share what they free, instead of each keeping some megabytes of its own.

    MALLOC_ARENA_MAX in the environment goes before. Called before there are threads.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        _call("mallopt", _M_ARENA_MAX, _POOLS)


def give_memory_back() -> None:
    """Return to the system what was freed: the C library keeps it otherwise, for allocations to come.

    Objects that the collector was told to leave alone (`gc.freeze`) are left alone here, too, which keeps
    this short: a model that is closed must leave no cycle behind.
    """
    gc.collect()
    _call("malloc_trim", 0)


def _call(name: str, *words: int) -> None:
    """A function of glibc; musl and other systems have none of them."""
    function: Any = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*words)
