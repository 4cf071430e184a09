"""TLS under both protocols, on both event loops, with and without client certificates."""

import asyncio
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from tests.protocol.certificates import certificates, key_and_chain
from tests.protocol.grpc import service as grpc_service
from tests.protocol.grpc.service import ECHO
from tests.protocol.http1 import service as http_service
from tests.protocol.http2.raw import RawPeer
from tests.protocol.turns import pause
from tpx.errors import ResponseError, WireError
from tpx.protocol.grpc.client import connect
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.http1.client import HttpConnector, encode_request, fetch
from tpx.protocol.http1.server import HttpLimits

LARGE = bytes(range(256)) * 12_000


@pytest.mark.parametrize("mutual", [False, True])
async def test_grpc_over_tls(mutual: bool) -> None:
    tls = certificates()
    async with grpc_service.serving(tls=tls.server_context("h2", mutual=mutual)) as server:
        connection = await connect("127.0.0.1", server.port, tls=tls.client_context(certificate=mutual))
        socket = connection.http2.transport.transport
        assert socket.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        assert await connection.unary(ECHO, b"hello") == b"hello"
        answers = await asyncio.gather(*(connection.unary(ECHO, LARGE) for _ in range(4)))
        assert all(answer == LARGE for answer in answers)
        with pytest.raises(ResponseError):
            await connection.unary("/no/Method", LARGE)
        connection.close()
        await server.empty()


@pytest.mark.parametrize("mutual", [False, True])
async def test_http_over_tls(mutual: bool) -> None:
    tls = certificates()
    async with http_service.serving(tls=tls.server_context("http/1.1", mutual=mutual)) as server:
        connector = HttpConnector(
            "127.0.0.1", server.port, tls=tls.client_context("http/1.1", certificate=mutual)
        )
        connection = await connector.connect()
        for path in ("/echo", "/soon"):
            request = encode_request("POST", path, "test", {}, [LARGE])
            assert bytes((await fetch(connection, request)).body) == LARGE
        chunked = b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        assert bytes((await fetch(connection, [chunked])).body) == b"abc"
        connection.close()
        await server.empty()


@pytest.mark.parametrize("service", ["grpc", "http"])
async def test_a_client_without_a_certificate_is_not_served_where_one_is_wanted(service: str) -> None:
    tls = certificates()
    if service == "grpc":
        async with grpc_service.serving(tls=tls.server_context("h2", mutual=True)) as server:

            async def call() -> None:
                connection = await connect("127.0.0.1", server.port, tls=tls.client_context())
                await connection.unary(ECHO, b"x")

            with pytest.raises((WireError, ResponseError)):
                await call()
            assert server.service.messages == []
            return
    async with http_service.serving(tls=tls.server_context("http/1.1", mutual=True)) as web:
        connector = HttpConnector("127.0.0.1", web.port, tls=tls.client_context())
        with pytest.raises(WireError):
            await fetch(await connector.connect(), encode_request("GET", "/echo", "h", {}))
        assert web.service.requests == []


async def test_a_server_that_nobody_signed_is_not_trusted() -> None:
    async with grpc_service.serving(tls=certificates().server_context("h2")) as server:
        with pytest.raises(WireError, match="certificate verify failed"):
            await connect("127.0.0.1", server.port, tls=ssl.create_default_context())


async def test_plain_words_on_a_tls_port_harm_nobody() -> None:
    tls = certificates()
    async with http_service.serving(tls=tls.server_context("http/1.1")) as server:
        async with await http_service.Bare.connect(server.port) as plain:
            plain.get("/echo")
            await plain.closed()
        async with await http_service.Bare.connect(server.port, tls=tls.client_context()) as client:
            client.get("/echo")
            assert (await client.answer()).status == 200


async def test_a_refusal_over_tls_is_answered() -> None:
    tls = certificates()
    limits = HttpLimits(max_body_bytes=1000)
    async with http_service.serving(limits, tls=tls.server_context("http/1.1")) as server:
        async with await http_service.Bare.connect(server.port, tls=tls.client_context()) as client:
            client.post("/echo", bytes(2000))
            assert (await client.answer()).status == 413
        await server.empty()


async def test_the_end_of_a_tls_client_in_the_middle_of_a_request_is_noticed() -> None:
    tls = certificates()
    async with http_service.serving(tls=tls.server_context("http/1.1")) as server:
        async with await http_service.Bare.connect(server.port, tls=tls.client_context()) as client:
            client.get("/hold")
            await pause(0.05)
        await server.empty()
        assert server.service.gone == [b"/hold"]


async def test_pipelined_requests_over_tls_are_answered_in_order() -> None:
    tls = certificates()
    async with (
        http_service.serving(tls=tls.server_context("http/1.1")) as server,
        await http_service.Bare.connect(server.port, tls=tls.client_context()) as client,
    ):
        for number in range(200):
            client.post("/soon", b"%d" % number + bytes(number * 10))
        for number in range(200):
            assert (await client.answer()).body == b"%d" % number + bytes(number * 10)


