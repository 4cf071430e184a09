"""The HTTP server, asked byte by byte."""

import asyncio
import gc
import socket
import struct
import weakref

import numpy as np
import pytest

from tests.fuzz.transport import MemoryTransport
from tests.protocol.http1.service import PLAIN, Bare, Service, serving
from tests.protocol.turns import pause
from tpx.protocol.http1.request import HttpRequest
from tpx.protocol.http1.server import HttpLimits, HttpServerConnection, connection_factory
from tpx.protocol.listener import Listener


async def test_requests_on_one_connection_are_answered_one_after_the_other() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        for number in range(3):
            client.post("/echo", b"body %d" % number)
            answer = await client.answer()
            assert (answer.status, answer.body) == (200, b"body %d" % number)
            assert "connection" not in answer.headers
        assert len(server.connections) == 1


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        for number in range(300):
            client.post(("/echo", "/soon", "/hold")[number % 3] if number < 3 else "/echo", b"%d" % number)
        for number in range(2):
            assert (await client.answer()).body == b"%d" % number
        await pause(0.01)
        assert len(server.service.requests) == 3, "one request in flight holds back the next"
        server.service.release(b"2")
        for number in range(2, 300):
            assert (await client.answer()).body == b"%d" % number


async def test_thousands_of_pipelined_requests_in_one_packet_are_no_recursion() -> None:
    chunked = b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    expecting = b"POST /soon HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    async with serving() as server, await Bare.connect(server.port) as client:
        client.send(chunked * 2000 + expecting * 2000)
        for _ in range(4000):
            assert (await client.answer()).status == 200


async def test_a_body_may_come_in_any_pieces() -> None:
    request = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789"
    async with serving() as server, await Bare.connect(server.port) as client:
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in range(1, len(request), 3):
            client.send(request[:cut])
            await asyncio.sleep(0.001)
            client.send(request[cut:])
            assert (await client.answer()).body == b"0123456789"


async def test_a_large_body_is_read_into_one_aligned_buffer() -> None:
    body = bytes(range(256)) * 2400
    async with serving() as server, await Bare.connect(server.port) as client:
        client.post("/echo", body, "Inference-Header-Content-Length: 37")
        assert (await client.answer()).body == body
        (request,) = server.service.requests
        assert isinstance(request.body, memoryview)
        address = np.frombuffer(request.body, np.uint8).__array_interface__["data"][0]
        assert (address + 37) % 64 == 0, "the tensors behind the JSON begin on a boundary"


@pytest.mark.slow
async def test_a_body_of_50_mb_goes_both_ways() -> None:
    body = bytes(50 << 20)
    limits = HttpLimits(max_body_bytes=1 << 30)
    async with serving(limits) as server, await Bare.connect(server.port) as client:
        client.post("/echo", body)
        assert (await client.answer()).body == body


async def test_a_response_in_many_pieces_comes_whole() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        for size in (0, 1, 1 << 15, (1 << 15) + 1, 5 << 20):
            client.get(f"/big?{size}")
            assert (await client.answer()).body == bytes(size)


async def test_chunked_bodies_with_extensions_and_trailers_are_read() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/echo", "Transfer-Encoding: chunked", method="POST")
        client.send(b'4\r\nabcd\r\n1;name=value;other="x;y"\r\ne\r\n00\r\nX-Trailer: 1\r\n\r\n')
        assert (await client.answer()).body == b"abcde"
        client.post("/echo", b"next")
        assert (await client.answer()).body == b"next"


async def test_expect_is_answered_before_the_body_comes() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/echo", "Content-Length: 5", "Expect: 100-continue", method="POST")
        assert (await client.answer()).status == 100
        client.send(b"12345")
        assert (await client.answer()).body == b"12345"
        client.get("/echo", "Transfer-Encoding: chunked", "Expect: 100-Continue", method="POST")
        assert (await client.answer()).status == 100
        client.send(b"2\r\nab\r\n0\r\n\r\n")
        assert (await client.answer()).body == b"ab"


async def test_expect_of_a_body_that_is_too_large_is_refused_at_once() -> None:
    async with serving(HttpLimits(max_body_bytes=4)) as server, await Bare.connect(server.port) as client:
        client.get("/echo", "Content-Length: 5", "Expect: 100-continue", method="POST")
        assert (await client.answer()).status == 413
        assert await client.closed()


async def test_http_1_0_knows_no_expect() -> None:
    """RFC 9110 section 10.1.1."""
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/echo", "Content-Length: 1", "Expect: 100-continue", method="POST", version="1.0")
        client.send(b"x")
        assert (await client.answer()).body == b"x"


async def test_head_is_answered_without_a_body() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/big?1000", method="HEAD")
        answer = await client.answer(bodiless=True)
        assert answer.headers["content-length"] == "1000"
        client.get("/big?10")
        assert (await client.answer()).body == bytes(10)


