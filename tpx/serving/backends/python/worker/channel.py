"""Model side of the socket: any thread sends, and the thread that waits for something reads.

There is no dedicated reader thread, because every request would then pay for a thread switch.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence

from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.waiting import Waiting
from tpx.serving.transport.frame_socket import HEADER
from tpx.serving.transport.memory import BlockMemory, Blocks, Buffer

_READ_BYTES = 32 << 10
"""Below the size from which the allocator maps memory anew for each read."""

_MOST_KEPT = 1000
"""Frames behind those being sent, from which threads wait with more."""
_PATIENCE_S = 1.0

OnFrame = Callable[[int, memoryview], None]
Entry = tuple[list[Buffer], list[Buffer]]
"""An entry of a frame: its own parts, and its tensors."""


class ServerGone(Exception):
    """The socket was closed, so the process exits."""


class Channel:
    """Frames in both directions, and the shared memory for their tensors."""

    def __init__(
        self, sock: socket.socket, incoming: BlockMemory, outgoing: BlockMemory, on_frame: OnFrame
    ) -> None:
        self._sock = sock
        self._on_frame = on_frame
        self.waiting = Waiting(sock.fileno())
        self._framing = threading.RLock()
        """Held while a frame gets its blocks and its place. Reentrant: the collector may end a sender, which
        sends.
        """
        self._sending = threading.Lock()
        self._changed = threading.Condition(threading.Lock())
        self._reading = False
        self._rest = b""
        self._blocks = Blocks(outgoing)
        self.view = incoming.view
        """Returns a tensor in the memory that the server writes to."""
        self._begun = outgoing.words
        self._pump: threading.Thread | None = None
        self._kept: list[bytes] = []

    # sending

    def send(self, kind: int, parts: list[Buffer], tensors: list[Buffer] | None = None) -> None:
        """Send a frame; `tensors` follow its parts. Raises MemoryError."""
        self.send_entries(kind, parts, [([], tensors)] if tensors else [])

    def send_entries(
        self, kind: int, parts: list[Buffer], entries: Sequence[Entry], *, keep: bool = False
    ) -> None:
        """Send a frame of parts and entries, or keep it for `flush` or the next frame. Raises MemoryError."""
        with self._framing:
            try:
                for own, tensors in entries:
                    parts += own
                    if tensors:
                        frames.add_tensors(parts, tensors, self._blocks)
            except MemoryError:
                self._blocks.take_back()
                raise
            self._blocks.sent()
            self._kept.append(frames.framed(kind, parts))
        if not keep:
            self.flush()

    def send_small(self, frame: bytes) -> None:
        """Send a frame that needs no shared memory."""
        self._kept.append(frame)
        self.flush()

    @property
    def free_bytes(self) -> int:
        """Bytes of shared memory for tensors to the server."""
        with self._framing:
            return self._blocks.free_bytes

    def flush(self) -> None:
        """Send the frames so far, unless another thread is sending, which then sends these, too."""
        kept, sending = self._kept, self._sending
        # checked again after the release: another thread may have failed to acquire it until then
        while kept and (
            sending.acquire(False) or (len(kept) > _MOST_KEPT and sending.acquire(timeout=_PATIENCE_S))
        ):
            try:
                count = len(kept)  # others append meanwhile, but only this thread removes
                data = kept[0] if count == 1 else b"".join(kept[:count])
                del kept[:count]
                self._sock.sendall(data)
            except OSError as exc:
                raise ServerGone from exc
            finally:
                sending.release()

    def finish(self) -> None:
        """Return once all frames are sent, by whatever thread."""
        while self._kept or self._sending.locked():
            with self._sending:
                pass
            self.flush()

    def begin(self, batch: int) -> None:
        """Record that this batch was started; the server sees it even if the process dies."""
        self._begun[0] = batch

    # receiving

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()`; read meanwhile unless another thread does. Raises ServerGone."""
        changed = self._changed
        with changed:
            while not ready():
                if self._reading:
                    changed.wait()
                    continue
                self._reading = True
                changed.release()
                try:
                    self._read_frames()
                finally:
                    changed.acquire()
                    self._reading = False
                    changed.notify_all()

    def read_arrived(self) -> None:
        """Handle frames that have arrived, without waiting."""
        with self._changed:
            if self._reading:
                return
            self._reading = True
        try:
            while self.waiting.here():
                self._read_frames()
        finally:
            with self._changed:
                self._reading = False
                self._changed.notify_all()

    def notify(self) -> None:
        """Notify waiting threads of a change."""
        with self._changed:
            self._changed.notify_all()

    def pump(self) -> None:
        """Read in a separate thread from now on: threads also wait for results produced in this process."""
        with self._changed:
            if self._pump is not None:
                return
            self._pump = threading.Thread(target=self._run_pump, name="tpx-channel", daemon=True)
        self._pump.start()

    def _run_pump(self) -> None:
        try:
            self.wait(lambda: False)
        except ServerGone:
            self.notify()

    def _read_frames(self) -> None:
        """Wait for data and handle the complete frames."""
        # the pump thread may be slow; spinning there would take the interpreter lock from others
        if self._pump is None:
            self.waiting.until_readable()
        try:
            data = self._sock.recv(_READ_BYTES)
        except OSError as exc:
            raise ServerGone from exc
        if not data:
            raise ServerGone
        if self._rest:
            # prepend the incomplete data of the last read; the rest of a large frame is read at once
            parts = [self._rest, data]
            have = len(self._rest) + len(data)
            if have >= HEADER.size:
                start = b"".join(parts) if len(self._rest) < HEADER.size else self._rest
                need = HEADER.size + HEADER.unpack_from(start)[0]
                while have < need:
                    more = self._sock.recv(min(need - have, 1 << 20), socket.MSG_WAITALL)
                    if not more:
                        raise ServerGone
                    parts.append(more)
                    have += len(more)
            data = b"".join(parts)
        self._handle_frames(data)

    def _handle_frames(self, data: bytes) -> None:
        view, at, end = memoryview(data), 0, len(data)
        start = HEADER.size
        while end - at >= start:
            size, kind = HEADER.unpack_from(data, at)
            if end - at - start < size:
                break
            body = view[at + start : at + start + size]
            self._on_frame(kind, body)
            at += start + size
        self._rest = data[at:] if at < end else b""
