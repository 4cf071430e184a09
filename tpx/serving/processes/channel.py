"""Communication between a frontend and the engine: frames over a socket, and large payloads in shared
memory, which is free again when the receiver has released its last view of them.

A frame consists of a fixed head, metadata, and a payload, each of up to `INLINE_BYTES` or its location. Most
are plain, without metadata, and have the head of the frame before, but for the number: these are written by
one call of `struct`, and read together.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tpx.errors import Overloaded
from tpx.protocol.memory_budget import MemoryBudget
from tpx.protocol.tensors import Array, Buffer
from tpx.serving.transport.frame_socket import HEADER, FrameSocket
from tpx.serving.transport.memory import RESERVED_BYTES, BlockMemory, Blocks, copy_into

INLINE_BYTES = 8 << 10
_HEAD = struct.Struct("<IBHxIIII")
"""Head of a frame: that of `FrameSocket`, flags, number, template, generation, bytes of metadata."""
HEAD_BYTES = _HEAD.size - HEADER.size
"""Bytes of a frame that its length includes beside metadata and payload."""
_LOCATION = struct.Struct("<QQ")
"""Location and size of a payload in shared memory."""
IN_MEMORY, META_IN_MEMORY = 128, 256
"""Flags of a frame whose payload or metadata is in shared memory, where it is charged to a budget; the others
mean nothing to the channel."""
_AT_ONCE = 256
"""Maximum frames taken in one turn of the event loop."""
_ALIKE = 64
"""Maximum number of plain frames that a reader gets at once."""
_TICK_S = 1
_LOOK_S = 0.002
"""Seconds between looks at what the peer has released, while it holds so much that the limit is near."""
_AMPLE = 3 / 4
"""Fraction of the limit above which the peer has a backlog: models that produce responses ahead pause."""
GENERATION, READY, IN_FLIGHT, PENDING = 0, 1, 2, 3
"""Indexes of the engine's gauges: generation of its models, readiness and numbers of requests."""
CONNECTIONS, CLOSING = 0, 1
"""Indexes of a frontend's gauges: number of connections, and whether it has stopped accepting them."""

FrameHead = tuple[int, int, int, int, int]
"""Kind, flags, number, template and generation of a frame."""
Fields = tuple[int, int, int, int, int, int, int]
"""Length, kind, flags, number, template, generation and bytes of metadata of a frame."""
Arrived = tuple[Fields, Sequence[int], Sequence[Buffer]]
"""Head, number and data of a frame, or of several plain ones whose heads differ in the number only.

The data of a frame that is not plain is valid until the next turn.
"""


class ChannelBroken(Exception):
    """Raised for data that a correct peer cannot have written."""


@lru_cache(maxsize=1024)
def _make_plain_layout(size: int) -> struct.Struct:
    """Return the layout of a plain frame: before its number, the number, the rest of the head, payload."""
    return struct.Struct(f"<8sI{_HEAD.size - 12}s{size}s")


class PlainHead:
    """Head of plain frames, which have a payload of one size and no metadata."""

    __slots__ = ("_begin", "_pack", "_rest")

    def __init__(self, kind: int, flags: int, template: int, generation: int, size: int) -> None:
        head = _HEAD.pack(HEAD_BYTES + size, kind, flags, 0, template, generation, 0)
        self._begin, self._rest = head[:8], head[12:]
        self._pack = _make_plain_layout(size).pack

    def frame(self, number: int, data: bytes) -> bytes:
        """Return a frame."""
        return self._pack(self._begin, number, self._rest, data)


@dataclass(slots=True)
class ReceivedFrame:
    """A frame as received; a view of `payload` keeps its block in use."""

    kind: int
    flags: int
    number: int
    template: int
    generation: int
    meta: Buffer
    payload: Buffer


OnFrames = Callable[["FrameChannel", Iterator[Arrived]], None]
"""Handles frames; an exception breaks the channel."""


