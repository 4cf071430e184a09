"""Responses of many requests, sent together: those of one step of an engine share a frame.

Language models produce a token for each of their sequences in every step, so that a token costs a share of a
frame. Nothing here waits for a client: one that is far behind is reported to the producer instead.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.channel import Entry, ServerGone
from tpx.serving.backends.python.worker.execution import Execution
from tpx.serving.transport.memory import Buffer

_LENGTH = struct.Struct("<I")
_REAL = struct.Struct("<f")
AHEAD_BYTES = 1 << 20
"""Bytes of responses that a client may be behind."""
_SHORTEST_S, _LONGEST_S = 0.002, 0.008
"""Shortest and longest time after which a response no longer waits for others of its step: the tokens of many
sequences are sampled one after another, which takes a part of a step.
"""
_DATATYPES = {bytes: "BYTES", int: "UINT32", float: "FP32"}

Fields = Sequence[tuple[str, "bytes | int | float"]]
"""Outputs of one element each, by name: BYTES, UINT32 or FP32."""


class Outbox:
    """Sends responses of any thread; for requests of a decoupled model.

    A thread that adds the last response of a step sends all of them, which spares the switch to another
    thread. What an incomplete step leaves is sent by a thread that looks every few milliseconds. With
    `by_step`, `flush` sends them instead.
    """

    def __init__(self, execution: Execution, *, by_step: bool = False) -> None:
        self._execution = execution
        self._heads: dict[tuple[str, ...], bytes] = {}
        self._lock = threading.Lock()
        self._ready: list[Entry] = []
        self._waiting: set[int] = set()
        """Requests with responses in `_ready`."""
        self._streams = 0
        self._due = False
        """True if what is ready must be sent."""
        self._sending = threading.Lock()
        self._sent = 0
        """Number of frames that were sent."""
        self._period_s = _SHORTEST_S
        self._added = threading.Event()
        self._watched = False
        self._by_step = by_step
        if not by_step:
            threading.Thread(target=self._watch, name="tpx-outbox", daemon=True).start()

    def expect(self, streams: int) -> None:
        """Change the number of requests that have a response in each step."""
        with self._lock:
            self._streams += streams

    def post(self, handle: int, fields: Fields) -> bool:
        """Send a response. Return False if the client is too far behind to get any more."""
        parts: list[Buffer] = [
            _LENGTH.pack(len(value)) + value
            if isinstance(value, bytes)
            else (_REAL if isinstance(value, float) else _LENGTH).pack(value)
            for _, value in fields
        ]
        size = frames.RESPONSE_BYTES
        for part in parts:
            size += len(part)
        self._put(handle, [frames.RESPONSE_START.pack(handle, 0), self._head(fields)], parts)
        return self._execution.run_ahead(handle, size) <= AHEAD_BYTES

    def finish(self, handle: int, prompt_tokens: int = 0, made_tokens: int = 0) -> None:
        """Send the final flag, and numbers of tokens for traces and logs."""
        flags = frames.FINAL | frames.EMPTY | frames.COUNTED
        counts = frames.COUNTS.pack(prompt_tokens, made_tokens)
        self._put(handle, [frames.RESPONSE_START.pack(handle, flags), counts], [])
        self._execution.forget(handle)

    def fail(self, handle: int, message: str, code: int) -> None:
        """Send an error as the final response."""
        text = message.encode(errors="replace")
        start = frames.RESPONSE_START.pack(handle, frames.FINAL)
        self._put(handle, [start, frames.STATUS.pack(frames.ERROR, len(text)), bytes([code]), text], [])
        self._execution.forget(handle)

    def _put(self, handle: int, own: list[Buffer], tensors: list[Buffer]) -> None:
        with self._lock:
            self._ready.append((own, tensors))
            if self._by_step:
                return
            self._waiting.add(handle)
            complete = len(self._waiting) >= self._streams
            if complete:
                self._due = True
                self._period_s = max(0.9 * self._period_s, _SHORTEST_S)
            watched, self._watched = self._watched, self._watched or not complete
        if complete:
            self.flush()
        elif not watched:
            self._added.set()

    def flush(self) -> None:
        """Send what is ready, unless another thread is sending, which then sends it too."""
        while self._sending.acquire(blocking=False):
            try:
                with self._lock:
                    entries, self._ready = self._ready, []
                    self._waiting.clear()
                    self._due = False
                if entries:
                    self._sent += 1
                    with suppress(ServerGone):
                        self._send(entries)
            finally:
                self._sending.release()
            if not self._due:  # checked after the release: others may have failed to acquire it until then
                return

    def _watch(self) -> None:
        """Send responses that have waited for others of their step for too long."""
        while True:
            self._added.wait()
            self._added.clear()
            sent = -1
            while True:
                time.sleep(self._period_s)
                with self._lock:
                    if not self._ready and sent == self._sent:
                        self._watched = False  # nothing was sent since the last look
                        break
                    overdue = bool(self._ready) and sent == self._sent
                    sent = self._sent
                    self._due = self._due or overdue
                if overdue:
                    self.flush()
                    self._period_s = min(2 * self._period_s, _LONGEST_S)

    def _head(self, fields: Fields) -> bytes:
        names = tuple([name for name, _ in fields])
        head = self._heads.get(names)
        if head is None:
            tensors = [(name, _DATATYPES[type(value)], (1,)) for name, value in fields]
            encoded = frames.encode_head(tensors, {})
            head = self._heads[names] = frames.STATUS.pack(frames.TENSORS, len(encoded)) + encoded
        return head

    def _send(self, entries: Sequence[Entry]) -> None:
        try:
            self._execution.channel.send_entries(frames.RESPONSE, [], entries)
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
