import asyncio
import mmap
import os
import select
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.waiting import until
from tpx.errors import Overloaded
from tpx.serving.processes.channel import HEAPS, ChannelBroken, Descriptors, FrameChannel, ReceivedFrame
from tpx.serving.processes.ring import (
    COUNTERS_BYTES,
    INLINE_BYTES,
    RELEASED_BYTES,
    RING_BYTES,
    Arrived,
    ReleasedBlocks,
)

MIB = 1 << 20
KIND = 7
INCOMING = 4096
OUTGOING = INCOMING + 4096 + RING_BYTES
"""Positions of the rings from and to the frontend."""


@dataclass
class _End:
    """One end, and what has come to it."""

    channel: FrameChannel
    memory: memoryview
    """The beginning of the shared memory, which this end could write anything to."""
    frames: list[ReceivedFrame] = field(default_factory=list)
    broken: list[Exception] = field(default_factory=list)


def _end(descriptors: Descriptors, *, is_engine: bool, limit_bytes: int = 1 << 40) -> _End:
    own = Descriptors.received(
        [os.dup(fd) for fd in (descriptors.memory, descriptors.wakes_engine, descriptors.wakes_frontend)]
    )
    frames: list[ReceivedFrame] = []
    broken: list[Exception] = []

    def take(channel: FrameChannel, arrived: Iterator[Arrived]) -> None:
        frames.extend(frame for each in arrived for frame in channel.open(each))

    memory = memoryview(mmap.mmap(own.memory, HEAPS))
    channel = FrameChannel(own, take, broken.append, is_engine=is_engine, limit_bytes=limit_bytes)
    return _End(channel, memory, frames, broken)


@asynccontextmanager
async def _ends(limit_bytes: int = 1 << 40) -> AsyncIterator[tuple[_End, _End]]:
    """The frontend's end and the engine's, which sends up to `limit_bytes` that are not read."""
    descriptors = Descriptors.new()
    frontend = _end(descriptors, is_engine=False)
    engine = _end(descriptors, is_engine=True, limit_bytes=limit_bytes)
    descriptors.close()
    yield frontend, engine
    frontend.channel.close()
    engine.channel.close()


@pytest.mark.parametrize("size", [0, 1, 8 << 10, (8 << 10) + 1, 3 * MIB])
def test_a_frame_comes_as_it_was_sent(size: int) -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            data = os.urandom(size)
            for sender, receiver in ((frontend, engine), (engine, frontend)):
                sender.channel.post((KIND, 3, 2**32 - 1, 5, 9), b"meta", [data, b"end"])
                await until(lambda receiver=receiver: bool(receiver.frames))  # type: ignore[misc]
                frame = receiver.frames[0]
                assert (frame.kind, frame.flags, frame.number) == (KIND, 3, 2**32 - 1)
                assert (frame.template, frame.generation, bytes(frame.meta)) == (5, 9, b"meta")
                assert bytes(frame.payload) == data + b"end"

    asyncio.run(run())


def test_more_than_a_ring_of_frames_waits_in_order_and_arrives() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            backlogs: list[bool] = []
            frontend.channel.on_backlog = backlogs.append
            count = 3 * RING_BYTES // 1000
            for number in range(count):
                frontend.channel.send(KIND, number=number, parts=[bytes(1000)])
            assert frontend.channel.backlog
            await until(lambda: len(engine.frames) == count)
            assert [frame.number for frame in engine.frames] == list(range(count))
            assert backlogs == [True, False]

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
                await until(lambda: not frontend.channel.blocks)

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
            await until(lambda: frontend.channel.blocks == 1)
            assert bytes(view) == b"a" * 10

    asyncio.run(run())


def test_a_block_is_released_ahead_of_the_frames_that_wait() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            engine.channel.send(KIND, parts=[bytes(MIB)])
            await until(lambda: bool(frontend.frames))
            for number in range(100):
                frontend.channel.send(KIND, number=number)
            frontend.frames.clear()
            frontend.channel.release_unviewed()
            assert (engine.channel.blocks, engine.frames) == (0, [])
            await until(lambda: len(engine.frames) == 100)

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
                assert engine.channel.blocks == 8
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
                await until(lambda: not engine.channel.blocks)

    asyncio.run(run())


def test_more_blocks_are_released_than_can_be_noted_at_once() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            count = RELEASED_BYTES // 8 + 1
            for _ in range(count):
                engine.channel.send(KIND, parts=[bytes(INLINE_BYTES + 1)])
            await until(lambda: len(frontend.frames) == count)
            frontend.frames.clear()
            await until(lambda: engine.channel.blocks == 0)

    asyncio.run(run())


@pytest.mark.parametrize("position", [12345, 1 << 63])
def test_the_release_of_a_block_that_is_not_used_breaks_the_channel(position: int) -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            assert ReleasedBlocks(frontend.memory, HEAPS - RELEASED_BYTES).add(position)
            engine.channel.send(KIND, parts=[bytes(MIB)])
            assert engine.broken
            assert not frontend.broken

    asyncio.run(run())


@pytest.mark.parametrize(
    "where",
    [slice(INCOMING + COUNTERS_BYTES, None), slice(OUTGOING + 128, OUTGOING + 136)],
    ids=["frames", "position"],
)
def test_nonsense_in_the_memory_breaks_the_channel_and_nothing_else(where: slice) -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            frontend.memory[where] = b"\xff" * len(frontend.memory[where])
            frontend.channel.send(KIND)
            await until(lambda: bool(engine.broken))
            assert not frontend.broken

    asyncio.run(run())


def test_a_large_message_wakes_the_receiver_before_the_turn_of_the_event_loop_ends() -> None:
    async def run() -> None:
        descriptors = Descriptors.new()
        frontend, engine = _end(descriptors, is_engine=False), _end(descriptors, is_engine=True)
        woken = []
        for size in (1000, MIB):
            frontend.channel.send(KIND, parts=[bytes(size)])
            woken.append(bool(select.select([descriptors.wakes_engine], [], [], 0)[0]))
        assert woken == [False, True]
        await until(lambda: len(engine.frames) == 2)
        frontend.channel.close()
        engine.channel.close()
        descriptors.close()

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
            await until(lambda: frontend.channel.blocks == 0)

    asyncio.run(run())


def test_meta_data_that_are_too_large_for_the_ring_come_with_their_payload() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            meta, data = os.urandom(100_001), os.urandom(99_999)
            frontend.channel.send(KIND, meta=meta, parts=[data])
            await until(lambda: bool(engine.frames))
            assert (engine.frames[0].meta, bytes(engine.frames[0].payload)) == (meta, data)

    asyncio.run(run())


def test_memory_that_may_shrink_is_refused() -> None:
    async def run() -> None:
        memory = os.memfd_create("small", os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, 4096)
        descriptors = Descriptors.received([memory, os.eventfd(0), os.eventfd(0)])
        with pytest.raises(ChannelBroken):
            FrameChannel(descriptors, lambda *_: None, lambda _: None, is_engine=True)
        descriptors.close()

    asyncio.run(run())
