"""Reading the tensors of responses, after the load has ended."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tpx.errors import InvalidRequest
from tpx.perf.clients.grpc_stream import StreamedRequest
from tpx.perf.clients.openai import OpenAiAnswer, generated
from tpx.protocol import messages
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.http1.client import HttpResponse
from tpx.protocol.json_values import JsonObject, encode_values
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
            yield _from_json(body, parts.head_size)
        elif parts.form == "text":
            yield _text(bytes(body))
        elif parts.form == "events":
            yield from map(_text, generated(body))
        else:
            yield _from_grpc(body, streamed=parts.form == "stream")


def _text(text: bytes) -> list[Tensor]:
    return [Tensor("response", "BYTES", (1,), encode_bytes([text]))]


def _from_json(body: Buffer, head_size: int) -> list[Tensor]:
    view = memoryview(body)
    size = head_size or len(view)
    try:
        answer = json.loads(bytes(view[:size]))
    except ValueError as exc:
        raise InvalidRequest(f"a response is not JSON: {exc}") from exc
    tensors, at = [], size
    for output in answer.get("outputs", ()):
        raw = output.get("parameters", {}).get("binary_data_size")
        if raw is None:
            tensors.append(_json_tensor(output))
            continue
        data = view[at : at + raw]
        at += raw
        tensors.append(Tensor(output["name"], output["datatype"], output["shape"], data))
    return tensors


def _json_tensor(output: JsonObject) -> Tensor:
    name, datatype, shape = output["name"], output["datatype"], output["shape"]
    values = output.get("data")
    if values is None:  # the data is in shared memory
        return Tensor(name, datatype, (0,), b"")
    return Tensor(name, datatype, shape, encode_values(name, datatype, math.prod(shape), values))


def _from_grpc(body: Buffer, *, streamed: bool) -> list[Tensor]:
    if streamed:
        message = messages.ModelStreamInferResponse.FromString(bytes(body)).infer_response
    else:
        message = messages.ModelInferResponse.FromString(bytes(body))
    raw = list(message.raw_output_contents)
    tensors = []
    for number, output in enumerate(message.outputs):
        data = raw[number] if number < len(raw) else _typed(output)
        shape = output.shape if data else (0,)
        tensors.append(Tensor(output.name, output.datatype, shape, data))
    return tensors


def _typed(output: Any) -> Buffer:
    if output.datatype == "BYTES":
        return encode_bytes(list(output.contents.bytes_contents))
    field = CONTENTS.get(output.datatype)
    values = list(getattr(output.contents, field)) if field else []
    return encode_values(output.name, output.datatype, len(values), values) if values else b""
