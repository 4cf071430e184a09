"""System shared memory: files in /dev/shm, read and written with preadv and pwrite, never mapped.

A client may truncate its file at any time. With a mapping this process would die of SIGBUS; a short
read is an error of one request.
"""

import mmap
import os
import resource
import stat

from tpx.errors import InvalidRequest
from tpx.protocol.tensors import Buffer

RESERVED_PREFIXES = ("triton_python_backend_shm_region_", "tpx_backend_")
"""Prefixes of memory that servers share with their own processes, which clients must not register."""

_DIRECTORY = "/dev/shm"
_MAX_REGIONS = 4096


def region_limit() -> int:
    """Return how many regions may be registered. Each holds a descriptor, and connections need theirs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_REGIONS if soft == resource.RLIM_INFINITY else min(_MAX_REGIONS, max(1, soft // 4))


class SystemRegionMemory:
    """An open region of `byte_size` bytes from `offset` on.

    It closes with its last reference: the registration, or a request that still has to write to it.
    """

    __slots__ = ("_fd", "_name", "_offset")

    def __init__(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open the region. Raises InvalidRequest for a reserved key and for a file that is too small."""
        self._fd = -1
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
            while len(view):
                count = os.pwrite(self._fd, view, at)
                view, at = view[count:], at + count
        except OSError as exc:
            raise self._make_io_error("written", exc) from exc

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
