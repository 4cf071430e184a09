"""Records request inputs and response bodies on disk, by wrapping the client.

Without it a measurement calls the client's own methods, so capturing costs nothing when it is off.
"""

import tempfile
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpx.perf.clients.base import (
    PLAIN,
    Client,
    Failure,
    OnResponse,
    Prepared,
    RequestFields,
    Slot,
    Template,
)
from tpx.perf.clients.outputs import ResponseParts, parts_of
from tpx.perf.records import Records
from tpx.protocol.tensors import Buffer, Tensor

SPOOL_BUFFER_BYTES = 1 << 20
_FIELDS = 4  # integers per entry: row, request key, form and head size, first body


class Capture:
    """Requests and their responses, by row number in the level's records."""

    def __init__(self) -> None:
        self.inputs: list[tuple[Tensor, ...]] = []
        """Tensors of each distinct request; references to the feed's tensors, not copies."""
        self._by_request: dict[int, int] = {}
        self.requests: list[Any] = []
        """The requests, in the same order."""
        self.filled = 0
        """Key of the last request filled from a template; it is sent next."""
        self._spool = tempfile.TemporaryFile(buffering=SPOOL_BUFFER_BYTES)  # noqa: SIM115 (closed with us)
        self._entries = array("q")
        self._bodies = array("q")
        self._forms: list[str] = []
        self._offset = 0
        self._records = Records(1)

    def begin(self, records: Records) -> None:
        """Discard the previous level; later responses belong to `records`."""
        self._records = records
        self._spool.seek(0)
        self._spool.truncate()
        self._entries = array("q")
        self._bodies = array("q")
        self._offset = 0

    def note(self, request: object, tensors: Sequence[Tensor]) -> int:
        """Register a request and its tensors; return its key."""
        key = len(self.inputs)
        self.inputs.append(tuple(tensors))
        self._by_request[id(request)] = key
        self.requests.append(request)
        return key

    def key_of(self, request: object) -> int:
        """Return the key of a request that is about to be sent."""
        return self._by_request.get(id(request), self.filled)

    @property
    def rows(self) -> int:
        """Number of rows recorded in this level so far."""
        return len(self._records)

    def store(self, row: int, key: int, response: object) -> None:
        """Store the response of the request recorded as `row`."""
        parts = parts_of(response)
        if parts.form not in self._forms:
            self._forms.append(parts.form)
        form = self._forms.index(parts.form)
        self._entries.extend((row, key, form << 32 | parts.head_size, len(self._bodies)))
        for body in parts.bodies:
            self._spool.write(body)
            self._bodies.extend((self._offset, len(body)))
            self._offset += len(body)

    def stored(self, numbers: range) -> dict[int, tuple[int, int]]:
        """Return the request key and the response's place for each row in `numbers` that has a response."""
        table = np.array(self._entries, dtype=np.int64).reshape(-1, _FIELDS)
        first, last = np.searchsorted(table[:, 0], (numbers.start, numbers.stop)).tolist()
        rows, keys = table[first:last, 0].tolist(), table[first:last, 1].tolist()
        places = range(first * _FIELDS, last * _FIELDS, _FIELDS)
        return {row: (key, place) for row, key, place in zip(rows, keys, places, strict=True)}

    def read(self, place: int) -> ResponseParts:
        """Return the response at a place."""
        entries, bodies = self._entries, self._bodies
        # the bodies end where those of the next entry begin
        following = place + _FIELDS + 3
        last = entries[following] if following < len(entries) else len(bodies)
        first, how = entries[place + 3], entries[place + 2]
        read: list[Buffer] = []
        for i in range(first, last, 2):
            self._spool.seek(bodies[i])
            read.append(self._spool.read(bodies[i + 1]))
        return ResponseParts(self._forms[how >> 32], how & 0xFFFFFFFF, read)

    def close(self) -> None:
        """Release the disk space."""
        self._spool.close()


class _Send:
    """Wraps a slot's `send` and captures the responses."""

    __slots__ = ("_capture", "_send")

    def __init__(self, capture: Capture, send: Any) -> None:
        self._capture = capture
        self._send = send

    def __call__(self, request: Prepared, on_response: OnResponse) -> Any:
        capture = self._capture
        key = capture.key_of(request)

        def keep(response: Any) -> None:
            row = capture.rows
            on_response(response)
            if capture.rows > row:  # no row: the request was abandoned before this response
                capture.store(row, key, response)

        return self._send(request, keep)


class _NotedTemplate:
    """Implements Template; notes the key of the request that it fills."""

    def __init__(self, template: Template, capture: Capture, key: int) -> None:
        self._template = template
        self._capture = capture
        self._key = key

    def fill(self, sequence: int) -> Prepared:
        self._capture.filled = self._key
        return self._template.fill(sequence)


class CapturingClient:
    """Implements Client by wrapping another one and capturing its responses."""

    def __init__(self, client: Client, capture: Capture) -> None:
        self._client = client
        self._capture = capture
        self._slots: Sequence[Slot] = ()
        self.success = client.success
        self.streams = client.streams
        self.slots_per_connection = client.slots_per_connection

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> Prepared:
        request = await self._client.prepare(tensors, fields)
        self._capture.note(request, tensors)
        return request

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> Template:
        template = await self._client.template(tensors, fields)
        return _NotedTemplate(template, self._capture, self._capture.note(template, tensors))

    async def open(self, count: int) -> Sequence[Slot]:
        self._slots = await self._client.open(count)
        self._listen()
        return self._slots

    async def renew(self, slot: Slot, call: object) -> None:
        await self._client.renew(slot, call)
        self._listen()

    def failure(self, response: object) -> Failure:
        return self._client.failure(response)

    async def close(self) -> None:
        await self._client.close()

    def _listen(self) -> None:
        """Wrap every slot that is not wrapped; one renewal may replace all slots of a shared connection."""
        for slot in self._slots:
            if not isinstance(slot.send, _Send):
                slot.send = _Send(self._capture, slot.send)
