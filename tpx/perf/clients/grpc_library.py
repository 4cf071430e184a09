"""gRPC through grpcio's asynchronous API: connections like GrpcClientConnection's, each a channel.

The messages are those of our own encoder; grpcio adds the header block, the prefix and the compression.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from time import perf_counter_ns
from urllib.parse import quote

import grpc
from grpc import aio

from tpx.errors import ResponseError, WireError
from tpx.perf.clients.proxies import HttpProxy
from tpx.perf.clients.tls import TlsSettings
from tpx.perf.clients.transport import LibraryTransport, unreachable
from tpx.protocol.compression import inflate
from tpx.protocol.grpc.client_call import MAX_RESPONSE_BYTES, GrpcResponse, PreparedCall
from tpx.protocol.grpc.framing import PREFIX_BYTES
from tpx.protocol.grpc.metadata import interpret_request
from tpx.protocol.grpc.status import Status, to_code
from tpx.protocol.http2.hpack import BlockDecoder
from tpx.protocol.tensors import Buffer

_COMPRESSION = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}
_EXCEPTIONS = "no_grpc_proxy"
"""Environment variable that C core reads before no_proxy."""
_PROBE = "/grpc.health.v1.Health/Check"
_OWN = ("user-agent",)
"""Metadata that grpcio sets itself."""

Metadata = list[tuple[str, str | bytes]]


class GrpcioConnection:
    """Implements GrpcCarrier. A channel whose connection is gone is closing: it is replaced, not reused."""

    def __init__(self, channel: aio.Channel) -> None:
        self.closing = False
        self._channel = channel
        self._heads = BlockDecoder(interpret_request)
        self._methods: dict[bytes, aio.UnaryUnaryMultiCallable] = {}
        self._numbers = count(1)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._ending: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        return len(self._running)

    def call(self, prepared: PreparedCall, on_response: Callable[[GrpcResponse], None]) -> int:
        """Make a unary call; return its number. Raises WireError if the connection is closing."""
        self._refuse_if_closing()
        head = self._heads.get(prepared.block) or self._heads.add(prepared.block)
        assert head is not None  # our own encoder made it
        method = self._methods.get(head.path)
        if method is None:
            method = self._methods[head.path] = self._channel.unary_unary(head.path.decode())
        call = method(
            unframe(prepared.framed, head.encoding),
            metadata=_pairs(head.metadata),
            compression=_COMPRESSION.get(head.encoding),
        )
        return self._begin(lambda number: self._answer(number, call, on_response))

    def open(
        self,
        path: str,
        on_message: Callable[[Buffer], None],
        on_end: Callable[[GrpcResponse], None],
        metadata: Mapping[str, str | bytes] | None = None,
        *,
        encoding: str = "",
    ) -> "GrpcioStream":
        """Start a streaming call. Raises WireError if the connection is closing."""
        self._refuse_if_closing()
        compression = _COMPRESSION.get(encoding)
        call = self._channel.stream_stream(path)(metadata=_pairs(metadata or {}), compression=compression)
        stream = GrpcioStream(call, encoding)
        stream.id = self._begin(lambda number: self._converse(number, stream, on_message, on_end))
        stream.on_cancel = lambda: self.cancel(stream.id)
        return stream

    async def unary(
        self,
        path: str,
        message: Buffer,
        metadata: Mapping[str, str | bytes] | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> Buffer:
        """Make a unary call and return the response message. Raises ResponseError or WireError."""
        self._refuse_if_closing()
        call = self._channel.unary_unary(path)
        try:
            data: bytes = await call(bytes(message), metadata=_pairs(metadata or {}), timeout=timeout_s)
        except aio.AioRpcError as exc:
            status, text = _ended(exc)
            if status == Status.DEADLINE_EXCEEDED:
                raise WireError(f"{path}: no response within {timeout_s} s") from exc
            if self._is_lost(status):
                raise WireError(text) from exc
            raise ResponseError(text, code=to_code(status)) from exc
        return data

    def cancel(self, stream_id: int) -> None:
        """Cancel a call; its callback is not called."""
        task = self._running.pop(stream_id, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Close the channel; the callbacks of calls in flight are not called."""
        self.closing = True
        for number in list(self._running):
            self.cancel(number)
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._channel.close())

    def _refuse_if_closing(self) -> None:
        if self.closing:
            raise WireError("the connection is closing")

    def _begin(self, work: Callable[[int], Coroutine[object, object, None]]) -> int:
        number = next(self._numbers)
        self._running[number] = asyncio.ensure_future(work(number))
        return number

    async def _answer(
        self, number: int, call: aio.UnaryUnaryCall, on_response: Callable[[GrpcResponse], None]
    ) -> None:
        data, status, message = b"", 0, ""
        try:
            data = await call
        except aio.AioRpcError as exc:
            status, message = _ended(exc)
            self._is_lost(status)
        now_ns = perf_counter_ns()
        if self._has_ended(number):
            on_response(GrpcResponse(status, message, data, now_ns, now_ns))

    async def _converse(
        self,
        number: int,
        stream: "GrpcioStream",
        on_message: Callable[[Buffer], None],
        on_end: Callable[[GrpcResponse], None],
    ) -> None:
        status, message, first_byte_ns = 0, "", 0
        writing = asyncio.ensure_future(stream.write())
        try:
            while (data := await stream.call.read()) is not aio.EOF:
                first_byte_ns = first_byte_ns or perf_counter_ns()
                on_message(data)
            status, message = (await stream.call.code()).value[0], await stream.call.details() or ""
        except aio.AioRpcError as exc:
            status, message = _ended(exc)
            self._is_lost(status)
        finally:
            writing.cancel()
            stream.call.cancel()
        if self._has_ended(number):
            on_end(GrpcResponse(status, message, b"", first_byte_ns))

    def _has_ended(self, number: int) -> bool:
        """Forget an ended call; return False if it was cancelled. A lost channel ends with its last call."""
        known = self._running.pop(number, None) is not None
        if self.closing and not self._running:
            self.close()
        return known

    def _is_lost(self, status: int) -> bool:
        """Return True, and begin closing, if a call failed because its connection is gone."""
        if status == Status.UNAVAILABLE and self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            self.closing = True
        return self.closing


