"""How long the HTTP server waits, and for whom: slow, silent and deaf clients, and its own end."""

import asyncio

import pytest

from tests.protocol.deaf import Deaf
from tests.protocol.http1.service import Bare, serving
from tests.protocol.turns import pause
from tpx.protocol.http1.server import HttpLimits


async def test_a_slow_head_is_answered_408_however_it_drips() -> None:
    async with serving(HttpLimits(head_timeout_s=3)) as server, await Bare.connect(server.port) as client:
        client.send(b"GET / HT")
        for _ in range(3):
            await server.pass_seconds(1)
            client.send(b"T")
        await server.pass_seconds(1)
        assert (await client.answer()).status in (400, 408)
        assert await client.closed()


async def test_a_head_that_stops_is_answered_408() -> None:
    async with serving(HttpLimits(head_timeout_s=3)) as server, await Bare.connect(server.port) as client:
        client.send(b"GET / HTTP/1.1\r\nHost:")
        await server.pass_seconds(3)
        assert server.listener.connections == 1
        await server.pass_seconds(1)
        assert (await client.answer()).status == 408


@pytest.mark.parametrize(
    "framing", ["Content-Length: 100", "Content-Length: 100000", "Transfer-Encoding: chunked"]
)
async def test_a_body_that_stops_is_answered_408(framing: str) -> None:
    async with serving(HttpLimits(body_timeout_s=3)) as server, await Bare.connect(server.port) as client:
        client.get("/echo", framing, method="POST")
        for _ in range(4):
            await server.pass_seconds(2)
            client.send(b"1\r\n" if "chunked" in framing else b"x")
            if "chunked" in framing:
                client.send(b"a\r\n")
        await server.pass_seconds(4)
        assert (await client.answer()).status == 408
        assert await client.closed()


