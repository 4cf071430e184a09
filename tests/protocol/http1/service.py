"""An HTTP service for the tests of the wire, a server for it on the running loop, and a bare client."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.protocol.turns import PATIENCE_S, pause
from tests.waiting import until
from tpx.protocol.http1.request import HttpRequest
from tpx.protocol.http1.server import HttpLimits, HttpServerConnection, connection_factory
from tpx.protocol.listener import Listener

PLAIN = b"Content-Type: text/plain\r\n"


@dataclass
class Service:
    """What was asked, and what was not answered yet."""

    requests: list[HttpRequest] = field(default_factory=list)
    held: list[HttpRequest] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    repeats: bool = False
    """True if requests that repeat the first half of a body are answered by `_echo_again`."""

    def serve(self, request: HttpRequest) -> None:
        self.requests.append(request)
        path = request.head.path
        if path == b"/hold":
            request.on_gone = lambda: self.gone.append(path)
            self.held.append(request)
        elif path == b"/soon":
            asyncio.get_running_loop().call_soon(request.respond, 200, PLAIN, (bytes(request.body),))
        elif path == b"/big" and request.head.query.isdigit():
            size = int(request.head.query)
            request.respond(200, PLAIN, [bytes(min(1 << 20, size - at)) for at in range(0, size, 1 << 20)])
        else:
            request.respond(200, PLAIN, (request.body,))
            if self.repeats and request.head.method == b"POST":
                request.repeat_with(self._echo_again(request), len(request.body) // 2)

    @staticmethod
    def _echo_again(request: HttpRequest) -> Callable[[memoryview], bytes]:
        start = bytes(request.body[: len(request.body) // 2])
        begin = request.start_of_response(PLAIN, len(request.body)) + start
        return lambda rest: begin + rest

    def release(self, body: bytes = b"released") -> None:
        held, self.held = self.held, []
        for request in held:
            request.respond(200, PLAIN, (body,))


@dataclass
class WireServer:
    """A server on the running loop, with its insides in reach."""

    port: int
    listener: Listener
    service: Service
    connections: list[HttpServerConnection]

    async def empty(self) -> None:
        """Wait until every connection has ended."""
        await until(lambda: not self.listener.connections)

    async def pass_seconds(self, count: int) -> None:
        """Let what was sent arrive, and the deadlines see `count` seconds go by."""
        await pause(0.02)
        for _ in range(count):
            self.listener.advance()


@asynccontextmanager
async def serving(
    limits: HttpLimits | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    max_connections: int = 100,
    max_per_client: int = 0,
) -> AsyncIterator[WireServer]:
    """A running server of the test service."""
    service = Service()
    listener = Listener(max_connections=max_connections, max_per_client=max_per_client)
    make = connection_factory(listener, limits or HttpLimits(), service.serve)
    connections: list[HttpServerConnection] = []

    def make_and_note() -> HttpServerConnection:
        connections.append(make())
        return connections[-1]

    port = await listener.start(make_and_note, "127.0.0.1", 0, tls=tls)
    try:
        yield WireServer(port, listener, service, connections)
    finally:
        listener.close()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Bare:
    """Sends bytes and reads responses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, *, tls: ssl.SSLContext | None = None) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await asyncio.wait_for(self.writer.wait_closed(), 5)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def get(self, path: str, *headers: str, method: str = "GET", version: str = "1.1") -> None:
        lines = [f"{method} {path} HTTP/{version}", "Host: test", *headers]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def post(self, path: str, body: bytes, *headers: str) -> None:
        self.get(path, f"Content-Length: {len(body)}", *headers, method="POST")
        self.send(body)

    async def answer(self, *, bodiless: bool = False) -> Answer:
        """The next response."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(head[0].split(" ")[1])
            headers = {}
            for line in head[1:-2]:
                name, _, value = line.partition(": ")
                headers[name.lower()] = value
            size = 0 if bodiless else int(headers.get("content-length", "0"))
            return Answer(status, headers, await self.reader.readexactly(size))

    async def closed(self, timeout_s: float = PATIENCE_S) -> bool:
        """Whether the server ends the connection, and nothing else comes before."""
        try:
            return await asyncio.wait_for(self.reader.read(), timeout_s) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True
