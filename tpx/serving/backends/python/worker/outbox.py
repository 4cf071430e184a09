"""Responses of many requests, sent together: those that are ready when the sender wakes share a frame.

Language models produce a token for each of their sequences in every step, so that a token costs a share of a
frame. Nothing here waits for a client: one that is far behind is reported to the producer instead.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from contextlib import suppress

from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.channel import Entry, ServerGone
from tpx.serving.backends.python.worker.execution import Execution

_LENGTH = struct.Struct("<I")
AHEAD_BYTES = 1 << 20
"""Bytes of responses that a client may be behind."""
_DATATYPES = {bytes: "BYTES", int: "UINT32"}

Fields = Sequence[tuple[str, "bytes | int"]]
"""Outputs of one element each, by name: BYTES or UINT32."""


class Outbox:
    """Sends responses of any thread; for requests of a decoupled model."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._heads: dict[tuple[str, ...], bytes] = {}
        self._ready: list[Entry] = []
        self._changed = threading.Condition(threading.Lock())
        threading.Thread(target=self._run, name="tpx-outbox", daemon=True).start()

    def post(self, handle: int, fields: Fields) -> bool:
        """Send a response. Return False if the client is too far behind to get any more."""
        parts: list[frames.Buffer] = [
            _LENGTH.pack(len(value)) + value if isinstance(value, bytes) else _LENGTH.pack(value)
            for _, value in fields
        ]
        size = sum(map(len, parts)) + frames.RESPONSE_BYTES
        self._put([frames.RESPONSE_START.pack(handle, 0), self._head(fields)], parts)
        return self._execution.run_ahead(handle, size) <= AHEAD_BYTES

    def finish(self, handle: int) -> None:
        """Send the final flag."""
        self._put([frames.RESPONSE_START.pack(handle, frames.FINAL | frames.EMPTY)], [])
        self._execution.forget(handle)

    def fail(self, handle: int, message: str, code: int) -> None:
        """Send an error as the final response."""
        text = message.encode(errors="replace")
        start = frames.RESPONSE_START.pack(handle, frames.FINAL)
        self._put([start, frames.STATUS.pack(frames.ERROR, len(text)), bytes([code]), text], [])
        self._execution.forget(handle)

    def _put(self, own: list[frames.Buffer], tensors: list[frames.Buffer]) -> None:
        with self._changed:
            self._ready.append((own, tensors))
            if len(self._ready) == 1:
                self._changed.notify()

    def _head(self, fields: Fields) -> bytes:
        names = tuple(name for name, _ in fields)
        head = self._heads.get(names)
        if head is None:
            tensors = [(name, _DATATYPES[type(value)], (1,)) for name, value in fields]
            encoded = frames.encode_head(tensors, {})
            head = self._heads[names] = frames.STATUS.pack(frames.TENSORS, len(encoded)) + encoded
        return head

    def _run(self) -> None:
        changed, channel = self._changed, self._execution.channel
        with suppress(ServerGone):
            while True:
                with changed:
                    while not self._ready:
                        changed.wait()
                    entries, self._ready = self._ready, []
                try:
                    channel.send_entries(frames.RESPONSE, [], entries)
                except MemoryError:  # of large responses: the server has to read others first
                    self._send_one_by_one(entries)

    def _send_one_by_one(self, entries: Sequence[Entry]) -> None:
        for own, tensors in entries:
            try:
                self._execution.channel.send_entries(frames.RESPONSE, [], [(own, tensors)])
            except MemoryError as exc:
                text = str(exc).encode()
                error = [own[0], frames.STATUS.pack(frames.ERROR, len(text)), bytes([1]), text]
                self._execution.channel.send_entries(frames.RESPONSE, [], [(error, [])])