@pytest.mark.parametrize("framing", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
async def test_a_body_that_drips_is_answered_408(framing: str) -> None:
    """Each byte puts off the limit of silence, but the average counts, too."""
    limits = HttpLimits(body_timeout_s=3, min_receive_rate=10)
    async with serving(limits) as server, await Bare.connect(server.port) as client:
        client.get("/echo", framing, method="POST")
        piece = b"14\r\n" + bytes(20) + b"\r\n" if "chunked" in framing else bytes(20)
        for _ in range(5):
            client.send(piece)
            await server.pass_seconds(2)
        assert server.listener.connections == 1
        client.send(piece[:1])
        await server.pass_seconds(2)
        answer = await client.answer()
        assert (answer.status, b"at less than 10 bytes per second" in answer.body) == (408, True)
        assert await client.closed()


async def test_a_body_has_a_time_to_be_complete() -> None:
    limits = HttpLimits(max_receive_s=100)
    async with serving(limits) as server, await Bare.connect(server.port) as client:
        client.get("/echo", "Content-Length: 60000000", method="POST")
        for _ in range(10):
            client.send(bytes(100_000))
            await server.pass_seconds(10)
        assert server.listener.connections == 1
        await server.pass_seconds(1)
        answer = await client.answer()
        assert (answer.status, b"not complete within 100 s" in answer.body) == (408, True)


async def test_the_rate_of_one_body_is_not_that_of_the_next() -> None:
    limits = HttpLimits(body_timeout_s=3, min_receive_rate=10)
    async with serving(limits) as server, await Bare.connect(server.port) as client:
        for _ in range(3):
            client.get("/echo", "Content-Length: 80", method="POST")
            for _ in range(4):
                await server.pass_seconds(1)
                client.send(bytes(20))
            assert (await client.answer()).status == 200
            await server.pass_seconds(60)


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async with (
        serving(HttpLimits(idle_timeout_s=3)) as server,
        await Bare.connect(server.port) as idle,
        await Bare.connect(server.port) as busy,
    ):
        busy.get("/hold")
        idle.get("/echo")
        await idle.answer()
        await server.pass_seconds(3)
        assert server.listener.connections == 2
        await server.pass_seconds(1)
        assert await idle.closed()
        await server.pass_seconds(100)
        server.service.release()
        assert (await busy.answer()).body == b"released"


async def test_the_last_answer_reaches_a_client_that_has_sent_more() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/big?3000000", "Connection: close")
        client.send(bytes(500_000))
        assert len((await client.answer()).body) == 3_000_000
        assert await client.closed()


async def test_a_draining_server_answers_what_it_has_taken_and_closes() -> None:
    async with serving() as server:
        async with (
            await Bare.connect(server.port) as idle,
            await Bare.connect(server.port) as busy,
            await Bare.connect(server.port) as sending,
        ):
            busy.get("/hold")
            sending.get("/echo", "Content-Length: 4", method="POST")
            sending.send(b"12")
            idle.get("/echo")
            await idle.answer()
            await pause(0.02)
            server.listener.stop_accepting()
            assert await idle.closed()
            sending.send(b"34")
            server.service.release()
            for client in (busy, sending):
                assert (await client.answer()).headers["connection"] == "close"
                assert await client.closed()
        await server.empty()


async def test_an_idle_client_that_does_not_close_holds_a_draining_server_for_a_second() -> None:
    async with serving() as server, await Bare.connect(server.port) as idle:
        idle.get("/echo")
        await idle.answer()
        server.listener.stop_accepting()
        assert await idle.closed(), "our half is"
        assert server.listener.connections == 1
        await server.pass_seconds(1)
        assert server.connections[0].out.is_closing()
        await server.empty()


async def test_a_server_that_releases_its_clients_answers_each_once_more_and_closes() -> None:
    async with serving() as server:
        server.listener.release()
        async with await Bare.connect(server.port) as idle, await Bare.connect(server.port) as late:
            for client in (idle, late):
                client.get("/echo")
                assert (await client.answer()).headers["connection"] == "close"
                assert await client.closed()
        await server.empty()


async def test_a_client_that_takes_no_answers_gets_no_more_of_them() -> None:
    request = b"GET /big?1000000 HTTP/1.1\r\nHost: a\r\n\r\n"
    async with serving(HttpLimits(write_timeout_s=5)) as server, Deaf(server.port) as deaf:
        await deaf.send(request * 1000)
        await pause(0.1)
        assert len(server.service.requests) < 20
        await server.pass_seconds(5)
        assert server.listener.connections == 1
        await server.pass_seconds(2)
        await server.empty()


async def test_answers_go_on_when_a_slow_client_has_caught_up() -> None:
    request = b"GET /big?1000000 HTTP/1.1\r\nHost: a\r\n\r\n"
    # not idle while the kernel has the last 2 MB, and the client has them not
    limits = HttpLimits(write_timeout_s=2, idle_timeout_s=20)
    async with serving(limits) as server, Deaf(server.port) as slow:
        await slow.send(request * 20)
        got = seconds = 0
        while got < 20_000_000:
            got += len(await slow.read(1 << 18))
            await asyncio.sleep(0)
            if got // 300_000 > seconds:
                seconds += 1
                server.listener.advance()
        assert len(server.service.requests) == 20
        assert server.listener.connections == 1


@pytest.mark.parametrize("ending", ["refused", "answered"])
async def test_a_connection_that_we_ended_does_not_stay_because_its_client_is_deaf(ending: str) -> None:
    async with serving(HttpLimits(write_timeout_s=5)) as server, Deaf(server.port) as deaf:
        last = b"Connection: close\r\n" if ending == "answered" else b""
        await deaf.send(b"GET /big?9000000 HTTP/1.1\r\nHost: a\r\n" + last + b"\r\n")
        await pause(0.05)
        if ending == "refused":
            server.listener.stop_accepting()
        await server.pass_seconds(8)
        await server.empty()
