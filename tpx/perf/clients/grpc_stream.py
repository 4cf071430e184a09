"""Requests over bidirectional streams: many in flight on each, their responses told apart by ids.

Every request asks to be told when nothing follows, so that a decoupled model's last response is known.
"""

import asyncio
import math
import ssl
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from time import perf_counter_ns

from tpx.errors import WireError
from tpx.perf.clients.base import PLAIN, Failure, OnResponse, RequestFields, Slot
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.grpc import (
    GrpcSlots,
    Send,
    flags_only,
    infer_message,
    sequence_field,
)
from tpx.perf.clients.grpc_control import SERVICE, metadata
from tpx.protocol.grpc.client import GrpcClientConnection
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.grpc.status import Status
from tpx.protocol.protobuf_contents import encode_varint
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import Parameter
from tpx.protocol.v2_protobuf import EMPTY_FINAL_RESPONSE

MOST_STREAMS = 16
"""As many as perf_analyzer has threads by default, each with a stream of its own."""
STREAMS_PER_CONNECTION = 8
ANSWERED_ERROR = 100
"""The status of a request that a message of the stream refused: those have words, but no code of gRPC."""

_ID_BYTES = 8
_ID_HEAD = bytes((3 << 3 | 2, _ID_BYTES))
_ONLY_ID = b"%08x" % 1
"""The id of a request that is alone on its stream."""
_ERROR_TAG, _RESPONSE_TAG = 1 << 3 | 2, 2 << 3 | 2
_PARAMETER_TAG, _OUTPUT_TAG = 4 << 3 | 2, 5 << 3 | 2
_FINAL_KEY = b"\x0a\x15triton_final_response"
_TRUE = b"\x08\x01"


class StreamMessage:
    """A request without its id; the prefix already counts it."""

    __slots__ = ("encoding", "prefix", "rest")

    def __init__(self, rest: bytes, encoding: str = "") -> None:
        self.prefix = pack_prefix(0, len(_ID_HEAD) + _ID_BYTES + len(rest)) + _ID_HEAD
        self.rest = rest
        self.encoding = encoding

    def framed(self, request_id: bytes) -> bytes:
        """The message of a request with this id; compressed, it is so for each request anew."""
        if self.encoding:
            return frame_message(b"".join((_ID_HEAD, request_id, self.rest)), self.encoding)
        return b"".join((self.prefix, request_id, self.rest))


class StreamTemplate:
    """Implements Template."""

    __slots__ = ("_encoding", "_rest")

    def __init__(self, rest: bytes, encoding: str) -> None:
        self._rest = rest
        self._encoding = encoding

    def fill(self, sequence: int) -> StreamMessage:
        return StreamMessage(sequence_field(sequence) + self._rest, self._encoding)


class StreamedRequest:
    """Implements StreamedResponse: a request in flight that becomes its own answer."""

    __slots__ = (
        "answers",
        "arrivals",
        "end_ns",
        "first_byte_ns",
        "message",
        "on_response",
        "status",
        "units",
    )

    def __init__(self, on_response: OnResponse) -> None:
        self.on_response = on_response
        self.status = int(Status.OK)
        self.message = ""
        self.first_byte_ns = 0
        self.end_ns = 0
        self.arrivals: list[int] = []
        self.answers: list[Buffer] = []
        """Each of them a ModelStreamInferResponse."""
        self.units = 0

    def take(self, data: Buffer, error: bytes, *, null: bool, now_ns: int) -> bool:
        """Take a message, `null` where it only says that nothing follows; return True for a response."""
        if not (null and self.arrivals):
            self.first_byte_ns = self.first_byte_ns or now_ns
            self.end_ns = now_ns
        if error:
            self.status = ANSWERED_ERROR
            self.message = error.decode("utf-8", "replace")
        elif not null:
            self.arrivals.append(now_ns)
            self.answers.append(data)
            return True
        return False

    def fail(self, status: int, message: str, now_ns: int) -> None:
        """The stream has ended before its time."""
        self.status, self.message = status, message
        self.first_byte_ns = self.first_byte_ns or now_ns
        self.end_ns = now_ns


