"""A connection that gRPC clients opened: streams become calls; limits, keepalive and draining."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tpx.protocol.grpc.backpressure import Room, WaitingCall
from tpx.protocol.grpc.keepalive import Action, Keepalive, KeepaliveLimits
from tpx.protocol.grpc.metadata import CallHead, interpret_request
from tpx.protocol.grpc.server_call import Method, ServerCall, methods_by_path, refusing, unknown_method
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.connection import (
    CONNECTION_WINDOW,
    GLITCH_BURST,
    GLITCHES_PER_S,
    MAX_FRAME_BYTES,
    Http2Connection,
)
from tpx.protocol.http2.frames import (
    ACK,
    DEFAULT_WINDOW,
    END_STREAM,
    HEADER_BYTES,
    MAX_STREAM_ID,
    PREFACE,
    SETTINGS,
    ErrorCode,
    Http2Error,
    Setting,
    header_at,
)
from tpx.protocol.http2.hpack import BlockDecoder
from tpx.protocol.http2.stream import STREAM_WINDOW
from tpx.protocol.inflation import Inflater
from tpx.protocol.listener import LINGER_S, Listener, WriteWatch

_SILENT_S = 2
"""Without a byte of a message, when others wait for memory."""
_DRAIN_PING = b"tpxdrain"
_ALIVE_PING = b"tpxalive"
_GIVEN_UP_AT_ONCE = 500
_SKIPPED_RANGES = 64
_FIELDS_PER_GLITCH = 64
_BLOCK_BYTES_PER_GLITCH = 4096
_NOT_HTTP2 = b"this is a gRPC endpoint: it speaks HTTP/2, not HTTP/1.1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits:
    """What one connection may ask of the server; times in seconds."""

    max_message_bytes: int = 2**31 - 1
    max_metadata_bytes: int = 16 << 10
    """Of a call's headers, as RFC 9113 counts them. A call with more is refused, and one with more than twice
    as much ends its connection: it is not even decoded to its end."""
    glitch_burst: int = GLITCH_BURST
    glitches_per_s: int = GLITCHES_PER_S
    max_streams: int = 10_000
    preface_timeout_s: int = 10
    frame_timeout_s: int = 60
    """For the rest of a frame or header block whose beginning has come."""
    header_timeout_s: int = 10
    """From the beginning of a header block, or of a frame that is not DATA, to its end."""
    message_timeout_s: int = 60
    """Without a single byte of a message that a call owes; and before `min_receive_rate` counts."""
    min_receive_rate: int = 240
    """Bytes per second, on average, of the messages that a connection's calls owe together; 0: any."""
    max_receive_s: int = 3600
    """From the beginning of a message to its end."""
    write_timeout_s: int = 60
    """Without the client taking a single byte."""
    max_unread_bytes: int = 1 << 30
    """Of answers that wait for the client; an answer beyond them ends its call."""
    response_encoding: str = ""
    """Compress responses with this where the client accepts it."""
    response_level: int = 6
    keepalive: KeepaliveLimits = field(default_factory=KeepaliveLimits)


class _Awaited:
    """A message that a client owes: how much has come of it, and since when no more; in ticks."""

    __slots__ = ("began", "progress", "since")

    def __init__(self, progress: tuple[int, ...], tick: int) -> None:
        self.progress = progress
        self.began = self.since = tick

    @property
    def received(self) -> int:
        """Bytes, without the prefix."""
        return self.progress[1] if self.progress else 0


