import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.waiting import until
from tpx.errors import Overloaded
from tpx.serving.processes.channel import INLINE_BYTES, Arrived, FrameChannel, PlainHead, ReceivedFrame
from tpx.serving.transport.memory import reserve_memory

MIB = 1 << 20
KIND = 7


@dataclass
class _End:
    """One end, and what has come to it."""

    channel: FrameChannel
    socket: socket.socket
    frames: list[ReceivedFrame] = field(default_factory=list)
    together: list[int] = field(default_factory=list)
    """Numbers of frames that came together."""
    ends: list[Exception | None] = field(default_factory=list)


@asynccontextmanager
async def _ends(limit_bytes: int = 1 << 40) -> AsyncIterator[tuple[_End, _End]]:
    """The frontend's end and the engine's, which sends up to `limit_bytes` that are not read."""
    sockets = socket.socketpair()
    (to_engine, own), (to_frontend, theirs) = reserve_memory(), reserve_memory()
    os.close(to_engine)
    os.close(to_frontend)
    ends: list[_End] = []
    for sock, memory in zip(sockets, ((own, theirs), (theirs, own)), strict=True):
        frames: list[ReceivedFrame] = []
        together: list[int] = []
        ended: list[Exception | None] = []

        def take(
            channel: FrameChannel,
            arrived: Iterator[Arrived],
            frames: list[ReceivedFrame] = frames,
            together: list[int] = together,
        ) -> None:
            for each in arrived:
                together.append(len(each[1]))
                frames.extend(channel.open(each))

        eager = not ends
        limit = 1 << 40 if eager else limit_bytes
        channel = FrameChannel(sock, memory, take, ended.append, eager=eager, limit_bytes=limit)
        ends.append(_End(channel, sock, frames, together, ended))
    frontend, engine = ends
    yield frontend, engine
    frontend.channel.close()
    engine.channel.close()


@pytest.mark.parametrize("size", [0, 1, 8 << 10, (8 << 10) + 1, 3 * MIB])
@pytest.mark.parametrize("meta", [b"meta", os.urandom(300_001)])
def test_a_frame_comes_as_it_was_sent(size: int, meta: bytes) -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            data = os.urandom(size)
            for sender, receiver in ((frontend, engine), (engine, frontend)):
                sender.channel.post((KIND, 127, 2**32 - 1, 5, 9), meta, [data, b"end"])
                await until(lambda receiver=receiver: bool(receiver.frames))  # type: ignore[misc]
                frame = receiver.frames[0]
                assert (frame.kind, frame.flags, frame.number) == (KIND, 127, 2**32 - 1)
                assert (frame.template, frame.generation, frame.meta) == (5, 9, meta)
                assert bytes(frame.payload) == data + b"end"

    asyncio.run(run())


def test_large_metadata_counts_as_what_the_peer_holds() -> None:
    async def run() -> None:
        async with _ends(limit_bytes=MIB) as (_, engine):
            engine.channel.send(KIND, meta=bytes(600_000))
            with pytest.raises(Overloaded, match="of at most 1048576"):
                engine.channel.send(KIND, meta=bytes(600_000))
            assert engine.channel.used_bytes >= 600_000

    asyncio.run(run())


def test_frames_that_differ_only_in_their_number_are_read_together() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            plain, other = PlainHead(KIND, 0, 1, 2, 5), PlainHead(KIND, 0, 2, 2, 5)
            for number in range(300):
                frontend.channel.post_plain(plain, number, b"%5d" % number)
            frontend.channel.post_plain(other, 300, b"  300")
            frontend.channel.send(KIND, number=301, parts=[b"  301"])
            await until(lambda: len(engine.frames) == 302)
            assert [frame.number for frame in engine.frames] == list(range(302))
            assert [int(bytes(frame.payload)) for frame in engine.frames] == list(range(302))
            assert [frame.template for frame in engine.frames[299:]] == [1, 2, 0]
            assert engine.together[0] > 1
            assert engine.together[-2:] == [1, 1]

    asyncio.run(run())


def test_frames_that_are_left_come_again_in_another_turn() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            numbers: list[int] = []

            def take_two(channel: FrameChannel, arrived: Iterator[Arrived]) -> None:
                each = next(arrived)
                numbers.extend(each[1][:2])
                channel.unread(each, max(0, len(each[1]) - 2))

            engine.channel._on_frames = take_two
            plain = PlainHead(KIND, 0, 1, 2, 5)
            for number in range(11):
                frontend.channel.post_plain(plain, number, b"abcde")
            await until(lambda: len(numbers) == 11)
            assert numbers == list(range(11))

    asyncio.run(run())


