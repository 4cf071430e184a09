"""gRPC server on one HTTP/2 connection: streams become calls; limits, keepalive, draining."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from tpx.protocol.compression import Inflater
from tpx.protocol.grpc.backpressure import ConnectionState
from tpx.protocol.grpc.limits import GrpcLimits, Keepalive, KeepaliveAction, MessageDeadlines
from tpx.protocol.grpc.metadata import CallHead, interpret_request
from tpx.protocol.grpc.repeated import RepeatedCalls
from tpx.protocol.grpc.server_call import Method, ServerCall, refusing, unknown_method
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.connection import Http2Connection
from tpx.protocol.http2.frames import (
    ACK,
    CONNECTION_UPDATE,
    CONNECTION_UPDATE_BYTES,
    END_HEADERS,
    END_STREAM,
    HEADER_BYTES,
    MAX_STREAM_ID,
    PREFACE,
    SETTINGS,
    ErrorCode,
    GlitchBudget,
    Http2Error,
    Setting,
    header_at,
)
from tpx.protocol.http2.hpack import BlockDecoder
from tpx.protocol.http2.role import Event, GoingAway, Lost, PingReceived, ProtocolViolated, StreamReset
from tpx.protocol.listener import LINGER_S, Listener, WriteWatch

_DRAIN_PING = b"tpxdrain"
_ALIVE_PING = b"tpxalive"
_SKIPPED_RANGES = 64
_FIELDS_PER_GLITCH = 64
_BLOCK_BYTES_PER_GLITCH = 4096
_NOT_HTTP2 = b"this is a gRPC endpoint: it speaks HTTP/2, not HTTP/1.1\n"


class GrpcServerConnection:
    """Dispatches calls to methods. Implements Role for its `http2`, and Connection for the listener."""

    _shared: ConnectionState

    def __init__(
        self, listener: Listener, limits: GrpcLimits, methods: Mapping[bytes, Method], inflater: Inflater
    ) -> None:
        self._account = listener.memory.account(self)
        self._calls: dict[int, ServerCall] = {}
        self._blocks = BlockDecoder(interpret_request, max_list_bytes=2 * limits.max_metadata_bytes)
        self.http2 = Http2Connection(
            self,
            self._calls,
            listener.scratch,
            turns=listener.turns,
            account=self._account,
            max_block_bytes=self._blocks.max_list_bytes,
            glitches=GlitchBudget(limits.glitch_burst, limits.glitches_per_s),
        )
        self._listener = listener
        self._limits = limits
        self._methods = methods
        self._inflater = inflater
        self._wrote = False  # a call has ended since the last check of `_has_written`
        self._sent_bytes = 0  # the sender's total at that check
        self._keepalive = Keepalive(limits.keepalive, listener.tick)
        self._preface_seen = False
        self._last_stream = 0
        self._skipped: deque[range] = deque(maxlen=_SKIPPED_RANGES)
        self._accept_up_to = MAX_STREAM_ID
        self._draining_since: int | None = None
        self._left_at = 0
        self._linger_s = LINGER_S
        self._write_watch = WriteWatch()
        self._deadlines = MessageDeadlines(limits)
        self._half_sent_since = (0, 0)  # number of an incomplete header block or frame, and its first tick

    # Role

    def opened(self, transport: asyncio.BaseTransport) -> None:
        """Send our settings and register with the listener, which may refuse the connection."""
        http2, limits = self.http2, self._limits
        self._shared = ConnectionState(http2, self._account, limits, self._inflater)
        http2.transport.coalesce_with(self._listener.coalescing_of(transport))
        http2.greet(
            {
                Setting.MAX_CONCURRENT_STREAMS: limits.max_streams,
                Setting.MAX_HEADER_LIST_SIZE: limits.max_metadata_bytes,
            }
        )
        self._listener.opened(self, transport)

    def begin_read(self, data: bytes) -> int:
        """Record that the client is alive, check the preface, and answer repeated calls."""
        self._keepalive.heard = self._listener.tick
        if self._listener.observer is not None:
            self._shared.read_ns = time.perf_counter_ns()
        elif self._shared.repeated is not None and data:
            return self._answer_repeated(data, self._shared.repeated)
        return 0 if self._preface_seen else self._read_preface(data)

    def _answer_repeated(self, data: bytes, repeated: RepeatedCalls) -> int:
        """Answer the calls at the start of a read that match the template; return their end.

        WINDOW_UPDATE frames of the connection are handled in between: gRPC's C core sends them with calls.
        """
        control, at = self.http2.control, 0
        if control.block is not None or self._accept_up_to != MAX_STREAM_ID:
            return 0
        while True:
            after = at + CONNECTION_UPDATE_BYTES
            if data.startswith(CONNECTION_UPDATE, at) and after <= len(data):
                control.window_update(0, 0, data[at + HEADER_BYTES : after])
                at = after
            answered = self._answer_first(memoryview(data)[at:], repeated)
            at += answered
            if not answered or not data.startswith(CONNECTION_UPDATE, at):
                return at

    def _answer_first(self, data: memoryview, repeated: RepeatedCalls) -> int:
        """Answer the calls that `data` begins with, if they match the template; return their size."""
        http2, sender, stream = self.http2, self.http2.sender, self._last_stream + 2
        # other blocks may have changed the compression table, and so what this one means
        known = self._blocks.get(repeated.head.block) is repeated.head
        if not known or sender.queued or len(self._calls) >= self._limits.max_streams:
            return 0
        tails, size, heads = repeated.split(data, stream)
        count = min(len(tails), sender.fits(repeated.response))
        del tails[count // repeated.together * repeated.together :]
        messages = repeated.answer(tails) if tails else ()
        count = len(messages)
        if not count:
            if tails:
                self._shared.repeated = None  # until a call is answered immediately again
            return 0
        self._last_stream += 2 * count
        self._wrote = True
        http2.received(count * repeated.payload)
        sender.take(count * repeated.response)
        http2.transport.write(repeated.respond(stream, messages))
        for later in range(count, heads):  # their messages follow
            self.headers(stream + 2 * later, END_HEADERS, repeated.head.block)
        return heads * repeated.head_size + count * size

    def _read_preface(self, data: bytes) -> int:
        if data[: len(PREFACE)] != PREFACE[: len(data)]:
            head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
            self.http2.transport.write(head + b"Content-Length: %d\r\n\r\n%b" % (len(_NOT_HTTP2), _NOT_HTTP2))
            self._end_connection()
            return 0
        at = len(PREFACE)
        if len(data) < at + HEADER_BYTES:
            return -1
        _, _, kind, flags, _ = header_at(data, at)
        if kind != SETTINGS or flags & ACK:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self._preface_seen = True
        return at

    def headers(self, stream_id: int, flags: int, block: bytes) -> None:
        """Start a call, or end the client's half of one."""
        head = self._blocks.get(block)
        if head is None:
            head = self._decode_head(block)
        if stream_id <= self._last_stream or not stream_id & 1:
            self._handle_trailers(stream_id, flags)
            return
        # IDs that a client skips are closed, and must not be used later (RFC 9113 section 5.1.1)
        if stream_id - self._last_stream > 2:
            self._skipped.append(range(self._last_stream + 1 | 1, stream_id, 2))
        self._last_stream = stream_id
        if head is None:
            self.http2.control.glitches.charge("malformed requests")
            self.http2.control.reset_stream(stream_id, ErrorCode.PROTOCOL_ERROR)
        elif len(self._calls) >= self._limits.max_streams or stream_id > self._accept_up_to:
            self.http2.control.glitches.charge("streams over the limit")
            self.http2.control.reset_stream(stream_id, ErrorCode.REFUSED_STREAM)
        else:
            self._begin_call(stream_id, flags, head)

    def _decode_head(self, block: bytes) -> CallHead | None:
        """Decode a header block, and charge glitches for an unusually large one."""
        blocks, most = self._blocks, self._limits.max_metadata_bytes
        head = blocks.add(block)
        self.http2.control.glitches.charge(
            "header fields", blocks.fields // _FIELDS_PER_GLITCH + len(block) // _BLOCK_BYTES_PER_GLITCH
        )
        if head is not None:
            head.block = block
            if blocks.list_bytes > most:
                # the message of gRPC's C core
                reason = f"received metadata size exceeds hard limit ({blocks.list_bytes} vs. {most})"
                head.fault = Status.RESOURCE_EXHAUSTED, reason
        return head

    def _begin_call(self, stream_id: int, flags: int, head: CallHead) -> None:
        method = head.method
        if method is None:
            method = self._methods.get(head.path) or unknown_method(head)
            refusal = method.guard(head) if method.guard is not None else None
            head.method = method = method if refusal is None else refusing(method.path, *refusal)
        call = ServerCall(self._shared, stream_id, head, method, self._remove_call)
        if self._listener.observer is not None:
            call.began_ns = self._shared.read_ns
            self._listener.observer(call)
        self._calls[stream_id] = call
        call.peer_ended = flags & END_STREAM != 0
        if head.http_status != 200:
            call.refuse(head.http_status)
            return
        if head.fault is not None or method.stream is not None:
            call.open()
        if call.peer_ended:
            call.end()

    def _handle_trailers(self, stream_id: int, flags: int) -> None:
        """Handle a second header block on a stream: it must end the client's half."""
        call = self._calls.get(stream_id)
        if call is None:
            if stream_id & 1:
                self.http2.control.glitches.charge("headers on closed streams")
            self.not_open(stream_id, "HEADERS")
            return
        if call.peer_ended:
            raise Http2Error(ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM")
        if not flags & END_STREAM:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "headers in the middle of a stream")
        call.peer_ended = True
        call.end()

    def not_open(self, stream_id: int, what: str) -> None:
        """Raise Http2Error for a frame on an idle stream; for DATA and HEADERS also on a stream that
        has ended or was skipped (RFC 9113 section 5.1), unless we reset it while the frame was in
        flight.
        """
        if stream_id > self._last_stream or not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} on idle stream {stream_id}")
        if what not in ("DATA", "HEADERS") or self.http2.control.was_cut(stream_id):
            return
        if any(stream_id in skipped for skipped in self._skipped):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {stream_id}, which was skipped")
        raise Http2Error(ErrorCode.STREAM_CLOSED, f"{what} on stream {stream_id}, which has ended")

    def on_event(self, event: Event) -> None:
        """Handle stream and connection events."""
        match event:
            case StreamReset(stream_id, _):
                self._drop_call(stream_id)
            case PingReceived(payload, True):
                if payload == _DRAIN_PING and self._draining_since is not None:
                    self._finish_drain()
            case PingReceived():
                calls, wrote = bool(self._calls), self._has_written()
                if not self._keepalive.ping_received(time.monotonic_ns(), calls=calls, wrote=wrote):
                    raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
            case GoingAway():
                self._accept_up_to = self._last_stream
                self._close_if_drained()
            case ProtocolViolated(error):
                self.http2.transport.write(
                    frames.goaway(self._last_stream, error.error_code, error.message.encode())
                )
                self._end_connection()
            case Lost():
                self._listener.closed(self)
                self._discard_calls()
                self._account.close()

    def _drop_call(self, stream_id: int) -> None:
        """Drop a call that was reset."""
        self.http2.sender.forget(stream_id)
        call = self._calls.pop(stream_id, None)
        if call is not None:
            call.gone()
        self._close_if_drained()

    def _remove_call(self, call: ServerCall) -> None:
        """Drop a call whose response is fully written."""
        self._wrote = True
        self._calls.pop(call.id, None)
        if self._accept_up_to != MAX_STREAM_ID:
            self._linger_s = LINGER_S  # the client may still read the response
            self._close_if_drained()

    def _has_written(self) -> bool:
        """Return True if responses were sent since the last call."""
        sent_bytes = self.http2.sender.sent_bytes
        wrote = self._wrote or sent_bytes != self._sent_bytes
        self._wrote, self._sent_bytes = False, sent_bytes
        return wrote

    def refuse(self, reason: str) -> None:
        """Refuse this connection, which is over a limit, and close it."""
        self.http2.fail(Http2Error(ErrorCode.ENHANCE_YOUR_CALM, reason))

    # memory

    @property
    def reads(self) -> bool:
        return self.http2.sender.reads

    def drop_answers(self) -> None:
        """Fail calls with unread responses, the newest first, to free their memory."""
        for call in reversed(list(self._calls.values())):
            if call.outbox and not self.http2.closed:
                call.drop(Status.UNAVAILABLE, self._account.budget.refusal)

    def drop_silent_requests(self) -> None:
        """Fail calls whose request message has stalled for seconds, to free their memory."""
        self._deadlines.refuse_silent(self._calls, self._listener.tick, self._account.budget.refusal)

    # writing and ending

    def release(self) -> None:
        """Drain: let calls in flight finish, then refuse new ones. Sends a GOAWAY that refuses nothing
        and a PING; its ACK shows that the client has seen the GOAWAY, and a second GOAWAY names the
        last call that will be served (RFC 9113 section 6.8).
        """
        if self._draining_since is not None or self.http2.closed or not self._preface_seen:
            return
        self._draining_since = self._listener.tick
        self.http2.transport.write(
            frames.goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR) + frames.frame(frames.PING, 0, 0, _DRAIN_PING)
        )

    def drain(self) -> None:
        """Drain as `release` does, and also end streaming calls that wait for more requests."""
        if not self._calls:
            self._linger_s = 0
        if not self._preface_seen and not self.http2.closed:
            self._end_connection()
        self.release()
        for call in list(self._calls.values()):
            if call.request_stream is not None and call.request_stream.on_drain is not None:
                call.request_stream.on_drain()

    def _finish_drain(self) -> None:
        if self._accept_up_to == MAX_STREAM_ID:
            self._accept_up_to = self._last_stream
            self.http2.transport.write(frames.goaway(self._last_stream, ErrorCode.NO_ERROR))
            self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._accept_up_to != MAX_STREAM_ID and not self._calls and not self.http2.closed:
            self._end_connection()

    def _end_connection(self) -> None:
        """End the connection; `sweep` closes it if the client does not."""
        self._left_at = self._listener.tick
        self._discard_calls()
        self.http2.transport.end()

    def _discard_calls(self) -> None:
        """Notify every call that its client is gone, and release all buffers."""
        self.http2.discard()
        calls = list(self._calls.values())
        self._calls.clear()
        self._shared.waiting.clear()
        for call in calls:
            call.gone()

    def abort(self) -> None:
        """Abort the connection. The transport must not be used afterwards, so do not wait for its
        callback.
        """
        self.http2.transport.abort()
        self.on_event(Lost(None))

    def sweep(self, tick: int) -> None:
        """Enforce the deadlines. Called by the listener once per second."""
        limits, silent = self._limits, tick - self._keepalive.heard
        out = self.http2.transport
        stalled = self._write_watch.stalled_s(out.transport, out.written, tick)
        half_sent = self.http2.half_sent
        if half_sent != self._half_sent_since[0]:
            self._half_sent_since = half_sent, tick
        if (
            stalled > limits.write_timeout_s
            or (not self._preface_seen and tick - self._keepalive.opened > limits.preface_timeout_s)
            or (half_sent and tick - self._half_sent_since[1] > limits.header_timeout_s)
            # a frame of a call fails at the call's own deadline first: hence the 2 s
            or (self.http2.in_frame and silent > min(limits.frame_timeout_s, limits.message_timeout_s + 2))
        ):
            self.abort()
        elif not self.http2.closed:
            for stream in self.http2.sender.stalled(tick, limits.write_timeout_s):
                self.http2.control.reset_stream(stream.id, ErrorCode.CANCEL)
                self._drop_call(stream.id)
            self._deadlines.check(self._calls, tick)
            if self._draining_since is not None and tick - self._draining_since > 1:
                self._finish_drain()
            action = self._keepalive.check(
                tick, calls=bool(self._calls), last_stream=self._last_stream, wrote=self._has_written()
            )
            if action is KeepaliveAction.PING:
                self.http2.transport.write(frames.frame(frames.PING, 0, 0, _ALIVE_PING))
            elif action is KeepaliveAction.DRAIN:
                self.release()
            elif action is not KeepaliveAction.NOTHING:
                self.abort()
        elif tick - self._left_at > self._linger_s:
            self.http2.transport.close()


def connection_factory(
    listener: Listener, limits: GrpcLimits, methods: Sequence[Method], inflater: Inflater
) -> Callable[[], Http2Connection]:
    """Return the protocol factory that the listener calls for each accepted socket."""
    by_path = {method.path.encode(): method for method in methods}
    return lambda: GrpcServerConnection(listener, limits, by_path, inflater).http2
