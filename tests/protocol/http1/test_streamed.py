"""Answers of unknown length: their framing, and what their producer hears of the client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.protocol.http1.service import PLAIN, Bare
from tests.protocol.turns import PATIENCE_S, pause
from tests.waiting import until
from tpx.protocol.http1.request import HttpRequest
from tpx.protocol.http1.server import HttpLimits, connection_factory
from tpx.protocol.listener import Listener

KB = 1 << 10


@dataclass
class Producer:
    """Begins an answer to every request and keeps what it hears."""

    requests: list[HttpRequest] = field(default_factory=list)
    stalls: list[bool] = field(default_factory=list)
    gone: int = 0

    def serve(self, request: HttpRequest) -> None:
        self.requests.append(request)
        if request.head.path == b"/plain":
            request.respond(200, PLAIN, (b"plain",))
            return
        request.on_stall = self.stalls.append
        request.on_gone = self._count
        request.begin(200, PLAIN)

    def _count(self) -> None:
        self.gone += 1

    async def asked(self, count: int = 1) -> HttpRequest:
        await until(lambda: len(self.requests) >= count)
        return self.requests[count - 1]


@asynccontextmanager
async def producing(limits: HttpLimits | None = None) -> AsyncIterator[tuple[Producer, Listener, Bare]]:
    producer, listener = Producer(), Listener()
    factory = connection_factory(listener, limits or HttpLimits(), producer.serve)
    port = await listener.start(factory, "127.0.0.1", 0)
    try:
        async with await Bare.connect(port) as client:
            yield producer, listener, client
    finally:
        listener.close()


async def test_pieces_are_chunks_and_the_connection_serves_on() -> None:
    async with producing() as (producer, _, client):
        client.get("/stream")
        request = await producer.asked()
        request.send(b"first")
        request.send(b"x" * 20)
        request.finish()
        request.finish()
        request.send(b"late")
        request.respond(200, PLAIN, (b"late",))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head == b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert await client.reader.readuntil(b"0\r\n\r\n") == (
            b"5\r\nfirst\r\n14\r\n" + b"x" * 20 + b"\r\n0\r\n\r\n"
        )
        client.get("/plain")
        assert (await client.answer()).body == b"plain"
        assert producer.gone == 0


async def test_requests_behind_a_stream_wait_for_its_end() -> None:
    async with producing() as (producer, _, client):
        client.get("/stream")
        client.get("/plain")
        request = await producer.asked()
        request.send(b"a")
        await pause(0.02)
        assert len(producer.requests) == 1
        request.finish()
        await client.reader.readuntil(b"0\r\n\r\n")
        assert (await client.answer()).body == b"plain"


async def test_a_client_that_asked_to_close_gets_the_end_of_the_chunks_first() -> None:
    async with producing() as (producer, _, client):
        client.get("/stream", "Connection: close")
        request = await producer.asked()
        request.send(b"a")
        request.finish()
        text = await client.reader.read()
        assert b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" in text
        assert text.endswith(b"1\r\na\r\n0\r\n\r\n")


async def test_http_1_0_gets_bytes_until_the_end_of_the_connection() -> None:
    async with producing() as (producer, _, client):
        client.get("/stream", "Connection: keep-alive", version="1.0")
        request = await producer.asked()
        request.send(b"first")
        request.send(b"second")
        request.finish()
        assert (await client.reader.read()).endswith(b"\r\nConnection: close\r\n\r\nfirstsecond")


async def test_the_producer_hears_that_its_client_does_not_read_and_that_it_does_again() -> None:
    async with producing() as (producer, _, client):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.get("/stream")
        request = await producer.asked()
        for _ in range(1000):
            if producer.stalls:
                break
            request.send(b"x" * 64 * KB)
            await asyncio.sleep(0)
        assert producer.stalls == [True]
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(PATIENCE_S):
            while producer.stalls == [True]:
                await client.reader.read(1 << 20)
        assert producer.stalls == [True, False]
        assert producer.gone == 0


async def test_a_client_that_reads_nothing_is_cut_off_and_one_that_reads_as_much_as_it_gets_is_not() -> None:
    async with producing(HttpLimits(write_timeout_s=2)) as (producer, listener, client):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.get("/stream")
        request = await producer.asked()
        while not producer.stalls:
            request.send(b"x" * 64 * KB)
            await asyncio.sleep(0)
        connection = request._connection
        for _ in range(5):
            # as though the client had taken what was added: as much waits as before
            connection.streamed_bytes += 100
            listener.advance()
        assert producer.gone == 0
        for _ in range(4):
            listener.advance()
        assert producer.gone == 1
        assert listener.connections == 0
        request.send(b"into the void")
        request.finish()