class GrpcServerConnection(Http2Connection[ServerCall]):
    """Dispatches calls to methods."""

    __slots__ = (
        "_accept_up_to",
        "_awaited",
        "_draining_since",
        "_half_sent_since",
        "_held_calls",
        "_keepalive",
        "_last_stream",
        "_left_at",
        "_limits",
        "_listener",
        "_methods",
        "_preface_seen",
        "_skipped",
        "_write_watch",
        "account",
        "inflater",
        "max_message_bytes",
        "max_unread_bytes",
        "read_ns",
        "response_encoding",
        "response_level",
        "room",
        "wrote",
    )

    def __init__(
        self, listener: Listener, limits: GrpcLimits, methods: Mapping[bytes, Method], inflater: Inflater
    ) -> None:
        super().__init__(
            listener.scratch, BlockDecoder(interpret_request, max_list_bytes=2 * limits.max_metadata_bytes)
        )
        self._glitches = self._glitch_burst = limits.glitch_burst
        self._glitches_per_s = limits.glitches_per_s
        self.max_message_bytes = limits.max_message_bytes
        self.response_encoding = limits.response_encoding
        self.response_level = limits.response_level
        self.max_unread_bytes = limits.max_unread_bytes
        self.account = self.sender.account = listener.memory.account(self)
        self.room = Room(self.sender, self.account)
        self.inflater = inflater
        self.wrote = False
        """Data was sent since the client's last PING, or our last look at the clock."""
        self.read_ns = 0
        """When anything was read last; known if the listener has an observer."""
        self._turns = listener.turns
        self._held_calls: dict[int, WaitingCall] = {}  # have messages left for the next turn
        self._listener = listener
        self._limits = limits
        self._methods = methods
        self._keepalive = Keepalive(limits.keepalive, listener.tick)
        self._preface_seen = False
        self._last_stream = 0
        self._skipped: deque[range] = deque(maxlen=_SKIPPED_RANGES)
        self._accept_up_to = MAX_STREAM_ID
        self._draining_since: int | None = None
        self._left_at = 0
        self._write_watch = WriteWatch()
        self._awaited: dict[int, _Awaited] = {}  # by stream
        self._half_sent_since = (0, 0)  # the number of a header block or frame, and when we saw it first

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport.departures = self._listener.departures_of(transport)
        settings = {
            Setting.MAX_CONCURRENT_STREAMS: self._limits.max_streams,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
            Setting.MAX_HEADER_LIST_SIZE: self._limits.max_metadata_bytes,
        }
        self._transport.write(
            frames.settings_frame(settings) + frames.window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)
        )
        self._listener.opened(self, self._transport.transport)

    def refuse(self, reason: str) -> None:
        """One connection too many: say so and close."""
        self._break(Http2Error(ErrorCode.ENHANCE_YOUR_CALM, reason))

    def eof_received(self) -> None:
        self._transport.flush()  # the event loop closes what its client has closed

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        self._listener.closed(self)
        self._let_go()
        self._drop_calls()
        self.account.close()

    def pause_writing(self) -> None:
        """A client that does not take its answers gets no more of them: its requests wait unread."""
        super().pause_writing()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._awaits_turn:
            self._transport.resume_reading()
        super().resume_writing()

    def await_turn(self, call: WaitingCall) -> None:
        self._held_calls[call.id] = call
        self._await_turn(self._transport.transport)

    def _read_on(self) -> None:
        calls, self._held_calls = self._held_calls, {}
        if calls and self._turns is not None:
            self._begin_turn(self._turns)
        for call in calls.values():
            call.read_on()

    # reading

    def _parse(self, data: bytes, at: int) -> None:
        self._keepalive.heard = self._listener.tick
        if self._listener.observer is not None:
            self.read_ns = time.perf_counter_ns()
        if not self._preface_seen:
            if data[: len(PREFACE)] != PREFACE[: len(data)]:
                self._refuse_http1()
                return
            at = len(PREFACE)
            if len(data) < at + HEADER_BYTES:
                self._pending += data
                return
            _, _, kind, flags, _ = header_at(data, at)
            if kind != SETTINGS or flags & ACK:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._preface_seen = True
        Http2Connection._parse(self, data, at)  # super() costs every read

    def _on_headers(self, stream_id: int, flags: int, block: bytes) -> None:
        head = self._blocks.get(block)
        if head is None:
            head = self._decode(block)
        if stream_id <= self._last_stream or not stream_id & 1:
            self._on_trailers(stream_id, flags)
            return
        if stream_id - self._last_stream > 2:
            self._skipped.append(range(self._last_stream + 1 | 1, stream_id, 2))
        self._last_stream = stream_id
        if head is None:
            self._glitch("malformed requests")
            self.reset_stream(stream_id, ErrorCode.PROTOCOL_ERROR)
        elif len(self.streams) >= self._limits.max_streams or stream_id > self._accept_up_to:
            self._glitch("streams over the limit")
            self.reset_stream(stream_id, ErrorCode.REFUSED_STREAM)
        else:
            self._begin_call(stream_id, flags, head)

    def _decode(self, block: bytes) -> CallHead | None:
        """Decode a header block, and charge for one that is larger than calls have a reason to be."""
        blocks, most = self._blocks, self._limits.max_metadata_bytes
        head: CallHead | None = blocks.add(block)
        self._glitch(
            "header fields", blocks.fields // _FIELDS_PER_GLITCH + len(block) // _BLOCK_BYTES_PER_GLITCH
        )
        if head is not None and blocks.list_bytes > most:
            # as gRPC's C core says it
            reason = f"received metadata size exceeds hard limit ({blocks.list_bytes} vs. {most})"
            head.fault = Status.RESOURCE_EXHAUSTED, reason
        return head

    def _begin_call(self, stream_id: int, flags: int, head: CallHead) -> None:
        method = head.memo
        if method is None:
            method = head.memo = self._method_for(head)
        call = ServerCall(self, stream_id, head, method)
        if self._listener.observer is not None:
            call.began_ns = self.read_ns
            self._listener.observer(call)
        self.streams[stream_id] = call
        call.peer_ended = flags & END_STREAM != 0
        if head.http_status != 200:
            call.refuse(head.http_status)
            return
        if head.fault is not None or method.stream is not None:
            call.open()
        if call.peer_ended:
            call.end()

    def _method_for(self, head: CallHead) -> Method:
        method = self._methods.get(head.path)
        if method is None:
            return unknown_method(head)
        refusal = method.guard(head) if method.guard is not None else None
        return refusing(method.path, *refusal) if refusal is not None else method

    def _on_trailers(self, stream_id: int, flags: int) -> None:
        """A second header block on a stream: it must end it."""
        if not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a client cannot open stream {stream_id}")
        call = self.streams.get(stream_id)
        if call is None:
            self._glitch("headers on closed streams")
            self._refuse_closed(stream_id, "HEADERS")
            return
        if call.peer_ended:
            raise Http2Error(ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM")
        if not flags & END_STREAM:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "headers in the middle of a stream")
        call.peer_ended = True
        call.end()

    def _on_late_data(self, stream_id: int) -> None:
        self._refuse_closed(stream_id, "DATA")

    def landed(self, count: int) -> None:
        self._keepalive.heard = self._listener.tick
        if self._listener.observer is not None:
            self.read_ns = time.perf_counter_ns()
        super().landed(count)

    def _on_reset(self, stream_id: int, code: int) -> None:  # noqa: ARG002
        self.sender.forget(stream_id)
        call = self.streams.pop(stream_id, None)
        if call is not None:
            call.gone()
        self._close_if_drained()

    def _refuse_idle(self, stream_id: int, what: str) -> None:
        if stream_id > self._last_stream or not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} on idle stream {stream_id}")

    def _refuse_closed(self, stream_id: int, what: str) -> None:
        """Raise Http2Error for a frame of a stream that has ended or was skipped (RFC 9113 section 5.1),
        unless it was on its way when we reset the stream."""
        if self._was_cut(stream_id):
            return
        if any(stream_id in skipped for skipped in self._skipped):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {stream_id}, which was skipped")
        raise Http2Error(ErrorCode.STREAM_CLOSED, f"{what} on stream {stream_id}, which has ended")

    def _on_goaway(self, last_stream_id: int, code: int, reason: bytes) -> None:  # noqa: ARG002
        self._accept_up_to = self._last_stream
        self._close_if_drained()

    def _on_ping(self) -> None:
        wrote, self.wrote = self.wrote, False
        if not self._keepalive.ping_received(time.monotonic_ns(), calls=bool(self.streams), wrote=wrote):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")

    def _on_ping_ack(self, payload: bytes) -> None:
        if payload == _DRAIN_PING and self._draining_since is not None:
            self._finish_drain()

    def received(self, count: int) -> None:
        self._received(count)
        self.account.hold_request(-count)

    # memory

    @property
    def reads(self) -> bool:
        return self.sender.reads

    def drop_answers(self) -> None:
        """The memory is needed: calls whose answers wait for the client are refused, the latest first."""
        for stream in reversed(list(self.streams.values())):
            if stream.outbox and not self._closed:
                stream.drop(Status.UNAVAILABLE, self.account.budget.refusal)

    def drop_silent_requests(self) -> None:
        """The memory is needed: calls whose message has not gone on for seconds are refused."""
        for stream_id, awaited in list(self._awaited.items()):
            call = self.streams.get(stream_id)
            if call is not None and self._listener.tick - awaited.since > _SILENT_S:
                call.give_up(Status.UNAVAILABLE, self.account.budget.refusal)

    # writing and ending

    def call_ended(self) -> None:
        """A call has left `streams`."""
        if self._accept_up_to != MAX_STREAM_ID:
            self._close_if_drained()

    def release(self) -> None:
        """Let calls in flight end, refuse new ones: GOAWAY that refuses nothing yet, a PING, and when its
        answer shows that the client has read it, GOAWAY with the last call that will be served (RFC 9113
        section 6.8)."""
        if self._draining_since is not None or self._closed or not self._preface_seen:
            return
        self._draining_since = self._listener.tick
        self.write(
            frames.goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR) + frames.frame(frames.PING, 0, 0, _DRAIN_PING)
        )

    def drain(self) -> None:
        """Do as `release` does, and end the streams that wait for further requests."""
        if not self._preface_seen and not self._closed:
            self._leave()
        self.release()
        for stream in list(self.streams.values()):
            intake = stream.intake
            if intake is not None and intake.on_drain is not None:
                intake.on_drain()

    def _finish_drain(self) -> None:
        if self._accept_up_to == MAX_STREAM_ID:
            self._accept_up_to = self._last_stream
            self.write(frames.goaway(self._last_stream, ErrorCode.NO_ERROR))
            self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._accept_up_to != MAX_STREAM_ID and not self.streams and not self._closed:
            self._leave()

    def _break(self, error: Http2Error) -> None:
        self.write(frames.goaway(self._last_stream, error.error_code, error.message.encode()))
        self._leave()

    def _refuse_http1(self) -> None:
        head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        self.write(head + b"Content-Length: %d\r\n\r\n%b" % (len(_NOT_HTTP2), _NOT_HTTP2))
        self._leave()

    def _leave(self) -> None:
        """Nothing more will be said. Closing with unread input would reset the connection and could take our
        last words with it: end our half, ignore what still comes, and close when the client does or `sweep`
        loses patience."""
        self._let_go()
        self._left_at = self._listener.tick
        self._drop_calls()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _drop_calls(self) -> None:
        streams = list(self.streams.values())
        self.streams.clear()
        self.room.clear()
        self._held_calls.clear()
        for stream in streams:
            stream.gone()

    def abort(self) -> None:
        """End at once. Nothing may touch the transport from here on, so we do not wait to be told."""
        self._transport.abort()
        self.connection_lost(None)

    def sweep(self, tick: int) -> None:
        """Enforce the deadlines; called by the listener once a second."""
        limits, silent = self._limits, tick - self._keepalive.heard
        outlet = self._transport
        stalled = self._write_watch.stalled_s(outlet.transport, outlet.written, tick)
        if (
            stalled > limits.write_timeout_s
            or (not self._preface_seen and tick - self._keepalive.opened > limits.preface_timeout_s)
            or self._half_sent_s(tick) > limits.header_timeout_s
            # where the frame is of a call, that is told first
            or (self._in_frame and silent > min(limits.frame_timeout_s, limits.message_timeout_s + 2))
        ):
            self.abort()
        elif not self._closed:
            self._look_at_streams(tick)
            self._look_at_age(tick)
        elif tick - self._left_at > LINGER_S:
            self._transport.close()

    def _half_sent_s(self, tick: int) -> int:
        """For how many seconds a header block or a frame that is not DATA has been coming in."""
        number = self._half_sent
        if number != self._half_sent_since[0]:
            self._half_sent_since = number, tick
        return tick - self._half_sent_since[1] if number else 0

    def _look_at_streams(self, tick: int) -> None:
        for stream in self.sender.stalled(tick, self._limits.write_timeout_s):
            self.reset_stream(stream.id, ErrorCode.CANCEL)
            self._on_reset(stream.id, ErrorCode.CANCEL)
        self._look_at_messages(tick)

    def _look_at_messages(self, tick: int) -> None:
        """End the calls whose client has stopped in the middle of a message, never began, or takes very
        long."""
        before, self._awaited = self._awaited, {}
        given_up = 0
        for stream in list(self.streams.values()):
            call = stream
            progress = call.awaited
            if progress is None:
                continue
            seen = before.get(call.id)
            if seen is None or seen.progress[:1] != progress[:1]:
                seen = _Awaited(progress, tick)
            elif seen.progress != progress:
                seen.progress, seen.since = progress, tick
            reason = self._overdue(seen, tick, len(before))
            if reason and given_up < _GIVEN_UP_AT_ONCE:
                given_up += 1
                call.give_up(Status.DEADLINE_EXCEEDED, reason)
            else:
                self._awaited[call.id] = seen

    def _overdue(self, awaited: "_Awaited", tick: int, calls: int) -> str:
        """Say why a message is waited for no longer, if so. `calls` share what their client sends."""
        limits, elapsed_s = self._limits, tick - awaited.began
        if tick - awaited.since > limits.message_timeout_s:
            return f"no byte of the request message for {limits.message_timeout_s} s"
        if elapsed_s > limits.max_receive_s:
            return f"the request message was not complete within {limits.max_receive_s} s"
        slow = awaited.received * calls < limits.min_receive_rate * elapsed_s
        if slow and elapsed_s > limits.message_timeout_s:
            return f"the request message came at less than {limits.min_receive_rate} bytes per second"
        return ""

    def _look_at_age(self, tick: int) -> None:
        if self._draining_since is not None and tick - self._draining_since > 1:
            self._finish_drain()
        wrote, self.wrote = self.wrote, False
        action = self._keepalive.look(
            tick, calls=bool(self.streams), last_stream=self._last_stream, wrote=wrote
        )
        if action is Action.PING:
            self.write(frames.frame(frames.PING, 0, 0, _ALIVE_PING))
        elif action is Action.DRAIN:
            self.release()
        elif action is not Action.NOTHING:
            self.abort()


def connection_factory(
    listener: Listener, limits: GrpcLimits, methods: Sequence[Method], inflater: Inflater
) -> Callable[[], GrpcServerConnection]:
    """What the listener calls for each accepted socket."""
    by_path = methods_by_path(methods)
    return lambda: GrpcServerConnection(listener, limits, by_path, inflater)
