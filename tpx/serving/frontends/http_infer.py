"""Inference over HTTP.

A request is a JSON head, and the tensors behind it, which are cut out by the sizes that it gives.
"""

import math
import re
from collections import deque
from collections.abc import Sequence
from functools import partial

import msgspec
import orjson

from tpx.errors import InvalidRequest, Unsupported
from tpx.protocol.compression import ENCODINGS, Inflater, inflate_if_short
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.http1.head import HttpHead
from tpx.protocol.http1.request import JSON_TYPE, HttpRequest
from tpx.protocol.json_values import JsonObject, json_parts
from tpx.protocol.tensors import Buffer, Tensor, encode_bytes
from tpx.protocol.v2 import DecodedRequest, Parameter
from tpx.protocol.v2_json import decode_infer_request
from tpx.serving.frontends.forwarding import HeaderForwarding
from tpx.serving.frontends.http_verbs import (
    MODEL,
    Fail,
    Route,
    answer_compressed,
    answer_error,
    answer_failure,
    attempt,
    choose_encoding,
    of_model,
    when_done,
)
from tpx.serving.frontends.inference import CachedHead, Replies, cut_tensors
from tpx.serving.frontends.load_report import LoadReport, format_of
from tpx.serving.frontends.outputs import put_into_place, with_classes
from tpx.serving.frontends.traced import trace_http
from tpx.serving.inference_plane import FastPath, InferencePlane, RemoteResponse
from tpx.serving.offload import LONG_BYTES, Postponed
from tpx.serving.request import InferRequest, RequestHead, rendering_key, with_request_id
from tpx.serving.signature import Signature

_BINARY_TYPE = b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
_HOLE = b"\0"  # never occurs in JSON text: escaped in strings
_WHOLE_BELOW_BYTES = 16 << 10
_Answer = tuple[bytes, list[Buffer]]
"""Headers and body of a response."""
_REMEMBERED_HEADS = 2048
_REMEMBERED_HEAD_BYTES = 16 << 10


class _KnownHttpHead(CachedHead[HttpRequest, _Answer]):
    """A remembered JSON head, and the constant start of the responses to its requests."""

    __slots__ = ("_generation", "_headers", "_outputs", "_repeats", "_start", "_whole")

    def __init__(self, head: RequestHead, replies: Replies[HttpRequest, _Answer]) -> None:
        super().__init__(head, replies, contiguous=True)
        self._outputs: object = None
        """Identity of the shapes that the constant parts belong to."""
        self._headers = self._start = self._whole = b""
        self._generation = replies.plane.generation
        self._repeats = False
        """True if `_answer_repeated` may answer requests with this head."""

    def answered(self, context: HttpRequest, response: RemoteResponse, payload: Buffer) -> None:
        if self._outputs is not response:
            self._learn_outputs(context, response, response.tensors(payload))
        self._send_outputs(context, payload)

    def answer(self, exchange: HttpRequest, fast: FastPath, outputs: Sequence[Buffer]) -> None:
        if self._outputs is not fast:
            self._learn_outputs(exchange, fast, fast.outputs())
        self._send_outputs(exchange, *outputs)

    def _learn_outputs(self, request: HttpRequest, identity: object, outputs: list[Tensor]) -> None:
        """Render the constant parts of responses with outputs of these shapes."""
        rendered = _render(self.head, outputs, None)
        self._outputs, self._headers, self._start = identity, rendered.headers, rendered.pieces[0]
        size = len(self._start) + sum(len(tensor.data) for tensor in outputs)
        route: InferRoute = request.head.memo
        varies = route.response_encoding or route.load_format or route.media_type
        short = size < _WHOLE_BELOW_BYTES and not varies
        self._whole = request.start_of_response(self._headers, size) + self._start if short else b""
        fast = self.fast
        self._repeats = short and not route.encoding and fast is not None and fast.most == 1

    def _send_outputs(self, request: HttpRequest, *outputs: Buffer) -> None:
        rendered = self._whole
        if not rendered or not request.respond_whole(b"".join((rendered, *outputs))):
            _respond(request, (self._headers, [self._start, *outputs]))
        elif self._repeats:
            request.repeat_with(self._answer_repeated, len(request.body) - self._size)

    def _answer_repeated(self, tensors: memoryview) -> bytes | None:
        """Return the response to another request with this head, or None if the fast path is closed."""
        plane, fast = self._replies.plane, self.fast
        if fast is None or plane.generation != self._generation or plane.stopping or plane.tracer.on:
            return None
        try:
            outputs = fast.compute_one(tensors)
        except Exception:  # noqa: BLE001 (one request's boundary: computed again like any other, it is reported)
            return None
        return None if outputs is None else b"".join((self._whole, *outputs))


