"""Files in /dev/shm as clients make them."""

import gc
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_numbers = itertools.count()


@contextmanager
def segment(size: int = 4096, content: bytes = b"") -> Iterator[Path]:
    """A file of `size` bytes that begin with `content`; its name is the key of a region."""
    path = unused()
    path.write_bytes(content.ljust(size, b"\0"))
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def unused() -> Path:
    """The path of a file in /dev/shm that is not there."""
    return Path(f"/dev/shm/tpx_test_{os.getpid()}_{next(_numbers)}")


def descriptors() -> int:
    """How many descriptors this process has, without those that only a caught exception holds."""
    gc.collect()
    return open_descriptors()


def open_descriptors() -> int:
    """How many descriptors of shared memory this process has; others come and go with threads."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += str(descriptor.readlink()).startswith("/dev/shm/")
    return count
