"""Clients that do not read: what waits for them is bounded, and nobody else waits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.protocol.grpc.service import CHAT, ECHO, WireServer, serving
from tests.protocol.http2.raw import RawPeer
from tests.waiting import until
from tpx.protocol.grpc.backpressure import CALL_UNREAD_BYTES, UNREAD_BYTES
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import DATA, END_STREAM, MAX_WINDOW, Setting
from tpx.protocol.http2.sender import STREAM_WINDOW
from tpx.protocol.tensors import Buffer

BLOW_UP = "/test.Wire/BlowUp"
GATED = "/test.Wire/Gated"
MB = 1 << 20


def blow_up(call: ServerCall, message: Buffer) -> None:
    """A small request with a large answer."""
    size = int(bytes(message))
    call.respond((bytes(size),))


class Blower:
    """A stream of small requests with large answers; tells what it was asked and when to stop."""

    def __init__(self, call: ServerCall) -> None:
        self.call = call
        self.taken = 0
        self.stalls: list[bool] = []
        self.ends: list[str] = []
        call.listen(on_stall=self.stalls.append, on_drain=lambda: None)

    def message(self, message: Buffer) -> None:
        self.taken += 1
        size = int(bytes(message))
        self.call.send((bytes(size),), size)

    def half_closed(self) -> None:
        self.ends.append("half closed")
        self.call.finish()

    def gone(self) -> None:
        self.ends.append("gone")


class Methods:
    """Methods for one server, and the sinks that they made."""

    def __init__(self) -> None:
        self.sinks: list[Blower] = []

    def all(self) -> list[Method]:
        return [Method(BLOW_UP, unary=blow_up), Method(GATED, stream=self._open)]

    def _open(self, call: ServerCall) -> Blower:
        self.sinks.append(Blower(call))
        return self.sinks[-1]


@asynccontextmanager
async def shut(
    methods: Methods | None = None, limits: GrpcLimits | None = None
) -> AsyncIterator[tuple[WireServer, RawPeer]]:
    """A server, and a client that grants no window to any answer but reads the connection."""
    settings = {Setting.INITIAL_WINDOW_SIZE: 0}
    async with (
        serving(limits, methods=(methods or Methods()).all()) as server,
        await RawPeer.connect(server.port, settings=settings) as peer,
    ):
        peer.grant(0, MAX_WINDOW - 65535)
        await peer.sync()
        yield server, peer


async def open_up(peer: RawPeer) -> None:
    """Grant everything at last."""
    peer.send(frames.SETTINGS, payload=frames.settings_frame({Setting.INITIAL_WINDOW_SIZE: MAX_WINDOW})[9:])
    peer._unacknowledged += 1
    await peer.sync()


async def test_a_stream_whose_answers_nobody_reads_is_not_read_from() -> None:
    methods = Methods()
    async with shut(methods) as (server, peer):
        peer.open(1, GATED)
        for _ in range(100):
            peer.send_message(1, b"%d" % MB)
        peer.send(DATA, END_STREAM, 1)
        await peer.sync()
        [sink] = methods.sinks
        assert sink.taken == CALL_UNREAD_BYTES // MB
        assert sink.stalls == [True]
        assert sink.ends == []
        assert server.connection.sender.queued == sink.call.queued < CALL_UNREAD_BYTES + MB
        await open_up(peer)
        answer = await peer.answer(1, 20)
        assert (answer.status, len(answer.data)) == (0, 100 * (MB + 5))
        assert sink.ends == ["half closed"]
        assert sink.stalls[-1] is False
        assert server.connection.sender.queued == 0


async def test_other_calls_of_the_connection_and_other_connections_go_on() -> None:
    async with shut(Methods()) as (server, peer), await RawPeer.connect(server.port) as other:
        peer.open(1, GATED)
        for _ in range(20):
            peer.send_message(1, b"%d" % MB)
        peer.call(3, ECHO, b"same connection")
        peer.grant(3, 100)
        assert (await peer.answer(3)).message == b"same connection"
        other.call(1, ECHO, b"another")
        assert (await other.answer(1)).message == b"another"


async def test_what_a_stalled_stream_sends_is_bounded_by_its_window_and_gets_none_back() -> None:
    methods = Methods()
    async with shut(methods) as (_, peer):
        peer.open(1, GATED)
        for _ in range(5):
            peer.send_message(1, b"%d" % MB)
        sent = sum(len(frame_message(b"%d" % MB)) for _ in range(5))
        block = (b"\0\0\0\0\x01" + b"7") * 2000
        while sent + len(block) <= STREAM_WINDOW:
            peer.send(DATA, 0, 1, block)
            sent += len(block)
            await peer.writer.drain()
        await peer.sync()
        [sink] = methods.sinks
        assert sink.call.withheld is not None
        assert len(sink.call.withheld) > STREAM_WINDOW - 100_000
        assert not [f for f in peer.seen if f.kind == frames.WINDOW_UPDATE and f.stream_id == 1]
        peer.send(DATA, 0, 1, bytes(100_000))
        assert (await peer.goaway()).code == frames.ErrorCode.FLOW_CONTROL_ERROR


async def test_a_message_in_pieces_waits_whole_and_comes_out_whole() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.grant(0, 1 << 28)
        peer.open(1, CHAT)
        big = bytes(range(256)) * (20 * MB // 256)
        sent = asyncio.create_task(_send_large(peer, big))
        await until(lambda: server.service.messages)
        small = [b"%d" % n for n in range(50)]
        await sent
        for text in small:
            peer.send_message(1, text)
        middle = bytes(reversed(range(256))) * 2000
        peer.send_message(1, middle, end_stream=True)
        await peer.sync()
        assert server.service.messages == [big], "the answer to it is not read: what follows waits"
        peer.grant(1, 1 << 28)
        answer = await peer.answer(1, 20)
        assert answer.status == 0
        assert server.service.messages == [big, *small, middle]


async def _send_large(peer: RawPeer, message: bytes) -> None:
    framed = frame_message(message)
    window = STREAM_WINDOW
    for at in range(0, len(framed), 16384):
        piece = framed[at : at + 16384]
        while window < len(piece):
            update = await peer.next(frames.WINDOW_UPDATE)
            window += int.from_bytes(update.payload, "big") if update.stream_id == 1 else 0
        window -= len(piece)
        peer.send(DATA, 0, 1, piece)
    await peer.writer.drain()


@pytest.mark.slow
async def test_unary_calls_wait_while_a_connection_owes_reading_too_much() -> None:
    async with shut(Methods()) as (server, peer):
        count = 3 * UNREAD_BYTES // MB
        for n in range(count):
            peer.call(2 * n + 1, BLOW_UP, b"%d" % MB)
        peer.call(2 * count + 1, ECHO, b"last")
        await peer.sync()
        sender = server.connection.sender
        assert UNREAD_BYTES < sender.queued < UNREAD_BYTES + 2 * MB
        await open_up(peer)
        for n in range(count):
            answer = await peer.answer(2 * n + 1, 20)
            assert (answer.status, len(answer.data)) == (0, MB + 5)
            peer.answers.pop(2 * n + 1)
        assert (await peer.answer(2 * count + 1)).message == b"last"
        assert (sender.queued, server.connection.streams) == (0, {})


async def test_calls_that_wait_and_are_reset_or_expire_leave_nothing_behind() -> None:
    methods = Methods()
    async with shut(methods) as (server, peer):
        connection = server.connection
        window = connection._unacknowledged
        for n in range(17):
            peer.open(2 * n + 1, GATED)
            for _ in range(6):
                peer.send_message(2 * n + 1, b"%d" % MB)
        peer.call(101, ECHO, b"reset")
        peer.call(103, ECHO, b"late", (b"grpc-timeout", b"50m"))
        await peer.sync()
        assert bytes(connection.streams[101].withheld or b"") == frame_message(b"reset")
        peer.reset(101)
        assert (await peer.answer(103)).status == Status.DEADLINE_EXCEEDED
        for n in range(17):
            peer.reset(2 * n + 1)
        await peer.sync()
        assert connection.streams == {}
        assert connection.sender.queued == 0
        assert connection._unacknowledged >= window, "what was withheld counts as read once it is dropped"
        assert [sink.ends for sink in methods.sinks] == [["gone"]] * 17
        peer.call(201, ECHO, b"well")
        peer.grant(201, 100)
        assert (await peer.answer(201)).message == b"well"


async def test_an_answer_beyond_all_measure_ends_its_call() -> None:
    """Requests that were in work when the client stopped reading still bring answers."""
    limits = GrpcLimits(max_unread_bytes=2 * MB)
    async with shut(Methods(), limits) as (server, peer):
        for n in range(6):
            peer.call(2 * n + 1, BLOW_UP, b"%d" % MB)
        answer = await peer.answer(11)
        assert answer.status == Status.RESOURCE_EXHAUSTED
        assert answer.blocks[-1][b"grpc-message"] == b"more than 2097152 bytes of answers wait to be read"
        assert server.connection.sender.queued < 4 * MB


async def test_a_stream_that_is_ended_for_a_bad_message_tells_whoever_works_for_it() -> None:
    methods = Methods()
    async with shut(methods, GrpcLimits(max_message_bytes=100)) as (_, peer):
        peer.open(1, GATED)
        peer.send_message(1, b"3")
        peer.send_message(1, bytes(101))
        assert (await peer.answer(1)).status == Status.RESOURCE_EXHAUSTED
        assert methods.sinks[0].ends == ["gone"]


async def test_a_sink_that_has_enough_gets_no_more_until_it_says_so() -> None:
    taken: list[bytes] = []
    calls: list[ServerCall] = []

    class Fussy(Blower):
        def message(self, message: Buffer) -> None:
            taken.append(bytes(message))
            self.call.pause_reading()

    def open_fussy(call: ServerCall) -> Fussy:
        calls.append(call)
        return Fussy(call)

    async with (
        serving(methods=[Method("/test.Wire/Fussy", stream=open_fussy)]) as server,
        await RawPeer.connect(server.port) as peer,
    ):
        peer.open(1, "/test.Wire/Fussy")
        for n in range(3):
            peer.send_message(1, b"%d" % n)
        peer.send(DATA, END_STREAM, 1)
        await peer.sync()
        for n in range(1, 4):
            assert taken == [b"%d" % index for index in range(n)]
            calls[0].resume_reading()
            await peer.sync()
        assert (await peer.answer(1)).status == 0


@pytest.mark.parametrize("window", [0, 70_000])
async def test_a_finished_stream_ends_after_what_it_had_sent_with_the_status_it_chose(window: int) -> None:
    class Leaver(Blower):
        def message(self, message: Buffer) -> None:
            super().message(message)
            self.call.finish(Status.UNAVAILABLE, "no more")

    async with (
        serving(methods=[Method("/test.Wire/Leave", stream=Leaver)]) as server,
        await RawPeer.connect(server.port, settings={Setting.INITIAL_WINDOW_SIZE: window}) as peer,
    ):
        peer.grant(0, 1 << 20)
        await peer.sync()
        peer.open(1, "/test.Wire/Leave")
        peer.send_message(1, b"60000")
        peer.grant(1, 70_000)
        answer = await peer.answer(1)
        assert (len(answer.data), answer.status) == (60005, Status.UNAVAILABLE)
        assert answer.blocks[-1][b"grpc-message"] == b"no more"
