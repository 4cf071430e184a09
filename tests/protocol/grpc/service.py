"""A gRPC service for the tests of the wire, and a server for it on the running loop."""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.waiting import until
from tpx.protocol.compression import Inflater
from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.grpc.server import connection_factory
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2.connection import Http2Connection
from tpx.protocol.listener import Listener
from tpx.protocol.tensors import Buffer

ECHO, HOLD, FAIL, CHAT, QUIT, FLOOD, TOGETHER = (
    f"/test.Wire/{name}" for name in ("Echo", "Hold", "Fail", "Chat", "Quit", "Flood", "Together")
)


@dataclass
class Service:
    """What the methods do with their calls, and what became of those."""

    held: list[ServerCall] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    half_closed: list[int] = field(default_factory=list)

    def methods(self) -> list[Method]:
        return [
            Method(ECHO, unary=self._echo),
            Method(HOLD, unary=self._hold),
            Method(FAIL, unary=self._fail),
            Method(CHAT, stream=lambda call: ChatSink(self, call)),
            Method(QUIT, stream=lambda call: QuitSink(self, call)),
            Method(FLOOD, stream=lambda call: FloodSink(self, call)),
            Method(TOGETHER, stream=lambda call: TogetherSink(self, call)),
        ]

    def _echo(self, call: ServerCall, message: Buffer) -> None:
        self.messages.append(bytes(message))
        call.respond((message,))

    def _hold(self, call: ServerCall, message: Buffer) -> None:
        """Answer when the test says so."""
        self.messages.append(bytes(message))
        call.on_gone = lambda: self.gone.append(call.id)
        self.held.append(call)

    def _fail(self, call: ServerCall, message: Buffer) -> None:
        """The message is a status number, a space, and the words."""
        number, _, words = bytes(message).decode().partition(" ")
        call.fail(Status(int(number)), words)

    def release(self, answer: bytes = b"done") -> None:
        """Answer every held call."""
        held, self.held = self.held, []
        for call in held:
            call.respond((answer,))


class ChatSink:
    """Sends every message back and ends well when the client has sent its last."""

    def __init__(self, service: Service, call: ServerCall) -> None:
        self._service = service
        self._call = call

    def message(self, message: Buffer) -> None:
        self._service.messages.append(bytes(message))
        self._call.send((message,), len(message))

    def half_closed(self) -> None:
        self._service.half_closed.append(self._call.id)
        self._call.finish()

    def gone(self) -> None:
        self._service.gone.append(self._call.id)


class TogetherSink(ChatSink):
    """Sends all messages back twice when the client has sent its last."""

    def message(self, message: Buffer) -> None:
        self._service.messages.append(bytes(message))

    def half_closed(self) -> None:
        for _ in range(2):
            self._call.send_all(self._service.messages)
        self._call.finish()


class QuitSink(ChatSink):
    """Says a message of the size that the first one asks for and ends, while the client may still send."""

    def message(self, message: Buffer) -> None:
        if not bytes(message).isdigit():
            self._call.fail(Status.INVALID_ARGUMENT, "not a number")
            return
        size = int(bytes(message))
        self._call.send((b"x" * size,), size)
        self._call.finish()

    def half_closed(self) -> None:
        self._service.half_closed.append(self._call.id)


class FloodSink(ChatSink):
    """Sends "count size" messages of zeros, then ends."""

    def message(self, message: Buffer) -> None:
        count, size = map(int, bytes(message).split())
        for _ in range(count):
            self._call.send((bytes(size),), size)
        self._call.finish()

    def half_closed(self) -> None:
        self._service.half_closed.append(self._call.id)


@dataclass
class WireServer:
    """A server on the running loop, with its insides in reach."""

    port: int
    listener: Listener
    service: Service
    connections: list[Http2Connection]

    @property
    def connection(self) -> Http2Connection:
        """The newest connection."""
        return self.connections[-1]

    async def empty(self) -> None:
        """Wait until every connection has ended."""
        await until(lambda: not self.listener.connections)

    def pass_seconds(self, count: int) -> None:
        """Let the deadlines see `count` seconds go by."""
        for _ in range(count):
            self.listener.advance()


@asynccontextmanager
async def serving(
    limits: GrpcLimits | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    methods: Sequence[Method] = (),
    max_connections: int = 100,
    max_per_client: int = 0,
    port: int = 0,
    reuse_port: bool = False,
    inflater: Inflater | None = None,
) -> AsyncIterator[WireServer]:
    """A running server of the test service."""
    service = Service()
    listener = Listener(max_connections=max_connections, max_per_client=max_per_client)
    all_methods = [*service.methods(), *methods]
    make = connection_factory(listener, limits or GrpcLimits(), all_methods, inflater or Inflater())
    connections: list[Http2Connection] = []

    def make_and_note() -> Http2Connection:
        connections.append(make())
        return connections[-1]

    reuse_port = reuse_port or port > 0
    port = await listener.start(make_and_note, "127.0.0.1", port, tls=tls, reuse_port=reuse_port)
    try:
        yield WireServer(port, listener, service, connections)
    finally:
        listener.close()
