"""What a gRPC client reads: the frames of responses, put together to messages and ends of calls.

Responses to unary calls that one read brings whole and that match the last template are not parsed.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from struct import Struct

from tpx.protocol.grpc.client_call import ClientCall, GrpcResponse
from tpx.protocol.grpc.framing import PREFIX_BYTES, whole_message
from tpx.protocol.grpc.metadata import ResponseHead
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.connection import Http2Connection
from tpx.protocol.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER_BYTES,
    HEADERS,
    ErrorCode,
    Http2Error,
    header_at,
)
from tpx.protocol.http2.hpack import BlockDecoder

_clock = time.perf_counter_ns
_INCREMENT_BYTES = 4
_WINDOW_UPDATE = frames.frame_header(frames.WINDOW_UPDATE, 0, 0, _INCREMENT_BYTES)
"""The head of one of the whole connection."""
_MOST_BYTES = 16 << 10
"""Bytes of a response: a larger one costs more than its frames do."""
_NUMBER_BYTES = 4
_UP_TO_NUMBER = HEADER_BYTES - _NUMBER_BYTES


class ResponseTemplate:
    """The layout of a successful response of three frames: header block, message, trailers.

    It holds as long as the two header blocks mean what they did.
    """

    __slots__ = ("_begin", "_end", "_head", "_layout", "_prefix", "_trailers", "response", "size")

    def __init__(self, data: bytes, block_stop: int, message_stop: int, trailers: ResponseHead) -> None:
        message_start = block_stop + HEADER_BYTES + PREFIX_BYTES
        layout = Struct(
            f">{_UP_TO_NUMBER}sI"
            f"{block_stop - _NUMBER_BYTES}sI{PREFIX_BYTES}s{message_stop - message_start}s"
            f"{_UP_TO_NUMBER}sI{len(data) - message_stop - HEADER_BYTES}s"
        )
        self._layout = layout.iter_unpack
        self._begin, _, self._head, _, self._prefix, _, self._end, _, self._trailers = layout.unpack(data)
        self.size = len(data)
        self.response = response = GrpcResponse(Status.OK, trailers.message, b"", 0)
        """Each of them, once it has its message."""
        response.metadata = trailers.metadata

    def split(self, data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        """Stream and message of each response from `at` on, up to one that is not alike."""
        several = memoryview(data)[at : len(data) - (len(data) - at) % self.size]
        for begin, stream, head, of_data, prefix, message, end, of_end, trailers in self._layout(several):
            if (
                stream != of_data
                or stream != of_end
                or prefix != self._prefix
                or head != self._head
                or trailers != self._trailers
                or begin != self._begin
                or end != self._end
            ):
                return
            yield stream, message


def template_of(data: bytes, known: Callable[[bytes], ResponseHead | None]) -> ResponseTemplate | None:
    """That of the response at the beginning of `data`; None if it is none of those. `known` are the header
    blocks that do not depend on others."""
    stop, stream, frames = 0, header_at(data)[4], []
    for kind, flags in ((HEADERS, END_HEADERS), (DATA, 0), (HEADERS, END_HEADERS | END_STREAM)):
        start = stop + HEADER_BYTES
        if start > len(data):
            return None
        high, low, *rest = header_at(data, stop)
        stop = start + (high << 16 | low)
        if rest != [kind, flags, stream] or stop > min(len(data), _MOST_BYTES):
            return None
        frames.append((start, stop))
    (head_start, head_stop), message, (trailers_start, _) = frames
    trailers = known(data[trailers_start:stop])
    if trailers is None or trailers.status != Status.OK or known(data[head_start:head_stop]) is None:
        return None
    return (
        ResponseTemplate(data[:stop], head_stop, message[1], trailers)
        if whole_message(data, *message)
        else None
    )


class ResponseReader(Http2Connection[ClientCall]):
    """The reading half of a client's connection; the other half makes the calls, and ends them."""

    __slots__ = (
        "_greeted",
        "_last_bytes",
        "_next_id",
        "_spare",
        "_template",
        "closing",
    )

    def __init__(self, scratch: memoryview) -> None:
        super().__init__(scratch, BlockDecoder(ResponseHead))
        self.closing = False
        """No new call can be made on this connection."""
        self._next_id = 1
        self._greeted = False
        self._template: ResponseTemplate | None = None
        self._last_bytes = 0  # how many the last read brought
        self._spare: ClientCall | None = None  # one that has ended, to be made again

    @abstractmethod
    def _end(self, stream_id: int, status: int, message: str, trailers: ResponseHead | None = None) -> None:
        """A call has ended, if it is in flight."""

    @abstractmethod
    def _deliver(self, on_response: Callable[[GrpcResponse], None], response: GrpcResponse) -> None:
        """The response of a call that is not in flight any more."""

    def _parse(self, data: bytes, at: int) -> None:
        template, size = self._template, len(data)
        if template is not None and self._block is None:
            at = self._take_alike(data, template)
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
            self._template = template_of(data, self._blocks.get)
        self._last_bytes = size

    def _take_alike(self, data: bytes, template: ResponseTemplate) -> int:
        """Take the responses that are alike, up to what needs more than a glance; returns where that begins.
        Updates of the connection's window may stand between them: gRPC's C core sends them with answers."""
        read_ns, at, end = _clock(), 0, len(data)
        streams, response = self.streams, template.response
        while True:
            for stream_id, message in template.split(data, at):
                call = streams.get(stream_id)
                if call is None or not call.awaits_all:
                    return at
                del streams[stream_id]
                at += template.size
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
            self._template = None  # blocks that refer to others may mean something else now
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
