"""Reads the tensors of responses, and records request inputs and response bodies on disk.

Capturing wraps the client; without it a measurement calls the client's own methods, at no cost.
"""

import json
import math
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpx.errors import InvalidRequest
from tpx.perf.clients.base import PLAIN, Client, Failure, OnResponse, Prepared, RequestFields, Slot, Template
from tpx.perf.clients.grpc_stream import StreamedRequest
from tpx.perf.clients.openai import OpenAiAnswer, generated
from tpx.perf.records import Records
from tpx.protocol import messages
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.http1.client import HttpResponse
from tpx.protocol.json_values import encode_values
from tpx.protocol.tensors import Buffer, Tensor, encode_bytes
from tpx.protocol.v2_protobuf import CONTENTS


@dataclass(frozen=True, slots=True)
class ResponseParts:
    """A response as received: the bodies of its messages, and their format."""

    form: str
    """`json`, `grpc`, `stream`, `events` of an OpenAI stream, or `text` for anything else."""
    head_size: int
    """Length of the JSON at the start of a `json` response; 0 if it is all JSON."""
    bodies: Sequence[Buffer]


def parts_of(response: Any) -> ResponseParts:
    """Return the parts of a response from any client; `bodies` is empty if the client keeps none."""
    if isinstance(response, HttpResponse):
        head = response.headers.get(b"inference-header-content-length", b"0")
        return ResponseParts("json", int(head), (response.body,))
    if isinstance(response, StreamedRequest):
        return ResponseParts("stream", 0, response.answers)
    if isinstance(response, GrpcResponse):
        return ResponseParts("grpc", 0, (response.data,))
    if isinstance(response, OpenAiAnswer) and response.streamed:
        return ResponseParts("events", 0, (response.body,))
    body = getattr(response, "body", None)
    return ResponseParts("text", 0, () if body is None else (body,))


def read_outputs(parts: ResponseParts) -> Iterator[list[Tensor]]:
    """Yield the tensors of each response. Raises InvalidRequest if they cannot be read."""
    for body in parts.bodies:
        if parts.form == "json":
            yield _read_json_outputs(body, parts.head_size)
        elif parts.form == "text":
            yield _wrap_text(bytes(body))
        elif parts.form == "events":
            yield from map(_wrap_text, generated(body))
        else:
            yield _read_grpc_outputs(body, streamed=parts.form == "stream")


def _wrap_text(text: bytes) -> list[Tensor]:
    return [Tensor("response", "BYTES", (1,), encode_bytes([text]))]


def _read_json_outputs(body: Buffer, head_size: int) -> list[Tensor]:
    view = memoryview(body)
    size = head_size or len(view)
    try:
        answer = json.loads(bytes(view[:size]))
    except ValueError as exc:
        raise InvalidRequest(f"a response is not JSON: {exc}") from exc
    tensors, at = [], size
    for output in answer.get("outputs", ()):
        name, datatype, shape = output["name"], output["datatype"], output["shape"]
        raw, values = output.get("parameters", {}).get("binary_data_size"), output.get("data")
        if raw is not None:
            tensors.append(Tensor(name, datatype, shape, view[at : at + raw]))
            at += raw
        elif values is None:  # the data is in shared memory
            tensors.append(Tensor(name, datatype, (0,), b""))
        else:
            data = encode_values(name, datatype, math.prod(shape), values)
            tensors.append(Tensor(name, datatype, shape, data))
    return tensors


def _read_grpc_outputs(body: Buffer, *, streamed: bool) -> list[Tensor]:
    if streamed:
        message = messages.ModelStreamInferResponse.FromString(bytes(body)).infer_response
    else:
        message = messages.ModelInferResponse.FromString(bytes(body))
    raw = list(message.raw_output_contents)
    tensors = []
    for number, output in enumerate(message.outputs):
        data = raw[number] if number < len(raw) else _encode_contents(output)
        shape = output.shape if data else (0,)
        tensors.append(Tensor(output.name, output.datatype, shape, data))
    return tensors


def _encode_contents(output: Any) -> Buffer:
    if output.datatype == "BYTES":
        return encode_bytes(list(output.contents.bytes_contents))
    field = CONTENTS.get(output.datatype)
    values = list(getattr(output.contents, field)) if field else []
    return encode_values(output.name, output.datatype, len(values), values) if values else b""


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


@dataclass(frozen=True, slots=True)
class _Send:
    """Wraps a slot's `send` and captures the responses."""

    capture: Capture
    send: Any

    def __call__(self, request: Prepared, on_response: OnResponse) -> Any:
        capture = self.capture
        key = capture.key_of(request)

        def keep(response: Any) -> None:
            row = capture.rows
            on_response(response)
            if capture.rows > row:  # no row: the request was abandoned before this response
                capture.store(row, key, response)

        return self.send(request, keep)


@dataclass(frozen=True, slots=True)
class _NotedTemplate:
    """Implements Template; notes the key of the request that it fills."""

    template: Template
    capture: Capture
    key: int

    def fill(self, sequence: int) -> Prepared:
        self.capture.filled = self.key
        return self.template.fill(sequence)


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
        self._wrap_slots()
        return self._slots

    async def renew(self, slot: Slot, call: object) -> None:
        await self._client.renew(slot, call)
        self._wrap_slots()

    def failure(self, response: object) -> Failure:
        return self._client.failure(response)

    async def close(self) -> None:
        await self._client.close()

    def _wrap_slots(self) -> None:
        """Wrap every slot that is not wrapped; one renewal may replace all slots of a shared connection."""
        for slot in self._slots:
            if not isinstance(slot.send, _Send):
                slot.send = _Send(self._capture, slot.send)