class InferStream:
    """One ModelStreamInfer call. When it ends, so do the requests in flight, with its status."""

    def __init__(self, connection: GrpcClientConnection, endpoint: Endpoint) -> None:
        self.connection = connection
        self.on_arrival: Callable[[object, object], None] | None = None
        """Hears of every response: this stream, and what `send` returned for its request."""
        self.closing = False
        self._reason = ""
        self._numbers = count(1)
        self._waiting: dict[bytes, StreamedRequest] = {}
        self._forgotten: set[bytes] = set()
        self._bare: bool | None = None
        """The server sends ModelInferResponses, as MLServer does; not known before the first one."""
        self._call = connection.open(
            SERVICE + "ModelStreamInfer",
            self._on_message,
            self._on_end,
            metadata(endpoint),
            encoding=endpoint.wire.compression,
        )

    def send(self, message: StreamMessage, on_response: OnResponse) -> bytes:
        """Send a request; returns its id. Raises WireError where the stream has ended."""
        if self.closing:
            raise WireError(self._reason)
        request_id = b"%08x" % next(self._numbers)
        self._waiting[request_id] = StreamedRequest(on_response)
        self._call.send_framed(message.framed(request_id))
        return request_id

    def forget(self, request_id: bytes) -> None:
        """Ignore the answers of a request that was given up."""
        if self._waiting.pop(request_id, None) is not None:
            self._forgotten.add(request_id)

    def close(self) -> None:
        """End the stream; nobody hears of it."""
        self._reason = "the stream was closed"
        self.closing = True
        self._waiting.clear()
        if not self.connection.closing:
            self._call.cancel()

    def _on_message(self, data: Buffer) -> None:
        now_ns = perf_counter_ns()
        if self._bare is not False:
            self._bare = is_bare(data)
            data = enveloped(data) if self._bare else data
        request_id, final, null, error = scan(data)
        waiting = self._waiting
        if request_id not in waiting:
            if request_id in self._forgotten or not waiting:
                return
            request_id = next(iter(waiting))  # a server that does not keep the ids answers in order
        request = waiting[request_id]
        if request.take(data, error, null=null, now_ns=now_ns) and self.on_arrival is not None:
            self.on_arrival(self, request_id)
        if final:
            del waiting[request_id]
            request.on_response(request)

    def _on_end(self, response: GrpcResponse) -> None:
        self.closing = True
        status = int(response.status) or int(Status.UNAVAILABLE)
        self._reason = response.message or "the server ended the stream"
        waiting, self._waiting = self._waiting, {}
        now_ns = perf_counter_ns()
        for request in waiting.values():
            request.fail(status, self._reason, now_ns)
            request.on_response(request)


def enveloped(data: Buffer) -> Buffer:
    """A ModelInferResponse as a ModelStreamInferResponse."""
    return b"".join((bytes((_RESPONSE_TAG,)), encode_varint(len(data)), data))


def is_bare(data: Buffer) -> bool:
    """Return True for a ModelInferResponse; a ModelStreamInferResponse only has fields 1 and 2."""
    at, end = 0, len(data)
    while at < end:
        if data[at] > _RESPONSE_TAG:
            return True
        size, at = _size(data, at + 1)
        at += size
    return False


def scan(data: Buffer) -> tuple[bytes, bool, bool, bytes]:
    """Return the id of a ModelStreamInferResponse's request, if it is final, if it is final and empty, and
    its error.

    A server that says nothing about what follows sends one response to a request. Reads the message's own
    framing up to the first output, as parsing it would cost more than everything else.
    """
    at, end = 0, len(data)
    error = b""
    start = stop = 0
    while at < end:
        tag = data[at]
        size, at = _size(data, at + 1)
        if tag == _ERROR_TAG:
            error = bytes(data[at : at + size])
        elif tag == _RESPONSE_TAG:
            start, stop = at, at + size
        at += size
    request_id = b""
    final, last, outputs = True, False, False
    while start < stop:
        tag = data[start]
        size, start = _size(data, start + 1)
        if tag == _PARAMETER_TAG and data[start : start + len(_FINAL_KEY)] == _FINAL_KEY:
            final = last = data[start + size - 2 : start + size] == _TRUE
        elif tag == _ID_HEAD[0]:
            request_id = bytes(data[start : start + size])
        elif tag == _OUTPUT_TAG:
            outputs = True
            if request_id:
                break
        start += size
    return request_id, final, last and not outputs and not error, error


