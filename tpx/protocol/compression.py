"""Compressed bodies and messages: gzip and deflate (zlib), with a limit on the decompressed size.

Long ones of all connections are decompressed in threads and within one budget. A few megabytes may
decompress to gigabytes: the size of a result is therefore determined first; it waits until the budget
has room for it, and is refused if it never fits.
"""

import asyncio
import os
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from tpx.errors import Code, InvalidRequest, Overloaded, Unsupported
from tpx.protocol.tensors import ALIGNMENT, Buffer

ENCODINGS = ("gzip", "deflate")

SHORT_BYTES = 64 << 10
"""Largest result, in bytes, that is quick enough to decompress without a thread."""

_WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""zlib's `wbits` for each encoding."""

DEFAULT_INFLATED_BYTES = 1 << 30
_MODEST_BYTES = 16 << 20
"""Largest result of the first share. Longer ones have their own share and thread, and block no others."""
_WAIT_S = 10
_READ_BYTES = 64 << 10
_MADE_BYTES = 1 << 20
_LARGEST_RATIO = 1032
"""Maximum compression ratio of a deflate stream."""


def inflate(data: Buffer, encoding: str, limit: int) -> bytes:
    """Decompress a complete body.

    Raises Unsupported for an unknown encoding, InvalidRequest for invalid or truncated data or trailing
    bytes, and InvalidRequest with code RESOURCE_EXHAUSTED as soon as the result exceeds `limit` bytes.
    """
    _check_encoding(encoding)
    if not len(data):
        raise InvalidRequest("nothing to be decompressed")
    inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        out = inflater.decompress(data, limit + 1)
    except zlib.error as exc:
        raise InvalidRequest(f"body is not valid {encoding} data: {exc}") from exc
    except MemoryError:
        raise InvalidRequest("no memory for the decompressed body", code=Code.RESOURCE_EXHAUSTED) from None
    if len(out) > limit:
        raise _too_large(limit)
    if not inflater.eof or inflater.unused_data:
        raise InvalidRequest(f"body is not one complete {encoding} stream")
    return out


def _check_encoding(encoding: str) -> None:
    """Raise Unsupported for an unknown encoding."""
    if encoding not in _WINDOW_BITS:
        raise Unsupported(f"Unsupported compression type provided: '{encoding}' (known: gzip, deflate)")


def _too_large(limit: int) -> InvalidRequest:
    """Return the error for a body that decompresses to more than `limit` bytes."""
    return InvalidRequest(
        f"decompressed body exceeds the maximum allowed input size of {limit} bytes",
        code=Code.RESOURCE_EXHAUSTED,
    )


def inflate_if_short(data: Buffer, encoding: str, limit: int) -> bytes | None:
    """Decompress like `inflate`, but return None if the result exceeds SHORT_BYTES: for the event loop."""
    if len(data) > SHORT_BYTES:
        return None
    try:
        return inflate(data, encoding, min(limit, SHORT_BYTES))
    except InvalidRequest as exc:
        if exc.code is Code.RESOURCE_EXHAUSTED and limit > SHORT_BYTES:
            return None
        raise


def deflate(data: Buffer, encoding: str, level: int = 6) -> bytes:
    """Compress with one of ENCODINGS."""
    return zlib.compress(data, level, _WINDOW_BITS[encoding])