class FrameChannel:
    """One end of a channel."""

    def __init__(
        self,
        sock: socket.socket,
        memory: Sequence[BlockMemory],
        on_frames: OnFrames,
        on_end: Callable[[Exception | None], None],
        *,
        eager: bool = False,
        limit_bytes: int = RESERVED_BYTES,
        budget: MemoryBudget | None = None,
    ) -> None:
        """`memory` is for large payloads to the peer, and from it. The peer may hold up to `limit_bytes` of
        this side's, which are charged to the `budget`. With `eager`, each is sent at once: the peer computes
        while this side reads on.

        `on_end` is called once, when the peer has closed its end or, with an error, has sent invalid data.
        """
        self._loop = asyncio.get_running_loop()
        self._budget = budget or MemoryBudget()
        own, self._theirs = memory
        self._blocks = Blocks(own, self._budget.take)
        self.gauges = own.words
        """Words that this side writes and the peer may read at any time."""
        self.peer_gauges = self._theirs.words
        self._on_frames = on_frames
        self._on_end = on_end
        self._eager = eager
        self._limit_bytes, self._ample_bytes = limit_bytes, int(limit_bytes * _AMPLE)
        self._published_ns = 0
        self.backlog = False
        """True while frames queue, or the peer holds so much that the limit is near."""
        self.on_backlog: Callable[[bool], None] = lambda _: None
        """Called when `backlog` changes."""
        self._at = 0
        """Position in the data that is being read."""
        self._socket = FrameSocket(self._loop, sock, self._handle_data, self._end)
        self._socket.on_blocked = self._update_backlog
        self._ticker = self._loop.call_later(_TICK_S, self._tick)
        self._looker: asyncio.TimerHandle | None = None

    @property
    def closed(self) -> bool:
        """True after `close`, when nothing is sent or received any more."""
        return not self._socket.open

    @property
    def used_bytes(self) -> int:
        """Size of this side's blocks in use."""
        self._blocks.collect()
        return self._blocks.used_bytes

    # sending

    def send(
        self, kind: int, *, flags: int = 0, number: int = 0, meta: bytes = b"", parts: Sequence[Buffer] = ()
    ) -> None:
        """Send a frame. Raises Overloaded if it can never fit, or the peer holds too much."""
        self.post((kind, flags, number, 0, 0), meta, parts)

    def post(self, head: FrameHead, meta: bytes, parts: Sequence[Buffer]) -> None:
        """Send a frame like `send`, with its head as a tuple; used for most frames."""
        if self.closed:
            return
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if size <= INLINE_BYTES and len(meta) <= INLINE_BYTES:
            start = _HEAD.pack(HEAD_BYTES + len(meta) + size, *head, len(meta))
            self._socket.send(b"".join((start, meta, *parts)))
            return
        kind, flags, *rest = head
        try:
            if len(meta) > INLINE_BYTES:
                meta = _LOCATION.pack(self._place((meta,), len(meta)), len(meta))
                flags |= META_IN_MEMORY
            if size > INLINE_BYTES:
                parts = (_LOCATION.pack(self._place(parts, size), size),)
                size = _LOCATION.size
                flags |= IN_MEMORY
        except Overloaded:
            self._blocks.take_back()
            raise
        self._blocks.sent()
        start = _HEAD.pack(HEAD_BYTES + len(meta) + size, kind, flags, *rest, len(meta))
        self._socket.send(b"".join((start, meta, *parts)))
        if self._eager:
            self.publish()
        if self._blocks.used_bytes > self._ample_bytes and not self.backlog:
            self._update_backlog()

    def _place(self, parts: Sequence[Buffer], size: int) -> int:
        """Return the location of a payload in shared memory. Raises Overloaded."""
        blocks = self._blocks
        pinned = blocks.pin(parts)
        if pinned is not None:
            return pinned
        self._admit(size)
        try:
            location = blocks.reserve(size)
        except MemoryError as exc:
            raise Overloaded(f"a message of {size} bytes has no room in the frontends' memory") from exc
        at = location
        for part in parts:
            copy_into(blocks.block(at, len(part)), part)
            at += len(part)
        return location

    def _admit(self, size: int) -> None:
        """Check the limits for another block. Raises Overloaded."""
        blocks, budget = self._blocks, self._budget
        queued = self._socket.queued_bytes
        if blocks.used_bytes + queued + size > self._limit_bytes or budget.held + size > budget.limit_bytes:
            blocks.collect()
        held = blocks.used_bytes + queued
        if held and held + size > self._limit_bytes:
            raise Overloaded(
                f"a frontend holds {held} bytes of answers, of at most {self._limit_bytes} "
                "(its share of --max-buffered-bytes)"
            )
        if not budget.admit_answer(size):
            raise budget.overload()

    def post_plain(self, plain: PlainHead, number: int, data: bytes) -> None:
        """Send a plain frame like `post`."""
        self._socket.send(plain.frame(number, data))

    def allocate(self, size: int) -> Array | None:
        """Return memory whose parts are sent without a copy; None if there is no room."""
        try:
            array: Array = self._blocks.allocate_array(size)
        except MemoryError:
            return None
        return array

    def begin_turn(self, now_ns: int) -> None:
        """Count the time of `publish_late` from here."""
        self._published_ns = now_ns

    def publish_late(self, now_ns: int, after_ns: int) -> None:
        """Publish the frames so far if the last ones were published more than `after_ns` before."""
        if now_ns - self._published_ns > after_ns:
            self._published_ns = now_ns
            self.publish()

    def publish(self) -> None:
        """Send the frames so far, without waiting for others of this turn of the event loop."""
        self._socket.flush()

    def _update_backlog(self) -> None:
        """Update `backlog`; look again soon if only the release of blocks can end it."""
        if self._looker is not None:
            self._looker.cancel()
            self._looker = None
        much = self.used_bytes > self._ample_bytes
        if much:
            self._looker = self._loop.call_later(_LOOK_S, self._update_backlog)
        backlog = much or self._socket.queued_bytes > 0
        if backlog is not self.backlog:
            self.backlog = backlog
            self.on_backlog(backlog)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(_TICK_S, self._tick)
        self._blocks.tick()

    # receiving

    def _handle_data(self, data: memoryview) -> int:
        self._at = 0
        self._socket.holds = True
        try:
            self._on_frames(self, self._read_frames(data))
        except Exception as exc:  # noqa: BLE001 (one channel's boundary)
            self._end(exc)
        self._socket.holds = False
        if self._blocks.used_bytes:
            self._blocks.collect(1)
        self.publish()
        return self._at

    def _read_frames(self, data: memoryview) -> Iterator[Arrived]:
        """Yield complete frames, up to a limit. Raises ValueError for invalid ones."""
        at, most, end = 0, _AT_ONCE, len(data)
        if HEADER.size <= end < _HEAD.size and HEADER.unpack_from(data)[0] < HEAD_BYTES:
            raise ChannelBroken("a frame that is shorter than its head")
        while most > 0 and end - at >= _HEAD.size:
            fields: Fields = _HEAD.unpack_from(data, at)
            length, _, flags, number, _, _, meta_size = fields
            size = HEADER.size + length
            if size > end - at:
                return
            payload_size = length - HEAD_BYTES - meta_size
            if payload_size < 0 or (flags & IN_MEMORY and payload_size != _LOCATION.size):
                raise ChannelBroken(f"a frame of {size} bytes with {meta_size} bytes of metadata")
            numbers: Sequence[int] = (number,)
            several: Sequence[Buffer] = (data[at + _HEAD.size : at + size],)
            if not meta_size and not flags & IN_MEMORY:
                numbers, several = _read_plain(
                    data[at : at + size * min((end - at) // size, most, _ALIKE)], payload_size
                )
            most -= len(numbers)
            self._at = at = at + size * len(numbers)
            yield fields, numbers, several

    def open(self, arrived: Arrived) -> Iterator[ReceivedFrame]:
        """Yield frames with their metadata and payload. Raises ValueError."""
        (_, kind, flags, _, template, generation, meta_size), numbers, several = arrived
        for number, data in zip(numbers, several, strict=True):
            meta, payload = bytes(data[:meta_size]), data[meta_size:]
            if flags & META_IN_MEMORY:
                meta = bytes(self._theirs.view(*_LOCATION.unpack(meta)))
            fields = kind, flags & ~(IN_MEMORY | META_IN_MEMORY), number, template, generation, meta
            if flags & IN_MEMORY:
                # without a variable, which would hold the block until the next frame
                yield ReceivedFrame(*fields, self._theirs.view(*_LOCATION.unpack(payload)))
            else:
                yield ReceivedFrame(*fields, bytes(payload))

    def unread(self, arrived: Arrived, count: int) -> None:
        """Leave the last `count` of frames that arrived together to the next turn."""
        self._at -= (HEADER.size + arrived[0][0]) * count

    def _end(self, error: Exception | None = None) -> None:
        on_end, self._on_end = self._on_end, _do_nothing
        self._socket.close()
        on_end(error)

    def close(self) -> None:
        """Stop sending and receiving. Memory that is still viewed stays mapped."""
        if self._on_frames is _do_nothing:
            return
        # break the cycle: memory is freed with its last view, not by the collector
        self._on_frames = self._on_end = self.on_backlog = _do_nothing
        self._ticker.cancel()
        if self._looker is not None:
            self._looker.cancel()
        self._socket.close()
        self._blocks.close()


def _do_nothing(*_: object) -> None:
    """Do nothing: the channel is closed."""


def _read_plain(data: memoryview, payload_size: int) -> tuple[Sequence[int], Sequence[Buffer]]:
    """Return number and payload of a plain frame, and of those that follow it with the same head."""
    several = _make_plain_layout(payload_size).iter_unpack(data)
    begin, number, rest, payload = next(several)
    numbers, payloads = [number], [payload]
    for other_begin, number, other_rest, payload in several:
        if other_rest != rest or other_begin != begin:
            break
        numbers.append(number)
        payloads.append(payload)
    return numbers, payloads