def _size(data: Buffer, at: int) -> tuple[int, int]:
    """The length of a field, and where it begins."""
    size = data[at]
    if size < 128:
        return size, at + 1
    size &= 127
    shift = 7
    while True:
        at += 1
        byte = data[at]
        size |= (byte & 127) << shift
        if byte < 128:
            return size, at + 1
        shift += 7


class StreamSlots(GrpcSlots):
    """The common part of both clients over streams: the form of requests and answers."""

    streams = True

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> StreamMessage:
        return StreamMessage(self._encoded(tensors, fields, fields.all_parameters), self._compression)

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> StreamTemplate:
        return StreamTemplate(self._encoded(tensors, fields, flags_only(fields)), self._compression)

    def failure(self, response: StreamedRequest) -> Failure:
        known = response.status != ANSWERED_ERROR
        code = f"gRPC {Status(response.status).name}" if known else "gRPC stream"
        return Failure(code, response.message or "(no message)")

    @property
    def _compression(self) -> str:
        return self.endpoint.wire.compression

    def _encoded(
        self, tensors: Sequence[Tensor], fields: RequestFields, parameters: Mapping[str, Parameter]
    ) -> bytes:
        final = {**parameters, EMPTY_FINAL_RESPONSE: True}
        return infer_message(self.endpoint.model, tensors, fields, final)


class GrpcStreamClient(StreamSlots):
    """Implements Client: many requests in flight on each stream."""

    slots_per_connection = math.inf

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(endpoint, tls)
        self._streams: list[InferStream] = []
        self._replacing_stream = asyncio.Lock()

    def send_on(self, carrier: InferStream) -> Send:
        return carrier.send

    async def open(self, count: int) -> Sequence[Slot]:
        wanted = min(count, MOST_STREAMS)
        for surplus in self._streams[wanted:]:
            surplus.close()
        await self.resize(-(-wanted // STREAMS_PER_CONNECTION))
        kept = [s for s in self._streams[:wanted] if not s.closing and s.connection in self.connections]
        while len(kept) < wanted:
            connection = min(self.connections, key=lambda c: c.in_flight)
            kept.append(InferStream(connection, self.endpoint))
        self._streams = kept
        return self.spread(count, kept)

    async def renew(self, slot: Slot, call: object) -> None:
        """A request in flight is forgotten; a stream that ended is replaced for all of its slots."""
        broken: InferStream = slot.connection
        if isinstance(call, bytes):
            broken.forget(call)
        async with self._replacing_stream:
            if not slot.connection.closing:
                return
            connection = broken.connection
            if connection.closing:
                connection = await self.instead_of(connection)
            fresh = InferStream(connection, self.endpoint)
            self._streams = [fresh if s is broken else s for s in self._streams]
            self.move(broken, fresh)

    async def close(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams.clear()
        await super().close()


class SingleStreamClient(StreamSlots):
    """Implements Client over streams that carry one request each, and end with its answer.

    Servers whose models are asked once by a call need it, as MLServer's.
    """

    def send_on(self, carrier: GrpcClientConnection) -> Send:
        path, pairs = SERVICE + "ModelStreamInfer", metadata(self.endpoint)
        encoding = self._compression

        def send(message: StreamMessage, on_response: OnResponse) -> int:
            exchange = _Exchange(on_response)
            call = carrier.open(path, exchange.on_message, exchange.on_end, pairs, encoding=encoding)
            call.send_framed(message.framed(_ONLY_ID))
            call.half_close()
            return call.id

        return send


class _Exchange:
    """One stream: what comes on it belongs to its request."""

    __slots__ = ("_request",)

    def __init__(self, on_response: OnResponse) -> None:
        self._request = StreamedRequest(on_response)

    def on_message(self, data: Buffer) -> None:
        now_ns = perf_counter_ns()
        data = enveloped(data) if is_bare(data) else data
        _, _, null, error = scan(data)
        self._request.take(data, error, null=null, now_ns=now_ns)

    def on_end(self, response: GrpcResponse) -> None:
        request, now_ns = self._request, perf_counter_ns()
        if response.status != Status.OK:
            request.fail(int(response.status), response.message, now_ns)
        elif not request.end_ns:
            request.first_byte_ns = request.end_ns = now_ns
        request.on_response(request)
