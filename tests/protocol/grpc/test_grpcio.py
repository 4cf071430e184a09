"""grpcio's clients against our server."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from tests.protocol.grpc.service import CHAT, ECHO, FAIL, FLOOD, HOLD, QUIT, WireServer, serving
from tests.waiting import until
from tpx.protocol.grpc.limits import GrpcLimits, KeepaliveLimits

_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


async def with_channel(server: WireServer, use: Callable[[grpc.Channel], Any], **options: Any) -> Any:
    """Let grpcio's blocking client call our server, from a thread."""

    def call() -> Any:
        address = f"127.0.0.1:{server.port}"
        with grpc.insecure_channel(address, options=_OPTIONS, **options) as channel:
            return use(channel)

    return await asyncio.to_thread(call)


@pytest.mark.parametrize("size", [0, 1, 5000, 600_000, 20 << 20])
async def test_unary_calls_of_every_size(size: int) -> None:
    async with serving() as server:
        message = bytes(size)
        assert await with_channel(server, lambda c: c.unary_unary(ECHO)(message, timeout=20)) == message


async def test_many_calls_at_once_on_one_channel() -> None:
    async with serving() as server:

        def use(channel: grpc.Channel) -> list[bytes]:
            echo = channel.unary_unary(ECHO)
            futures = [echo.future(b"%d" % n * 100, timeout=20) for n in range(300)]
            return [future.result() for future in futures]

        assert await with_channel(server, use) == [b"%d" % n * 100 for n in range(300)]
        assert server.connection.streams == {}


async def test_bidirectional_streams_in_lock_step_and_all_at_once() -> None:
    async with serving() as server:

        def use(channel: grpc.Channel) -> tuple[list[bytes], list[bytes]]:
            outgoing: queue.Queue[bytes | None] = queue.Queue()
            answers = channel.stream_stream(CHAT)(iter(outgoing.get, None), timeout=20)
            steps = []
            for number in range(20):
                outgoing.put(b"%d" % number)
                steps.append(next(answers))
            outgoing.put(None)
            assert list(answers) == []
            messages = [bytes(n * 1000) for n in range(100)]
            return steps, list(channel.stream_stream(CHAT)(iter(messages), timeout=20))

        steps, messages = await with_channel(server, use)
        assert steps == [b"%d" % n for n in range(20)]
        assert [len(m) for m in messages] == [n * 1000 for n in range(100)]
        assert server.connection.streams == {}


async def test_a_stream_that_the_server_ends_early() -> None:
    async with serving() as server:

        def use(channel: grpc.Channel) -> list[bytes]:
            forever = threading.Event()

            def requests() -> Iterator[bytes]:
                yield b"200000"
                forever.wait(20)

            call = channel.stream_stream(QUIT)(requests(), timeout=20)
            messages = list(call)
            assert call.code() is grpc.StatusCode.OK
            forever.set()
            return messages

        assert await with_channel(server, use) == [b"x" * 200_000]


async def test_a_slow_reader_of_a_stream_gets_everything() -> None:
    async with serving() as server:

        def use(channel: grpc.Channel) -> int:
            count = 0
            for message in channel.unary_stream(FLOOD)(b"60 500000", timeout=20):
                assert len(message) == 500_000
                count += 1
            return count

        assert await with_channel(server, use) == 60


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compression_both_ways(compression: Any) -> None:
    limits = GrpcLimits(response_encoding=("gzip" if compression is grpc.Compression.Gzip else "deflate"))
    async with serving(limits) as server:
        message = b"compress me " * 10_000

        def use(channel: grpc.Channel) -> tuple[bytes, list[bytes]]:
            chat = channel.stream_stream(CHAT)(iter([message] * 3), timeout=20)
            return channel.unary_unary(ECHO)(message, timeout=20), list(chat)

        one, many = await with_channel(server, use, compression=compression)
        assert one == message
        assert many == [message] * 3
        assert server.service.messages[0] == message


async def test_metadata_of_both_kinds() -> None:
    async with serving() as server:

        def use(channel: grpc.Channel) -> None:
            metadata = [
                ("x-text", "hello"),
                ("x-raw-bin", bytes(range(256))),
                ("x-two-bin", b"a"),
                ("x-two-bin", b"b"),
                ("x-text", "again"),
            ]
            future = channel.unary_unary(HOLD).future(b"", metadata=metadata, timeout=20)
            ready.wait(10)
            assert future.result() == b"done"

        ready = threading.Event()
        task = asyncio.ensure_future(with_channel(server, use))
        await until(lambda: server.service.held)
        seen = server.service.held[0].head.metadata
        server.service.release()
        ready.set()
        await task
        assert seen["x-text"] == "hello,again"
        assert seen["x-raw-bin"] == bytes(range(256))
        assert seen["x-two-bin"] == b"a,b"


@pytest.mark.parametrize(
    "words", ["plain", "100% ünïcödé\n日本語", "x" * 5000, "long " * 4000, "日本" * 5000], ids=str.__len__
)
async def test_errors_arrive_with_their_status_and_words(words: str) -> None:
    async with serving() as server:

        def use(channel: grpc.Channel) -> grpc.RpcError:
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(FAIL)(f"9 {words}".encode(), timeout=20)
            return caught.value

        error = await with_channel(server, use)
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert words.startswith(error.details())
        assert len(error.details()) >= min(len(words), 600)


async def test_an_unknown_method_and_a_message_too_large() -> None:
    async with serving(GrpcLimits(max_message_bytes=1000)) as server:

        def use(channel: grpc.Channel) -> list[grpc.StatusCode]:
            codes = []
            for method, message in (("/no/Method", b""), (ECHO, bytes(1001)), (ECHO, bytes(5 << 20))):
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary(method)(message, timeout=20)
                codes.append(caught.value.code())
            with pytest.raises(grpc.RpcError) as caught:
                next(
                    channel.stream_stream("/no/Stream")(
                        iter(lambda: forever.wait(20) or b"", b""), timeout=20
                    )
                )
            forever.set()
            return [*codes, caught.value.code()]

        forever = threading.Event()
        assert await with_channel(server, use) == [
            grpc.StatusCode.UNIMPLEMENTED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.UNIMPLEMENTED,
        ]


async def test_a_deadline_ends_the_call_on_both_sides() -> None:
    async with serving() as server:

        def use(channel: grpc.Channel) -> grpc.StatusCode:
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(HOLD)(b"", timeout=0.1)
            return caught.value.code()

        assert await with_channel(server, use) is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: server.service.gone)


async def test_a_cancellation_reaches_the_request() -> None:
    async with serving() as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.unary_unary(HOLD)(b"x")
        await until(lambda: server.service.held)
        call.cancel()
        await until(lambda: server.service.gone)
        assert await channel.unary_unary(ECHO)(b"next") == b"next"


async def test_its_asyncio_client_streams_with_our_server() -> None:
    async with serving() as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.stream_stream(CHAT)()
        for number in range(10):
            await call.write(b"%d" % number)
            assert await call.read() == b"%d" % number
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.slow
async def test_its_keepalive_pings_are_answered() -> None:
    options = [
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_timeout_ms", 500),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    limits = GrpcLimits(keepalive=KeepaliveLimits(min_ping_interval_s=0))
    async with (
        serving(limits) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel,
    ):
        held = channel.unary_unary(HOLD)(b"x")
        await until(lambda: server.service.held)
        glitches = server.connection.control.glitches
        two_pings = glitches.left - 2
        await until(lambda: glitches.left <= two_pings)
        server.service.release()
        assert await held == b"done"
        assert len(server.connections) == 1