class InferRoute:
    """An HTTP head of inference requests, parsed, and the JSON heads received with it."""

    def __init__(self, inference: "HttpInference", head: HttpHead, match: re.Match[str]) -> None:
        self._inference = inference
        self.model_name, self.model_version = of_model(match)
        self.head_size = _parse_head_size(head.headers.get(b"inference-header-content-length"))
        encoding = head.headers.get(b"content-encoding", b"identity").decode("latin-1").lower()
        self.encoding = "" if encoding == "identity" else encoding
        self.response_encoding = choose_encoding(head.headers.get(b"accept-encoding", b""))
        self.media_type = b""
        """Media type of binary responses, if a platform has its own."""
        self.load_format = format_of(head.headers)
        self.load = inference.load
        forwarding = inference.forwarding
        self.forwarded = forwarding.of_head(head) if forwarding is not None else None
        self.heads: dict[bytes, _KnownHttpHead] = {}
        self.remembers_all = False
        """True if `heads` includes whole JSON bodies: requests whose inputs are in shared memory."""
        self.generation = -1

    def __call__(self, request: HttpRequest) -> None:
        self._inference.serve(request, self)


class HttpInference:
    """Serves /infer."""

    def __init__(
        self,
        plane: InferencePlane,
        max_input_bytes: int,
        inflater: Inflater,
        load: LoadReport,
        forwarding: HeaderForwarding | None = None,
        fail: Fail = answer_error,
    ) -> None:
        self.load = load
        self._fail = fail
        self._plane = plane
        encode = partial(_encode, plane.offload.limit_bytes)
        self._replies = Replies(plane, encode, _respond, fail, answer_failure)
        self._inflater = inflater
        self._max_input_bytes = max_input_bytes
        self.forwarding = forwarding
        self._remembered_heads: deque[tuple[InferRoute, bytes]] = deque()  # across all routes, oldest first

    def routes(self) -> list[Route]:
        verbs = {b"POST": partial(InferRoute, self)}
        return [Route(template=MODEL + "/infer", category="inference", verbs=verbs)]

    def serve(self, request: HttpRequest, route: InferRoute) -> None:
        """Decode and compute. Raises RequestError."""
        if not route.encoding:
            self._compute(request, route, request.body)
        elif route.encoding in ENCODINGS:
            packed = request.body, route.encoding, self._max_input_bytes
            short = inflate_if_short(*packed)
            if short is not None:
                self._compute(request, route, short)
            else:
                inflating = self._inflater.start(*packed)
                compute = partial(self._compute, request, route)
                request.on_gone = when_done(request, inflating, compute)
        else:
            error = Unsupported("Unsupported compression type")
            answer_error(request, error, b"Accept-Encoding: gzip, deflate\r\n")

    def _compute(
        self, request: HttpRequest, route: InferRoute, body: Buffer, decoded: DecodedRequest | None = None
    ) -> None:
        if route.generation != self._plane.generation:
            # models changed: the remembered heads may be stale
            route.heads.clear()
            route.generation = self._plane.generation
        size = route.head_size
        infer = None
        end = size or (len(body) if route.remembers_all else 0)
        # a longer head is not remembered, and hashing it would delay other clients
        if decoded is None and 0 < end <= _REMEMBERED_HEAD_BYTES:
            known = route.heads.get(bytes(body[:end]))
            if known is not None:
                if known.quick and known.start(request, body[end:]):
                    return
                infer = self._build_known_request(request, known.head, body, end)
        if infer is None:
            try:
                if decoded is None:
                    decoded = self._decode_request(route, body, size)
                infer = self._bind_request(request, route, body, decoded)
            except Postponed as exc:
                go_on = partial(self._resume_compute, request, route, body)
                request.on_gone = exc.then(go_on, partial(self._fail, request))
                return
        request.on_gone = infer.cancel
        if self._plane.tracer.on:
            trace_http(self._plane.tracer, infer, request)
        self._plane.infer(infer)

    def _resume_compute(
        self, request: HttpRequest, route: InferRoute, body: Buffer, decoded: DecodedRequest
    ) -> None:
        """Continue with a request that was decoded, or read from shared memory, in another thread."""
        attempt(request, partial(self._compute, request, route, body, decoded), fail=self._fail)

    def _build_known_request(
        self, request: HttpRequest, head: RequestHead, body: Buffer, size: int
    ) -> InferRequest | None:
        """Return the request with a remembered head, or None if its body has not the expected length."""
        plain = head.shared is None
        if len(body) != size + (head.total_size if plain else 0):
            return None
        return head.repeat(cut_tensors(head, body, size) if plain else [], self._replies.reply, request)

    def _decode_request(self, route: InferRoute, body: Buffer, size: int | None) -> DecodedRequest:
        """Decode a request. Raises Postponed for JSON that takes long to parse."""
        if size is not None and not 0 <= size <= len(body):
            raise InvalidRequest(f"inference header size should be in range (0, {len(body)}), got: {size}")
        if size == 0:
            signature = self._plane.signature(route.model_name, route.model_version)
            return raw_request(signature, route.model_version, body)
        decode = partial(self._decode_body, route, body, size)
        json_size = len(body) if size is None else size
        if json_size > LONG_BYTES:
            raise Postponed.for_decoding(self._plane.offload, json_size, decode)
        return decode()

    def _decode_body(self, route: InferRoute, body: Buffer, size: int | None) -> DecodedRequest:
        decoded = decode_infer_request(
            route.model_name, body, size, self._max_input_bytes, self._plane.max_string_elements
        )
        decoded.model_version = route.model_version
        return decoded

    def _bind_request(
        self, request: HttpRequest, route: InferRoute, body: Buffer, decoded: DecodedRequest
    ) -> InferRequest:
        if route.forwarded:
            decoded.parameters.update(route.forwarded)
        bound = self._plane.bind(decoded)
        head = bound.head
        if head.model.decoupled:
            raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        if 0 <= decoded.tensor_offset <= _REMEMBERED_HEAD_BYTES and head.reusable:
            self._remember_head(route, bytes(body[: decoded.tensor_offset]), head)
        elif head.shared is not None and len(body) <= _REMEMBERED_HEAD_BYTES and not head.request_id:
            self._remember_head(route, bytes(body), head)
            route.remembers_all = True
        return bound.request(self._replies.reply, request)

    def _remember_head(self, route: InferRoute, start: bytes, head: RequestHead) -> None:
        route.heads[start] = _KnownHttpHead(head, self._replies)
        self._remembered_heads.append((route, start))
        if len(self._remembered_heads) > _REMEMBERED_HEADS:
            oldest, forgotten = self._remembered_heads.popleft()
            oldest.heads.pop(forgotten, None)


