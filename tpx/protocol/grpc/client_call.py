"""One gRPC call of a client: prebuilt, in flight, and ended; and the template that recognizes a response."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct

from tpx.errors import RequestError
from tpx.protocol.grpc.framing import PREFIX_BYTES, MessageReader, Packed, pack_prefix, whole_message
from tpx.protocol.grpc.metadata import ResponseHead
from tpx.protocol.grpc.status import Status, from_http
from tpx.protocol.http2 import frames
from tpx.protocol.http2.connection import Http2Connection
from tpx.protocol.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER_BYTES,
    HEADERS,
    ErrorCode,
    header_at,
)
from tpx.protocol.http2.sender import Stream
from tpx.protocol.tensors import Buffer

MAX_RESPONSE_BYTES = 2**31 - 1
_NO_TRAILERS = "the response ended without trailers"
_TEMPLATE_BYTES = 16 << 10
"""Largest response, in bytes, worth a template: a larger one costs more than its frames do."""
_NUMBER_BYTES = 4
_UP_TO_NUMBER = HEADER_BYTES - _NUMBER_BYTES


@dataclass(slots=True)
class GrpcResponse:
    """Result of a call. `data` is the last message; `first_byte_ns` is on the clock of
    time.perf_counter_ns.

    Responses that match a template share one object: copy what must outlive the callback.
    """

    status: int
    message: str
    data: Buffer
    first_byte_ns: int
    end_ns: int = field(default_factory=time.perf_counter_ns)
    """Time at which the read that completed the response was handled."""
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    """Trailers of the response."""


class PreparedCall:
    """Encoded unary call: constant bytes except for the stream ID."""

    __slots__ = ("block", "framed", "largest", "middle", "pack", "start")

    def __init__(self, block: bytes, framed: bytes) -> None:
        self.block = block
        self.framed = framed
        self.largest = max(len(block), len(framed))
        """Size of the larger of the two frames' payloads."""
        # frame headers without the stream ID, for sending a call in one write
        self.start = frames.frame_header(HEADERS, END_HEADERS, 0, len(block))[:_UP_TO_NUMBER]
        self.middle = block + frames.frame_header(DATA, END_STREAM, 0, len(framed) & 0xFFFFFF)[:_UP_TO_NUMBER]
        self.pack = Struct(f">{_UP_TO_NUMBER}sI{len(self.middle)}sI").pack

    def with_message(self, framed: bytes) -> "PreparedCall":
        """Return this call with another message of the same length, without encoding anything."""
        call = PreparedCall.__new__(PreparedCall)
        call.block, call.framed, call.largest = self.block, framed, self.largest
        call.start, call.middle, call.pack = self.start, self.middle, self.pack
        return call