@pytest.mark.parametrize(
    ("version", "header", "kept"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: close", False),
        ("1.1", "Connection: x-other, Close", False),
        ("1.1", "Connection: keep-alive", True),
        ("1.0", "", False),
        ("1.0", "Connection: keep-alive", True),
        ("1.0", "Connection: Keep-Alive, x", True),
        ("1.0", "Connection: keep-alive, close", False),
    ],
)
async def test_connections_are_kept_as_the_client_wants(version: str, header: str, kept: bool) -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/echo", *filter(None, [header]), version=version)
        answer = await client.answer()
        if not kept:
            assert answer.headers["connection"] == "close"
            assert await client.closed()
        else:
            assert answer.headers.get("connection") == ("keep-alive" if version == "1.0" else None)
            client.get("/echo", version=version)
            assert (await client.answer()).status == 200


@pytest.mark.parametrize("target", ["http://test/echo?q=1", "HTTPS://test:8000/echo?q=1", "/echo?q=1"])
async def test_targets_in_absolute_form_are_taken(target: str) -> None:
    """RFC 9112 section 3.2.2."""
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get(target)
        assert (await client.answer()).status == 200
        head = server.service.requests[0].head
        assert (head.path, head.query) == (b"/echo", b"q=1")


@pytest.mark.parametrize("lines", [1, 2, 3, 50_000])
async def test_empty_lines_before_a_request_are_skipped(lines: int) -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.send(b"\r\n" * lines + b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.answer()).status == 200


