"""HTTP/1.1 server connections: one request at a time, limits, deadlines, a response to every request."""

import asyncio
import json
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import cast

import msgspec

from tpx.protocol.http1.connection import HttpConnection
from tpx.protocol.http1.head import HeadCache, HttpError, HttpHead, parse_request_head
from tpx.protocol.http1.request import STATUS_LINES, HttpRequest, RepeatAnswer
from tpx.protocol.listener import LINGER_S, Listener, WriteWatch, has_left, was_reset
from tpx.protocol.memory_budget import SMALL_BYTES
from tpx.protocol.read_buffer import UNLIMITED_BYTES
from tpx.protocol.tensors import Buffer
from tpx.protocol.write_buffer import WriteBuffer

_SILENT_S = 2
"""Seconds without a byte after which a body's memory is reclaimed for waiting requests."""

Judge = Callable[[HttpHead], HttpError | None]
"""Returns an error for a head whose body need not be read, or None."""


class _Stage(Enum):
    """State of a connection, which determines its deadline."""

    IDLE = auto()
    """Between requests, or a request waits for its turn or for memory."""
    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    """A request is in flight: what arrives meanwhile is held back."""
    CLOSED = auto()
    """Our half has ended, or the connection."""


class _Client(Enum):
    """State of the client's half. Once it is not `HERE`, the request in flight has been withdrawn."""

    HERE = auto()
    LEFT = auto()
    """The end of its half, or a reset, waits behind unread input."""
    ENDED = auto()
    """The end of its half was read; what came before it is still served (RFC 9112 section 9.6)."""


