import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tpx.serving.processes.channel import ChannelBroken, Descriptors, FrameChannel, ReceivedFrame
from tpx.serving.processes.ring import RING_BYTES, Arrived

MIB = 1 << 20
KIND = 7


@dataclass
class _End:
    """One end, and what has come to it."""

    channel: FrameChannel
    frames: list[ReceivedFrame] = field(default_factory=list)
    broken: list[Exception] = field(default_factory=list)


def _end(descriptors: Descriptors, *, is_engine: bool) -> _End:
    own = Descriptors.received(
        [os.dup(fd) for fd in (descriptors.memory, descriptors.wakes_engine, descriptors.wakes_frontend)]
    )
    frames: list[ReceivedFrame] = []
    broken: list[Exception] = []

    def take(channel: FrameChannel, arrived: Iterator[Arrived]) -> None:
        frames.extend(frame for each in arrived for frame in channel.open(each))

    return _End(FrameChannel(own, take, broken.append, is_engine=is_engine), frames, broken)


@asynccontextmanager
async def _ends() -> AsyncIterator[tuple[_End, _End]]:
    """The frontend's end and the engine's."""
    descriptors = Descriptors.new()
    frontend, engine = _end(descriptors, is_engine=False), _end(descriptors, is_engine=True)
    descriptors.close()
    yield frontend, engine
    frontend.channel.close()
    engine.channel.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0)


@pytest.mark.parametrize("size", [0, 1, 8 << 10, (8 << 10) + 1, 3 * MIB])
def test_a_frame_comes_as_it_was_sent(size: int) -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            data = os.urandom(size)
            for sender, receiver in ((frontend, engine), (engine, frontend)):
                sender.channel.send(
                    KIND,
                    flags=3,
                    number=2**32 - 1,
                    template=5,
                    generation=9,
                    meta=b"meta",
                    parts=[data, b"end"],
                )
                await _until(lambda receiver=receiver: bool(receiver.frames))  # type: ignore[misc]
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
            assert frontend.channel.backlog > 0
            await _until(lambda: len(engine.frames) == count)
            assert [frame.number for frame in engine.frames] == list(range(count))
            assert backlogs == [True, False]

    asyncio.run(run())


def test_blocks_are_used_again_once_their_views_are_gone() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            for _ in range(100):  # as many as would be 2 GB
                frontend.channel.send(KIND, parts=[bytes(20 * MIB)])
                await _until(lambda: bool(engine.frames))
                engine.frames.clear()
                await _until(lambda: not frontend.channel.blocks)

    asyncio.run(run())


def test_a_block_stays_while_a_part_of_it_is_viewed() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            frontend.channel.send(KIND, parts=[b"a" * MIB])
            await _until(lambda: bool(engine.frames))
            view = memoryview(engine.frames.pop().payload)[100:110]
            frontend.channel.send(KIND, parts=[b"b" * MIB])
            await _until(lambda: bool(engine.frames))
            engine.frames.clear()
            await _until(lambda: frontend.channel.blocks == 1)
            assert bytes(view) == b"a" * 10

    asyncio.run(run())


def test_nonsense_in_the_ring_breaks_the_channel_and_nothing_else() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            frontend.channel.send(0, number=12345)  # gives back a block that nobody has taken
            await _until(lambda: bool(engine.broken))
            assert not frontend.broken

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
                await _until(lambda: len(engine.frames) > 0)
                [frame] = engine.frames
                view[64], view[-1] = 17, 23  # after it was sent
                assert (frame.meta, frame.payload[0], frame.payload[-1]) == (meta, 17, 23)
                assert len(frame.payload) == MIB - 64
                engine.frames.clear()
                del frame
            del block, view
            await _until(lambda: frontend.channel.blocks == 0)

    asyncio.run(run())


def test_meta_data_that_are_too_large_for_the_ring_come_with_their_payload() -> None:
    async def run() -> None:
        async with _ends() as (frontend, engine):
            meta, data = os.urandom(100_001), os.urandom(99_999)
            frontend.channel.send(KIND, meta=meta, parts=[data])
            await _until(lambda: bool(engine.frames))
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
