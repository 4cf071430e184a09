"""Our client against grpcio's server."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from tests.protocol.grpc.service import CHAT, ECHO, FAIL, HOLD, QUIT
from tests.waiting import until
from tpx.errors import Code, ResponseError
from tpx.protocol.grpc.client import GrpcClientConnection, connect
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.grpc.status import Status

_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass
class Oracle(grpc.GenericRpcHandler):  # type: ignore[misc]
    """grpcio's server with a method of each shape; it notes what it saw."""

    metadata: list[dict[str, Any]] = field(default_factory=list)
    remaining: list[float] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    holding: threading.Event = field(default_factory=threading.Event)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        unary = {"Echo": self._echo, "Fail": self._fail, "Hold": self._hold, "Trailers": self._trailers}
        name = details.method.rpartition("/")[2]
        if name in unary:
            return grpc.unary_unary_rpc_method_handler(unary[name])
        if name == "Chat":
            return grpc.stream_stream_rpc_method_handler(lambda requests, context: requests)
        if name == "Quit":
            return grpc.stream_stream_rpc_method_handler(lambda requests, context: iter([next(requests)]))
        return None

    def _echo(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.metadata.append(dict(context.invocation_metadata()))
        self.remaining.append(context.time_remaining())
        return request

    def _fail(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.ALREADY_EXISTS, request.decode())
        raise AssertionError

    def _hold(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(self.cancelled.set)
        self.holding.set()
        self.cancelled.wait(10)
        return b""

    def _trailers(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.send_initial_metadata([("x-initial", "1")])
        context.set_trailing_metadata([("x-trailing", "2"), ("x-raw-bin", b"\0\xff")])
        return request


@contextmanager
def oracle(**options: Any) -> Iterator[tuple[int, Oracle]]:
    handler = Oracle()
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, options=_OPTIONS, **options)
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port, handler
        finally:
            handler.cancelled.set()
            server.stop(None).wait(5)


async def stream(connection: GrpcClientConnection, path: str, messages: list[bytes]) -> list[bytes]:
    """Send messages on a stream, end it, and collect what comes back."""
    got: list[bytes] = []
    ended: asyncio.Future[GrpcResponse] = asyncio.get_running_loop().create_future()
    call = connection.open(path, lambda message: got.append(bytes(message)), ended.set_result)
    for message in messages:
        call.send(message)
    call.half_close()
    assert (await asyncio.wait_for(ended, 20)).status == 0
    return got


@pytest.mark.parametrize("size", [0, 1, 5000, 600_000, 20 << 20])
async def test_our_unary_calls_of_every_size(size: int) -> None:
    with oracle() as (port, _):
        connection = await connect("127.0.0.1", port)
        message = bytes(size)
        assert await connection.unary(ECHO, message) == message
        connection.close()


async def test_our_many_calls_at_once() -> None:
    with oracle() as (port, _):
        connection = await connect("127.0.0.1", port)
        messages = [b"%d" % n * 50 for n in range(200)] + [bytes(700_000)] * 10
        assert await asyncio.gather(*(connection.unary(ECHO, m) for m in messages)) == messages
        assert connection.in_flight == 0
        connection.close()


async def test_our_bidirectional_streams() -> None:
    with oracle() as (port, _):
        connection = await connect("127.0.0.1", port)
        messages = [b"", b"a", bytes(100_000), b"b" * 5_000_000]
        assert await stream(connection, CHAT, messages) == messages
        assert await stream(connection, QUIT, [b"only the first", *messages]) == [b"only the first"]
        connection.close()


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_our_compression_both_ways(encoding: str) -> None:
    compression = grpc.Compression.Gzip if encoding == "gzip" else grpc.Compression.Deflate
    with oracle(compression=compression) as (port, _):
        connection = await connect("127.0.0.1", port)
        ends: asyncio.Future[GrpcResponse] = asyncio.get_running_loop().create_future()
        message = b"compress me " * 5000
        connection.call(connection.prepare(ECHO, message, encoding=encoding), ends.set_result)
        response = await asyncio.wait_for(ends, 20)
        assert (response.status, bytes(response.data)) == (0, message)
        connection.close()


async def test_our_metadata_deadline_and_trailers() -> None:
    with oracle() as (port, handler):
        connection = await connect("127.0.0.1", port)
        ends: asyncio.Future[GrpcResponse] = asyncio.get_running_loop().create_future()
        metadata: dict[str, str | bytes] = {"x-text": "hello", "x-raw-bin": bytes(range(256))}
        connection.call(connection.prepare(ECHO, b"", metadata, timeout="5S"), ends.set_result)
        await asyncio.wait_for(ends, 20)
        assert handler.metadata[0]["x-text"] == "hello"
        assert handler.metadata[0]["x-raw-bin"] == bytes(range(256))
        assert 0 < handler.remaining[0] <= 5
        ends = asyncio.get_running_loop().create_future()
        connection.call(connection.prepare("/test.Wire/Trailers", b"t"), ends.set_result)
        response = await asyncio.wait_for(ends, 20)
        assert response.metadata["x-trailing"] == b"2"
        connection.close()


@pytest.mark.parametrize("words", ["plain", "100% ünïcödé 日本語", ""])
async def test_its_errors_become_ours(words: str) -> None:
    with oracle() as (port, _):
        connection = await connect("127.0.0.1", port)
        with pytest.raises(ResponseError) as caught:
            await connection.unary(FAIL, words.encode())
        assert (caught.value.code, caught.value.message) == (Code.ALREADY_EXISTS, words)
        with pytest.raises(ResponseError) as caught:
            await connection.unary("/no/Method", b"")
        assert caught.value.code is Code.UNSUPPORTED
        connection.close()


async def test_our_cancellation_reaches_its_server() -> None:
    with oracle() as (port, handler):
        connection = await connect("127.0.0.1", port)
        ends: list[GrpcResponse] = []
        stream_id = connection.call(connection.prepare(HOLD, b""), ends.append)
        assert await asyncio.to_thread(handler.holding.wait, 20)
        connection.cancel(stream_id)
        assert await asyncio.to_thread(handler.cancelled.wait, 5)
        assert [end.status for end in ends] == [Status.CANCELLED]
        assert await connection.unary(ECHO, b"next") == b"next"
        connection.close()


async def test_its_limit_of_streams_is_kept() -> None:
    options = [*_OPTIONS, ("grpc.max_concurrent_streams", 3)]
    handler = Oracle()
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, options=options)
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        connection = await connect("127.0.0.1", port)
        await connection.unary(ECHO, b"settle")
        assert connection.max_concurrent_streams == 3
        answers = await asyncio.gather(*(connection.unary(ECHO, b"%d" % n) for n in range(50)))
        assert answers == [b"%d" % n for n in range(50)]
        connection.close()
        server.stop(None).wait(5)


async def test_its_shutdown_ends_our_connection_and_no_call() -> None:
    handler = Oracle()
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        connection = await connect("127.0.0.1", port)
        held = asyncio.ensure_future(connection.unary(HOLD, b""))
        assert await asyncio.to_thread(handler.holding.wait, 20)
        stopped = server.stop(10)
        await until(lambda: connection.closing)
        handler.cancelled.set()
        assert await asyncio.wait_for(held, 5) == b""
        stopped.wait(5)
