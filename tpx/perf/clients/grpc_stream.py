"""Requests over bidirectional streams: many are in flight on each, and ids match responses to requests.

Every request asks for an empty final response, which marks the end of a decoupled model's responses.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from time import perf_counter_ns
from typing import NamedTuple

from tpx.errors import WireError
from tpx.perf.clients.base import NO_USAGE, PLAIN, Failure, OnResponse, RequestFields, Slot
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.grpc import GrpcSlots, Send, flags_only, infer_message, sequence_field
from tpx.perf.clients.grpc_control import SERVICE, metadata
from tpx.perf.clients.transport import GrpcCarrier
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.grpc.status import Status
from tpx.protocol.protobuf_contents import encode_varint
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import Parameter
from tpx.protocol.v2_protobuf import EMPTY_FINAL_RESPONSE

MOST_STREAMS = 16
"""perf_analyzer's default number of threads, each of which has its own stream."""
STREAMS_PER_CONNECTION = 8
ANSWERED_ERROR = 100
"""Status of a request that was refused by a message on the stream, which has text but no gRPC code."""

_ID_BYTES = 8
_ID_HEAD = bytes((3 << 3 | 2, _ID_BYTES))
_ONLY_ID = b"%08x" % 1
"""Id of a request that has a stream to itself."""
# fields of ModelStreamInferResponse
_ERROR_TAG, _RESPONSE_TAG = 1 << 3 | 2, 2 << 3 | 2
# fields of ModelInferResponse
_PARAMETER_TAG, _OUTPUT_TAG = 4 << 3 | 2, 5 << 3 | 2
_FINAL_KEY = b"\x0a\x15triton_final_response"
_TRUE = b"\x08\x01"


class StreamMessage:
    """A request without its id, whose length the prefix already includes."""

    __slots__ = ("encoding", "prefix", "rest")

    def __init__(self, rest: bytes, encoding: str = "") -> None:
        self.prefix = pack_prefix(0, len(_ID_HEAD) + _ID_BYTES + len(rest)) + _ID_HEAD
        self.rest = rest
        self.encoding = encoding

    def framed(self, request_id: bytes) -> bytes:
        """Return the message with this id; with compression, it is compressed anew for each request."""
        if self.encoding:
            return frame_message(b"".join((_ID_HEAD, request_id, self.rest)), self.encoding)
        return b"".join((self.prefix, request_id, self.rest))


class StreamTemplate(NamedTuple):
    """Implements Template."""

    rest: bytes
    encoding: str

    def fill(self, sequence: int) -> StreamMessage:
        return StreamMessage(sequence_field(sequence) + self.rest, self.encoding)


class StreamedRequest:
    """Implements StreamedResponse: a request in flight that becomes its own response."""

    __slots__ = (
        "answers", "arrivals", "end_ns", "first_byte_ns", "message", "on_response", "status", "units",
        "usage",
    )  # fmt: skip

    def __init__(self, on_response: OnResponse) -> None:
        self.on_response = on_response
        self.status = int(Status.OK)
        self.message = ""
        self.first_byte_ns = 0
        self.end_ns = 0
        self.arrivals: list[int] = []
        self.answers: list[Buffer] = []
        """Serialized ModelStreamInferResponse messages."""
        self.units = 0
        self.usage = NO_USAGE

    def take(self, data: Buffer, error: bytes, *, null: bool, now_ns: int) -> bool:
        """Record a message, with `null` set for an empty final one; return True if it is a response."""
        # an empty final message after a response does not count toward the latency
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
        """Record that the stream ended before the request's last response."""
        self.status, self.message = status, message
        self.first_byte_ns = self.first_byte_ns or now_ns
        self.end_ns = now_ns


class InferStream:
    """One ModelStreamInfer call. When it ends, the requests in flight fail with its status."""

    def __init__(self, connection: GrpcCarrier, endpoint: Endpoint) -> None:
        self.connection = connection
        self.on_arrival: Callable[[object, object], None] | None = None
        """Called for every response, with this stream and what `send` returned for the request."""
        self.closing = False
        self._reason = ""
        self._numbers = count(1)
        self._waiting: dict[bytes, StreamedRequest] = {}
        self._forgotten: set[bytes] = set()
        self._bare: bool | None = None
        """True if the server sends bare ModelInferResponses, like MLServer; None before the first message."""
        self._call = connection.open(
            SERVICE + "ModelStreamInfer",
            self._on_message,
            self._on_end,
            metadata(endpoint),
            encoding=endpoint.wire.compression,
        )

    def send(self, message: StreamMessage, on_response: OnResponse) -> bytes:
        """Send a request; return its id. Raises WireError if the stream has ended."""
        if self.closing:
            raise WireError(self._reason)
        request_id = b"%08x" % next(self._numbers)
        self._waiting[request_id] = StreamedRequest(on_response)
        self._call.send_framed(message.framed(request_id))
        return request_id

    def forget(self, request_id: bytes) -> None:
        """Ignore the responses of an abandoned request."""
        if self._waiting.pop(request_id, None) is not None:
            self._forgotten.add(request_id)

    def close(self) -> None:
        """End the stream without completing the requests in flight."""
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
            # late responses of abandoned requests
            if request_id in self._forgotten or not waiting:
                return
            request_id = next(iter(waiting))  # a server that drops the ids answers in order
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
    """Wrap a ModelInferResponse in a ModelStreamInferResponse."""
    return b"".join((bytes((_RESPONSE_TAG,)), encode_varint(len(data)), data))