async def test_an_empty_line_after_a_body_is_not_the_start_of_a_request() -> None:
    async with serving(HttpLimits(head_timeout_s=2)) as server, await Bare.connect(server.port) as client:
        client.post("/echo", b"x")
        client.send(b"\r\n")
        assert (await client.answer()).body == b"x"
        await server.pass_seconds(5)
        client.send(b"\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await client.answer()).status == 200


async def test_a_client_that_ends_its_half_still_gets_every_answer() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        for path, body in (
            ("/hold", b"1"),
            ("/echo", b"2"),
            ("/soon", b"3"),
            ("/echo", b"4"),
            ("/soon", b"5"),
        ):
            client.post(path, body)
        client.writer.write_eof()
        await pause(0.02)
        server.service.release(b"1")
        assert [(await client.answer()).body for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]
        assert await client.closed()


async def test_half_a_request_behind_the_last_answer_ends_with_it() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/hold")
        client.send(b"GET /never")
        client.writer.write_eof()
        await pause(0.02)
        server.service.release()
        assert (await client.answer()).body == b"released"
        assert await client.closed()


@pytest.mark.parametrize(
    "framing", ["Content-Length: 100", "Content-Length: 100000", "Transfer-Encoding: chunked"]
)
async def test_a_body_that_ends_too_early_is_answered_400(framing: str) -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/echo", framing, method="POST")
        client.send(b"3\r\nab")
        client.writer.write_eof()
        assert (await client.answer()).status == 400
        assert await client.closed()
        await server.empty()


async def test_a_client_that_closes_in_flight_is_told_and_still_gets_what_comes() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/hold")
        await pause(0.02)
        client.writer.write_eof()
        await pause(0.02)
        assert server.service.gone == [b"/hold"]
        server.service.release()
        assert (await client.answer()).body == b"released"
        assert await client.closed()


async def test_a_client_that_goes_away_is_told_to_whoever_works_for_it() -> None:
    async with serving() as server:
        async with await Bare.connect(server.port) as client:
            client.get("/hold")
            await pause(0.02)
            linger = struct.pack("ii", 1, 0)
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await server.empty()
        assert server.service.gone == [b"/hold"]
        server.service.release()  # into the void


@pytest.mark.parametrize("linger", [None, struct.pack("ii", 1, 0)], ids=["in order", "with a reset"])
async def test_a_client_that_goes_away_behind_a_pipelined_request_is_told_to_whoever_works_for_it(
    linger: bytes | None,
) -> None:
    async with serving() as server:
        async with await Bare.connect(server.port) as client:
            client.get("/hold")
            await pause(0.02)
            client.get("/echo")
            await server.pass_seconds(3)
            assert server.service.gone == []
            if linger is not None:
                client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await server.pass_seconds(2)
        assert server.service.gone == [b"/hold"]
        server.service.release()
        await server.empty()


async def test_the_rest_of_a_pipeline_is_given_up_once_a_response_finds_its_client_gone() -> None:
    async with serving() as server:
        async with await Bare.connect(server.port) as client:
            for _ in range(3):
                client.get("/hold")
            await pause(0.02)
        await server.pass_seconds(1)
        assert server.service.gone == [b"/hold"]
        server.service.release()
        [request] = server.service.held
        was_over = request.over
        await pause(0.02)
        await server.pass_seconds(1)
        assert server.service.gone == [b"/hold"] * 2
        assert (was_over, request.over) == (False, True)
        await server.empty()


@pytest.mark.parametrize("late", [False, True])
async def test_of_the_pipeline_of_a_client_that_ends_its_half_only_one_is_withdrawn(late: bool) -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/hold")
        await asyncio.sleep(0.02 * late)
        for _ in range(3):
            client.get("/hold")
        client.writer.write_eof()
        for _ in range(4):
            await server.pass_seconds(1)
            server.service.release()
            assert (await client.answer()).body == b"released"
        assert len(server.service.gone) == 1
        assert await client.closed()


async def test_an_answer_of_another_length_than_the_request_wanted_is_still_framed() -> None:
    async with serving() as server, await Bare.connect(server.port) as client:
        client.get("/hold")
        await pause(0.02)
        (request,) = server.service.held
        request.respond(404, PLAIN, [b"a", memoryview(b"bc"), bytearray(b"def")])
        request.respond(200, PLAIN, [b"twice"])
        answer = await client.answer()
        assert (answer.status, answer.body) == (404, b"abcdef")
        client.get("/echo")
        assert (await client.answer()).status == 200


async def test_what_comes_behind_the_last_answer_is_ignored() -> None:
    last = b"GET /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    more = b"POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    async with serving() as server, await Bare.connect(server.port) as client:
        client.send(last + more + b"hello" + last)
        assert (await client.answer()).status == 200
        assert await client.closed()
        assert len(server.service.requests) == 1


@pytest.mark.slow
async def test_a_client_that_leaves_takes_its_memory_with_it() -> None:
    """At once, not when the collector comes by."""
    async with serving() as server:
        gc.collect()
        gc.disable()
        try:
            async with await Bare.connect(server.port) as client:
                client.get("/echo", "Content-Length: 9000000", method="POST")
                client.send(bytes(1_000_000))
                await pause(0.03)
                body = server.connections[0].next_buffer()
                assert body is not None
                owner = weakref.ref(body.obj)
                del body
            await server.empty()
            assert owner() is None
        finally:
            gc.enable()


class Remote(MemoryTransport):
    """Of a client on another machine."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"sockname": ("10.0.0.1", 8000), "peername": ("10.0.0.2", 40000)}.get(name, default)


def asked(count: int, transport: type[MemoryTransport]) -> list[tuple[HttpServerConnection, MemoryTransport]]:
    """So many connections of one endpoint, of which ten have just read a request."""
    make = connection_factory(Listener(), HttpLimits(), Service().serve)
    pairs = [(make(), transport()) for _ in range(count)]
    for connection, each in pairs:
        each.set_protocol(connection)
        connection.connection_made(each)
    for number, (_, each) in enumerate(pairs[:10]):
        each.feed(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n%d" % number)
    return pairs[:10]


@pytest.mark.parametrize("ends", [True, False], ids=["and then the client's end", "and then the loop's turn"])
async def test_answers_to_many_clients_leave_together(ends: bool) -> None:
    """And nothing is lost where a client ends its half before that."""
    pairs = asked(16, MemoryTransport)
    assert [bytes(transport.written) for _, transport in pairs] == [b""] * 10
    if ends:
        assert [connection.eof_received() for connection, _ in pairs] == [False] * 10
    else:
        await asyncio.sleep(0)
    assert [bytes(transport.written)[-5:] for _, transport in pairs] == [b"\r\n\r\n%d" % n for n in range(10)]


@pytest.mark.parametrize(("count", "transport"), [(15, MemoryTransport), (16, Remote)], ids=["few", "remote"])
async def test_answers_to_few_clients_or_other_machines_leave_at_once(
    count: int, transport: type[MemoryTransport]
) -> None:
    pairs = asked(count, transport)
    assert [bytes(each.written)[-5:] for _, each in pairs] == [b"\r\n\r\n%d" % n for n in range(10)]


async def test_a_whole_response_is_observed_and_left_to_respond_where_the_connection_ends() -> None:
    observed: list[int] = []

    def serve(request: HttpRequest) -> None:
        if listener.observer is not None:
            request.on_answered = observed.append
        if not request.respond_whole(request.start_of_response(b"", 2) + b"ok"):
            request.respond(200, b"", (b"ok",))

    listener = Listener()
    connection, transport = connection_factory(listener, HttpLimits(), serve)(), MemoryTransport()
    transport.set_protocol(connection)
    connection.connection_made(transport)
    answer = b"HTTP/1.1 200 OK\r\n%bContent-Length: 2\r\n\r\nok"
    for lines, status, observe, ends in (
        (b"", [], False, False),
        (b"", [200], True, False),
        (b"Connection: close\r\n", [200], False, True),
    ):
        listener.observer = (lambda _: None) if observe else None
        listener.draining = ends
        transport.written.clear()
        transport.feed(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (bytes(transport.written), observed) == (answer % lines, status)


class Repeats:
    """Answers POST requests with "first" and the repetition of their first two bytes with the rest."""

    def __init__(self) -> None:
        self.listener = Listener()
        self.served = 0
        self.refuses = False
        make = connection_factory(self.listener, HttpLimits(), self.serve)
        self.connection, self.transport = make(), MemoryTransport()
        self.transport.set_protocol(self.connection)
        self.connection.connection_made(self.transport)

    def serve(self, request: HttpRequest) -> None:
        self.served += 1
        if request.head.path == b"/hold":
            self.held = request
            return
        request.respond(200, b"", (b"first",))
        request.repeat_with(self.answer, 2)

    def answer(self, rest: memoryview) -> bytes | None:
        return None if self.refuses else b"again:" + bytes(rest)

    def feed(self, data: bytes) -> bytes:
        self.transport.written.clear()
        self.transport.feed(data)
        return bytes(self.transport.written)


def post(body: bytes, *lines: bytes) -> bytes:
    """A request to one path, with a fixed length of its head."""
    head = (b"POST /x HTTP/1.1", b"Host: a", b"Content-Length: %d" % len(body), *lines)
    return b"\r\n".join(head) + b"\r\n\r\n" + body


async def test_a_repeated_request_is_answered_by_what_the_first_one_left() -> None:
    service = Repeats()
    assert service.feed(post(b"ab123")).endswith(b"first")
    assert service.feed(post(b"ab456")) == b"again:456"
    assert service.feed(post(b"ab789")) == b"again:789"
    assert service.served == 1
    for other in (post(b"ac456"), post(b"ab4567"), post(b"ab456", b"X: y"), post(b"ab456") * 2):
        assert service.feed(post(b"ab123")) in (
            b"again:123",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst",
        )
        served = service.served
        assert service.feed(other).endswith(b"first")
        assert service.served == served + other.count(b"POST")


async def test_a_repeated_request_that_is_refused_there_is_handled_like_any_other() -> None:
    service = Repeats()
    service.feed(post(b"ab123"))
    service.refuses = True
    assert service.feed(post(b"ab456")).endswith(b"first")
    assert service.served == 2


async def test_a_request_behind_another_is_no_repetition() -> None:
    """Its turn comes after the answer to the one before, also if that comes late."""
    service = Repeats()
    service.feed(post(b"ab123"))
    assert service.feed(b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n") == b""
    assert service.feed(post(b"ab456")) == b""
    service.held.respond(200, b"", (b"held",))
    assert service.served == 3
    written = bytes(service.transport.written)
    assert written.index(b"held") < written.index(b"first")


async def test_half_a_request_and_a_repetition_are_one_body() -> None:
    service = Repeats()
    service.feed(post(b"ab123"))
    whole = post(post(b"ab456"))
    start = len(whole) - len(post(b"ab456"))
    assert service.feed(whole[:start]) == b""
    assert service.feed(whole[start:]).endswith(b"first")


@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked", b"Expect: 100-continue"])
async def test_only_plainly_framed_requests_are_repeated(framing: bytes) -> None:
    service = Repeats()
    head = b"POST /x HTTP/1.1\r\nHost: a\r\n" + framing + b"\r\n"
    if b"Expect" in framing:
        head += b"Content-Length: 5\r\n"
    body = b"5\r\nab123\r\n0\r\n\r\n" if b"chunked" in framing else b"ab123"
    for _ in range(2):
        assert service.feed(head + b"\r\n" + body).endswith(b"first")
    # as long as a repetition, with the same start
    assert b"again" not in service.feed(head + b"\r\nab123")


async def test_an_observed_request_and_the_last_one_are_handled_like_any_other() -> None:
    service = Repeats()
    service.feed(post(b"ab123"))
    service.listener.observer = lambda _: None
    assert service.feed(post(b"ab456")).endswith(b"first")
    service.listener.observer = None
    assert service.feed(post(b"ab456")) == b"again:456"
    service.listener.draining = True
    assert b"Connection: close" in service.feed(post(b"ab456"))
    assert service.feed(post(b"ab456")) == b"", "the connection has ended"


async def test_a_long_start_is_not_remembered() -> None:
    """Ten thousand connections would remember ten thousand of them."""
    service = Repeats()
    padding = b"X: " + bytes(2048).replace(b"\0", b"x")
    for _ in range(2):
        assert service.feed(post(b"ab123", padding)).endswith(b"first")
