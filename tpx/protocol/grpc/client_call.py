"""One gRPC call of a client: prebuilt, in flight, and ended."""

import time
from collections.abc import Callable, Mapping

from tpx.errors import RequestError
from tpx.protocol.grpc.framing import PREFIX_BYTES, MessageReader, Packed, pack_prefix, whole_message
from tpx.protocol.grpc.metadata import ResponseHead
from tpx.protocol.grpc.status import Status, from_http
from tpx.protocol.http2 import frames
from tpx.protocol.http2.connection import Http2Connection
from tpx.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, ErrorCode
from tpx.protocol.http2.sender import Stream
from tpx.protocol.tensors import Buffer

MAX_RESPONSE_BYTES = 2**31 - 1


class GrpcResponse:
    """Result of a call. `data` is the last message; `first_byte_ns` is on the clock of
    time.perf_counter_ns.

    Responses that match a template share one object: copy what must outlive the callback.
    """

    __slots__ = ("data", "end_ns", "first_byte_ns", "message", "metadata", "status")

    def __init__(self, status: int, message: str, data: Buffer, first_byte_ns: int) -> None:
        self.status = status
        self.message = message
        self.data = data
        self.first_byte_ns = first_byte_ns
        self.end_ns = time.perf_counter_ns()
        """Time at which the read that completed the response was handled."""
        self.metadata: Mapping[str, bytes] = {}
        """Trailers of the response."""


class PreparedCall:
    """Encoded unary call: constant bytes except for the stream ID."""

    __slots__ = ("block", "framed", "largest", "middle", "start")

    def __init__(self, block: bytes, framed: bytes) -> None:
        self.block = block
        self.framed = framed
        self.largest = max(len(block), len(framed))
        """Size of the larger of the two frames' payloads."""
        # frame headers without the stream ID, for sending a call in one write
        self.start = frames.frame_header(HEADERS, END_HEADERS, 0, len(block))[:5]
        self.middle = block + frames.frame_header(DATA, END_STREAM, 0, len(framed) & 0xFFFFFF)[:5]

    def with_message(self, framed: bytes) -> "PreparedCall":
        """Return this call with another message of the same length, without encoding anything."""
        call = PreparedCall.__new__(PreparedCall)
        call.block, call.framed, call.largest = self.block, framed, self.largest
        call.start, call.middle = self.start, self.middle
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
        "reader",
        "refusals",
    )

    def __init__(
        self,
        http2: Http2Connection,
        stream_id: int,
        on_response: Callable[[GrpcResponse], None],
        end: Callable[[int, int, str], None],
    ) -> None:
        """`end` is called with stream ID, status and message if the call ends without the server's
        trailers.
        """
        super().__init__(stream_id, http2.sender.initial_window)
        self._http2 = http2
        self._end = end
        self.on_response = on_response
        self.prepared: PreparedCall | None = None
        """Encoded request of a unary call."""
        self.refusals = 0
        self.on_message: Callable[[Buffer], None] | None = None
        self.head: ResponseHead | None = None
        self.reader: MessageReader | None = None
        self.data: Buffer = b""
        self.first_byte_ns = 0

    @property
    def awaits_all(self) -> bool:
        """True for a unary call sent in one write that has received nothing yet."""
        return self.prepared is not None and self.outbox is None and not self.first_byte_ns

    def again(self, stream_id: int, on_response: Callable[[GrpcResponse], None]) -> None:
        """Reuse the object for another call, after a template matched the previous response as a whole."""
        self.id = stream_id
        self.on_response = on_response
        self.send_window = self._http2.sender.initial_window
        self.we_ended = False
        self.refusals = 0

    def landing(self, remaining: int) -> memoryview | None:
        return self.reader.landing(remaining) if self.reader is not None else None

    def receive(self, data: bytes, start: int, stop: int) -> None:
        if self.head is None:
            self._stop(Status.INTERNAL, "the response has DATA before its headers")
            return
        reader = self.reader
        if (reader is None or reader.between_messages) and whole_message(data, start, stop):
            self.take(data[start + PREFIX_BYTES : stop])
        elif start < stop:
            if reader is None:
                reader = self.reader = MessageReader(MAX_RESPONSE_BYTES, self.head.encoding)
            try:
                for message in reader.feed(data, start, stop):
                    self._take(message)
            except RequestError as exc:
                self._stop(Status.INTERNAL, exc.message)
                return
        if self.peer_ended:
            self._end(self.id, Status.UNKNOWN, "the response ended without trailers")

    def landed(self, count: int) -> None:
        assert self.reader is not None
        try:
            message = self.reader.landed(count)
            if message is not None:
                self._take(message)
        except RequestError as exc:
            self._stop(Status.INTERNAL, exc.message)
            return
        if self.peer_ended:
            self._end(self.id, Status.UNKNOWN, "the response ended without trailers")

    def sent(self) -> None:
        self.we_ended = True

    def outcome(self, trailers: ResponseHead) -> tuple[int, str]:
        """Return the status and message with which the call ended."""
        if trailers.status is None:
            http = trailers.http_status or (self.head.http_status if self.head else "")
            return from_http(http), f"the response has no grpc-status (HTTP status {http})"
        if trailers.status == Status.OK and self.reader is not None and not self.reader.between_messages:
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
        self._stop(Status.CANCELLED, "cancelled by this client")

    def _stop(self, status: Status, message: str) -> None:
        self._http2.transport.write(frames.rst_stream(self.id, ErrorCode.CANCEL))
        self._end(self.id, status, message)

    def _take(self, message: Buffer | Packed) -> None:
        self.take(message.unpack() if isinstance(message, Packed) else message)

    def take(self, message: Buffer) -> None:
        if self.on_message is not None:
            self.on_message(message)
        else:
            self.data = message