def is_bare(data: Buffer) -> bool:
    """Return True for a ModelInferResponse; a ModelStreamInferResponse only has fields 1 and 2."""
    at, end = 0, len(data)
    while at < end:
        if data[at] > _RESPONSE_TAG:
            return True
        size, at = _read_length(data, at + 1)
        at += size
    return False


def scan(data: Buffer) -> tuple[bytes, bool, bool, bytes]:
    """Return a ModelStreamInferResponse's request id, whether it is final, whether it is final and
    empty, and its error.

    A response without the final flag counts as final, as servers that do not send the flag send one
    response per request. Reads the protobuf framing only up to the first output, because parsing the
    message would cost more than everything else.
    """
    at, end = 0, len(data)
    error = b""
    start = stop = 0
    while at < end:
        tag = data[at]
        size, at = _read_length(data, at + 1)
        if tag == _ERROR_TAG:
            error = bytes(data[at : at + size])
        elif tag == _RESPONSE_TAG:
            start, stop = at, at + size
        at += size
    request_id = b""
    final, last, outputs = True, False, False
    while start < stop:
        tag = data[start]
        size, start = _read_length(data, start + 1)
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


def _read_length(data: Buffer, at: int) -> tuple[int, int]:
    """Return the length of a field, and the offset of its content."""
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
    """The common part of both clients over streams: the encoding of requests and the reading of failures."""

    streams = True

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> StreamMessage:
        rest = self._encode_request(tensors, fields, fields.all_parameters)
        return StreamMessage(rest, self.endpoint.wire.compression)

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> StreamTemplate:
        rest = self._encode_request(tensors, fields, flags_only(fields))
        return StreamTemplate(rest, self.endpoint.wire.compression)

    def failure(self, response: StreamedRequest) -> Failure:
        known = response.status != ANSWERED_ERROR
        code = f"gRPC {Status(response.status).name}" if known else "gRPC stream"
        return Failure(code, response.message or "(no message)")

    def _encode_request(
        self, tensors: Sequence[Tensor], fields: RequestFields, parameters: Mapping[str, Parameter]
    ) -> bytes:
        final = {**parameters, EMPTY_FINAL_RESPONSE: True}
        return infer_message(self.endpoint.model, tensors, fields, final)


class GrpcStreamClient(StreamSlots):
    """Implements Client: many requests in flight on each stream."""

    slots_per_connection = math.inf

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
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
        """Ignore the request in flight; replace an ended stream for all of its slots."""
        broken: InferStream = slot.connection
        if isinstance(call, bytes):
            broken.forget(call)
        async with self._replacing_stream:
            # another slot of the stream may have replaced it already
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
    """Implements Client with one stream per request, which ends with its last response.

    Needed for servers that accept one request per call, such as MLServer.
    """

    def send_on(self, carrier: GrpcCarrier) -> Send:
        path, pairs = SERVICE + "ModelStreamInfer", metadata(self.endpoint)
        encoding = self.endpoint.wire.compression

        def send(message: StreamMessage, on_response: OnResponse) -> int:
            request = StreamedRequest(on_response)

            def on_message(data: Buffer) -> None:
                now_ns = perf_counter_ns()
                data = enveloped(data) if is_bare(data) else data
                _, _, null, error = scan(data)
                request.take(data, error, null=null, now_ns=now_ns)

            def on_end(response: GrpcResponse) -> None:
                now_ns = perf_counter_ns()
                if response.status != Status.OK:
                    request.fail(int(response.status), response.message, now_ns)
                elif not request.end_ns:
                    request.first_byte_ns = request.end_ns = now_ns
                on_response(request)

            call = carrier.open(path, on_message, on_end, pairs, encoding=encoding)
            call.send_framed(message.framed(_ONLY_ID))
            call.half_close()
            return call.id

        return send
