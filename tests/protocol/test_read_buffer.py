"""One connection that always has more to do does not keep the event loop from the others."""

import asyncio
import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.fuzz.transport import MemoryTransport
from tests.protocol.grpc.service import CHAT, ECHO
from tests.protocol.grpc.service import Service as GrpcService
from tests.protocol.http1.service import Service as HttpService
from tests.protocol.http2.raw import grpc_headers
from tpx.protocol.compression import Inflater
from tpx.protocol.grpc.framing import PREFIX_BYTES, frame_message
from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.grpc.server import connection_factory as grpc_connections
from tpx.protocol.http1.server import HttpLimits, connection_factory
from tpx.protocol.http2 import frames
from tpx.protocol.http2.connection import Http2Connection
from tpx.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, Setting
from tpx.protocol.http2.hpack import encode_stateless
from tpx.protocol.listener import Listener
from tpx.protocol.read_buffer import Turns

COUNT = 100
ASK = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"


class Transport(MemoryTransport):
    """Knows whether it is read from."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def call(number: int, path: str = ECHO) -> bytes:
    """A unary call, or the beginning of a stream."""
    stream_id = 2 * number + 1
    headers = frames.frame(HEADERS, END_HEADERS, stream_id, encode_stateless(grpc_headers(path)))
    return headers + frames.frame(DATA, END_STREAM, stream_id, frame_message(b"hello"))


def chat() -> bytes:
    """A stream of many messages in one frame."""
    headers = frames.frame(HEADERS, END_HEADERS, 1, encode_stateless(grpc_headers(CHAT)))
    return headers + frames.frame(DATA, END_STREAM, 1, frame_message(b"hello") * COUNT)


def listening() -> Listener:
    """Has a clock that goes on whenever it is looked at, and gives each connection a few looks a turn."""
    listener = Listener()
    listener.turns = Turns(10, itertools.count().__next__)
    return listener


def grpc(listener: Listener, transport: Transport | None = None) -> Transport:
    transport = transport or Transport()
    connection = grpc_connections(listener, GrpcLimits(), GrpcService().methods(), Inflater())()
    transport.set_protocol(connection)
    connection.connection_made(transport)
    transport.feed(PREFACE + frames.settings_frame({}))
    return transport


def http(listener: Listener) -> Transport:
    transport = Transport()
    connection = connection_factory(listener, HttpLimits(), HttpService().serve)()
    transport.set_protocol(connection)
    connection.connection_made(transport)
    return transport


WORK: dict[str, tuple[Callable[[Listener], Transport], bytes, int]] = {
    "calls": (grpc, b"".join(map(call, range(COUNT))), COUNT),
    "messages": (grpc, chat(), COUNT),
    "requests": (http, ASK * COUNT, COUNT),
    "chunks": (
        http,
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"5\r\nhello\r\n" * 40_000
        + b"0\r\n\r\n"
        + ASK,
        40_001,
    ),
}


@pytest.mark.parametrize("what", WORK)
async def test_a_read_that_brings_much_work_is_worked_off_in_several_turns(what: str) -> None:
    opened, work, count = WORK[what]
    listener = listening()
    transport, bystander = opened(listener), http(listener)
    transport.feed(work)
    assert transport.written.count(b"hello") < count
    assert not transport.reading
    bystander.feed(ASK)
    assert b"hello" in bystander.written
    turns = 0
    while not transport.reading and turns < 10 * COUNT:
        await asyncio.sleep(0)
        turns += 1
    await asyncio.sleep(0)
    assert transport.written.count(b"hello") == count
    assert turns > 1


@pytest.mark.parametrize("what", WORK)
async def test_what_comes_while_a_connection_waits_for_its_turn_is_kept(what: str) -> None:
    """With TLS, what was read already is still handed over when reading was paused."""
    opened, work, count = WORK[what]
    transport = opened(listening())
    for at in range(0, len(work), 1 << 14):
        transport.feed(work[at : at + (1 << 14)])
    while not transport.reading:  # noqa: ASYNC110 (the loop's turns are what is waited for)
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert transport.written.count(b"hello") == count


@pytest.mark.parametrize("what", WORK)
async def test_a_connection_that_is_lost_while_it_waits_is_forgotten(what: str) -> None:
    opened, work, count = WORK[what]
    transport = opened(listening())
    transport.feed(work)
    transport.close()
    assert transport.protocol is not None
    transport.protocol.connection_lost(None)
    before = bytes(transport.written)
    for _ in range(10):
        await asyncio.sleep(0)
    assert bytes(transport.written) == before
    assert before.count(b"hello") < count


async def test_connections_that_wait_share_a_turn_and_go_on_in_order() -> None:
    turns, log = Turns(2.5, itertools.count().__next__), list[str]()
    for name in "abcdef":
        turns.wait(lambda name=name: log.append(name))  # type: ignore[misc]
    assert log == []
    await asyncio.sleep(0)
    assert "".join(log) == "abc"
    turns.wait(lambda: log.append("g"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "".join(log) == "abcdefg"


async def test_a_connection_that_waits_again_comes_after_the_others() -> None:
    turns, log = Turns(100, itertools.count().__next__), list[str]()

    def again() -> None:
        log.append("a")
        if len(log) < 4:
            turns.wait(again)

    turns.wait(again)
    turns.wait(lambda: log.append("b"))
    await asyncio.sleep(0)
    assert "".join(log) == "ab"
    await asyncio.sleep(0)
    assert "".join(log) == "aba"


def messages_of(written: bytes) -> dict[int, bytes]:
    """The first message of each stream that is answered."""
    data: dict[int, bytes] = {}
    at = 0
    while at < len(written):
        high, low, kind, _, stream_id = frames.header_at(written, at)
        start, at = at + frames.HEADER_BYTES, at + frames.HEADER_BYTES + (high << 16 | low)
        if kind == DATA:
            data[stream_id] = data.get(stream_id, b"") + written[start:at]
    return {stream_id: framed[PREFIX_BYTES:] for stream_id, framed in data.items()}


class Piped(Transport):
    """Is read from a socket, as by the event loop."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        super().__init__()
        near.setblocking(False)
        self._near, self._far = near, far

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._near if name == "socket" else default

    def feed(self, piece: bytes) -> None:
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            super().feed(piece)
            return
        self._far.sendall(piece)
        with suppress(BlockingIOError):
            while True:
                self.protocol.buffer_updated(self._near.recv_into(self.protocol.get_buffer(-1)))


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.parametrize("frame_bytes", [1000, frames.DEFAULT_FRAME_BYTES, 1 << 18])
@pytest.mark.parametrize("read_bytes", [999, 1 << 16, 3 << 16])
async def test_large_messages_come_whole_however_frames_interleave_and_reads_cut_them(
    sockets: tuple[socket.socket, socket.socket], read_bytes: int, frame_bytes: int, piped: bool, streams: int
) -> None:
    texts = bytes(range(256)) * 900, bytes(range(255, -1, -1)) * 1000, bytes(range(1, 251)) * 700
    sent = {2 * number + 1: text for number, text in enumerate(texts[:streams])}
    peer = grpc(Listener(), Piped(*sockets) if piped else None)
    data = frames.settings_frame({Setting.INITIAL_WINDOW_SIZE: 1 << 20}) + frames.window_update(0, 1 << 20)
    pieces: list[tuple[int, int, bytes]] = []
    for stream_id, message in sent.items():
        data += frames.frame(HEADERS, END_HEADERS, stream_id, encode_stateless(grpc_headers(ECHO)))
        framed = frame_message(message)
        pieces += [
            (at, stream_id, framed[at : at + frame_bytes]) for at in range(0, len(framed), frame_bytes)
        ]
    for at, stream_id, piece in sorted(pieces):
        last = at + frame_bytes >= PREFIX_BYTES + len(sent[stream_id])
        data += frames.frame(DATA, END_STREAM if last else 0, stream_id, piece)
    for at in range(0, len(data), read_bytes):
        peer.feed(data[at : at + read_bytes])
        while not peer.reading:  # noqa: ASYNC110 (the loop's turns are what is waited for)
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert messages_of(bytes(peer.written)) == sent


async def test_reads_bring_ever_more_frames_of_a_large_message_at_once(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    peer = grpc(Listener(), Piped(*sockets))
    connection = peer.protocol
    assert isinstance(connection, Http2Connection)
    size, count = frames.DEFAULT_FRAME_BYTES, 10
    peer.feed(frames.frame(HEADERS, END_HEADERS, 1, encode_stateless(grpc_headers(ECHO))))
    first = frames.frame(DATA, 0, 1, frame_message(bytes(size * count))[:size])
    peer.feed(first[:-1])  # from now on, large messages are read in place
    assert isinstance(peer.protocol, asyncio.BufferedProtocol)
    sockets[1].sendall(first[-1:] + frames.frame(DATA, 0, 1, bytes(size)) * (count - 2))
    left = []
    for _ in range(3):
        peer.protocol.get_buffer(-1)
        assembly = connection.streams[1].assembly
        assert assembly is not None
        left.append(assembly.missing - PREFIX_BYTES)
    assert left == [size * frames_left for frames_left in (8, 2, 1)]