def _respond(request: HttpRequest, answer: _Answer) -> None:
    headers, parts = answer
    route: InferRoute = request.head.memo
    if route.media_type:
        from tpx.serving.frontends.hosted import with_media_type  # late: few servers are hosted so

        headers = with_media_type(headers, route.media_type)
    if route.load_format:
        headers += route.load.line(route.load_format)
    if route.response_encoding:
        answer_compressed(request, headers, parts, route.response_encoding)
    else:
        request.respond(200, headers, parts)


def _parse_head_size(value: bytes | None) -> int | None:
    """Parse Inference-Header-Content-Length; return None if the whole body is JSON. Raises InvalidRequest."""
    if value is None:
        return None
    text = value.strip().decode("latin-1")
    if not (text.isascii() and text.removeprefix("-").isdigit()):
        raise InvalidRequest(f"Unable to parse Inference-Header-Content-Length, got: {text}")
    if len(text) > 11 or not -(2**31) <= int(text) < 2**31:
        raise InvalidRequest(
            f"Inference-Header-Content-Length value is out of range [ -2147483648, 2147483647 ], got: {text}"
        )
    return int(text)


def _encode(
    limit_bytes: int, infer: InferRequest, outputs: list[Tensor], parameters: dict[str, Parameter] | None
) -> _Answer:
    """Return headers and body of a response. The constant parts for outputs of these shapes are cached:
    the JSON head of binary tensors, or the pieces of JSON between the data. Raises Overloaded for an
    output with more than `limit_bytes` of JSON.
    """
    head = infer.head
    if head.placed:
        outputs = put_into_place(outputs, infer)
    key = rendering_key("http", outputs, parameters)
    known: _Rendered | None = head.rendered.get(key)
    if known is None:
        outputs = with_classes(outputs, head)
        known = _render(head, outputs, parameters)
        # the size of BYTES outputs varies with their values, not only with their shape
        if not any(tensor.datatype == "BYTES" for tensor in outputs):
            head.remember_rendered(key, known)
    binary = [tensor.data for tensor, bound in zip(outputs, head.outputs, strict=True) if bound.binary]
    if len(known.pieces) == 1:
        return known.headers, [known.pieces[0], *binary]
    texts = [
        json_parts(tensor, limit_bytes)
        for tensor, bound in zip(outputs, head.outputs, strict=True)
        if not bound.binary
    ]
    parts: list[Buffer] = [known.pieces[0]]
    for text, piece in zip(texts, known.pieces[1:], strict=True):
        parts += (*text, piece)
    if not any(len(data) for data in binary):
        return known.headers, parts
    return _BINARY_TYPE % sum(map(len, parts)), [*parts, *binary]


