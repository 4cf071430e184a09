"""One gRPC call at the server: its messages, its deadline, its response."""

import asyncio
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from tpx.errors import Code, Overloaded
from tpx.protocol.compression import deflate
from tpx.protocol.grpc.backpressure import CALL_UNREAD_BYTES, ConnectionState, RequestStream
from tpx.protocol.grpc.framing import PREFIX_BYTES, MessageReader, pack_prefix, unpack_prefix
from tpx.protocol.grpc.metadata import CallHead
from tpx.protocol.grpc.repeated import AnswerRepeated, RepeatedCalls
from tpx.protocol.grpc.status import Status, trailers_block, trailers_only_block
from tpx.protocol.grpc.unary_response import JOIN_BELOW_BYTES, RESPONSE_HEAD, pack_response
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import DATA, END_HEADERS, HEADERS, ErrorCode
from tpx.protocol.http2.hpack import encode_stateless
from tpx.protocol.http2.sender import Stream
from tpx.protocol.listener import address_of
from tpx.protocol.memory_budget import SMALL_BYTES
from tpx.protocol.tensors import Buffer

_ACCEPTED = (b"grpc-accept-encoding", b"identity,gzip,deflate")

# DATA frame header, message prefix
_pack_message = struct.Struct(">BHBBIBI").pack


class MessageSink(Protocol):
    """Consumer of the messages of a streaming call."""

    def message(self, message: Buffer) -> None: ...
    def half_closed(self) -> None:
        """Handle the end of the client's half: no more messages follow."""

    def gone(self) -> None:
        """Handle cancellation, expiry of the deadline, or loss of the connection."""


Guard = Callable[[CallHead], tuple[Status, str] | None]
"""Returns None to admit a call, or the status and message to refuse it with."""


class Method(msgspec.Struct, eq=False):
    """One RPC: `unary` takes a call and its only message; `stream` takes a call and returns its sink."""

    path: str
    unary: "Callable[[ServerCall, Buffer], None] | None" = None
    stream: "Callable[[ServerCall], MessageSink] | None" = None
    guard: Guard | None = None
    """Checks the head of every call before anything else is read."""
    tensor_offset: int = 0
    """Offset of the first tensor in recent large messages; buffers for the next ones are aligned to it."""


