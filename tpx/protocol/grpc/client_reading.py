"""What a gRPC client reads: the frames of responses, put together to messages and ends of calls.

Responses to unary calls that one read brings whole, and that resemble the one before, are known at a glance.
"""

import time
from abc import abstractmethod
from collections.abc import Callable

from tpx.protocol.grpc.client_call import ClientCall, GrpcResponse
from tpx.protocol.grpc.framing import PREFIX_BYTES
from tpx.protocol.grpc.likeness import Likeness, likeness_of
from tpx.protocol.grpc.metadata import ResponseHead
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.connection import Http2Connection
from tpx.protocol.http2.frames import END_STREAM, HEADER_BYTES, ErrorCode, Http2Error
from tpx.protocol.http2.hpack import BlockDecoder

_clock = time.perf_counter_ns
_INCREMENT_BYTES = 4
_WINDOW_UPDATE = frames.frame_header(frames.WINDOW_UPDATE, 0, 0, _INCREMENT_BYTES)
"""The head of one of the whole connection."""


class ResponseReader(Http2Connection[ClientCall]):
    """The reading half of a client's connection; the other half makes the calls, and ends them."""

    __slots__ = (
        "_greeted",
        "_last_bytes",
        "_likeness",
        "_next_id",
        "_spare",
        "closing",
    )

    def __init__(self, scratch: memoryview) -> None:
        super().__init__(scratch, BlockDecoder(ResponseHead))
        self.closing = False
        """No new call can be made on this connection."""
        self._next_id = 1
        self._greeted = False
        self._likeness: Likeness | None = None
        self._last_bytes = 0  # how many the last read brought
        self._spare: ClientCall | None = None  # one that has ended, to be made again

    @abstractmethod
    def _end(self, stream_id: int, status: int, message: str, trailers: ResponseHead | None = None) -> None:
        """A call has ended, if it is in flight."""

    @abstractmethod
    def _deliver(self, on_response: Callable[[GrpcResponse], None], response: GrpcResponse) -> None:
        """The response of a call that is not in flight any more."""

    def _parse(self, data: bytes, at: int) -> None:
        likeness, size = self._likeness, len(data)
        if likeness is not None and self._block is None:
            at = self._take_alike(data, likeness)
            if at == size or self._closed:
                return
        if not self._greeted and size > 3:
            self._greeted = True
            if data[3] != frames.SETTINGS:
                raise Http2Error(
                    ErrorCode.PROTOCOL_ERROR, "the server does not speak HTTP/2: is this its gRPC port?"
                )
        super()._parse(data, at)
        if size == self._last_bytes and size > HEADER_BYTES and not at:
            self._likeness = likeness_of(data, self._blocks.get)
        self._last_bytes = size

    def _take_alike(self, data: bytes, likeness: Likeness) -> int:
        """Take the responses that are alike, up to what needs more than a glance; returns where that begins.
        Updates of the connection's window may stand between them: gRPC's C core sends them with answers."""
        read_ns, at, end = _clock(), 0, len(data)
        streams, response = self.streams, likeness.response
        while True:
            for stream_id, message in likeness.split(data, at):
                call = streams.get(stream_id)
                if call is None or not call.awaits_all:
                    return at
                del streams[stream_id]
                at += likeness.size
                self._received(PREFIX_BYTES + len(message))
                response.data, response.first_byte_ns, response.end_ns = message, read_ns, read_ns
                self._spare = call
                self._deliver(call.on_response, response)
                if self._closed:
                    return at
            start = at + HEADER_BYTES
            stop = start + _INCREMENT_BYTES
            if stop > end or data[at:start] != _WINDOW_UPDATE:
                return at
            self._window_update(0, 0, data[start:stop])
            at = stop

    def _on_headers(self, stream_id: int, flags: int, block: bytes) -> None:
        head = self._blocks.get(block)
        if head is None:
            head = self._blocks.add(block)
            self._likeness = None  # blocks that refer to others may mean something else now
        call = self.streams.get(stream_id)
        if call is None:
            self._refuse_idle(stream_id, "response")
            return
        if not call.first_byte_ns:
            call.first_byte_ns = _clock()
        if flags & END_STREAM:
            call.peer_ended = True
            status, message = call.outcome(head)
            self._end(stream_id, status, message, head)
        elif call.head is None and not head.http_status.startswith("1"):
            call.head = head

    def end_without_trailers(self, call: ClientCall) -> None:
        self._end(call.id, Status.UNKNOWN, "the response ended without trailers")

    def reject(self, call: ClientCall, reason: str) -> None:
        """End a call whose response cannot be understood."""
        self._transport.write(frames.rst_stream(call.id, ErrorCode.CANCEL))
        self._end(call.id, Status.INTERNAL, reason)

    def _refuse_idle(self, stream_id: int, what: str) -> None:
        if stream_id >= self._next_id or not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} on idle stream {stream_id}")
