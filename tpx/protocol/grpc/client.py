"""gRPC client connection: prebuilt requests, one callback per response, many calls per connection."""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from copy import copy

from tpx.errors import ResponseError, WireError
from tpx.protocol.grpc.client_call import (
    ClientCall,
    GrpcResponse,
    PreparedCall,
    ResponseTemplate,
    template_of,
)
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.grpc.metadata import ResponseHead, request_block
from tpx.protocol.grpc.status import Status, from_reset, to_code
from tpx.protocol.grpc.unary_response import JOIN_BELOW_BYTES
from tpx.protocol.http2 import frames
from tpx.protocol.http2.connection import Http2Connection
from tpx.protocol.http2.frames import (
    END_STREAM,
    HEADER_BYTES,
    MAX_STREAM_ID,
    MAX_WINDOW,
    PREFACE,
    ErrorCode,
    Http2Error,
    Setting,
)
from tpx.protocol.http2.hpack import BlockDecoder
from tpx.protocol.http2.role import Event, GoingAway, Lost, ProtocolViolated, SettingsChanged, StreamReset
from tpx.protocol.read_buffer import dial
from tpx.protocol.tensors import Buffer, new_scratch

_LAST_WORDS_S = 0.5
_REFUSALS = 5
"""Number of times that a call which the server refused is made again."""
_clock = time.perf_counter_ns


