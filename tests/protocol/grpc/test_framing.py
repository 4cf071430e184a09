"""Length-prefixed messages, cut anywhere."""

import gzip
import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpx.errors import Code, InvalidRequest
from tpx.protocol.grpc.framing import MessageReader, Packed, frame_message, pack_prefix, whole_message
from tpx.protocol.tensors import Buffer

messages = st.lists(st.binary(max_size=40), max_size=6)


def read(reader: MessageReader, pieces: list[bytes]) -> list[bytes]:
    return [unpacked(m) for piece in pieces for m in reader.feed(piece, 0, len(piece))]


def unpacked(message: Buffer | Packed | None) -> bytes:
    assert message is not None
    return message.unpack() if isinstance(message, Packed) else bytes(message)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(a % (len(data) + 1) for a in at), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(messages=messages, cuts=st.lists(st.integers(0, 1000), max_size=12), packed=st.booleans())
def test_messages_come_whole_however_they_are_cut(
    messages: list[bytes], cuts: list[int], packed: bool
) -> None:
    framed = b""
    for message in messages:
        data = gzip.compress(message) if packed else message
        framed += pack_prefix(packed, len(data)) + data
    reader = MessageReader(1000, "gzip")
    assert read(reader, cut(framed, cuts)) == messages
    assert reader.between_messages


@pytest.mark.slow
@settings(deadline=None)
@given(messages=messages, cuts=st.lists(st.integers(0, 1000), max_size=12), land=st.integers(1, 50))
def test_reading_straight_into_the_message_changes_nothing(
    messages: list[bytes], cuts: list[int], land: int
) -> None:
    """What comes is alternately handed over and read into the landing."""
    large = [message * 1000 for message in messages]
    stream = b"".join(map(frame_message, large))
    reader = MessageReader(1 << 20, "")
    out: list[bytes] = []
    at = 0
    for stop in [*(len(piece) for piece in cut(stream, cuts)), len(stream)]:
        end = min(len(stream), at + stop)
        while at < end:
            landing = reader.next_buffer(end - at)
            if landing is None:
                piece = stream[at : min(end, at + land)]
                out += [unpacked(m) for m in reader.feed(piece, 0, len(piece))]
                at += len(piece)
                continue
            count = min(len(landing), 1 + land * 999)
            landing[:count] = stream[at : at + count]
            at += count
            message = reader.buffer_received(count)
            if message is not None:
                out.append(unpacked(message))
    assert out == large


def test_the_middle_of_a_message_may_be_absorbed() -> None:
    framed = frame_message(b"0123456789")
    reader = MessageReader(100, "")
    assert not reader.absorb(framed, 0, 4), "not before it has begun"
    assert read(reader, [framed[:7]]) == []
    assert reader.absorb(framed, 7, 12)
    assert not reader.absorb(framed, 12, 15), "not its end"
    assert read(reader, [framed[12:]]) == [b"0123456789"]


def test_a_large_message_lies_where_its_tensor_is_aligned() -> None:
    reader = MessageReader(1 << 20, "", tensor_offset=37)
    framed = frame_message(bytes(100_000))
    assert read(reader, [framed[:100]]) == []
    (message,) = reader.feed(framed, 100, len(framed))
    assert isinstance(message, memoryview)
    address = np.frombuffer(message, np.uint8).__array_interface__["data"][0]
    assert (address + 37) % 64 == 0


def test_small_rests_are_not_worth_a_landing() -> None:
    reader = MessageReader(1 << 20, "")
    assert reader.next_buffer(1 << 20) is None
    read(reader, [pack_prefix(0, 100_000)])
    assert reader.next_buffer(1000) is None
    landing = reader.next_buffer(1 << 20)
    assert landing is not None
    assert len(landing) == 100_000


@pytest.mark.parametrize(
    ("prefix", "encoding", "code"),
    [
        (pack_prefix(2, 0), "", Code.INTERNAL),
        (pack_prefix(255, 0), "gzip", Code.INTERNAL),
        (pack_prefix(1, 0), "", Code.INTERNAL),
        (pack_prefix(0, 101), "", Code.RESOURCE_EXHAUSTED),
        (pack_prefix(1, 101), "gzip", Code.RESOURCE_EXHAUSTED),
        (pack_prefix(0, 2**32 - 1), "", Code.RESOURCE_EXHAUSTED),
    ],
)
def test_a_bad_prefix_is_an_error_before_any_memory_is_taken(
    prefix: bytes, encoding: str, code: Code
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(MessageReader(100, encoding), [prefix])
    assert caught.value.code is code


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_an_inflated_message_is_held_to_the_same_limit(encoding: str, pack: "type[bytes]") -> None:
    packed = pack(bytes(10_000))
    with pytest.raises(InvalidRequest) as caught:
        read(MessageReader(9_999, encoding), [pack_prefix(1, len(packed)) + packed])
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert read(MessageReader(10_000, encoding), [pack_prefix(1, len(packed)) + packed]) == [bytes(10_000)]


def test_the_messages_before_an_error_are_delivered() -> None:
    reader = MessageReader(100, "")
    framed = frame_message(b"good") + pack_prefix(7, 0)
    messages = reader.feed(framed, 0, len(framed))
    assert next(messages) == b"good"
    with pytest.raises(InvalidRequest):
        next(messages)


def test_memory_that_cannot_be_had_is_an_error_of_the_call() -> None:
    reader = MessageReader(1 << 60, "", 0)
    reader._limit = 1 << 62
    with pytest.raises(InvalidRequest, match="no memory") as caught:
        reader._allocate_message(1 << 58)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (frame_message(b""), True),
        (frame_message(b"abc"), True),
        (frame_message(b"abc")[:-1], False),
        (frame_message(b"abc") + b"x", False),
        (pack_prefix(1, 3) + b"abc", False),
        (b"\0\0\0", False),
        (b"", False),
    ],
)
def test_only_a_message_that_is_alone_and_plain_is_taken_as_it_is(data: bytes, whole: bool) -> None:
    assert whole_message(data, 0, len(data)) is whole
    assert whole_message(b"xx" + data + b"yy", 2, 2 + len(data)) is whole


def test_a_long_compressed_message_is_given_as_it_is() -> None:
    long, short = bytes(1 << 20), b"short"
    reader = MessageReader(1 << 20, "gzip")
    framed = b"".join(pack_prefix(1, len(p)) + p for p in (gzip.compress(long), gzip.compress(short)))
    first, second = reader.feed(framed, 0, len(framed))
    assert isinstance(first, Packed)
    assert first.unpack() == long
    assert second == short