def test_frames_that_the_socket_does_not_take_wait_in_order_and_arrive() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            backlogs: list[bool] = []
            frontend.channel.on_backlog = backlogs.append
            for number in range(3000):
                frontend.channel.send(KIND, number=number, parts=[bytes(1000)])
            frontend.channel.publish()
            assert frontend.channel.backlog
            await until(lambda: len(engine.frames) == 3000)
            assert [frame.number for frame in engine.frames] == list(range(3000))
            await until(lambda: backlogs == [True, False])

    asyncio.run(run())


@pytest.mark.parametrize("thread", [False, True])
def test_blocks_are_used_again_once_their_views_are_gone(thread: bool) -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            for _ in range(50):  # as many as would be 1 GB
                frontend.channel.send(KIND, parts=[bytes(20 * MIB)])
                await until(lambda: bool(engine.frames))
                if thread:
                    await asyncio.to_thread(engine.frames.clear)
                else:
                    engine.frames.clear()
                assert not frontend.channel.used_bytes

    asyncio.run(run())


def test_a_block_stays_while_a_part_of_it_is_viewed() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            frontend.channel.send(KIND, parts=[b"a" * MIB])
            await until(lambda: bool(engine.frames))
            view = memoryview(engine.frames.pop().payload)[100:110]
            frontend.channel.send(KIND, parts=[b"b" * MIB])
            await until(lambda: bool(engine.frames))
            engine.frames.clear()
            assert frontend.channel.used_bytes == MIB
            assert bytes(view) == b"a" * 10

    asyncio.run(run())


def test_a_peer_that_does_not_read_is_sent_up_to_the_limit() -> None:
    async def run() -> None:
        async with _ends(limit_bytes=8 * MIB) as (frontend, engine):
            backlogs: list[bool] = []
            engine.channel.on_backlog = backlogs.append
            for turn in range(1, 3):
                for _ in range(8):
                    engine.channel.send(KIND, parts=[bytes(MIB)])
                with pytest.raises(Overloaded, match="holds 8388608 bytes of answers"):
                    engine.channel.send(KIND, parts=[bytes(MIB)])
                engine.channel.send(KIND, parts=[bytes(INLINE_BYTES)])
                assert engine.channel.used_bytes == 8 * MIB
                await until(lambda: len(frontend.frames) == 9)
                assert backlogs == [True, False] * (turn - 1) + [True]
                frontend.frames.clear()  # the engine waits for that
                await until(lambda turn=turn: backlogs == [True, False] * turn)  # type: ignore[misc]

    asyncio.run(run())


def test_a_message_beyond_the_limit_is_sent_if_the_peer_holds_nothing() -> None:
    async def run() -> None:
        async with _ends(limit_bytes=MIB) as (frontend, engine):
            for _ in range(2):
                engine.channel.send(KIND, parts=[bytes(3 * MIB)])
                with pytest.raises(Overloaded):
                    engine.channel.send(KIND, parts=[bytes(3 * MIB)])
                await until(lambda: bool(frontend.frames))
                frontend.frames.clear()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("nonsense", "is_error"),
    [
        (bytes([27, 0, 0, 0, KIND]) + b"\xff" * 27, True),
        (bytes([1, 0, 0, 0, KIND]) + b"\xff", True),
        (bytes([19 + 16, 0, 0, 0, KIND, 128]) + bytes(18) + b"\xff" * 16, True),
        (b"\xff" * 100, False),
        (b"", False),
    ],
    ids=["sizes", "head", "block", "length", "end"],
)
def test_nonsense_ends_the_channel_and_nothing_else(nonsense: bytes, is_error: bool) -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            frontend.socket.send(nonsense)
            if not nonsense:
                frontend.channel.close()
            await until(lambda: bool(engine.ends))
            assert [error is not None for error in engine.ends] == [is_error]
            assert engine.channel.closed
            engine.channel.send(KIND)
            assert not any(frontend.ends)

    asyncio.run(run())


def test_a_large_message_is_sent_before_the_turn_of_the_event_loop_ends() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            woken = []
            for size in (1000, MIB):
                frontend.channel.send(KIND, parts=[bytes(size)])
                woken.append(bool(select.select([engine.socket], [], [], 0)[0]))
            assert woken == [False, True]
            await until(lambda: len(engine.frames) == 2)

    asyncio.run(run())


def test_a_message_in_allocated_memory_is_sent_without_a_copy() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            block = frontend.channel.allocate(MIB)
            assert block is not None
            view = block.data
            for again in range(2):
                meta = b"m" * 3 * again
                frontend.channel.send(KIND, meta=meta, parts=[view[64:500_000], view[500_000:]])
                await until(lambda: len(engine.frames) > 0)
                [frame] = engine.frames
                view[64], view[-1] = 17, 23  # after it was sent
                assert (frame.meta, frame.payload[0], frame.payload[-1]) == (meta, 17, 23)
                assert len(frame.payload) == MIB - 64
                engine.frames.clear()
                del frame
            del block, view
            await until(lambda: not frontend.channel.used_bytes)

    asyncio.run(run())