async def test_a_drain_over_tls_ends_in_order() -> None:
    tls = certificates()
    async with grpc_service.serving(tls=tls.server_context("h2")) as server:
        async with await RawPeer.connect(server.port, tls=tls.client_context("h2")) as peer:
            peer.call(1, grpc_service.HOLD, b"x")
            await peer.sync()
            server.listener.stop_accepting()
            await peer.goaway()
            server.pass_seconds(2)
            server.service.release(b"last words")
            assert (await peer.answer(1)).message == b"last words"
            assert await peer.closed()
        await server.empty()


@contextmanager
def grpcio_server(*, mutual: bool) -> Iterator[int]:
    """An echo on grpcio's own server over TLS; yields its port."""
    tls = certificates()
    credentials = grpc.ssl_server_credentials(
        [key_and_chain(tls.server)],
        root_certificates=tls.authority_pem if mutual else None,
        require_client_auth=mutual,
    )

    class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, options=[("grpc.max_receive_message_length", -1)])
        server.add_generic_rpc_handlers((Echo(),))
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        yield port
        server.stop(None).wait(5)


@pytest.mark.parametrize("mutual", [False, True])
async def test_our_client_speaks_tls_with_grpcio(mutual: bool) -> None:
    with grpcio_server(mutual=mutual) as port:
        tls = certificates().client_context(certificate=mutual)
        connection = await connect("127.0.0.1", port, tls=tls)
        assert await connection.unary(ECHO, LARGE) == LARGE
        connection.close()


@pytest.mark.parametrize("mutual", [False, True])
async def test_grpcio_speaks_tls_with_our_server(mutual: bool) -> None:
    tls = certificates()
    async with grpc_service.serving(tls=tls.server_context("h2", mutual=mutual)) as server:

        def call() -> bytes:
            key, chain = key_and_chain(tls.client) if mutual else (None, None)
            credentials = grpc.ssl_channel_credentials(tls.authority_pem, key, chain)
            options = [("grpc.max_receive_message_length", -1)]
            with grpc.secure_channel(f"127.0.0.1:{server.port}", credentials, options) as channel:
                return bytes(channel.unary_unary(ECHO)(LARGE, timeout=10))

        assert await asyncio.to_thread(call) == LARGE


@pytest.mark.parametrize("secure", [False, True])
async def test_an_answer_to_a_connection_that_was_just_cut_goes_nowhere(secure: bool) -> None:
    """Not even where the event loop's transport may no longer be touched."""
    tls = certificates()
    context = tls.server_context("http/1.1") if secure else None
    async with (
        http_service.serving(tls=context) as web,
        await http_service.Bare.connect(web.port, tls=tls.client_context() if secure else None) as client,
    ):
        client.get("/hold")
        await pause(0.05)
        web.connections[0].abort()
        assert web.service.gone == [b"/hold"]
        web.service.release()
        web.listener.advance()
        assert await client.closed()
    context = tls.server_context("h2") if secure else None
    async with (
        grpc_service.serving(tls=context) as server,
        await RawPeer.connect(server.port, tls=tls.client_context("h2") if secure else None) as peer,
    ):
        peer.call(1, grpc_service.HOLD, b"x")
        await peer.sync()
        next(iter(server.listener._connections)).abort()
        assert server.service.gone == [1]
        server.service.release()
        server.pass_seconds(1)
        assert await peer.closed()


@pytest.mark.parametrize("service", ["http", "grpc"])
async def test_a_deaf_client_is_cut_off_over_tls_too(service: str) -> None:
    tls = certificates()
    if service == "http":
        limits = HttpLimits(write_timeout_s=3)
        async with http_service.serving(limits, tls=tls.server_context("http/1.1")) as web:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", web.port, ssl=tls.client_context(), limit=1024
            )
            writer.write(b"GET /big?50000000 HTTP/1.1\r\nHost: a\r\n\r\n")
            await pause(0.3)
            await web.pass_seconds(3)
            assert web.listener.connections == 1
            await web.pass_seconds(2)
            await web.empty()
            writer.transport.abort()
            del reader
            return
    grpc_limits = GrpcLimits(write_timeout_s=3)
    async with grpc_service.serving(grpc_limits, tls=tls.server_context("h2")) as server:
        connection = await connect("127.0.0.1", server.port, tls=tls.client_context())
        ended: asyncio.Future[GrpcResponse] = asyncio.get_running_loop().create_future()
        call = connection.open(grpc_service.FLOOD, lambda message: None, ended.set_result)
        connection.http2.transport.transport.pause_reading()
        call.send(b"80 1000000")
        await pause(0.3)
        server.pass_seconds(3)
        assert server.listener.connections == 1
        server.pass_seconds(2)
        await server.empty()
        connection.close()
