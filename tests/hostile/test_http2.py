"""Attacks on HTTP/2 against a live server: each is cut short with a reason, holds little memory, and hurts
nobody else."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.hostile.conftest import MIB
from tests.hostile.siege import SERVICE, Siege
from tests.protocol.http2.raw import RawPeer, grpc_headers
from tpx.protocol import messages
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.connection import CONNECTION_WINDOW
from tpx.protocol.http2.frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    ErrorCode,
    Setting,
)
from tpx.protocol.http2.hpack import encode_stateless

pytestmark = [pytest.mark.e2e]

INFER = SERVICE + "ModelInfer"
STREAM = SERVICE + "ModelStreamInfer"
METADATA = SERVICE + "ServerMetadata"


def inference(model: str = "patient", values: int = 2) -> bytes:
    """A ModelInferRequest of one row."""
    message = messages.ModelInferRequest(model_name=model)
    message.inputs.add(name="x", datatype="FP32", shape=[1, values])
    message.raw_input_contents.append(bytes(4 * values))
    data: bytes = message.SerializeToString()
    return data


@asynccontextmanager
async def attack(siege: Siege, **options: Any) -> AsyncIterator[RawPeer]:
    """A connection to attack on; then the server must have held little for it, and serve others."""
    before = siege.forget_peak()
    async with await RawPeer.connect(siege.grpc, **options) as peer:
        yield peer
        await asyncio.to_thread(siege.alive)  # while the attacker is still there
    assert siege.peak() - before < 64 * MIB


async def test_rapid_reset_is_cut_short(siege: Siege) -> None:
    """CVE-2023-44487."""
    message = inference()
    async with attack(siege) as peer:
        for number in range(4000):
            peer.call(2 * number + 1, INFER, message)
            peer.reset(2 * number + 1)
        goaway = await peer.sent_away()
        assert ErrorCode(goaway.code) is ErrorCode.ENHANCE_YOUR_CALM
        assert goaway.reason == "too many stream resets"


async def test_rapid_reset_that_makes_us_reset_is_cut_short(siege: Siege) -> None:
    """The same, but the server is brought to reset the streams by frames that break their rules."""
    async with attack(siege) as peer:
        with suppress(ConnectionError):
            for number in range(4000):
                peer.call(2 * number + 1, INFER, inference())
                peer.grant(2 * number + 1, 0)
                if number % 100 == 0:
                    await peer.writer.drain()
        goaway = await peer.sent_away()
        assert ErrorCode(goaway.code) is ErrorCode.ENHANCE_YOUR_CALM


FLOODS = {
    "SETTINGS": (frames.SETTINGS, 0, 0, b""),
    "acknowledged SETTINGS": (frames.SETTINGS, frames.ACK, 0, b""),
    "PING": (frames.PING, 0, 0, bytes(8)),
    "acknowledged PING": (frames.PING, frames.ACK, 0, bytes(8)),
    "empty DATA": (DATA, 0, 1, b""),
    "padding without DATA": (DATA, frames.PADDED, 1, b"\x00"),
    "PRIORITY": (frames.PRIORITY, 0, 3, bytes(5)),
    "unknown frames": (0xEE, 0, 0, b"?"),
    "RST_STREAM": (frames.RST_STREAM, 0, 1, bytes(4)),
}


@pytest.mark.parametrize("what", FLOODS)
async def test_a_flood_is_cut_short(siege: Siege, what: str) -> None:
    async with attack(siege) as peer:
        peer.open(1, STREAM)
        flood = frames.frame(*FLOODS[what]) * 1000
        with suppress(ConnectionError):
            for _ in range(12):
                peer.writer.write(flood)
                await peer.writer.drain()
        goaway = await peer.sent_away()
        assert ErrorCode(goaway.code) in (ErrorCode.ENHANCE_YOUR_CALM, ErrorCode.PROTOCOL_ERROR)
        assert goaway.reason


async def test_a_flood_of_window_updates_holds_up_nobody(siege: Siege) -> None:
    """They are what a client that reads much sends, too: they are not counted, only cheap."""
    async with attack(siege) as peer:
        peer.open(1, STREAM)
        for _ in range(12):
            peer.writer.write(frames.window_update(1, 1) * 1000)
            await peer.writer.drain()
        await peer.sync()


async def test_answers_that_nobody_lets_through_are_held_for_little_memory(siege: Siege) -> None:
    """A window of nothing, and many answers that wait for it."""
    async with attack(siege, settings={Setting.INITIAL_WINDOW_SIZE: 0}) as peer:
        for number in range(2000):
            peer.call(2 * number + 1, METADATA)
        await peer.sync()
        assert not any(answer.ended for answer in peer.answers.values())
        peer.send(frames.SETTINGS, 0, 0, Setting.INITIAL_WINDOW_SIZE.to_bytes(2, "big") + b"\0\1\0\0")
        peer.grant(0, 1 << 24)
        for number in range(2000):
            assert (await peer.answer(2 * number + 1)).status == Status.OK


async def test_windows_of_single_bytes_cost_a_connection_nothing_but_time(siege: Siege) -> None:
    async with attack(siege, settings={Setting.INITIAL_WINDOW_SIZE: 1}) as peer:
        for number in range(100):
            peer.call(2 * number + 1, METADATA)
        for _ in range(50):
            for number in range(100):
                peer.grant(2 * number + 1, 1)
        await peer.sync()
        while len(peer.answers) < 100:  # an engine in a process of its own answers a few at a time
            await peer.sync()
        assert all(len(peer.answers[2 * n + 1].data) <= 51 for n in range(100))


BOMBS = {
    # an entry of 4000 bytes that every further byte refers to
    "one large entry": (b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000, b"\xbe", 16000),
    # small entries cost most where each of them is an object
    "many small entries": (b"\x40\x01a\x00", b"\xbe", 16000),
    "cookies": (b"\x40\x06cookie\x01a", b"\xbe", 16000),
    "numbers without end": (b"", b"\x7f" + b"\xff" * 8000, 1),
    "strings of unusual length": (b"", b"\x00\x7f\xff\xff\xff\xff\x07a", 1),
    "a table of gigabytes": (b"", b"\x3f\xe1\xff\xff\xff\x07", 1),
}


@pytest.mark.parametrize("what", BOMBS)
async def test_a_bomb_of_headers_is_not_unpacked(siege: Siege, what: str) -> None:
    first, again, count = BOMBS[what]
    before = siege.forget_peak()
    async with attack(siege) as peer:
        peer.send(HEADERS, END_HEADERS, 1, first + again * count)
        goaway = await peer.sent_away()
        assert ErrorCode(goaway.code) in (ErrorCode.ENHANCE_YOUR_CALM, ErrorCode.COMPRESSION_ERROR)
    assert siege.peak() - before < 16 * MIB


async def test_a_bomb_of_headers_again_and_again_holds_nothing(siege: Siege) -> None:
    """Each block stays within its limit, and none of them is kept for long."""
    async with attack(siege) as peer:
        entry = encode_stateless(grpc_headers(METADATA))
        for number in range(1000):
            headers = entry + b"\x00\x01a\x0a" + b"%010d" % number + b"\x00\x01b\x7f\xd1\x0e" + b"y" * 2000
            peer.send(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, headers)
        assert (await peer.answer(1999)).ended


async def test_a_peer_that_ends_its_half_takes_its_calls_along(siege: Siege) -> None:
    async with attack(siege) as peer:
        for number in range(100):
            peer.call(2 * number + 1, INFER, inference())
        peer.writer.write_eof()
        assert await peer.closed()


async def test_streams_whose_client_never_ends_its_half_are_answered(siege: Siege) -> None:
    """HEADERS and a message, but no END_STREAM: nothing is computed before it."""
    async with attack(siege) as peer:
        for number in range(500):
            peer.open(2 * number + 1, INFER)
            peer.send_message(2 * number + 1, inference())
        await peer.sync()
        assert peer.answers == {}
        for number in range(500):
            peer.send(DATA, END_STREAM, 2 * number + 1)
        assert (await peer.answer(999)).status == Status.OK


async def test_goaway_of_a_client_refuses_its_own_later_calls_only(siege: Siege) -> None:
    async with attack(siege) as peer:
        peer.call(1, INFER, inference())
        peer.writer.write(frames.goaway(0, ErrorCode.NO_ERROR))
        peer.call(3, INFER, inference())
        assert (await peer.answer(3)).reset == ErrorCode.REFUSED_STREAM
        assert (await peer.answer(1)).status == Status.OK
        assert await peer.closed()


@pytest.mark.parametrize("code", [ErrorCode.NO_ERROR, ErrorCode.INTERNAL_ERROR])
async def test_goaway_in_the_middle_of_everything_ends_well(siege: Siege, code: ErrorCode) -> None:
    async with attack(siege) as peer:
        peer.open(1, STREAM)
        peer.send_message(1, inference("double"))
        peer.writer.write(frames.goaway(1, code) * 3)
        peer.send(DATA, 0, 1, frame_message(inference("double"))[:7])
        peer.reset(1)
        peer.send(DATA, END_STREAM, 1, b"late")
        assert await peer.closed()


async def test_c2_data_that_is_not_compressed_as_announced_is_refused(siege: Siege) -> None:
    async with attack(siege) as peer:
        broken = {1: b"no gzip at all", 3: gzip.compress(inference())[:-3], 5: gzip.compress(b"") + b"more"}
        for stream_id, data in broken.items():
            peer.open(stream_id, INFER, (b"grpc-encoding", b"gzip"))
            peer.send(DATA, END_STREAM, stream_id, pack_prefix(1, len(data)) + data)
            assert (await peer.answer(stream_id)).status == Status.INVALID_ARGUMENT


async def test_c4_an_unknown_compression_is_refused_with_those_that_are_known(siege: Siege) -> None:
    async with attack(siege) as peer:
        peer.open(1, INFER, (b"grpc-encoding", b"br"), end_stream=True)
        answer = await peer.answer(1)
        assert answer.status == Status.UNIMPLEMENTED
        assert answer.blocks[-1][b"grpc-accept-encoding"] == b"identity,gzip,deflate"


async def test_f3_a_message_that_inflates_to_gigabytes_takes_no_memory(siege: Siege) -> None:
    packed = _zeros_compressed(2 << 30)
    assert len(packed) < 3 * MIB
    async with attack(siege) as peer:
        peer.open(1, INFER, (b"grpc-encoding", b"gzip"))
        framed = pack_prefix(1, len(packed)) + packed
        for at in range(0, len(framed), DEFAULT_FRAME_BYTES):
            last = at + DEFAULT_FRAME_BYTES >= len(framed)
            peer.send(DATA, END_STREAM if last else 0, 1, framed[at : at + DEFAULT_FRAME_BYTES])
        assert len(packed) < CONNECTION_WINDOW
        assert (await peer.answer(1)).status == Status.RESOURCE_EXHAUSTED


def _zeros_compressed(size: int) -> bytes:
    """Zeros in gzip, up to where the checksum would be: a block that stands alone, again and again."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = packer.compress(b"0") + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(16 * MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + block * (size // (16 * MIB))
