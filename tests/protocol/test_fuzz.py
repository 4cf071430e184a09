"""Damaged conversations: whatever comes, a connection ends at the most, and the next one is served."""

import asyncio
import random
from collections.abc import Callable

from tests.protocol.grpc import service as grpc_service
from tests.protocol.http1 import service as http_service
from tests.protocol.http1.service import Bare
from tests.protocol.http2.raw import RawPeer, grpc_headers
from tests.protocol.turns import pause
from tests.waiting import until
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.http1.server import HttpLimits
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PREFACE,
    PRIORITIZED,
)
from tpx.protocol.http2.hpack import encode_stateless

CONVERSATIONS = 250

HTTP1_PIECES = (
    b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HEAD /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"POST /soon HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: 1\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 70000\r\n\r\n" + bytes(70_000),
    b"GET /big?100000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\r\n",
)


def http2_piece(pick: random.Random, stream_id: int) -> bytes:
    """A frame or two that could stand in a conversation, or nearly."""
    path = pick.choice(
        [grpc_service.ECHO, grpc_service.CHAT, grpc_service.HOLD, grpc_service.QUIT, "/unknown"]
    )
    block = encode_stateless(grpc_headers(path, (b"grpc-timeout", pick.choice([b"1S", b"5m", b"x"]))))
    message = frame_message(pick.choice([b"", b"5", b"hello", bytes(20_000)]))[:16384]
    other = max(1, stream_id - 2 * pick.randrange(3))
    return pick.choice(
        (
            frames.frame(HEADERS, END_HEADERS, stream_id, block),
            frames.frame(HEADERS, END_HEADERS, stream_id, block)
            + frames.frame(DATA, END_STREAM, stream_id, message),
            frames.frame(HEADERS, 0, stream_id, block[:9])
            + frames.frame(CONTINUATION, END_HEADERS, stream_id, block[9:]),
            frames.frame(HEADERS, END_HEADERS | PRIORITIZED, stream_id, bytes(5) + block),
            frames.frame(DATA, 0, other, message),
            frames.frame(DATA, PADDED, other, b"\x05" + message[:100] + bytes(5)),
            frames.frame(DATA, END_STREAM, other),
            frames.rst_stream(other, frames.ErrorCode.CANCEL),
            frames.window_update(pick.choice([0, other]), pick.choice([1, 70_000, 2**30])),
            frames.settings_frame({frames.Setting.INITIAL_WINDOW_SIZE: pick.choice([0, 1, 65535, 2**20])}),
            frames.frame(frames.PING, 0, 0, bytes(8)),
            frames.frame(pick.randrange(12), pick.randrange(256), pick.choice([0, other]), bytes(8)),
        )
    )


def damaged(pick: random.Random, data: bytes) -> bytes:
    """The same bytes with something wrong in them, most of the time."""
    out = bytearray(data)
    for _ in range(pick.choice([0, 1, 1, 3])):
        at = pick.randrange(len(out) + 1)
        kind = pick.randrange(4)
        if kind == 0 and at < len(out):
            out[at] = pick.randrange(256)
        elif kind == 1:
            out[at:at] = pick.randbytes(pick.randrange(4))
        elif kind == 2:
            del out[at : at + pick.randrange(5)]
        elif out:
            del out[at:]
    return bytes(out)


async def converse(port: int, data: bytes, pick: random.Random) -> None:
    """Send the bytes in pieces, then leave in one way or another."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        at = 0
        while at < len(data) and not writer.is_closing():
            step = pick.choice([1, 7, 100, 5000, 100_000])
            writer.write(data[at : at + step])
            at += step
            await asyncio.sleep(0)
        if pick.random() < 0.5 and not writer.is_closing():
            writer.write_eof()
        if pick.random() < 0.5:
            async with asyncio.timeout(0.01):
                await reader.read(100_000)
    except (ConnectionError, TimeoutError):
        pass
    if pick.random() < 0.3:
        writer.transport.abort()
    writer.close()


async def many(port: int, make: Callable[[random.Random], bytes], advance: Callable[[], None]) -> None:
    for seed in range(CONVERSATIONS):
        pick = random.Random(seed)
        await converse(port, make(pick), pick)
        if seed % 10 == 0:
            advance()


async def test_damaged_http_1_ends_a_connection_at_the_most() -> None:
    def make(pick: random.Random) -> bytes:
        return damaged(pick, b"".join(pick.choices(HTTP1_PIECES, k=pick.randrange(1, 5))))

    async with http_service.serving(HttpLimits(head_timeout_s=2, body_timeout_s=2)) as server:

        def advance() -> None:
            server.listener.advance()
            server.service.release()

        await many(server.port, make, advance)
        server.service.release()
        async with await Bare.connect(server.port) as client:
            client.post("/echo", b"alive")
            assert (await client.answer()).body == b"alive"

        def over() -> bool:
            advance()
            return not server.listener.connections

        await until(over)


async def test_damaged_http_2_ends_a_connection_at_the_most() -> None:
    def make(pick: random.Random) -> bytes:
        pieces = [http2_piece(pick, 2 * n + 1) for n in range(pick.randrange(1, 12))]
        return PREFACE + frames.settings_frame({}) + damaged(pick, b"".join(pieces))

    limits = GrpcLimits(preface_timeout_s=2, frame_timeout_s=2)
    async with grpc_service.serving(limits) as server:

        def advance() -> None:
            server.listener.advance()
            server.service.release()

        await many(server.port, make, advance)
        server.service.release()
        async with await RawPeer.connect(server.port) as peer:
            peer.call(1, grpc_service.ECHO, b"alive")
            assert (await peer.answer(1)).message == b"alive"
        await pause(0.05)
        server.pass_seconds(20)
        await server.empty()
        assert all(not connection.streams for connection in server.connections)
        assert not any(connection.sender.queued for connection in server.connections)
