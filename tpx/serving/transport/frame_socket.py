"""Frames over a socket to another process, on the event loop. Never blocks.

A frame begins with its length and its kind; what follows is the user's. Frames of one turn of the loop are
sent with one system call.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable

from tpx.serving.transport.memory import Buffer

HEADER = struct.Struct("<IB")
"""Length of the rest of the frame, and the kind."""
MOST_BYTES = 1 << 30
"""Maximum length of a frame: large tensors are in shared memory."""
_READ_BYTES = 256 << 10
_SEND_BYTES = 1 << 20
"""Bytes that the kernel is asked to keep until the other end reads; it allows less."""


class FrameSocket:
    """One end of a socket.

    `on_data` is called with what has come, handles complete frames and returns their size; it is called again
    with the rest. `on_gone` is called once, when the other end has closed or has sent an invalid length, or
    by `close`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_data: Callable[[memoryview], int],
        on_gone: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        self._loop = loop
        self._sock = sock
        self._on_data = on_data
        self._on_gone: Callable[[], None] | None = on_gone
        self.on_blocked: Callable[[], None] = lambda: None
        """Called when frames begin to queue, and when all of them have been sent."""
        self._buffer = bytearray(_READ_BYTES)
        self._filled = 0
        self.holds = False
        """True if the user calls `flush` itself after what it sends."""
        self._waiting: list[bytes] = []
        self._backlog: deque[memoryview] = deque()
        self.queued_bytes = 0
        """Bytes that wait until the other end reads."""
        loop.add_reader(sock.fileno(), self._handle_readable)

    @property
    def open(self) -> bool:
        return self._on_gone is not None

    # sending

    def send(self, frame: bytes) -> None:
        """Send a frame with the others of this turn, or queue it until the socket is writable."""
        if not (self._waiting or self.holds):
            self._loop.call_soon(self.flush)
        self._waiting.append(frame)

    def flush(self) -> None:
        """Send the frames so far."""
        waiting = self._waiting
        if not waiting:
            return
        data = waiting[0] if len(waiting) == 1 else b"".join(waiting)
        waiting.clear()
        if not self.open:
            return
        if self._backlog:
            self._backlog.append(memoryview(data))
            self.queued_bytes += len(data)
            return
        sent = self._try_send(data)
        if sent < len(data):
            self._backlog.append(memoryview(data)[sent:])
            self.queued_bytes = len(data) - sent
            self._loop.add_writer(self._sock.fileno(), self._handle_writable)
            self.on_blocked()

    def _try_send(self, data: Buffer) -> int:
        try:
            return self._sock.send(data)
        except OSError:
            return 0  # the socket is full, or the peer has closed, which the reader reports

    def _handle_writable(self) -> None:
        while self._backlog:
            data = self._backlog[0]
            sent = self._try_send(data)
            self.queued_bytes -= sent
            if sent < len(data):
                self._backlog[0] = data[sent:]
                return
            self._backlog.popleft()
        self._loop.remove_writer(self._sock.fileno())
        self.on_blocked()

    # receiving

    def _handle_readable(self) -> None:
        try:
            count = self._sock.recv_into(memoryview(self._buffer)[self._filled :])
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            return
        self._filled += count
        if self._handle_data():
            self._loop.remove_reader(self._sock.fileno())
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Handle the frames that a turn has left over, before more are read."""
        if self.open and self._handle_data():
            self._loop.call_soon(self._resume)
        elif self.open:
            self._loop.add_reader(self._sock.fileno(), self._handle_readable)

    def _handle_data(self) -> bool:
        """Handle complete frames. Return True if it is open and some are left."""
        end = self._filled
        at = self._on_data(memoryview(self._buffer)[:end])
        if self._on_gone is None:
            return False
        rest = self._filled = end - at
        if not rest:
            if end > _READ_BYTES:
                self._buffer = bytearray(_READ_BYTES)
            return False
        need = HEADER.size
        if rest >= need:
            need += HEADER.unpack_from(self._buffer, at)[0]
        if need > MOST_BYTES:
            self.close()
            return False
        # keep the beginning of an incomplete frame in a buffer large enough for all of it
        if need > len(self._buffer):
            larger = bytearray(need)
            larger[:rest] = self._buffer[at:end]
            self._buffer = larger
        elif at:
            self._buffer[:rest] = self._buffer[at:end]
        return need <= rest

    def close(self) -> None:
        """Close this end; the other one reads its end."""
        if self._on_gone is None:
            return
        gone, self._on_gone = self._on_gone, None
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._waiting.clear()
        self._backlog.clear()
        del (
            self._on_data,
            self.on_blocked,
        )  # break the cycle: the user's memory is freed without the collector
        gone()
