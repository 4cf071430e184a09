"""Peers that make us work, or hold our memory, without asking for anything."""

import asyncio
import gc
import gzip
import re
import weakref
from contextlib import suppress
from functools import cache

import pytest

from tests.protocol.deaf import Deaf
from tests.protocol.grpc.service import CHAT, ECHO, FLOOD, HOLD, serving
from tests.protocol.http2.raw import RawPeer, grpc_headers
from tests.protocol.turns import pause
from tests.waiting import until
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_FRAME_BYTES,
    MAX_WINDOW,
    PREFACE,
    ErrorCode,
    Http2Error,
    Setting,
)
from tpx.protocol.http2.hpack import MAX_HEADER_LIST_BYTES, encode_stateless

NO_REFILL = GrpcLimits(glitches_per_s=0)
"""A server that is slow, on a loaded machine, gives its clients more."""


async def test_rapid_reset_ends_the_connection_and_all_its_work() -> None:
    """CVE-2023-44487."""
    async with serving(NO_REFILL) as server, await RawPeer.connect(server.port) as peer:
        for number in range(3000):
            peer.call(2 * number + 1, HOLD, b"work")
            peer.reset(2 * number + 1)
        goaway = await peer.sent_away()
        assert ErrorCode(goaway.code) is ErrorCode.ENHANCE_YOUR_CALM
        assert goaway.reason == "too many stream resets"
        assert len(server.service.gone) == len(server.service.held) > 100
        assert server.connection.streams == {}


@pytest.mark.parametrize("whole", [False, True])
async def test_a_large_frame_that_carries_no_data_is_refused_however_it_comes(whole: bool) -> None:
    unknown = frames.frame(0x20, 0, 0, bytes(MAX_HEADER_LIST_BYTES + 1))
    async with serving(NO_REFILL) as server, await RawPeer.connect(server.port) as peer:
        peer.writer.write(unknown if whole else unknown[:100])
        goaway = await peer.sent_away()
        assert ErrorCode(goaway.code) is ErrorCode.ENHANCE_YOUR_CALM
        assert goaway.reason == f"frame of type 32 of {MAX_HEADER_LIST_BYTES + 1} bytes"


FLOODS = {
    "SETTINGS frames": (frames.SETTINGS, 0, 0, b""),
    "PING frames": (frames.PING, 0, 0, bytes(8)),
    "empty DATA frames": (DATA, 0, 1, b""),
    "frames without effect": (frames.PRIORITY, 0, 3, bytes(5)),
}


@pytest.mark.parametrize("what", FLOODS)
async def test_a_flood_ends_the_connection(what: str) -> None:
    async with serving(NO_REFILL) as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, CHAT)
        for _ in range(2500):
            peer.send(*FLOODS[what])
        goaway = await peer.sent_away()
        assert ErrorCode(goaway.code) is ErrorCode.ENHANCE_YOUR_CALM
        assert goaway.reason in (f"too many {what}", "too_many_pings")


@pytest.mark.parametrize("piece", [0, 1, 16384])
async def test_a_flood_of_continuations_ends_the_connection(piece: int) -> None:
    async with serving(NO_REFILL) as server, await RawPeer.connect(server.port) as peer:
        peer.send(HEADERS, 0, 1, b"\x83")
        for _ in range(2500 if piece < 2 else 6):
            peer.send(CONTINUATION, 0, 1, b"\x83" * piece)
        goaway = await peer.sent_away()
        assert ErrorCode(goaway.code) is ErrorCode.ENHANCE_YOUR_CALM


async def test_time_fills_the_budget_again() -> None:
    limits = GrpcLimits(glitches_per_s=10**9)  # at once, as far as this peer can tell
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, CHAT)
        for _ in range(4):
            for _ in range(1500):
                peer.send(frames.PRIORITY, 0, 3, bytes(5))
            await peer.sync()
        peer.send_message(1, b"still friends", end_stream=True)
        assert (await peer.answer(1)).message == b"still friends"


async def test_streams_over_the_limit_are_refused_and_those_within_it_go_on() -> None:
    async with serving(GrpcLimits(max_streams=3)) as server, await RawPeer.connect(server.port) as peer:
        for stream_id in (1, 3, 5, 7, 9):
            peer.call(stream_id, HOLD, b"x")
        for stream_id in (7, 9):
            assert (await peer.answer(stream_id)).reset == ErrorCode.REFUSED_STREAM
        server.service.release()
        for stream_id in (1, 3, 5):
            assert (await peer.answer(stream_id)).message == b"done"
        peer.call(11, ECHO, b"room again")
        assert (await peer.answer(11)).message == b"room again"