class ServerCall(Stream):
    """One call. Unary calls end with `respond` or `fail`; streaming calls with any number of `send`,
    then `finish` or `fail`.

    Once the client is gone, responses are dropped and `on_gone` is called. While a client does not
    read its responses, its DATA is `withheld` instead of processed.
    """

    __slots__ = (
        "_deadline",
        "_ended",
        "_headers_sent",
        "_message",
        "_reserved",
        "_shared",
        "_sink",
        "began_ns",
        "head",
        "held",
        "method",
        "on_answered",
        "on_gone",
        "request_stream",
    )

    def __init__(
        self,
        shared: ConnectionState,
        stream_id: int,
        head: CallHead,
        method: Method,
        ended: "Callable[[ServerCall], None]",
    ) -> None:
        """`ended` is called when the response is fully written."""
        super().__init__(stream_id, shared.sender.initial_window)
        self._shared = shared
        self._ended = ended
        self.head = head
        self.method = method
        self.on_gone: Callable[[], None] | None = None
        """Called when the client leaves before the response."""
        self.on_answered: Callable[[Status], None] | None = None
        """Called once with the status when a unary response begins or the call ends, even if unread."""
        self.began_ns = 0
        """Time at which the headers arrived; set only if the listener has an observer."""
        self.request_stream: RequestStream | None = None
        """Set once DATA other than one whole message arrives."""
        self._message: Buffer | None = None
        self._sink: MessageSink | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._headers_sent = False
        self.held = 0
        """Bytes of memory held by the call's requests."""
        self._reserved = 0
        """Bytes of `held` that are reserved for an incomplete message."""
        if head.timeout_ns:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(head.timeout_ns / 1e9, self._expire)

    @property
    def connection(self) -> object:
        """Object shared by all calls of the connection, as its identity."""
        return self._shared

    @property
    def peer(self) -> str:
        """Address and port of the client."""
        return address_of(self._shared.sender.transport.transport)

    @property
    def received_ns(self) -> int:
        """Time at which the latest message was complete, if read on its arrival; needs an observer."""
        return self._shared.read_ns

    def unsent(self) -> int:
        """Return the bytes of the connection's responses not yet accepted by the kernel; at least 1
        while flow control delays part of this one.
        """
        out = self._shared.sender.transport
        return 0 if out.is_closing() else out.get_write_buffer_size() + (not self.we_ended)

    @property
    def _encoding(self) -> str:
        """Compression of responses."""
        encoding = self._shared.limits.response_encoding
        return encoding if encoding and encoding in self.head.accepts else ""

    def _notify_answered(self, status: Status) -> None:
        on_answered, self.on_answered = self.on_answered, None
        if on_answered is not None:
            on_answered(status)

    # reading: called by the connection

    def open(self) -> None:
        """Handle the arrival of the headers."""
        if self.head.fault is not None:
            self._notify_answered(self.head.fault[0])
            # the only UNIMPLEMENTED fault is an unknown compression: list the known ones
            known = [_ACCEPTED] if self.head.fault[0] is Status.UNIMPLEMENTED else []
            self._send_last_block(trailers_only_block(*self.head.fault, known))
        elif self.method.stream is not None:
            self.request_stream = self._open_request_stream()
            self._sink = self.method.stream(self)

    def receive(self, data: bytes, start: int, stop: int) -> None:
        stream = self.request_stream
        if not self.peer_ended:
            if stream is not None and self.withheld is None and stream.reader.absorb(data, start, stop):
                return
        elif stream is None and self.method.unary is not None:
            # the hot path: a whole request in one frame goes to the method without a request stream
            shared, size = self._shared, stop - start - PREFIX_BYTES
            if (
                0 <= size <= shared.limits.max_message_bytes
                and (not shared.sender.queued or not shared.full)
                and unpack_prefix(data, start) == (0, size)
            ):
                self.method.unary(self, data[start + PREFIX_BYTES : stop])
                return
        if start < stop:
            if stream is None:
                stream = self.request_stream = self._open_request_stream()
            stream.receive(data, start, stop)
        if self.peer_ended:
            self.end()

    def buffer_received(self, count: int) -> None:
        if self.request_stream is not None:
            self.request_stream.buffer_received(count)
        if self.peer_ended:
            self.end()

    def _open_request_stream(self) -> RequestStream:
        limit, encoding = self._shared.limits.max_message_bytes, self.head.encoding
        self.assembly = MessageReader(limit, encoding, self.method.tensor_offset, self._reserve_memory)
        return RequestStream(self, self._shared, self.assembly)

    def _reserve_memory(self, size: int) -> None:
        """Reserve memory for an incomplete message. Raises Overloaded."""
        account = self._shared.account
        budget = account.budget
        if size > max(budget.limit_bytes, SMALL_BYTES):
            raise Overloaded(
                f"a message of {size} bytes is larger than all that the server may hold, "
                f"{budget.limit_bytes} bytes (--max-buffered-bytes)",
                code=Code.RESOURCE_EXHAUSTED,
            )
        if not budget.fits(size) and (size > SMALL_BYTES or account.held):
            budget.relieve(budget.limit_bytes - size)
            if not budget.fits(size) and budget.held:
                raise Overloaded(budget.refusal)
        self._reserved += size
        self.hold(size)

    def hold(self, size: int) -> None:
        """Charge `size` bytes to the memory budget until the call ends; negative releases them."""
        self.held += size
        self._shared.account.hold_request(size)

    def listen(self, *, on_stall: Callable[[bool], None], on_drain: Callable[[], None]) -> None:
        """Set a stream's callbacks: `on_stall(True)` when the client stops reading responses,
        `on_stall(False)` when it resumes; `on_drain` when the server shuts down and the stream must end
        after the requests in flight.
        """
        if self.request_stream is not None:
            self.request_stream.on_stall, self.request_stream.on_drain = on_stall, on_drain

    def pause_reading(self) -> None:
        """Withhold the messages after the current one until `resume_reading`."""
        if self.request_stream is not None:
            self.request_stream.paused = True

    def resume_reading(self) -> None:
        if self.request_stream is not None:
            self.request_stream.paused = False
            # not now: the caller may itself be called from `read_on`
            asyncio.get_running_loop().call_soon(self.read_on)

    def eased(self) -> None:
        """Handle the client having read most of this call's responses."""
        if self.request_stream is not None:
            self.request_stream.stall(False)
        self.read_on()

    def read_on(self) -> None:
        """Process withheld data as far as the limits now allow."""
        if self.request_stream is not None:
            self.request_stream.read_on()

    def end(self) -> None:
        """Handle the end of the client's half."""
        if self.we_ended or self.withheld is not None:
            return
        if self.request_stream is not None and not self.request_stream.reader.between_messages:
            self.give_up(Status.INTERNAL, "the stream ended in the middle of a message")
        elif self._sink is not None:
            self._sink.half_closed()
        elif self._message is None:
            self.fail(Status.INTERNAL, "a unary call needs one request message, got none")
        elif self.method.unary is not None:
            message, self._message = self._message, None
            self.method.unary(self, message)

    def gone(self) -> None:
        """Handle a reset, an expired deadline or a lost connection: the response will not be read."""
        self.we_ended = True
        self._notify_answered(Status.CANCELLED)
        self._release_resources()
        on_gone, self.on_gone = self.on_gone, None
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.gone()
        elif on_gone is not None:
            on_gone()

    def _release_resources(self) -> None:
        """Release what the call holds: its timer, withheld data, and memory."""
        self._cancel_deadline()
        if self.request_stream is not None:
            self.request_stream.drop()
            self.request_stream = self.assembly = None
        if self.held:
            self.hold(-self.held)
            self._reserved = 0

    def take(self, message: Buffer) -> None:
        """Handle a request message."""
        if self._sink is not None:
            if self._reserved:  # the sink accounts for the message from now on
                self.hold(-self._reserved)
                self._reserved = 0
            self._sink.message(message)
        elif self._message is not None:
            self.give_up(Status.INTERNAL, "a unary call takes one request message, got another")
        else:
            self._message = message

    @property
    def awaited(self) -> tuple[int, ...] | None:
        """Progress of the message that the client has yet to complete, or None if it owes none."""
        if self.peer_ended or self.we_ended or self.withheld is not None:
            return None
        if self.request_stream is None or self.request_stream.reader.between_messages:
            return () if self.method.stream is None else None
        return self.request_stream.reader.progress

    def _expire(self) -> None:
        # the deadlines of ten thousand calls may expire at once: spread the work over loop iterations
        self._deadline = None
        give_up = partial(self.give_up, Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self._shared.connection.later(give_up)

    def give_up(self, status: Status, why: str) -> None:
        """End the call with an error that its method did not raise, and cancel the work on it."""
        if not self.we_ended:
            # `fail` clears the callbacks as for a regular end, but here the method must be notified
            on_gone, sink = self.on_gone, self._sink
            self.fail(status, why)
            self.on_gone, self._sink = on_gone, sink
            self.gone()

    # writing: called by the method

    def respond(self, parts: Sequence[Buffer]) -> None:
        """Respond to a unary call with a message in parts; large parts are not copied."""
        if self.we_ended or self.trailers is not None:
            return
        if self.on_answered is not None:
            self._notify_answered(Status.OK)
        shared = self._shared
        size = 0
        for part in parts:
            size += len(part)
        total = size + PREFIX_BYTES
        if total > JOIN_BELOW_BYTES or self._encoding or not shared.sender.reserve(self, total):
            self.send(parts, size)
            self.finish()
            return
        shared.sender.transport.write(pack_response(self.id, parts, size))
        self.sent()

    def repeat_with(
        self, answer: AnswerRepeated, start: bytes, tail: int, response: int, together: int = 1
    ) -> RepeatedCalls | None:
        """Let `answer` have the calls of this connection that repeat this one. Return their template, or None
        if the call is no model for others.

        Its message begins with `start` and ends with `tail` other bytes; `response` is the size of its
        response message. `answer` gets multiples of `together`.
        """
        shared, size = self._shared, max(response, len(start) + tail) + PREFIX_BYTES
        whole = self.request_stream is None and self.peer_ended and not self._encoding
        if not whole or size > min(JOIN_BELOW_BYTES, shared.limits.max_message_bytes):
            return None
        shared.repeated = RepeatedCalls(self.head, start, tail, response, answer, together)
        return shared.repeated

    def repeat(self, template: RepeatedCalls) -> bool:
        """Use a template that another call returned. Return False if this call has another head."""
        if template.head is not self.head:
            return False
        self._shared.repeated = template
        return True

    def send(self, parts: Sequence[Buffer], size: int) -> None:
        """Send one message of a stream, as flow control allows."""
        if self._is_answered:
            return
        sender, limits = self._shared.sender, self._shared.limits
        if sender.queued > limits.max_unread_bytes:
            most = limits.max_unread_bytes
            self.give_up(Status.RESOURCE_EXHAUSTED, f"more than {most} bytes of answers wait to be read")
            return
        encoding = self._encoding
        if not self._headers_sent:
            self._headers_sent = True
            block = RESPONSE_HEAD
            if encoding:
                block += encode_stateless([(b"grpc-encoding", encoding.encode())])
            sender.transport.write(frames.frame(HEADERS, END_HEADERS, self.id, sender.block(block)))
        total = size + PREFIX_BYTES
        if encoding:
            message = deflate(b"".join(parts), encoding, limits.response_level)
            sender.queue(self, (pack_prefix(1, len(message)), message))
        elif total <= JOIN_BELOW_BYTES and not self.outbox and sender.reserve(self, total):
            start = _pack_message(total >> 16, total & 0xFFFF, DATA, 0, self.id, 0, size)
            sender.transport.write(b"".join((start, *parts)))
            return
        else:
            sender.queue(self, (pack_prefix(0, size), *parts))
        if self._sink is not None and self.queued > CALL_UNREAD_BYTES and self.request_stream is not None:
            sender.notify(CALL_UNREAD_BYTES // 2, self)
            self.request_stream.stall(True)

    def send_all(self, messages: Sequence[bytes]) -> None:
        """Send messages of a stream that are there together, in one frame if they are small."""
        sender, size = self._shared.sender, PREFIX_BYTES * len(messages)
        for message in messages:
            size += len(message)
        direct = self._headers_sent and not (
            self._is_answered or self.outbox or sender.queued or self._encoding
        )
        if direct and size <= JOIN_BELOW_BYTES and sender.reserve(self, size):
            parts = [frames.frame_header(DATA, 0, self.id, size)]
            for message in messages:
                parts += (pack_prefix(0, len(message)), message)
            sender.transport.write(b"".join(parts))
            return
        for message in messages:
            self.send((message,), len(message))

    def finish(self, status: Status = Status.OK, message: str = "") -> None:
        """End a streaming call after all queued messages, with OK or an error of its method."""
        if self.on_answered is not None and not self._is_answered:
            self._notify_answered(status)
        self._send_last_block(self._encode_trailers(status, message))

    def fail(self, status: Status, message: str) -> None:
        """End the call with an error, even after some messages; queued data is dropped."""
        if self._is_answered:
            return
        self._notify_answered(status)
        self._shared.sender.forget(self.id)
        self._send_last_block(self._encode_trailers(status, message))

    def _encode_trailers(self, status: Status, message: str) -> bytes:
        return trailers_block(status, message) if self._headers_sent else trailers_only_block(status, message)

    def drop(self, status: Status, why: str) -> None:
        """End the call with an error instead of the response that its client does not read."""
        self._shared.sender.forget(self.id)
        self.trailers = None
        self.give_up(status, why)

    def refuse(self, http_status: int) -> None:
        """Respond in plain HTTP to a request that is not gRPC."""
        headers = [(b":status", b"%d" % http_status)]
        if http_status == 415:
            headers.append((b"accept-post", b"application/grpc"))
        self._send_last_block(encode_stateless(headers))

    def _send_last_block(self, block: bytes) -> None:
        if self._is_answered:
            return
        sender = self._shared.sender
        trailers = frames.headers_frames(
            self.id, sender.block(block), end_stream=True, max_frame_bytes=sender.frame_bytes
        )
        if self.outbox:
            self._cancel_deadline()
            sender.queue(self, (), trailers=trailers)
            return
        sender.forget(self.id)
        sender.transport.write(trailers)
        self.sent()

    @property
    def _is_answered(self) -> bool:
        return self.we_ended or self.trailers is not None

    def sent(self) -> None:
        """Finish after our last frame was written; a client that is still sending gets RST_STREAM."""
        self.we_ended = True
        self.on_gone = self._sink = None
        if self._deadline is not None:
            self._cancel_deadline()
        if self.request_stream is not None or self.held:
            self._release_resources()
        if not self.peer_ended:
            self._shared.connection.control.reset_stream(self.id, ErrorCode.NO_ERROR)
        self._ended(self)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def refusing(path: str, status: Status, message: str) -> Method:
    """Return a method that fails every call immediately, so that a streaming client does not wait in vain."""

    def refuse(call: ServerCall) -> MessageSink:
        call.fail(status, message)
        return _Ignore()

    return Method(path, stream=refuse)


class _Ignore:
    """Discards what a client still sends to a call that has ended."""

    def message(self, message: Buffer) -> None: ...
    def half_closed(self) -> None: ...
    def gone(self) -> None: ...


def unknown_method(head: CallHead) -> Method:
    """Return a method that responds with UNIMPLEMENTED."""
    path = head.path.decode("latin-1")
    return refusing(path, Status.UNIMPLEMENTED, f"unknown method {path}")
