"""The client's end of gRPC: prebuilt calls out, one callback per response, many calls on one connection."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from typing import cast

from tpx.errors import ResponseError, WireError
from tpx.protocol.buffers import new_scratch
from tpx.protocol.compression import deflate
from tpx.protocol.grpc.client_call import ClientCall, GrpcResponse, PreparedCall
from tpx.protocol.grpc.client_reading import ResponseReader
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.grpc.metadata import ResponseHead, request_block
from tpx.protocol.grpc.status import Status, from_reset, to_code
from tpx.protocol.http2 import frames
from tpx.protocol.http2.connection import CONNECTION_WINDOW, MAX_FRAME_BYTES
from tpx.protocol.http2.frames import (
    DEFAULT_WINDOW,
    MAX_STREAM_ID,
    PREFACE,
    ErrorCode,
    Http2Error,
    Setting,
)
from tpx.protocol.http2.stream import STREAM_WINDOW
from tpx.protocol.tensors import Buffer

_LAST_WORDS_S = 0.5
_REFUSALS = 5


class GrpcClientConnection(ResponseReader):
    """Callbacks run inside the read that completed the response, and may make the next call at once.

    Calls beyond the server's limit of concurrent streams wait for their turn. `on_lost` is called once if the
    connection breaks or the server ends it; calls in flight then get status UNAVAILABLE.
    """

    __slots__ = (
        "_authority",
        "_lost_reason",
        "_tls",
        "_waiting",
        "on_lost",
    )

    def __init__(self, scratch: memoryview, authority: str, *, tls: bool) -> None:
        super().__init__(scratch)
        self.on_lost: Callable[[WireError], None] | None = None
        self._authority = authority
        self._tls = tls
        self._waiting: deque[tuple[PreparedCall, Callable[[GrpcResponse], None], int]] = deque()
        self._lost_reason = ""

    def write_at_once(self) -> None:
        """Let every call reach the kernel before it returns."""
        self._transport.write_at_once()

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
        """A unary call of `path` ("/package.Service/Method"), ready to be made any number of times.

        `encoding` compresses the message; `timeout` is in gRPC's form, such as "500m" for 500 ms.
        """
        block = request_block(
            path, self._authority, dict(metadata or {}), tls=self._tls, encoding=encoding, timeout=timeout
        )
        if encoding:
            packed = deflate(message, encoding)
            return PreparedCall(block, pack_prefix(1, len(packed)) + packed)
        return PreparedCall(block, frame_message(message))

    def call(self, prepared: PreparedCall, on_response: Callable[[GrpcResponse], None]) -> int:
        """Make a unary call; returns its stream id, 0 while it waits for the server's limit of streams."""
        if self.closing:
            raise WireError(self._lost_reason or "the connection is closing")
        if len(self.streams) >= self._peer_max_streams:
            self._waiting.append((prepared, on_response, 0))
            return 0
        stream_id = self._next_id
        self._next_id = stream_id + 2
        if stream_id > MAX_STREAM_ID - 2:
            self.closing = True
        call, self._spare = self._spare, None
        if call is None:
            call = ClientCall(self, stream_id, on_response)
        else:
            call.again(stream_id, on_response)
        call.prepared = prepared
        self.streams[stream_id] = call
        size = len(prepared.framed)
        sender = self.sender
        if (
            prepared.largest <= sender.frame_bytes
            and size <= sender.window
            and size <= call.send_window
            and not sender.paused
            and not sender.owes_update
        ):
            sender.window -= size
            call.we_ended = True
            number = stream_id.to_bytes(4, "big")
            self._transport.write(
                b"".join((prepared.start, number, prepared.middle, number, prepared.framed))
            )
        else:
            self._write_block(stream_id, prepared.block)
            sender.queue(call, (prepared.framed,), ending=True)
        return stream_id

    def _write_block(self, stream_id: int, block: bytes) -> None:
        sender = self.sender
        self._transport.write(
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
        """Begin a streaming call; with an `encoding` its user compresses the messages. Raises WireError also
        at the server's limit of concurrent streams."""
        if self.closing:
            raise WireError(self._lost_reason or "the connection is closing")
        if len(self.streams) >= self._peer_max_streams:
            raise WireError(f"the server takes no more than {self._peer_max_streams} calls at a time")
        block = request_block(
            path, self._authority, dict(metadata or {}), tls=self._tls, encoding=encoding, timeout=timeout
        )
        call = ClientCall(self, self._next_id, on_end)
        call.on_message = on_message
        self._next_id += 2
        self.streams[call.id] = call
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
        """Make one call and wait for its message. Raises ResponseError with the server's code, WireError."""
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
                self._abandon(ended)
        if response.status != Status.OK:
            raise ResponseError(response.message, code=to_code(response.status))
        return response.data

    def cancel(self, stream_id: int) -> None:
        """End a call with RST_STREAM; its callback gets status CANCELLED."""
        if stream_id in self.streams:
            self._transport.write(frames.rst_stream(stream_id, ErrorCode.CANCEL))
            self._end(stream_id, Status.CANCELLED, "cancelled by this client")

    def _abandon(self, on_response: Callable[[GrpcResponse], None]) -> None:
        """Cancel a call that may still wait for its turn."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] is not on_response)
        for stream_id, stream in list(self.streams.items()):
            if stream.on_response is on_response:
                self.cancel(stream_id)

    def ping(self, payload: bytes) -> None:
        """Send a PING of 8 bytes; any traffic of the server shows that it lives."""
        self._transport.write(frames.frame(frames.PING, 0, 0, payload))

    @property
    def in_flight(self) -> int:
        return len(self.streams) + len(self._waiting)

    @property
    def max_concurrent_streams(self) -> int:
        return self._peer_max_streams

    @property
    def unsent_bytes(self) -> int:
        """What the kernel has not taken yet of the calls written."""
        return 0 if self._closed else self._transport.get_write_buffer_size()

    def close(self) -> None:
        """End the connection now; `on_lost` is not called."""
        self._closed = self.closing = True
        self.on_lost = None
        self._transport.abort()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        settings = {
            Setting.HEADER_TABLE_SIZE: 0,  # header blocks of the server are then constant too
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
        }
        self._transport.write(
            PREFACE
            + frames.settings_frame(settings)
            + frames.window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._let_go()
        self._lost_reason = self._lost_reason or (
            f"connection lost: {exc}" if exc else "the server closed the connection"
        )
        for stream_id in list(self.streams):
            self._end(stream_id, Status.UNAVAILABLE, self._lost_reason)
        self._give_up_waiting()
        if self.on_lost is not None:
            self.on_lost(WireError(self._lost_reason))

    def _give_up_waiting(self) -> None:
        """Calls that were never made can be made elsewhere."""
        waiting, self._waiting = self._waiting, deque()
        for _, on_response, _ in waiting:
            on_response(GrpcResponse(Status.UNAVAILABLE, self._lost_reason, b"", 0))

    # what the server says of streams and of the connection

    def _on_reset(self, stream_id: int, code: int) -> None:
        call = self.streams.get(stream_id)
        again = call is not None and call.prepared is not None and call.refusals < _REFUSALS
        if call is None or code != ErrorCode.REFUSED_STREAM or self.closing or not again:
            self._end(stream_id, from_reset(code), f"the server reset the stream (code {code})")
            return
        # a refused call did not run, so it may be made again, best when another has ended
        del self.streams[stream_id]
        self.sender.forget(stream_id)
        self._waiting.appendleft((cast("PreparedCall", call.prepared), call.on_response, call.refusals + 1))
        if not self.streams:
            self._start_waiting()

    def _on_goaway(self, last_stream_id: int, code: int, reason: bytes) -> None:
        self.closing = True
        self._lost_reason = (
            f"the server is going away (code {code}) {reason.decode('utf-8', 'replace')}".strip()
        )
        for stream_id in [s for s in self.streams if s > last_stream_id]:
            self._end(stream_id, Status.UNAVAILABLE, self._lost_reason)
        self._give_up_waiting()
        if not self.streams:
            self._transport.close()

    def _on_settled(self) -> None:
        self._start_waiting()

    # ending calls

    def _end(self, stream_id: int, status: int, message: str, trailers: ResponseHead | None = None) -> None:
        call = self.streams.pop(stream_id, None)
        if call is None:
            return
        if not call.we_ended:
            call.we_ended = True
            self.sender.forget(stream_id)
            if call.peer_ended:
                self._transport.write(frames.rst_stream(stream_id, ErrorCode.CANCEL))
        response = GrpcResponse(status, message, call.data, call.first_byte_ns)
        if trailers is not None:
            response.metadata = trailers.metadata
        self._deliver(call.on_response, response)

    def _deliver(self, on_response: Callable[[GrpcResponse], None], response: GrpcResponse) -> None:
        if self._waiting:
            self._start_waiting()
        on_response(response)
        if self.closing and not self.streams:
            self._transport.close()

    def _start_waiting(self) -> None:
        while self._waiting and len(self.streams) < self._peer_max_streams and not self.closing:
            prepared, on_response, refusals = self._waiting.popleft()
            stream_id = self.call(prepared, on_response)
            self.streams[stream_id].refusals = refusals

    def _break(self, error: Http2Error) -> None:
        self._lost_reason = error.message
        self._closed = self.closing = True
        self._transport.write(frames.goaway(0, error.error_code, error.message.encode()))
        self._transport.close()
        # a server that takes nothing must not keep our calls from ending
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._transport.abort)


async def connect(
    host: str, port: int, *, tls: ssl.SSLContext | None = None, timeout_s: float = 10.0
) -> GrpcClientConnection:
    """A connection to a gRPC server. Raises WireError naming the address."""
    if tls is not None:
        tls.set_alpn_protocols(["h2"])
    scratch = new_scratch()
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: GrpcClientConnection(scratch, f"{host}:{port}", tls=tls is not None),
                host,
                port,
                ssl=tls,
            )
    except (OSError, TimeoutError) as exc:
        reason = f"no answer within {timeout_s} s" if isinstance(exc, TimeoutError) else str(exc)
        raise WireError(f"cannot connect to {host}:{port}: {reason}") from exc
    return connection