async def test_insisting_on_more_streams_ends_the_connection() -> None:
    async with serving(GrpcLimits(max_streams=1)) as server, await RawPeer.connect(server.port) as peer:
        for number in range(2500):
            peer.open(2 * number + 1, CHAT)
        assert ErrorCode((await peer.sent_away()).code) is ErrorCode.ENHANCE_YOUR_CALM


async def test_a_header_list_that_unpacks_beyond_the_limit_ends_the_connection() -> None:
    """One byte of HPACK can stand for four kilobytes."""
    async with serving(NO_REFILL) as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, ECHO, b"x", (b"x-big", b"v" * 2000))
        await peer.answer(1)
        block = peer.encoder.encode([*grpc_headers(ECHO), *[(b"x-big", b"v" * 2000)] * 100])
        assert len(block) < 1000
        peer.send(HEADERS, END_HEADERS, 3, block)
        goaway = await peer.sent_away()
        assert ErrorCode(goaway.code) is ErrorCode.ENHANCE_YOUR_CALM
        assert str(2 * GrpcLimits().max_metadata_bytes) in goaway.reason


@pytest.mark.parametrize("kind", [HEADERS, frames.SETTINGS, frames.GOAWAY, 0x77])
async def test_only_data_may_be_large(kind: int) -> None:
    async with serving(NO_REFILL) as server, await RawPeer.connect(server.port) as peer:
        peer.writer.write(frames.frame_header(kind, END_HEADERS, 1, MAX_FRAME_BYTES) + bytes(1000))
        goaway = await peer.sent_away()
        assert ErrorCode(goaway.code) is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "block",
    [b"\x20" * 60_000, b"\x00\x01a\x00" * 2000, b"\x82" * 60_000, b"\x00\x01a\x00" * 15_000],
    ids=["table updates", "small literals", "indexed", "many literals"],
)
async def test_a_header_block_that_is_long_to_decode_ends_the_connection(block: bytes) -> None:
    async with serving(NO_REFILL) as server, await RawPeer.connect(server.port) as peer:
        await peer.sync()
        peer.send(HEADERS, END_HEADERS, 1, block)
        goaway = await peer.sent_away()
        assert ErrorCode(goaway.code) is ErrorCode.ENHANCE_YOUR_CALM


async def test_many_settings_in_one_frame_cost_one_pass_over_the_streams() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        for number in range(2000):
            peer.call(2 * number + 1, HOLD, b"x")
        await peer.sync()
        left = server.connection.control.glitches.left
        entries = b"".join(b"\0\4" + (n % 7).to_bytes(4, "big") for n in range(5000))
        peer.send(frames.SETTINGS, payload=entries)
        await peer.sync()
        assert (
            left - server.connection.control.glitches.left <= 2 + 2000 // 100
        )  # two frames, and the streams once
        assert {s.send_window for s in server.connection.streams.values()} == {4999 % 7}


async def test_settings_that_move_many_windows_are_charged_for_each() -> None:
    async with serving(NO_REFILL) as server, await RawPeer.connect(server.port) as peer:
        for number in range(1000):
            peer.open(2 * number + 1, CHAT)
        await peer.sync()
        left = server.connection.control.glitches.left
        for number in range(10):
            peer.send(frames.SETTINGS, payload=b"\0\4" + number.to_bytes(4, "big"))
        await peer.sync()
        assert server.connection.control.glitches.left == left - 10 * 11 - 1
        for number in range(300):
            peer.send(frames.SETTINGS, payload=b"\0\4" + number.to_bytes(4, "big"))
        await peer.sent_away()  # 3600 glitches, and at the most 311 without windows


async def test_metadata_over_the_limit_ends_its_call_only() -> None:
    """As gRPC's C core answers it."""
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, ECHO, b"x", (b"x-big", b"v" * 17_000))
        answer = await peer.answer(1)
        assert answer.status == Status.RESOURCE_EXHAUSTED
        assert re.fullmatch(
            rb"received metadata size exceeds hard limit \(17\d\d\d vs. 16384\)",
            answer.blocks[-1][b"grpc-message"],
        )
        peer.call(3, ECHO, b"hello")
        assert (await peer.answer(3)).message == b"hello"