class GrpcioStream:
    """Implements StreamCall: messages are written in order by one task."""

    def __init__(self, call: aio.StreamStreamCall, encoding: str) -> None:
        self.id = 0
        self.call = call
        self.on_cancel: Callable[[], None] = lambda: None
        self._encoding = encoding
        self._outbox: asyncio.Queue[bytes | None] = asyncio.Queue()

    def send_framed(self, framed: Buffer) -> None:
        self._outbox.put_nowait(unframe(framed, self._encoding))

    def half_close(self) -> None:
        self._outbox.put_nowait(None)

    def cancel(self) -> None:
        self.on_cancel()

    async def write(self) -> None:
        """Write what is sent, until the call or our half of it ends; the reader reports why it ended."""
        try:
            while (message := await self._outbox.get()) is not None:
                await self.call.write(message)
            await self.call.done_writing()
        except (aio.AioRpcError, asyncio.InvalidStateError):
            return


def unframe(framed: Buffer, encoding: str) -> bytes:
    """Return the message that `frame_message` framed."""
    message = framed[PREFIX_BYTES:]
    return inflate(message, encoding, MAX_RESPONSE_BYTES) if framed[0] else bytes(message)


def _pairs(metadata: Mapping[str, str | bytes]) -> Metadata:
    return [pair for pair in metadata.items() if pair[0] not in _OWN]


def _ended(error: aio.AioRpcError) -> tuple[int, str]:
    """Return the status and message of a failed call."""
    return int(error.code().value[0]), error.details() or ""


async def connect(
    host: str, port: int, library: LibraryTransport, tls: TlsSettings | None, timeout_s: float = 10.0
) -> GrpcioConnection:
    """Connect to a gRPC server. Raises WireError naming the address."""
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),  # channels to one server are connections of their own
        ("grpc.enable_retries", 0),
        *_proxy_options(library.proxy),
    ]
    with _without_exceptions():
        if tls is None:
            channel = aio.insecure_channel(target, options)
        else:
            channel = aio.secure_channel(target, _credentials(tls), options)
    try:
        async with asyncio.timeout(timeout_s):
            await _wait_until_ready(channel)
    except TimeoutError:
        await channel.close()
        raise unreachable(host, port, library.proxy, f"no answer within {timeout_s} s") from None
    except aio.AioRpcError as exc:
        await channel.close()
        raise unreachable(host, port, library.proxy, _ended(exc)[1]) from exc
    return GrpcioConnection(channel)


async def _wait_until_ready(channel: aio.Channel) -> None:
    """Return once the channel is connected. Raises AioRpcError with the reason if it cannot connect."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            # only a call has the reason
            await channel.unary_unary(_PROBE)(b"")
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


def _proxy_options(proxy: HttpProxy | None) -> list[tuple[str, int | str]]:
    """Return the options that make grpcio use this proxy, and none that the environment names."""
    if proxy is None:
        return [("grpc.enable_http_proxy", 0)]
    scheme, separator, rest = proxy.address.partition("://")
    credentials = f"{quote(proxy.user, safe='')}:{quote(proxy.password, safe='')}@" if proxy.user else ""
    return [("grpc.http_proxy", f"{scheme}{separator}{credentials}{rest}")]


@contextmanager
def _without_exceptions() -> Iterator[None]:
    """Hide no_proxy from a channel that is made here: C core would ignore a proxy that the user chose.

    C core reads the variables while it makes the channel (src/core/handshaker/http_connect).
    """
    before = os.environ.get(_EXCEPTIONS)
    os.environ[_EXCEPTIONS] = ""
    try:
        yield
    finally:
        del os.environ[_EXCEPTIONS]
        if before is not None:
            os.environ[_EXCEPTIONS] = before


def _credentials(tls: TlsSettings) -> grpc.ChannelCredentials:
    read = [
        None if file is None else file.read_bytes()
        for file in (tls.ca_file, tls.key_file, tls.certificate_file)
    ]
    return grpc.ssl_channel_credentials(*read)
