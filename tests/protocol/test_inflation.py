"""One budget for everything that is inflated: what waits, what is refused, and what is given back."""

import asyncio
import gc
import gzip
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import until
from tpx.errors import Code, InvalidRequest, Overloaded, TpxError, Unsupported
from tpx.protocol.compression import ENCODINGS, Inflater, deflate, inflate
from tpx.protocol.tensors import Buffer

LIMIT = 1 << 30
KB = 1 << 10


@cache
def zeros(count: int, encoding: str) -> bytes:
    """Return so many zeros, packed once for all loops."""
    return deflate(bytes(count), encoding, level=1)


@asynccontextmanager
async def inflating(max_bytes: int = 64 << 20, wait_s: float = 30) -> AsyncIterator[Inflater]:
    """An inflater whose threads end with the test."""
    inflater = Inflater(max_bytes, wait_s=wait_s)
    try:
        yield inflater
    finally:
        inflater.close()


async def refusal(inflater: Inflater, data: bytes, encoding: str, limit: int = LIMIT) -> TpxError:
    """Why a body is refused."""
    with pytest.raises(TpxError) as caught:
        await inflater.start(data, encoding, limit)
    return caught.value


def outcome(work: Callable[[], Buffer]) -> object:
    """A result as bytes, or the error's type and code."""
    try:
        return bytes(work())
    except TpxError as exc:
        return type(exc), exc.code


@given(
    data=st.binary(max_size=300),
    repeated=st.sampled_from([1, 50, 40_000]),
    encoding=st.sampled_from(ENCODINGS),
    damage=st.sampled_from(["", "cut", "longer", "flipped"]),
    at=st.integers(min_value=0),
)
def test_it_makes_what_inflate_makes(data: bytes, repeated: int, encoding: str, damage: str, at: int) -> None:
    packed = bytearray(deflate(data * repeated, encoding))
    if damage == "cut":
        del packed[at % len(packed) :]
    elif damage == "longer":
        packed += b"x"
    elif damage == "flipped":
        packed[at % len(packed)] ^= 1
    body = bytes(packed)

    async def made() -> Buffer:
        async with inflating() as inflater:
            return await inflater.start(body, encoding, LIMIT)

    expected, got = outcome(lambda: inflate(body, encoding, LIMIT)), outcome(lambda: asyncio.run(made()))
    if isinstance(expected, bytes):
        assert got == expected
    else:  # a size at its end that a gzip stream cannot have is told before it is inflated
        assert isinstance(got, tuple)
        assert got[0] is InvalidRequest


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_result_counts_until_its_last_reader_has_dropped_it(encoding: str) -> None:
    async with inflating() as inflater:
        made = await inflater.start(deflate(bytes(200 * KB), encoding), encoding, LIMIT)
        view = memoryview(made)[7:]
        assert inflater.held_bytes == 200 * KB
        del made
        gc.collect()
        await asyncio.sleep(0)
        assert inflater.held_bytes == 200 * KB
        thread = threading.Thread(target=view.release)
        thread.start()
        thread.join()
        await until(lambda: inflater.held_bytes == 0)


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_what_has_no_room_waits_in_its_turn_until_there_is_some(encoding: str) -> None:
    packed = deflate(bytes(600 * KB), encoding)
    async with inflating(4000 * KB) as inflater:  # a quarter for results of this size
        first = await inflater.start(packed, encoding, LIMIT)
        second = inflater.start(packed, encoding, LIMIT)
        small = inflater.start(deflate(bytes(100 * KB), encoding), encoding, LIMIT)
        await asyncio.wait([second, small], timeout=0.2)
        assert (second.done(), inflater.held_bytes) == (False, 600 * KB)
        assert not small.done() or encoding == "deflate", "it came later"
        del first
        assert len(await second) == 600 * KB
        assert len(await small) == 100 * KB


async def test_who_waits_too_long_is_told_to_come_again_and_leaves_the_way_free() -> None:
    packed = gzip.compress(bytes(600 * KB))
    async with inflating(4000 * KB, wait_s=0.05) as inflater:
        first = await inflater.start(packed, "gzip", LIMIT)
        error = await refusal(inflater, packed, "gzip")
        assert isinstance(error, Overloaded)
        assert "--max-inflated-bytes" in error.message
        assert len(await inflater.start(gzip.compress(bytes(100 * KB)), "gzip", LIMIT)) == 100 * KB
        assert len(first) == 600 * KB


async def test_a_waiter_that_leaves_holds_nothing() -> None:
    packed = gzip.compress(bytes(600 * KB))
    async with inflating(4000 * KB) as inflater:
        first = await inflater.start(packed, "gzip", LIMIT)
        waiting = inflater.start(packed, "gzip", LIMIT)
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        del first
        await until(lambda: inflater.held_bytes == 0)


@pytest.mark.slow
async def test_a_large_result_does_not_hold_up_modest_ones() -> None:
    async with inflating(80 << 20) as inflater:
        large = await inflater.start(zeros(50 << 20, "gzip"), "gzip", LIMIT)
        next_large = inflater.start(zeros(50 << 20, "gzip"), "gzip", LIMIT)
        assert len(await inflater.start(gzip.compress(bytes(1 << 20)), "gzip", LIMIT)) == 1 << 20
        assert not next_large.done()
        del large
        await next_large


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_bomb_is_refused_before_it_takes_memory(encoding: str) -> None:
    bomb = zeros(60 << 20, encoding)
    async with inflating(64 << 20) as inflater:
        for limit, words in (
            (1 << 20, "maximum allowed input size of 1048576 bytes"),
            (LIMIT, "--max-inflated"),
        ):
            error = await refusal(inflater, bomb, encoding, limit)
            assert error.code is Code.RESOURCE_EXHAUSTED
            assert words in error.message
            assert inflater.held_bytes == 0


@pytest.mark.parametrize("lie", [0, 1000, 100 * KB - 1, 100 * KB + 1, 2**31, 2**32 - 1])
async def test_a_gzip_stream_that_lies_about_its_size_is_refused(lie: int) -> None:
    packed = gzip.compress(bytes(100 * KB))[:-4] + lie.to_bytes(4, "little")
    async with inflating() as inflater:
        assert isinstance(await refusal(inflater, packed, "gzip"), InvalidRequest)
        await until(lambda: inflater.held_bytes == 0)


async def test_an_unknown_encoding_and_an_empty_body_are_refused() -> None:
    async with inflating() as inflater:
        assert isinstance(await refusal(inflater, b"x", "br"), Unsupported)
        for encoding in ENCODINGS:
            assert isinstance(await refusal(inflater, b"", encoding), InvalidRequest)


@pytest.mark.slow
async def test_work_for_who_has_left_stops() -> None:
    async with inflating(1 << 30) as inflater:
        work = inflater.start(zeros(500 << 20, "deflate"), "deflate", LIMIT)
        await until(lambda: inflater.held_bytes)
        work.cancel()
        await asyncio.wait([work])
        await until(lambda: inflater.held_bytes == 0)
        assert len(await inflater.start(gzip.compress(bytes(KB)), "gzip", LIMIT)) == KB