@pytest.mark.slow
async def test_surplus_header_fields_are_paid_for() -> None:
    """A field costs as much as a small frame, and a block has room for hundreds."""
    async with serving(NO_REFILL) as server, await RawPeer.connect(server.port) as peer:
        block = encode_stateless(grpc_headers(ECHO)) + b"\x00\x01a\x00" * 430
        for number in range(400):
            unique = encode_stateless([(b"n", b"%d" % number)])
            peer.send(HEADERS, END_HEADERS, 2 * number + 1, block + unique)
        goaway = await peer.sent_away()
        assert (goaway.code, goaway.reason) == (ErrorCode.ENHANCE_YOUR_CALM, "too many header fields")


async def test_headers_as_calls_have_them_cost_nothing() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        for number in range(50):
            extra = [(b"x-%d" % n, b"%d" % number) for n in range(50)]
            peer.call(2 * number + 1, ECHO, b"x", *extra)
        assert (await peer.answer(99)).message == b"x"
        assert server.connection.control.glitches.left == GrpcLimits().glitch_burst - 1  # its SETTINGS


@cache
def bomb() -> bytes:
    """Return 200 MiB of zeros, packed once for all loops."""
    return gzip.compress(bytes(200 << 20), 9)


@pytest.mark.slow
async def test_a_bomb_is_stopped_at_the_limit_of_messages() -> None:
    packed = bomb()
    limits = GrpcLimits(max_message_bytes=4 << 20)
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, ECHO, (b"grpc-encoding", b"gzip"))
        framed = pack_prefix(1, len(packed)) + packed
        for at in range(0, len(framed), 16384):
            peer.send(DATA, 0, 1, framed[at : at + 16384])
        peer.send(DATA, END_STREAM, 1)
        assert (await peer.answer(1)).status == Status.RESOURCE_EXHAUSTED


async def test_announcing_memory_is_not_getting_it() -> None:
    """A prefix of five bytes may claim two gigabytes; only what comes is held."""
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        for number in range(200):
            peer.open(2 * number + 1, CHAT)
            peer.send(DATA, 0, 2 * number + 1, pack_prefix(0, 2**31 - 1) + b"little")
        peer.call(1001, ECHO, b"alive")
        assert (await peer.answer(1001)).message == b"alive"


async def test_a_client_that_grants_no_window_holds_an_answer_only_so_long() -> None:
    limits = GrpcLimits(write_timeout_s=5)
    settings = {Setting.INITIAL_WINDOW_SIZE: 1000}
    async with serving(limits) as server, await RawPeer.connect(server.port, settings=settings) as peer:
        peer.call(1, ECHO, bytes(50_000))
        peer.open(3, CHAT)
        await peer.sync()
        server.pass_seconds(5)
        peer.grant(1, 1)
        await peer.sync()
        server.pass_seconds(6)
        assert list(server.connection.streams) == [1, 3]
        server.pass_seconds(1)
        assert list(server.connection.streams) == [3]
        answer = await peer.answer(1)
        assert (len(answer.data), answer.reset) == (1001, ErrorCode.CANCEL)
        assert not server.connection.sender.queued


def call_of(stream_id: int, path: str, message: bytes) -> bytes:
    """The frames of a unary call."""
    block = encode_stateless(grpc_headers(path))
    head = frames.frame(HEADERS, END_HEADERS, stream_id, block)
    return head + frames.frame(DATA, END_STREAM, stream_id, frame_message(message))


WIDE_OPEN = (
    PREFACE
    + frames.settings_frame({Setting.INITIAL_WINDOW_SIZE: MAX_WINDOW})
    + frames.window_update(0, MAX_WINDOW - DEFAULT_WINDOW)
)


async def test_a_client_that_takes_no_answers_is_read_no_further_and_then_cut_off() -> None:
    async with serving(GrpcLimits(write_timeout_s=5)) as server, Deaf(server.port) as deaf:
        await deaf.send(WIDE_OPEN + call_of(1, FLOOD, b"30 1000000"))
        await until(lambda: bool(server.listener.connections) and server.connection.sender.paused)
        asked = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                for number in range(1, 100_000):
                    await deaf.send(call_of(2 * number + 1, ECHO, bytes(10_000)))
                    asked += 1
        assert asked < 5000, "our reading stops, and then the client's sending"
        assert len(server.service.messages) < 200
        server.pass_seconds(6)
        assert server.listener.connections == 1
        server.pass_seconds(1)
        await server.empty()


