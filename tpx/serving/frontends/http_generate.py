"""The generate extension: one flat JSON object in, one or, as server-sent events, many out.

A member that names an input of the model becomes a tensor, any other a parameter of the request.
"""

import json
import math
import re
from collections.abc import Iterable
from typing import Any

import orjson

from tpx.errors import InvalidRequest, TpxError
from tpx.protocol.http1.server import JSON_TYPE, HttpRequest
from tpx.protocol.json_values import checked_text, encode_values, json_data
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.http_answers import STATUS_OF_CODE, answer_error, answer_failure
from tpx.serving.frontends.http_routes import MODEL, Route, of_model, route
from tpx.serving.request import InferRequest, InferResponse, RequestHead, TensorSpec
from tpx.serving.signature import Signature

_EVENTS = b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates "
    "various "
    "number of responses"
)


class HttpGeneration:
    """Serves /generate and /generate_stream."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def routes(self) -> list[Route]:
        return [
            route(MODEL + "/generate", "inference", POST=self._generate),
            route(MODEL + "/generate_stream", "inference", POST=self._generate_stream),
        ]

    def _generate(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._serve(request, _Single(request), *of_model(match))

    def _generate_stream(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._serve(request, _Events(request), *of_model(match))

    def _serve(self, request: HttpRequest, answer: "_Single | _Events", name: str, version: str) -> None:
        """Decode and compute. Raises RequestError."""
        if request.head.headers.get(b"content-encoding", b"identity").lower() not in (b"identity", b""):
            raise InvalidRequest("Unsupported content-encoding, only 'identity' is supported.")
        signature = self._plane.signature(name, version)
        decoded = decode(bytes(request.body), signature)
        decoded.model_name, decoded.model_version = name, version
        head = self._plane.bind(decoded)
        infer = InferRequest(head, [tensor.data for tensor in decoded.inputs], _reply, answer)
        request.on_gone = infer.cancel
        self._plane.infer(infer)


def _reply(infer: InferRequest, response: InferResponse) -> None:
    answer: _Single | _Events = infer.context
    try:
        answer.take(infer, response)
    except TpxError as exc:
        infer.cancel()
        answer.fail(exc)
    except Exception as exc:  # noqa: BLE001 (one request's boundary)
        infer.cancel()
        answer_failure(answer.request, "encoding an answer", exc)


class _Single:
    """One JSON object: the model must produce exactly one response."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self._body: bytes | None = None
        self._count = 0

    def take(self, infer: InferRequest, response: InferResponse) -> None:
        if response.error is not None:
            raise response.error
        if response.outputs:
            self._count += 1
            self._body = _object(infer.head, response.outputs)
        if response.final:
            if self._count != 1 or self._body is None:
                raise InvalidRequest(_NOT_ONE)
            self.request.respond(200, JSON_TYPE, (self._body,))

    def fail(self, error: TpxError) -> None:
        answer_error(self.request, error)


class _Events:
    """Server-sent events. The status is that of the first response; later errors are events."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self._begun = False
        self._ended = False

    def take(self, infer: InferRequest, response: InferResponse) -> None:
        if self._ended:
            return
        if response.error is not None:
            raise response.error
        if response.outputs and not self._event(200, _object(infer.head, response.outputs)):
            infer.cancel()
        if response.final:
            self._end()

    def fail(self, error: TpxError) -> None:
        if not self._ended:
            self._event(STATUS_OF_CODE[error.code], orjson.dumps({"error": error.message}))
            self._end()

    def _event(self, status: int, data: bytes) -> bool:
        self._begin(status)
        return self.request.send(b"data: %b\n\n" % data)

    def _begin(self, status: int) -> None:
        if not self._begun:
            self._begun = True
            self.request.begin(status, _EVENTS)

    def _end(self) -> None:
        self._begin(200)
        self._ended = True
        self.request.finish()


def decode(body: bytes, signature: Signature) -> DecodedRequest:
    """The request in a flat JSON object. Raises InvalidRequest."""
    request = DecodedRequest()
    for key, value in _members(body):
        if key == "id" and key not in signature.inputs:
            if not isinstance(value, str):
                raise InvalidRequest("Unable to parse 'id': attempt to access JSON non-string as string")
            request.request_id = checked_text("id", value)
        elif key == "parameters":
            _take_nested(request, signature, value)
        else:
            _take(request, signature, key, value)
    return request


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, repeated ones too."""


def _members(body: bytes) -> Iterable[tuple[str, Any]]:
    try:
        value = json.loads(body, object_pairs_hook=_Pairs)
    except RecursionError:
        raise InvalidRequest("JSON nesting depth exceeds maximum allowed limit (100)") from None
    except ValueError as exc:
        raise InvalidRequest(f"failed to parse the request JSON buffer: {exc}") from exc
    if not isinstance(value, _Pairs):
        raise InvalidRequest("the request body must be a JSON object")
    return value


def _take_nested(request: DecodedRequest, signature: Signature, value: Any) -> None:
    if "parameters" in signature.inputs:
        raise InvalidRequest("Keyword 'parameters' for nested schema also given as input tensor name")
    if not isinstance(value, _Pairs):
        raise InvalidRequest("Expected JSON object for keyword: 'parameters'")
    for key, nested in value:
        try:
            _take(request, signature, key, nested)
        except _NotAParameter as exc:
            raise InvalidRequest(f"Converting keyword: 'parameters': {exc.message}") from exc


class _NotAParameter(InvalidRequest):
    """A value that no request parameter can have."""


def _take(request: DecodedRequest, signature: Signature, key: str, value: Any) -> None:
    spec = signature.inputs.get(key)
    if spec is not None:
        request.inputs.append(_tensor(spec, value, batched=signature.max_batch_size > 0))
    elif isinstance(value, str | int | float):
        request.parameters[checked_text("parameters", key)] = (
            checked_text(key, value) if isinstance(value, str) else value
        )
    else:
        raise _NotAParameter(
            f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )


def _tensor(spec: TensorSpec, value: Any, *, batched: bool) -> Tensor:
    """A scalar or flat list as the tensor of an input: the innermost variable dimension takes the count."""
    flat = value if isinstance(value, list) and not isinstance(value, _Pairs) else [value]
    shape = list(spec.dims)
    rest = math.prod(max(1, dim) for dim in shape)
    free = [index for index, dim in enumerate(shape) if dim == -1]
    for index in free:
        shape[index] = len(flat) // rest if index == free[-1] else 1
    count = math.prod(shape)
    if count != len(flat) or any(isinstance(item, list | _Pairs) for item in flat):
        raise InvalidRequest(f"The schema can not convert input '{spec.name}' to tensor with proper shape")
    data = encode_values(spec.name, spec.datatype, count, flat)
    return Tensor(spec.name, spec.datatype, [1, *shape] if batched else shape, data)


def _object(head: RequestHead, outputs: list[Tensor]) -> bytes:
    """The answer as one flat object; a tensor of one element is that element."""
    answer: dict[str, Any] = {"model_name": head.model.name, "model_version": str(head.model.version)}
    if head.request_id:
        answer["id"] = head.request_id
    for tensor in outputs:
        data = json_data(tensor)
        one = math.prod(tensor.shape) == 1
        answer[tensor.name] = orjson.Fragment(data[1:-1] if one else data)
    return orjson.dumps(answer)