class GrpcClientConnection:
    """Makes calls and reads their responses. Implements Role for its `http2`.

    Callbacks run inside the read that completed the response, and may make the next call immediately.
    Calls over the server's limit of concurrent streams are queued. `on_lost` is called once if the
    connection breaks or the server ends it; calls in flight then get status UNAVAILABLE.
    """

    def __init__(self, scratch: memoryview, authority: str, *, tls: bool) -> None:
        self._calls: dict[int, ClientCall] = {}
        self._blocks = BlockDecoder(ResponseHead)
        self.http2 = Http2Connection(self, self._calls, scratch)
        self.closing = False
        """True once no new calls can be made on this connection."""
        self.max_concurrent_streams = MAX_WINDOW
        """The server's limit of concurrent streams."""
        self.on_lost: Callable[[WireError], None] | None = None
        self._next_id = 1
        self._greeted = False
        self._template: ResponseTemplate | None = None
        self._last_bytes = 0  # size of the last read
        self._spare: ClientCall | None = None  # a call that a template ended, for reuse: saves an allocation
        self._authority = authority
        self._tls = tls
        self._waiting: deque[tuple[PreparedCall, Callable[[GrpcResponse], None], int]] = deque()
        self._lost_reason = ""

    def write_at_once(self) -> None:
        """Disable write coalescing: every call reaches the kernel before its method returns."""
        self.http2.transport.write_at_once()

    # making calls

    def prepare(
        self,
        path: str,
        message: Buffer,
        metadata: Mapping[str, str | bytes] | None = None,
        *,
        encoding: str = "",
        timeout: str = "",
    ) -> PreparedCall:
        """Encode a unary call of `path` ("/package.Service/Method") that can be made any number of
        times.

        `encoding` compresses the message; `timeout` is in gRPC's format, such as "500m" for 500 ms.
        """
        block = self._request_block(path, metadata, encoding, timeout)
        return PreparedCall(block, frame_message(message, encoding))

    def _request_block(
        self, path: str, metadata: Mapping[str, str | bytes] | None, encoding: str, timeout: str
    ) -> bytes:
        return request_block(
            path, self._authority, metadata or {}, tls=self._tls, encoding=encoding, timeout=timeout
        )

    def call(self, prepared: PreparedCall, on_response: Callable[[GrpcResponse], None]) -> int:
        """Make a unary call. Returns its stream ID, or 0 if it is queued because of the server's limit
        of streams. Raises WireError if the connection is closing.
        """
        if self.closing:
            raise WireError(self._lost_reason or "the connection is closing")
        if len(self._calls) >= self.max_concurrent_streams:
            self._waiting.append((prepared, on_response, 0))
            return 0
        stream_id = self._next_id
        self._next_id = stream_id + 2
        if stream_id > MAX_STREAM_ID - 2:  # out of stream IDs: the user must open another connection
            self.closing = True
        sender = self.http2.sender
        call = self._spare
        if call is None:
            call = ClientCall(self.http2, stream_id, on_response, self._end_call)
        else:
            self._spare = None
            call.id, call.on_response = stream_id, on_response
            call.send_window, call.we_ended, call.refusals = sender.initial_window, False, 0
        call.prepared = prepared
        self._calls[stream_id] = call
        if prepared.largest <= sender.frame_bytes and sender.reserve(call, len(prepared.framed)):
            call.we_ended = True
            head = prepared.pack(prepared.start, stream_id, prepared.middle, stream_id)
            framed = prepared.framed
            if len(framed) < JOIN_BELOW_BYTES:
                sender.transport.write(head + framed)
            else:
                sender.transport.writelines([head, framed])
        else:
            self._write_block(stream_id, prepared.block)
            sender.queue(call, (prepared.framed,), ending=True)
        return stream_id

    def _write_block(self, stream_id: int, block: bytes) -> None:
        sender = self.http2.sender
        self.http2.transport.write(
            frames.headers_frames(
                stream_id, sender.block(block), end_stream=False, max_frame_bytes=sender.frame_bytes
            )
        )

    def open(
        self,
        path: str,
        on_message: Callable[[Buffer], None],
        on_end: Callable[[GrpcResponse], None],
        metadata: Mapping[str, str | bytes] | None = None,
        *,
        timeout: str = "",
        encoding: str = "",
    ) -> ClientCall:
        """Start a streaming call. With `encoding`, the caller compresses the messages. Raises
        WireError, also at the server's limit of concurrent streams.
        """
        if self.closing:
            raise WireError(self._lost_reason or "the connection is closing")
        if len(self._calls) >= self.max_concurrent_streams:
            raise WireError(f"the server accepts at most {self.max_concurrent_streams} calls at a time")
        block = self._request_block(path, metadata, encoding, timeout)
        call = ClientCall(self.http2, self._next_id, on_end, self._end_call)
        call.on_message = on_message
        self._next_id += 2
        self._calls[call.id] = call
        self._write_block(call.id, block)
        return call

    async def unary(
        self,
        path: str,
        message: Buffer,
        metadata: Mapping[str, str | bytes] | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> Buffer:
        """Make a unary call and return the response message. Raises ResponseError with the server's
        code, or WireError.
        """
        answer: asyncio.Future[GrpcResponse] = asyncio.get_running_loop().create_future()

        def ended(response: GrpcResponse) -> None:
            if not answer.done():
                answer.set_result(copy(response))

        self.call(self.prepare(path, message, metadata), ended)
        try:
            async with asyncio.timeout(timeout_s):
                response = await answer
        except TimeoutError as exc:
            raise WireError(f"{path}: no response within {timeout_s} s") from exc
        finally:
            if not answer.done() or answer.cancelled():
                self._waiting = deque(entry for entry in self._waiting if entry[1] is not ended)
                for call in [each for each in self._calls.values() if each.on_response is ended]:
                    call.cancel()
        if response.status != Status.OK:
            raise ResponseError(response.message, code=to_code(response.status))
        return response.data

    def cancel(self, stream_id: int) -> None:
        """Cancel a call with RST_STREAM; its callback gets status CANCELLED."""
        call = self._calls.get(stream_id)
        if call is not None:
            call.cancel()

    @property
    def in_flight(self) -> int:
        return len(self._calls) + len(self._waiting)

    def close(self) -> None:
        """Close the connection immediately, without calling `on_lost`."""
        self.closing = True
        self.on_lost = None
        self.http2.discard()
        self.http2.transport.abort()

    # Role

    def opened(self, transport: asyncio.BaseTransport) -> None:  # noqa: ARG002 (the server's role needs it)
        """Send the preface and our settings."""
        # without a dynamic table the server's header blocks are constant, which templates rely on
        self.http2.greet({Setting.HEADER_TABLE_SIZE: 0, Setting.ENABLE_PUSH: 0}, PREFACE)

    def begin_read(self, data: bytes) -> int:
        """Handle responses that match the template; learn a template from two reads of the same size."""
        size, at = len(data), 0
        template = self._template
        if template is not None and size and self.http2.control.block is None:
            at = self._handle_matching(data, template)
        if not self._greeted and size > 3:
            self._greeted = True
            if data[3] != frames.SETTINGS:
                raise Http2Error(
                    ErrorCode.PROTOCOL_ERROR, "the server does not speak HTTP/2: is this its gRPC port?"
                )
        if not at and size == self._last_bytes and size > HEADER_BYTES:
            self._template = template_of(data, self._blocks.get)
        self._last_bytes = size
        return at

    def _handle_matching(self, data: bytes, template: ResponseTemplate) -> int:
        """Handle matching responses. Returns the offset of the first byte that must be parsed.

        WINDOW_UPDATE frames of the connection are skipped in between: gRPC's C core sends them with
        responses.
        """
        at, end, response = 0, len(data), template.response
        response.first_byte_ns = response.end_ns = _clock()
        while True:
            count = self._deliver_matching(data, at, template)
            at += count * template.size
            self.http2.received(count * template.data_bytes)
            stop = at + frames.CONNECTION_UPDATE_BYTES
            if stop > end or self.http2.closed or not data.startswith(frames.CONNECTION_UPDATE, at):
                break
            self.http2.control.window_update(0, 0, data[at + HEADER_BYTES : stop])
            at = stop
        if self.closing and not self._calls:
            self.http2.transport.close()
        return at

    def _deliver_matching(self, data: bytes, at: int, template: ResponseTemplate) -> int:
        """Deliver the matching responses from `at` on to calls that wait for one; return their number."""
        count, calls, response = 0, self._calls, template.response
        for stream_id, message in template.split(data, at):
            call = calls.pop(stream_id, None)
            if call is None:
                break
            # only a unary call that was sent in one write and has received nothing yet
            if call.prepared is None or call.outbox is not None or call.first_byte_ns:
                calls[stream_id] = call
                break
            count += 1
            self._spare, response.data = call, message
            if self._waiting:
                self._start_waiting_calls()
            call.on_response(response)
            if self.http2.closed:
                break
        return count

    def headers(self, stream_id: int, flags: int, block: bytes) -> None:
        """Handle a response's headers, or its trailers, which end the call."""
        head = self._blocks.get(block)
        if head is None:
            head = self._blocks.add(block)
            self._template = None  # the decoder's table may have changed what the template's blocks mean
        call = self._calls.get(stream_id)
        if call is None:
            self.not_open(stream_id, "response")
            return
        if not call.first_byte_ns:
            call.first_byte_ns = _clock()
        if flags & END_STREAM:
            call.peer_ended = True
            status, message = call.outcome(head)
            self._end_call(stream_id, status, message, head)
        elif call.head is None and not head.http_status.startswith("1"):
            call.head = head

    def not_open(self, stream_id: int, what: str) -> None:
        """Raise Http2Error for a frame on a stream never opened; others may belong to a cancelled call."""
        if stream_id >= self._next_id or not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{what} on idle stream {stream_id}")

    def on_event(self, event: Event) -> None:
        """Handle stream and connection events."""
        match event:
            case StreamReset(stream_id, code):
                self._handle_reset(stream_id, code)
            case SettingsChanged(max_streams):
                self.max_concurrent_streams = max_streams
                self._start_waiting_calls()
            case GoingAway(last_stream_id, code, reason):
                self.closing = True
                text = reason.decode("utf-8", "replace")
                self._lost_reason = f"the server is going away (code {code}) {text}".strip()
                for stream_id in [s for s in self._calls if s > last_stream_id]:
                    self._end_call(stream_id, Status.UNAVAILABLE, self._lost_reason)
                self._fail_waiting_calls()
                if not self._calls:
                    self.http2.transport.close()
            case ProtocolViolated(error):
                self._lost_reason = error.message
                self.closing = True
                self.http2.discard()
                transport = self.http2.transport
                transport.write(frames.goaway(0, error.error_code, error.message.encode()))
                transport.close()
                # close even if the server does not read our GOAWAY: our calls must end
                asyncio.get_running_loop().call_later(_LAST_WORDS_S, transport.abort)
            case Lost(reason):
                self._end_all_calls(
                    f"connection lost: {reason}" if reason else "the server closed the connection"
                )

    def _end_all_calls(self, reason: str) -> None:
        """End every call: the transport is closed."""
        self.closing = True
        self.http2.discard()
        self._lost_reason = self._lost_reason or reason
        for stream_id in list(self._calls):
            self._end_call(stream_id, Status.UNAVAILABLE, self._lost_reason)
        self._fail_waiting_calls()
        if self.on_lost is not None:
            self.on_lost(WireError(self._lost_reason))

    def _fail_waiting_calls(self) -> None:
        """Fail the queued calls: they were never sent, so they can be made on another connection."""
        waiting, self._waiting = self._waiting, deque()
        for _, on_response, _ in waiting:
            on_response(GrpcResponse(Status.UNAVAILABLE, self._lost_reason, b"", 0))

    def _handle_reset(self, stream_id: int, code: int) -> None:
        call = self._calls.get(stream_id)
        prepared = call.prepared if call is not None and call.refusals < _REFUSALS else None
        if call is None or prepared is None or code != ErrorCode.REFUSED_STREAM or self.closing:
            self._end_call(stream_id, from_reset(code), f"the server reset the stream (code {code})")
            return
        # a refused call did not run: retry it, preferably when another call has ended
        del self._calls[stream_id]
        self.http2.sender.forget(stream_id)
        self._waiting.appendleft((prepared, call.on_response, call.refusals + 1))
        if not self._calls:
            self._start_waiting_calls()

    # ending calls

    def _end_call(
        self, stream_id: int, status: int, message: str, trailers: ResponseHead | None = None
    ) -> None:
        call = self._calls.pop(stream_id, None)
        if call is None:
            return
        if not call.we_ended:
            call.we_ended = True
            self.http2.sender.forget(stream_id)
            if call.peer_ended:  # the server responded early: stop sending the request
                self.http2.transport.write(frames.rst_stream(stream_id, ErrorCode.CANCEL))
        response = GrpcResponse(status, message, call.data, call.first_byte_ns)
        if trailers is not None:
            response.metadata = trailers.metadata
        self._deliver_response(call.on_response, response)

    def _deliver_response(self, on_response: Callable[[GrpcResponse], None], response: GrpcResponse) -> None:
        if self._waiting:
            self._start_waiting_calls()
        on_response(response)
        if self.closing and not self._calls:
            self.http2.transport.close()

    def _start_waiting_calls(self) -> None:
        while self._waiting and len(self._calls) < self.max_concurrent_streams and not self.closing:
            prepared, on_response, refusals = self._waiting.popleft()
            stream_id = self.call(prepared, on_response)
            self._calls[stream_id].refusals = refusals


async def connect(
    host: str, port: int, *, tls: ssl.SSLContext | None = None, timeout_s: float = 10.0
) -> GrpcClientConnection:
    """Connect to a gRPC server. Raises WireError naming the address."""
    if tls is not None:
        tls.set_alpn_protocols(["h2"])
    connection = GrpcClientConnection(new_scratch(), f"{host}:{port}", tls=tls is not None)
    await dial(lambda: connection.http2, host, port, tls=tls, timeout_s=timeout_s)
    return connection