class Inflater:
    """Decompresses for all connections. A result is charged until its last reference is dropped,
    because queued requests take memory, too.
    """

    def __init__(self, max_bytes: int = DEFAULT_INFLATED_BYTES, *, wait_s: float = _WAIT_S) -> None:
        self._shares = (
            _Share(max_bytes // 4, wait_s, threads=max(1, min(4, os.cpu_count() or 1) - 1)),
            _Share(max_bytes - max_bytes // 4, wait_s, threads=1),
        )

    def start(self, data: Buffer, encoding: str, limit: int) -> "asyncio.Task[Buffer]":
        """Start decompressing a complete body. The task raises like `inflate`, and
        Overloaded if the budget stays exhausted; it may be cancelled.
        """
        return asyncio.get_running_loop().create_task(self._inflate(data, encoding, limit))

    async def _inflate(self, data: Buffer, encoding: str, limit: int) -> Buffer:
        _check_encoding(encoding)
        modest, large = self._shares
        if encoding == "gzip":
            size = int.from_bytes(data[-4:], "little")  # if it is wrong, decompression fails
            if size > limit:
                raise _too_large(limit)
            if size > _LARGEST_RATIO * len(data):
                raise InvalidRequest("body is not one complete gzip stream")
        else:
            size = await modest.run(partial(_measure_inflated, data, encoding, limit))
        share = modest if size <= min(_MODEST_BYTES, modest.max_bytes) else large
        out = await share.buffer(size)
        try:
            await share.run(partial(_inflate_into, out, data, encoding, limit))
        except (InvalidRequest, asyncio.CancelledError) as exc:
            # the traceback's frames would hold the memory until the next garbage collection
            exc.__traceback__ = None
            del out
            raise
        return out

    @property
    def held_bytes(self) -> int:
        """Bytes of results in progress or still referenced."""
        return sum(share.held_bytes for share in self._shares)

    def close(self) -> None:
        """Cancel queued work and accept no more."""
        for share in self._shares:
            share.close()


class _Share:
    """Part of the budget with its threads, granted in order of request."""

    def __init__(self, max_bytes: int, wait_s: float, *, threads: int) -> None:
        self.max_bytes = max_bytes
        self._wait_s = wait_s
        self.held_bytes = 0
        """Bytes of results in progress or still referenced."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="inflate")

    async def run(self, work: Callable[[Callable[[], bool]], int]) -> int:
        """Run `work` in a thread. Its argument returns True once the caller no longer waits."""
        stopped = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, stopped.is_set)
        finally:
            stopped.set()

    async def buffer(self, size: int) -> memoryview:
        """Return memory for a result, charged until it is dropped. Raises InvalidRequest, Overloaded."""
        if size > self.max_bytes:
            raise InvalidRequest(
                f"decompressed body of {size} bytes exceeds the {self.max_bytes} bytes that one may take "
                "(three quarters of --max-inflated-bytes)",
                code=Code.RESOURCE_EXHAUSTED,
            )
        await self._reserve(size)
        try:
            block = np.empty(size + ALIGNMENT, dtype=np.uint8)
        except MemoryError:
            self._free(size)
            raise InvalidRequest(
                "no memory for the decompressed body", code=Code.RESOURCE_EXHAUSTED
            ) from None
        loop = asyncio.get_running_loop()
        weakref.finalize(block, self._schedule_free, size, loop).atexit = False
        start = -block.__array_interface__["data"][0] % ALIGNMENT
        return block.data[start : start + size]

    async def _reserve(self, size: int) -> None:
        if not self._waiting and self.held_bytes + size <= self.max_bytes:
            self.held_bytes += size
            return
        waiting = size, asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        granted = False
        try:
            done, _ = await asyncio.wait([waiting[1]], timeout=self._wait_s)
            granted = bool(done)
        finally:
            if not granted:
                self._stop_waiting(waiting)
        if not granted:
            raise Overloaded(
                f"decompressed bodies take {self.max_bytes} bytes, the most that they may "
                "(--max-inflated-bytes): ask again later"
            )

    def _stop_waiting(self, waiting: tuple[int, asyncio.Future[None]]) -> None:
        """Stop waiting, and release a grant that arrived meanwhile."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            self._grant()
        else:
            self._free(waiting[0])

    def _schedule_free(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        """Release a result's memory; runs in the thread that dropped the last reference."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._free, size)

    def _free(self, size: int) -> None:
        self.held_bytes -= size
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self.held_bytes + self._waiting[0][0] <= self.max_bytes:
            size, waiter = self._waiting.popleft()
            self.held_bytes += size
            waiter.set_result(None)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _measure_inflated(data: Buffer, encoding: str, limit: int, stopped: Callable[[], bool]) -> int:
    """Return the decompressed size of a stream that does not contain it, by decompressing it once."""
    size = 0
    for part in _iter_inflated(data, encoding, stopped):
        size += len(part)
        if size > limit:
            raise _too_large(limit)
    return size


def _inflate_into(
    out: memoryview, data: Buffer, encoding: str, limit: int, stopped: Callable[[], bool]
) -> int:
    filled = 0
    for part in _iter_inflated(data, encoding, stopped):
        end = filled + len(part)
        if end > len(out):
            raise _too_large(limit) if end > limit else InvalidRequest(f"body is not valid {encoding} data")
        out[filled:end] = part
        filled = end
    if filled < len(out) and not stopped():
        raise InvalidRequest(f"body is not one complete {encoding} stream")
    return filled


def _iter_inflated(data: Buffer, encoding: str, stopped: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the decompressed data in pieces. Raises InvalidRequest."""
    inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
    view, at, full = memoryview(data), 0, False
    while not inflater.eof and not stopped():
        piece: Buffer = inflater.unconsumed_tail
        if not piece and not full:
            piece = view[at : at + _READ_BYTES]
            at += len(piece)
            if not piece:
                break
        try:
            part = inflater.decompress(piece, _MADE_BYTES)
        except zlib.error as exc:
            raise InvalidRequest(f"body is not valid {encoding} data: {exc}") from exc
        full = len(part) == _MADE_BYTES
        yield part
    if not stopped() and (not inflater.eof or inflater.unused_data or at < len(view)):
        raise InvalidRequest(f"body is not one complete {encoding} stream")