class _Rendered(msgspec.Struct, frozen=True):
    """JSON of a response, split where output data is inserted, and its headers if only one piece exists."""

    headers: bytes
    pieces: list[bytes]


def _render(head: RequestHead, outputs: list[Tensor], parameters: dict[str, Parameter] | None) -> _Rendered:
    items = []
    for tensor, bound in zip(outputs, head.outputs, strict=True):
        item: JsonObject = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if bound.placement is not None:
            pass  # the client knows its region
        elif bound.binary:
            item["parameters"] = {"binary_data_size": len(tensor.data)}
        else:
            item["data"] = orjson.Fragment(_HOLE)
        items.append(item)
    answer: JsonObject = {"id": head.request_id} if head.request_id else {}
    answer["model_name"] = head.model.name
    answer["model_version"] = str(head.model.version)
    if parameters:
        answer["parameters"] = parameters
    answer["outputs"] = items
    pieces = orjson.dumps(answer).split(_HOLE)
    tail = any(len(tensor.data) for tensor, bound in zip(outputs, head.outputs, strict=True) if bound.binary)
    return _Rendered(_BINARY_TYPE % len(pieces[0]) if tail else JSON_TYPE, pieces)


def raw_request(signature: Signature, version: str, body: Buffer) -> DecodedRequest:
    """Build the request for a raw body without a JSON head; outputs are returned as bytes too.

    Raises InvalidRequest unless the model has exactly one input whose shape can be deduced.
    """
    try:
        tensor = _deduce_input(signature, body)
    except InvalidRequest as exc:
        raise with_request_id(exc, "") from exc
    return DecodedRequest(
        model_name=signature.name, model_version=version, inputs=[tensor], default_binary=True
    )


def _deduce_input(signature: Signature, body: Buffer) -> Tensor:
    specs = list(signature.inputs.values())
    if len(specs) != 1:
        raise InvalidRequest(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(specs)} inputs in "
            f"'{signature.name}' model configuration"
        )
    spec = specs[0]
    if spec.datatype == "BYTES":
        if spec.dims != (1,):
            raise InvalidRequest(
                f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]"
            )
        shape, body = [1], encode_bytes([bytes(body)])
    else:
        shape = list(spec.dims)
        free = [index for index, dim in enumerate(shape) if dim == -1]
        if len(free) > 1:
            raise InvalidRequest(
                f"The shape of the raw input '{spec.name}' can not be deduced because there are more than "
                "one variable-sized dimension"
            )
        if free:
            row = BY_NAME[spec.datatype].size * math.prod(dim for dim in shape if dim != -1)
            shape[free[0]] = len(body) // row if row else 0
    if signature.max_batch_size > 0:
        shape.insert(0, 1)
    return Tensor(spec.name, spec.datatype, shape, body)
