"""Long compressed messages: a thread inflates them, and meanwhile the event loop serves everybody else."""

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.protocol.grpc.service import CHAT, ECHO, HOLD, WireServer, serving
from tests.protocol.http2.raw import RawPeer
from tpx.protocol.compression import Inflater
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2.frames import DATA, END_STREAM, Setting
from tpx.protocol.tensors import Buffer

LONG = bytes(1 << 20)
GZIP = (b"grpc-encoding", b"gzip")


def packed(message: bytes) -> bytes:
    data = gzip.compress(message)
    return pack_prefix(1, len(data)) + data


@asynccontextmanager
async def talking(inflater: Inflater | None = None) -> AsyncIterator[tuple[WireServer, RawPeer]]:
    settings = {Setting.INITIAL_WINDOW_SIZE: 8 << 20}
    async with (
        serving(inflater=inflater) as server,
        await RawPeer.connect(server.port, settings=settings) as peer,
    ):
        await peer.sync()
        peer.grant(0, 64 << 20)
        yield server, peer


async def without_room() -> tuple[Inflater, list[Buffer]]:
    """An inflater that has no room for LONG while the list holds what takes it."""
    inflater = Inflater(4 * len(LONG))  # a quarter is for messages of this size
    return inflater, [await inflater.start(gzip.compress(LONG), "gzip", len(LONG))]


async def test_a_message_that_takes_long_to_inflate_holds_up_nobody() -> None:
    inflater, taken = await without_room()
    async with talking(inflater) as (server, peer):
        peer.open(1, ECHO, GZIP)
        peer.send(DATA, END_STREAM, 1, packed(LONG))
        peer.call(3, ECHO, b"another one")
        assert (await peer.answer(3)).message == b"another one"
        peer.open(5, ECHO, GZIP)
        peer.send(DATA, END_STREAM, 5, packed(b"a short one"))
        assert (await peer.answer(5)).message == b"a short one"
        assert server.service.messages == [b"another one", b"a short one"]
        taken.clear()
        assert (await peer.answer(1)).message == LONG
        assert server.connection.streams == {}


@pytest.mark.parametrize("pieces", [1, 7])
async def test_messages_of_a_stream_keep_their_order_whatever_is_inflated(pieces: int) -> None:
    messages = [b"first", LONG, b"", LONG[:200_000], b"last"]
    stream = packed(messages[0]) + packed(LONG) + frame_message(b"") + packed(messages[3]) + packed(b"last")
    size = -(-len(stream) // pieces)
    async with talking() as (server, peer):
        peer.open(1, CHAT, GZIP)
        for at in range(0, len(stream), size):
            peer.send(DATA, END_STREAM if at + size >= len(stream) else 0, 1, stream[at : at + size])
            await peer.sync()
        answer = await peer.answer(1)
        assert answer.data == b"".join(map(frame_message, messages))
        assert answer.status == Status.OK
        assert server.service.half_closed == [1]


async def test_what_was_reset_while_it_waited_is_never_seen() -> None:
    inflater, taken = await without_room()
    async with talking(inflater) as (server, peer):
        for stream_id in (1, 3):
            peer.open(stream_id, HOLD if stream_id == 1 else CHAT, GZIP)
            peer.send(DATA, END_STREAM, stream_id, packed(LONG))
            peer.reset(stream_id)
        peer.call(5, ECHO, b"alive")
        await peer.answer(5)
        taken.clear()
        peer.open(7, ECHO, GZIP)
        peer.send(DATA, END_STREAM, 7, packed(LONG))
        await peer.answer(7)
        assert server.service.messages == [b"alive", LONG]
        assert server.connection.streams == {}


async def test_a_long_message_that_cannot_be_inflated_ends_its_call_only() -> None:
    broken = bytearray(packed(LONG))
    broken[-6] ^= 0xFF
    async with talking() as (server, peer):
        peer.open(1, ECHO, GZIP)
        peer.send(DATA, END_STREAM, 1, bytes(broken))
        assert (await peer.answer(1)).status == Status.INVALID_ARGUMENT
        peer.call(3, ECHO, b"alive")
        assert (await peer.answer(3)).message == b"alive"
        assert server.connection.streams == {}


async def test_a_second_message_behind_a_long_one_is_still_one_too_many() -> None:
    async with talking() as (server, peer):
        peer.open(1, ECHO, GZIP)
        peer.send(DATA, END_STREAM, 1, packed(LONG) + packed(b"more"))
        assert (await peer.answer(1)).status == Status.INTERNAL
        assert server.service.messages == []