async def test_a_slow_client_is_not_a_deaf_one() -> None:
    async with serving(GrpcLimits(write_timeout_s=2)) as server, Deaf(server.port) as slow:
        await slow.send(WIDE_OPEN + call_of(1, FLOOD, b"10 1000000"))
        await until(lambda: bool(server.listener.connections) and server.connection.sender.paused)
        for _ in range(20):
            got = 0
            while got < 300_000:
                got += len(await slow.read(1 << 20))
                await asyncio.sleep(0)
            server.pass_seconds(2)
            assert server.listener.connections == 1


async def test_a_connection_that_we_ended_does_not_stay_because_its_client_is_deaf() -> None:
    async with serving(GrpcLimits(write_timeout_s=5)) as server, Deaf(server.port) as deaf:
        await deaf.send(WIDE_OPEN + call_of(1, FLOOD, b"30 1000000"))
        await until(lambda: bool(server.listener.connections) and server.connection.sender.paused)
        server.connection.fail(Http2Error(ErrorCode.PROTOCOL_ERROR, "for the test"))
        server.pass_seconds(10)
        await server.empty()


@pytest.mark.parametrize("drips", [0, 3])
async def test_a_connection_that_does_not_begin_is_closed_however_it_drips(drips: int) -> None:
    async with serving(GrpcLimits(preface_timeout_s=3)) as server, Deaf(server.port) as silent:
        await until(lambda: server.listener.connections > 0)
        for second in range(3):
            if second < drips:
                await silent.send(PREFACE[second : second + 1])
                await pause(0.01)
            server.pass_seconds(1)
        assert server.listener.connections == 1
        server.pass_seconds(1)
        await server.empty()


PARTIAL = {
    "a frame header": b"\0\0\x08\x06",
    "a control frame": frames.frame(frames.PING, 0, 0, bytes(8))[:-3],
    "a header block": frames.frame(HEADERS, 0, 3, b"\x83"),
    "a large message on its way to its buffer": frames.frame_header(DATA, 0, 1, 500_000)
    + pack_prefix(0, 1_000_000)
    + bytes(100_000),
}


@pytest.mark.parametrize("what", PARTIAL)
async def test_a_client_that_stops_in_the_middle_of_a_frame_is_closed(what: str) -> None:
    async with serving(GrpcLimits(frame_timeout_s=4)) as server, Deaf(server.port) as client:
        opening = frames.frame(HEADERS, END_HEADERS, 1, encode_stateless(grpc_headers(CHAT)))
        await client.send(WIDE_OPEN + opening)
        await until(lambda: bool(server.listener.connections) and bool(server.connection.streams))
        server.pass_seconds(10)
        assert server.listener.connections == 1, "between frames it may rest"
        await client.send(PARTIAL[what])
        await pause(0.05)
        server.pass_seconds(4)
        assert server.listener.connections == 1
        server.pass_seconds(1)
        await server.empty()
        assert server.service.gone == [1]


@pytest.mark.slow
async def test_a_client_that_leaves_takes_its_memory_with_it() -> None:
    """At once, not when the collector comes by."""
    async with serving() as server:
        gc.collect()
        gc.disable()
        try:
            async with Deaf(server.port) as client:
                opening = frames.frame(HEADERS, END_HEADERS, 1, encode_stateless(grpc_headers(CHAT)))
                await client.send(WIDE_OPEN + opening + PARTIAL["a large message on its way to its buffer"])
                await until(
                    lambda: bool(server.listener.connections) and server.connection.next_buffer() is not None
                )
                landing = server.connection.next_buffer()
                assert landing is not None
                owner = weakref.ref(landing.obj)
                del landing
            await server.empty()
            assert owner() is None
        finally:
            gc.enable()


async def test_deadlines_that_pass_together_are_worked_off_in_several_turns() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        server.listener.turns.share_s = 0  # one in each turn
        for number in range(50):
            peer.open(2 * number + 1, CHAT, (b"grpc-timeout", b"100m"))
        await peer.sync()
        while len(server.connection.streams) == 50:  # noqa: ASYNC110 (the loop's turns are what is waited for)
            await asyncio.sleep(0)
        assert len(server.connection.streams) > 40
        for number in range(50):
            assert (await peer.answer(2 * number + 1)).status == Status.DEADLINE_EXCEEDED