class ClientCall(Stream):
    """Call in flight. A streaming call sends messages with `send` and ends its half with `half_close`."""

    __slots__ = (
        "_end",
        "_http2",
        "data",
        "first_byte_ns",
        "head",
        "on_message",
        "on_response",
        "prepared",
        "refusals",
    )

    assembly: MessageReader | None

    def __init__(
        self,
        http2: Http2Connection,
        stream_id: int,
        on_response: Callable[[GrpcResponse], None],
        end: Callable[[int, int, str], None],
    ) -> None:
        """`end` is called with ID, status and message if the call ends without the server's trailers."""
        super().__init__(stream_id, http2.sender.initial_window)
        self._http2 = http2
        self._end = end
        self.on_response = on_response
        self.prepared: PreparedCall | None = None
        """Encoded request of a unary call."""
        self.refusals = 0
        self.on_message: Callable[[Buffer], None] | None = None
        self.head: ResponseHead | None = None
        self.data: Buffer = b""
        self.first_byte_ns = 0

    def receive(self, data: bytes, start: int, stop: int) -> None:
        if self.head is None:
            self._reset_stream(Status.INTERNAL, "the response has DATA before its headers")
            return
        reader = self.assembly
        if (reader is None or reader.between_messages) and whole_message(data, start, stop):
            self._take_message(data[start + PREFIX_BYTES : stop])
        elif start < stop:
            if reader is None:
                reader = self.assembly = MessageReader(MAX_RESPONSE_BYTES, self.head.encoding)
            try:
                for message in reader.feed(data, start, stop):
                    self._take_message(message)
            except RequestError as exc:
                self._reset_stream(Status.INTERNAL, exc.message)
                return
        if self.peer_ended:
            self._end(self.id, Status.UNKNOWN, _NO_TRAILERS)

    def buffer_received(self, count: int) -> None:
        assert self.assembly is not None
        try:
            message = self.assembly.buffer_received(count)
            if message is not None:
                self._take_message(message)
        except RequestError as exc:
            self._reset_stream(Status.INTERNAL, exc.message)
            return
        if self.peer_ended:
            self._end(self.id, Status.UNKNOWN, _NO_TRAILERS)

    def sent(self) -> None:
        self.we_ended = True

    def outcome(self, trailers: ResponseHead) -> tuple[int, str]:
        """Return the status and message with which the call ended."""
        if trailers.status is None:
            http = trailers.http_status or (self.head.http_status if self.head else "")
            return from_http(http), f"the response has no grpc-status (HTTP status {http})"
        if trailers.status == Status.OK and self.assembly is not None and not self.assembly.between_messages:
            return Status.INTERNAL, "the response ended in the middle of a message"
        return trailers.status, trailers.message

    def send(self, message: Buffer) -> None:
        """Send one message of a streaming call as flow control allows."""
        if not self.we_ended and not self.ending:
            self._http2.sender.queue(self, (pack_prefix(0, len(message)), message))

    def send_framed(self, framed: Buffer) -> None:
        """Send one message that includes its prefix; in a single write if flow control allows."""
        if self.we_ended or self.ending:
            return
        size, sender = len(framed), self._http2.sender
        if not self.outbox and size <= sender.frame_bytes and sender.reserve(self, size):
            sender.transport.write(frames.frame_header(DATA, 0, self.id, size) + framed)
        else:
            sender.queue(self, (framed,))

    def half_close(self) -> None:
        """End our half of the call: no more messages will be sent."""
        if not self.we_ended and not self.ending:
            self._http2.sender.queue(self, (), ending=True)

    def cancel(self) -> None:
        """Cancel the call; `on_response` gets status CANCELLED."""
        self._reset_stream(Status.CANCELLED, "cancelled by this client")

    def _reset_stream(self, status: Status, message: str) -> None:
        self._http2.transport.write(frames.rst_stream(self.id, ErrorCode.CANCEL))
        self._end(self.id, status, message)

    def _take_message(self, message: Buffer | Packed) -> None:
        if isinstance(message, Packed):
            message = message.unpack()
        if self.on_message is not None:
            self.on_message(message)
        else:
            self.data = message


class ResponseTemplate:
    """Layout of a successful response of three frames: header block, message, trailers.

    Valid while both header blocks decode to the same headers.
    """

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
        self.data_bytes = message_stop - message_start + PREFIX_BYTES
        """Size of the DATA frame's payload, which counts in flow control."""
        self.response = response = GrpcResponse(Status.OK, trailers.message, b"", 0)
        """Object shared by all matching responses; `data` and the times are set for each."""
        response.metadata = trailers.metadata

    def split(self, data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        """Yield stream ID and message of each response from `at` on, up to the first that does not match."""
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
    """Return the template of the response at the start of `data`, or None if it has another layout.
    `known` looks up header blocks that do not depend on the dynamic table.
    """
    stop, stream, found = 0, header_at(data)[4], []
    for kind, flags in ((HEADERS, END_HEADERS), (DATA, 0), (HEADERS, END_HEADERS | END_STREAM)):
        start = stop + HEADER_BYTES
        if start > len(data):
            return None
        high, low, *rest = header_at(data, stop)
        stop = start + (high << 16 | low)
        if rest != [kind, flags, stream] or stop > min(len(data), _TEMPLATE_BYTES):
            return None
        found.append((start, stop))
    (head_start, head_stop), message, (trailers_start, _) = found
    trailers = known(data[trailers_start:stop])
    if trailers is None or trailers.status != Status.OK or known(data[head_start:head_stop]) is None:
        return None
    return (
        ResponseTemplate(data[:stop], head_stop, message[1], trailers)
        if whole_message(data, *message)
        else None
    )