# names of the module, because a request looks them up more often than an attribute of an Enum is worth
_IDLE, _HEAD, _BODY, _ANSWER, _CLOSED = _Stage
_HERE, _LEFT, _ENDED = _Client


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one connection; times in seconds."""

    max_body_bytes: int = 64 << 20
    head_timeout_s: int = 10
    """Time from the first byte of a head to its end."""
    body_timeout_s: int = 60
    """Time without a byte of an announced body; also the time before `min_receive_rate` applies."""
    min_receive_rate: int = 240
    """Minimum average rate of a body in bytes per second; 0 = no minimum."""
    max_receive_s: int = 3600
    """Time from the end of a head to the end of its body."""
    idle_timeout_s: int = 120
    """Time between requests."""
    write_timeout_s: int = 60
    """Time without the client accepting a byte of its response."""

    def check_body(self, silent_s: int, elapsed_s: int, received_bytes: int) -> None:
        """Raise HttpError for a body that has stalled, is too slow, or takes too long."""
        if silent_s > self.body_timeout_s:
            raise HttpError(408, f"no byte of the announced body for {self.body_timeout_s} s")
        if elapsed_s > self.max_receive_s:
            raise HttpError(408, f"the body was not complete within {self.max_receive_s} s")
        if elapsed_s > self.body_timeout_s and received_bytes < self.min_receive_rate * elapsed_s:
            raise HttpError(408, f"the body came at less than {self.min_receive_rate} bytes per second")


class HttpServerConnection(HttpConnection):
    """Reads requests and writes their responses in order; a request in flight holds back the next one."""

    def __init__(
        self,
        listener: Listener,
        heads: HeadCache,
        limits: HttpLimits,
        serve: Callable[[HttpRequest], None],
        judge: Judge | None,
    ) -> None:
        super().__init__(heads, listener.scratch, limits.max_body_bytes)
        self.out: WriteBuffer = cast("WriteBuffer", None)
        self._turns = listener.turns
        self._listener = listener
        self._limits = limits
        self._serve = serve
        self._judge = judge
        self.request: HttpRequest | None = None
        self.repeats: tuple[bytes, int, RepeatAnswer] = b"", -1, lambda _: None
        """Start and size of the requests that `repeat_with` refers to, and what answers them."""
        self._stage = _IDLE
        self._since = self._body_since = listener.tick
        self._write_watch = WriteWatch()
        self.streamed_bytes = 0
        """Bytes of streamed responses, which tell a slow client from one that has stopped reading."""
        self._writing_paused = self.serving = False
        self._client = _HERE
        self._held_back = False  # reading is paused: what was read meanwhile waits for the request in flight
        self._began_ns = 0
        self._linger_s = LINGER_S
        self._account = listener.memory.account(self)
        self.answer_bytes = 0
        self._taken = (0, 0)  # bytes of responses accepted by the kernel, at the last two sweeps

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.out = WriteBuffer(self._transport)
        self.out.coalesce_with(self._listener.coalescing_of(transport))
        self._listener.opened(self, self._transport)

    def refuse(self, reason: str) -> None:
        """Respond 503 to whatever the client sends, because the connection is over a limit, and close."""
        self._reject_message(HttpError(503, reason))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        self._stage = _CLOSED
        self._body = self._chunks = None
        self._pending = b""
        self._listener.closed(self)
        self._account.close()
        if self.request is not None:
            self.request.lose()
            self.request = None

    def _note_client(self, state: _Client) -> None:
        """Record that the client leaves or ended its half, and withdraw the request in flight, once.

        Requests that it pipelined are still served.
        """
        before, self._client = self._client, state
        if before is _HERE and self.request is not None:
            self.request.withdraw()

    def eof_received(self) -> bool:
        """Handle the end of the client's half, which is an error within a body. A request in flight is
        withdrawn, because the client is most likely gone; if it completes anyway, its response is sent
        to a client that only closed its half. Returns True to keep the transport open for that.
        """
        self.out.flush()
        if self._head is not None:
            self._reject_message(
                HttpError(400, "the connection ended before the announced body was complete")
            )
        self._note_client(_ENDED)
        waits = self._pending != b"" and (self._writing_paused or self._awaits_turn)
        owing = self.request is not None or waits
        return owing and self._transport.can_write_eof()  # TLS has no half-closed connections

    def pause_writing(self) -> None:
        """Handle a client that does not read its responses: stop serving its requests, which wait unread."""
        self._writing_paused = True
        self._charge_unsent()
        self._report_stall()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._account.hold_answer(-self._account.answers)
        self._report_stall()
        self._resume_if_ready()

    def _report_stall(self) -> None:
        request = self.request
        if request is not None and request.on_stall is not None:
            request.on_stall(self._writing_paused)

    # memory

    def _may_begin_body(self, size: int) -> bool:
        memory = self._listener.memory
        if size <= SMALL_BYTES or memory.has_room(size):
            return True
        if not self._awaits_turn:
            self._awaits_turn = True
            self._transport.pause_reading()
            memory.wait(self._account, lambda: memory.has_room(size), self._take_turn, self._refuse_body)
        return False

    def _refuse_body(self) -> None:
        self._awaits_turn = False
        self._reject_message(HttpError(503, self._listener.memory.refusal))

    def _charge_body(self, size: int) -> None:
        memory = self._listener.memory
        if self._chunks is not None and size and self._chunks.size > SMALL_BYTES and not memory.fits(size):
            raise HttpError(503, memory.refusal)
        self._account.hold_request(size)

    def _charge_unsent(self) -> None:
        """Charge the unsent response, whose parts the transport holds until the last byte is sent."""
        account = self._account
        account.hold_answer(max(self.answer_bytes, self.out.get_write_buffer_size()) - account.answers)

    @property
    def reads(self) -> bool:
        return self.out.written - self.out.get_write_buffer_size() != self._taken[0]

    def drop_answers(self) -> None:
        """Abort the connection of a client that does not read, to free its memory."""
        self.abort()

    def drop_silent_requests(self) -> None:
        """Refuse a request whose body has stalled for seconds, to free its memory."""
        if self._stage is _BODY and self._listener.tick - self._since > _SILENT_S:
            self._reject_message(HttpError(503, self._listener.memory.refusal))

    # reading

    def data_received(self, data: bytes) -> None:
        start, size, answer = self.repeats
        if len(data) == size and data.startswith(start) and self._may_repeat():
            response = answer(memoryview(data)[len(start) :])
            if response is not None:
                self._since = self._listener.tick
                self.answer_bytes = len(response)
                self.out.answer(response, reading=True)
                return
        if self._awaits_turn and self._stage is not _CLOSED:
            self._pending += data
        elif self.request is not None or (self._writing_paused and self._head is None):
            # pipelined: stop reading until the request in flight is done
            self._pending += data
            self._held_back = True
            self._transport.pause_reading()
        elif self._stage is not _CLOSED:
            size = len(data)
            self._limited = size > UNLIMITED_BYTES
            if self._limited:
                self._begin_turn(size)
            if self._listener.observer is not None and self._head is None and not self._pending:
                self._began_ns = time.perf_counter_ns()
            super().data_received(data)
            self._update_stage()
            if self._limited:
                self._end_read(self._transport)

    def _may_repeat(self) -> bool:
        """Return True if the data read begin a request that is neither observed nor the last one."""
        if self._stage is not _IDLE or self._pending or self._writing_paused or self._awaits_turn:
            return False
        return self._listener.observer is None and not self.last_answer()

    def _take_turn(self) -> None:
        self._awaits_turn = False
        self._resume_if_ready()
        if not (self._awaits_turn or self._held_back or self._transport.is_closing()):
            self._transport.resume_reading()

    def buffer_received(self, count: int) -> None:
        super().buffer_received(count)
        self._update_stage()

    def _update_stage(self) -> None:
        """Update the stage; a head's deadline runs from its first byte."""
        if self.request is not None or self._stage is _CLOSED:
            return
        if self._head is not None:
            self._stage, self._since = _BODY, self._listener.tick
        elif not self._pending or self._awaits_turn:
            self._stage, self._since = _IDLE, self._listener.tick
        elif self._stage is not _HEAD:
            self._stage, self._since = _HEAD, self._listener.tick

    def _resume_if_ready(self) -> None:
        """Read data that was held back, if nothing blocks it any longer."""
        if self.serving or not self._pending or not self._may_read_on():
            return
        self._held_back = False
        self._transport.resume_reading()
        self._stage = _IDLE
        self._begin_turn()
        self._resume_pending()
        self._update_stage()
        if self._client is _ENDED and self.request is None and not self._awaits_turn:
            self._end_connection()

    def _handle_message(self, head: HttpHead, body: Buffer) -> bool:
        if self._stage is _CLOSED:
            return False
        self.request = request = HttpRequest(self, head, body)
        if self._listener.observer is not None:
            request.began_ns, request.received_ns = self._began_ns, time.perf_counter_ns()
            self._listener.observer(request)
        self._stage = _ANSWER
        self.serving = True
        self._serve(request)
        self.serving = False
        return self._may_read_on()

    def _may_read_on(self) -> bool:
        """Return True if the next request may be served: none is in flight, and the client reads."""
        waits = self.request is not None or self._writing_paused or self._awaits_turn
        return not waits and self._stage is not _CLOSED

    def _handle_head(self, head: HttpHead) -> None:
        self._body_since = self._listener.tick
        error = self._judge(head) if self._judge is not None else None
        if error is not None:
            raise error
        if head.expects_continue:  # the client waits with the body for this line (RFC 9110 section 10.1.1)
            self.out.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _reject_message(self, error: HttpError) -> None:
        """Send an error response and close: after a framing error, the next request's start is unknown (RFC
        9112 section 6.3).
        """
        if self._stage is _CLOSED:
            return
        body = json.dumps({"error": error.message}).encode()
        self.out.write(
            b"%bContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
            % (STATUS_LINES[error.status], len(body), body)
        )
        self._end_connection()

    # writing

    def last_answer(self) -> bool:
        """Return True if no request will follow the one in flight."""
        listener = self._listener
        leaving = listener.releasing or listener.draining
        return leaving or (self._client is _ENDED and not (self._pending or self.serving))

    def answered(self, *, keep_alive: bool) -> None:
        """Continue after a response: read on, or end the connection."""
        self.request = None
        if self._account.requests:
            self._account.hold_request(-self._account.requests)
        if not keep_alive:
            self._end_connection()
            return
        self._stage, self._since = _IDLE, self._listener.tick
        if self._pending:
            self._resume_if_ready()

    def _end_connection(self) -> None:
        """End our half after the last response. Closing with unread input would reset the connection
        and could lose the response (RFC 9112 section 9.6): ignore further input until the client closes or
        `sweep` times out.
        """
        if self._stage is _CLOSED:
            return
        self._stage, self._since = _CLOSED, self._listener.tick
        self._body = self._chunks = None
        self._pending = b""
        self._account.hold_request(-self._account.requests)
        if self._transport.can_write_eof() and self._client is not _ENDED:
            self._transport.resume_reading()
            self.out.write_eof()
        else:
            self.out.close()

    # called by the listener

    def sweep(self, tick: int) -> None:
        """Enforce the deadlines; called once per second."""
        limits = self._limits
        if self._writing_paused and self._stage is not _CLOSED:
            self._charge_unsent()
            self._taken = self._taken[1], self.out.written - self.out.get_write_buffer_size()
        if self._write_watch.stalled_s(self._transport, self.streamed_bytes, tick) > limits.write_timeout_s:
            self.abort()
        elif self._write_watch.owing or self._awaits_turn:
            # not the client's fault: it is still reading a response, or waits for its turn
            self._since = tick
            self._body_since += 1
        else:
            self._check_stage(tick - self._since)

    def _check_stage(self, waited: int) -> None:
        limits, stage = self._limits, self._stage
        try:
            if stage is _HEAD:
                if waited > limits.head_timeout_s:
                    raise HttpError(408, f"no complete request head within {limits.head_timeout_s} s")
            elif stage is _BODY:
                limits.check_body(waited, self._listener.tick - self._body_since, self.received)
            elif stage is _IDLE and waited > limits.idle_timeout_s:
                self._end_connection()
            elif stage is _ANSWER and self._client is _ENDED and was_reset(self._transport):
                self.abort()  # an earlier response of the pipeline did not reach the client
            elif stage is _ANSWER and self._client is _HERE and self._held_back:
                # what the kernel has of the client's end is not reported while reading is paused
                if has_left(self._transport):
                    self._note_client(_LEFT)
            elif stage is _CLOSED and waited > self._linger_s:
                self.out.close()
        except HttpError as exc:
            self._reject_message(exc)

    def release(self) -> None:
        """Do nothing: the next response says `Connection: close`. Closing an idle connection could race
        with a request, whose fate the client would not know (RFC 9112 section 9.5).
        """

    def drain(self) -> None:
        """Close when idle; a request in flight is served first, with `Connection: close`."""
        if self._stage in (_IDLE, _HEAD):
            self._linger_s = 0  # counted from when the client has all of its last response
            self._end_connection()

    def abort(self) -> None:
        """Abort the connection. The transport must not be used afterwards, so do not wait for its
        callback.
        """
        self.out.abort()
        self.connection_lost(None)


def connection_factory(
    listener: Listener, limits: HttpLimits, serve: Callable[[HttpRequest], None], judge: Judge | None = None
) -> Callable[[], HttpServerConnection]:
    """Return the protocol factory that the listener calls for each accepted socket; connections share a
    cache of heads.
    """
    heads = HeadCache(parse_request_head)
    return lambda: HttpServerConnection(listener, heads, limits, serve, judge)
