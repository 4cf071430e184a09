"""Reads the tensors of responses, and keeps request inputs and, on disk, response bodies."""

import marshal
import math
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpx.errors import InvalidRequest
from tpx.perf.clients.base import Check, Prepared
from tpx.perf.clients.grpc_stream import StreamedRequest
from tpx.perf.clients.openai import OpenAiAnswer, generated
from tpx.protocol import messages
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.http1.client import HttpResponse
from tpx.protocol.json_values import encode_values, parse_json
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
    bodies = getattr(response, "bodies", None)  # messages of any method
    if bodies is not None:
        return ResponseParts("text", 0, bodies)
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
        answer = parse_json(view[:size])
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
_FIELDS = 4  # integers per entry: row, request, and the offset and size of the response on disk


class Capture:
    """Requests and their successful responses, by row number in the level's records."""

    def __init__(self) -> None:
        self.inputs: list[tuple[Tensor, ...]] = []
        """Tensors of each distinct request; references to the data, not copies."""
        self.requests: list[Prepared] = []
        """The same requests in their transport's form; empty for sequences, which have templates."""
        self._spool = tempfile.TemporaryFile(buffering=SPOOL_BUFFER_BYTES)  # noqa: SIM115 (closed with us)
        self.begin()

    def begin(self) -> None:
        """Discard the responses so far: a level begins."""
        self._spool.seek(0)
        self._spool.truncate()
        self._entries = array("q")
        self._offset = 0

    def keeping(
        self, inputs: Sequence[tuple[Tensor, ...]], requests: Sequence[Prepared], check: Check | None
    ) -> Check:
        """Return a check that keeps the responses to these requests, one per step, and applies `check`."""
        first = len(self.inputs)
        self.inputs += inputs
        self.requests += requests

        def keep(row: int, step: int, response: Any) -> str:
            parts = parts_of(response)
            # copies the bodies, which are valid only until the next read
            content = marshal.dumps((parts.form, parts.head_size, list(parts.bodies)))
            self._entries.extend((row, first + step, self._offset, len(content)))
            self._spool.write(content)
            self._offset += len(content)
            return check(row, step, response) if check else ""

        return keep

    def stored(self, numbers: range) -> dict[int, tuple[int, int]]:
        """Return the request's index and the response's place for each row in `numbers` that has one."""
        table = np.array(self._entries, dtype=np.int64).reshape(-1, _FIELDS)
        first, last = np.searchsorted(table[:, 0], (numbers.start, numbers.stop)).tolist()
        rows, keys = table[first:last, 0].tolist(), table[first:last, 1].tolist()
        return {row: (key, first + i) for i, (row, key) in enumerate(zip(rows, keys, strict=True))}

    def read(self, place: int) -> ResponseParts:
        """Return the response at a place."""
        offset, size = self._entries[place * _FIELDS + 2 : place * _FIELDS + 4]
        self._spool.seek(offset)
        return ResponseParts(*marshal.loads(self._spool.read(size)))

    def close(self) -> None:
        """Release the disk space."""
        self._spool.close()
