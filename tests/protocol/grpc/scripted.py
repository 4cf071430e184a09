"""A gRPC server that follows a script, frame by frame, and so may misbehave."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.protocol.grpc.service import ECHO
from tests.protocol.http2.raw import Header, RawPeer
from tests.protocol.turns import pause
from tests.waiting import until
from tpx.protocol.grpc.client import GrpcClientConnection, connect
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import DATA, END_STREAM, HEADERS, PREFACE, Setting

OK: list[Header] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
TRAILERS: list[Header] = [(b"grpc-status", b"0")]


class RawServer(RawPeer):
    """The answering side."""

    async def request(self) -> int:
        """Wait for the next whole request; its stream."""
        while True:
            frame = await self.frame()
            if frame.kind in (DATA, HEADERS) and frame.flags & END_STREAM:
                return frame.stream_id

    async def reset_of(self, stream_id: int) -> int:
        """Wait for the client to reset a stream; the code."""
        while (code := self.answers[stream_id].reset) is None:
            await self.frame()
        return code

    def respond(self, stream_id: int, message: bytes, trailers: list[Header] = TRAILERS) -> None:
        self.send_headers(stream_id, OK)
        self.send_message(stream_id, message)
        self.send_headers(stream_id, trailers, end_stream=True)


Script = Callable[[RawServer], Awaitable[None]]


@asynccontextmanager
async def scripted(
    script: Script, settings: dict[Setting, int] | None = None
) -> AsyncIterator[GrpcClientConnection]:
    """A client whose server follows a script, then keeps reading until the client is gone."""
    failures: list[BaseException] = []

    async def follow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = RawServer(reader, writer)
        try:
            assert await reader.readexactly(len(PREFACE)) == PREFACE
            peer.send(frames.SETTINGS, payload=frames.settings_frame(settings or {})[9:])
            await script(peer)
            await peer.closed()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except BaseException as exc:
            failures.append(exc)
            raise
        finally:
            writer.close()

    server = await asyncio.start_server(follow, "127.0.0.1", 0, limit=1 << 22)
    async with server:
        connection = await connect("127.0.0.1", server.sockets[0].getsockname()[1])
        try:
            yield connection
        finally:
            connection.close()
            await pause(0.01)
    assert failures == []


@dataclass
class Calls:
    """The ends of calls, in order."""

    connection: GrpcClientConnection
    ends: list[GrpcResponse] = field(default_factory=list)

    def make(self, message: bytes = b"request", encoding: str = "") -> int:
        prepared = self.connection.prepare(ECHO, message, encoding=encoding)
        return self.connection.call(prepared, self.ends.append)

    async def ended(self, count: int = 1) -> GrpcResponse:
        await until(lambda: len(self.ends) >= count)
        return self.ends[count - 1]
