"""System shared memory: files in /dev/shm, read and written with preadv and pwrite, never mapped.

A client may truncate its file at any time. With a mapping this process would die of SIGBUS; a short
read is an error of one request. Reading holes of a sparse file takes no memory, but the pages that a write
fills count as memory of this process and its control group.
"""

import errno
import mmap
import os
import resource
import stat
import threading

from tpx.errors import Code, InvalidRequest, Overloaded
from tpx.protocol.tensors import Buffer

RESERVED_PREFIXES = ("triton_python_backend_shm_region_", "tpx_backend_")
"""Prefixes of memory that servers share with their own processes, which clients must not register."""

_DIRECTORY = "/dev/shm"
_MAX_REGIONS = 4096
_COUNTED_BYTES = 64 << 10
"""Smallest write whose holes are counted; smaller ones are bounded by the number of regions."""


def region_limit() -> int:
    """Return how many regions may be registered. Each holds a descriptor, and connections need theirs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_REGIONS if soft == resource.RLIM_INFINITY else min(_MAX_REGIONS, max(1, soft // 4))


class FilledHoles:
    """Bytes that this process has written where clients' sparse files had no pages."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._lock = threading.Lock()

    def take(self, region: str, size: int) -> None:
        """Count bytes to be filled, in any thread. Raises Overloaded."""
        with self._lock:
            if self._bytes + size > self._limit_bytes:
                raise Overloaded(
                    f"cannot fill {size} bytes of shared memory region '{region}', which is sparse: the "
                    f"server has filled {self._bytes} bytes of registered regions, of at most "
                    f"{self._limit_bytes} (--max-buffered-bytes); write to the region before you register it",
                    code=Code.RESOURCE_EXHAUSTED,
                )
            self._bytes += size

    def free(self, size: int) -> None:
        with self._lock:
            self._bytes -= size


class SystemRegionMemory:
    """An open region of `byte_size` bytes from `offset` on.

    It closes with its last reference: the registration, or a request that still has to write to it.
    """

    __slots__ = ("_fd", "_filled_bytes", "_holes", "_name", "_offset")

    def __init__(self, name: str, key: str, offset: int, byte_size: int, holes: FilledHoles) -> None:
        """Open the region. Raises InvalidRequest for a reserved key and for a file that is too small."""
        self._fd = -1
        self._filled_bytes = 0
        self._holes = holes
        self._name = name
        self._offset = offset
        # as in Triton, which maps regions: they must start at a page
        if offset % mmap.PAGESIZE:
            raise InvalidRequest(
                f"failed to register shared memory region '{name}': invalid args: offset {offset} is no "
                f"multiple of the page size, {mmap.PAGESIZE}"
            )
        fd = _open_region_file(name, key)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or offset + byte_size > status.st_size:
            os.close(fd)
            raise InvalidRequest(f"failed to register shared memory region '{name}': invalid args")
        self._fd = fd

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._holes.free(self._filled_bytes)

    def read_into(self, memory: memoryview, offset: int) -> None:
        done, size = 0, len(memory)
        try:
            while done < size:
                count = os.preadv(self._fd, [memory[done:]], self._offset + offset + done)
                if not count:
                    raise self._make_shrunk_error()
                done += count
        except OSError as exc:
            raise self._make_io_error("read", exc) from exc

    def write(self, offset: int, data: Buffer) -> None:
        at = self._offset + offset
        view = memoryview(data)
        try:
            if os.fstat(self._fd).st_size < at + len(view):
                raise self._make_shrunk_error()  # a write beyond its end would extend the file
            if len(view) > _COUNTED_BYTES:
                self._count_holes(at, at + len(view))
            while len(view):
                count = os.pwrite(self._fd, view, at)
                view, at = view[count:], at + count
        except OSError as exc:
            raise self._make_io_error("written", exc) from exc

    def _count_holes(self, start: int, end: int) -> None:
        """Count the bytes between two positions that a write will fill. Raises Overloaded, OSError."""
        size = 0
        while start < end:
            try:
                data = min(end, os.lseek(self._fd, start, os.SEEK_DATA))
            except OSError as exc:
                if exc.errno != errno.ENXIO:
                    raise
                data = end  # there is no data behind `start`
            size += data - start
            start = os.lseek(self._fd, data, os.SEEK_HOLE) if data < end else end
        if size:
            self._holes.take(self._name, size)
            self._filled_bytes += size

    def gpu_address(self, offset: int) -> int:  # noqa: ARG002 (RegionMemory's signature)
        return 0

    def _make_shrunk_error(self) -> InvalidRequest:
        return InvalidRequest(f"shared memory region '{self._name}' is shorter than when it was registered")

    def _make_io_error(self, what: str, exc: OSError) -> InvalidRequest:
        return InvalidRequest(f"shared memory region '{self._name}' can not be {what}: {exc.strerror}")


def _open_region_file(name: str, key: str) -> int:
    file = key.lstrip("/")
    if "/" in file or "\0" in file or file in ("", ".", ".."):
        raise InvalidRequest(
            f"cannot register shared memory region '{name}' - invalid shm key '{key}': it must be the name "
            f"of a file in {_DIRECTORY}"
        )
    for prefix in RESERVED_PREFIXES:
        if file.startswith(prefix):
            raise InvalidRequest(
                f"cannot register shared memory region '{name}' with key '{key}' as the key contains the "
                f"reserved prefix '{prefix}'"
            )
    try:
        # O_NONBLOCK: opening a FIFO must not block; it is refused below
        return os.open(f"{_DIRECTORY}/{file}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, UnicodeEncodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not Unicode text"
        raise InvalidRequest(f"Unable to open shared memory region: '{key}' ({why})") from exc
