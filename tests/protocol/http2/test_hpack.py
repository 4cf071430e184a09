"""Header blocks, against the encoder and decoder of the hpack library."""

import struct
from contextlib import suppress
from typing import Any

import pytest
from hpack import Decoder, Encoder, HPACKError
from hypothesis import given
from hypothesis import strategies as st

from tpx.protocol.http2.frames import ErrorCode, Http2Error
from tpx.protocol.http2.hpack import (
    EMPTY_TABLE,
    MAX_HEADER_LIST_BYTES,
    BlockDecoder,
    Header,
    encode_stateless,
)


class Counting:
    """What a connection makes of headers: it counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, headers: list[Header]) -> list[Header]:
        self.asked += 1
        return [(bytes(name), bytes(value)) for name, value in headers]


def decode(decoder: BlockDecoder[list[Header]], block: bytes) -> list[Header]:
    """As a connection does it."""
    known = decoder.get(block)
    return known if known is not None else decoder.add(block)


def numbered(number: int) -> bytes:
    """A block unlike all others."""
    return encode_stateless([(b"x", b"%d" % number)])


def remembered(decoder: BlockDecoder[list[Header]], blocks: list[bytes]) -> int:
    """How many of these blocks are remembered once all have come."""
    for block in blocks:
        decode(decoder, block)
    return sum(decoder.get(block) is not None for block in blocks)


def test_a_block_that_leaves_the_table_alone_is_interpreted_once() -> None:
    interpret = Counting()
    decoder = BlockDecoder(interpret)
    block = encode_stateless([(b":method", b"POST"), (b"x", b"y")])
    assert decode(decoder, block) == decode(decoder, block) == [(b":method", b"POST"), (b"x", b"y")]
    assert interpret.asked == 1


def test_a_block_that_inserts_and_names_nothing_inserted_is_interpreted_once() -> None:
    """HAProxy's blocks are such: with incremental indexing, and without use of it."""
    interpret = Counting()
    decoder = BlockDecoder(interpret)
    plain = encode_stateless([(b"a", b"b")])
    inserting = b"\x40\x01x\x01y"
    decode(decoder, plain)
    for _ in range(300):
        assert decode(decoder, inserting) == [(b"x", b"y")]
    assert interpret.asked == 2
    decode(decoder, plain)
    assert interpret.asked == 2
    assert decode(decoder, b"\xbe\xbf") == [(b"x", b"y"), (b"x", b"y")]
    assert interpret.asked == 3


_NAMES = st.sampled_from([b":path", b"x", b"longer-name", b"content-type"])
_VALUES = st.sampled_from([b"", b"1", b"v" * 200, b"w" * 5000])
_REPEATED = st.one_of(
    st.tuples(_NAMES, _VALUES).map(lambda each: b"\x40" + string(each[0]) + string(each[1])),
    st.tuples(_NAMES, _VALUES).map(lambda each: b"\x00" + string(each[0]) + string(each[1])),
    _VALUES.map(lambda value: b"\x44" + string(value)),
    st.integers(1, 70).map(lambda index: bytes((0x80 | index,))),
    st.integers(1, 62).map(lambda index: bytes((0x40 | index,)) + string(b"named")),
    st.sampled_from([b"\x20", b"\x3f\x45", b"\x3f\xe1\x1f"]),
)


_BLOCKS = st.lists(_REPEATED, min_size=1, max_size=3).map(b"".join)


@given(
    st.lists(_BLOCKS, min_size=2, max_size=5).flatmap(
        lambda pool: st.lists(st.sampled_from(pool), max_size=40)
    )
)
def test_remembered_blocks_decode_as_if_none_were(blocks: list[bytes]) -> None:
    decoder, reference = BlockDecoder(Counting()), Decoder()
    for block in blocks:
        try:
            expected = [(bytes(name), bytes(value)) for name, value in reference.decode(block, raw=True)]
        except HPACKError:
            with pytest.raises(Http2Error):
                decode(decoder, block)
            return
        assert decode(decoder, block) == expected


def string(text: bytes) -> bytes:
    """A literal without Huffman's code (RFC 7541 section 5.2)."""
    if len(text) < 127:
        return bytes((len(text),)) + text
    rest = len(text) - 127
    return bytes((127, rest & 127 | 128, rest >> 7)) + text


def test_a_block_that_refers_to_the_table_means_what_the_table_holds_now() -> None:
    decoder = BlockDecoder(Counting())
    refers = b"\xbe"  # the newest entry
    decode(decoder, b"\x40\x01x\x01y")
    assert decode(decoder, refers) == [(b"x", b"y")]
    assert decode(decoder, refers) == [(b"x", b"y")]
    decode(decoder, b"\x40\x01x\x01z")
    assert decode(decoder, refers) == [(b"x", b"z")]


def test_an_insertion_that_evicts_as_much_as_it_adds_is_noticed() -> None:
    decoder = BlockDecoder(Counting())
    insert = [b"\x40\x01" + name + b"\x7f\xa1\x1e" + bytes(4000) for name in (b"a", b"b")]
    decode(decoder, insert[0])
    refers = b"\xbe"
    assert decode(decoder, refers)[0][0] == b"a"
    decode(decoder, insert[1])
    assert decode(decoder, refers)[0][0] == b"b"


def test_a_resize_forgets_what_was_remembered() -> None:
    decoder = BlockDecoder(Counting())
    decode(decoder, b"\x40\x01x\x01y")
    refers = b"\xbe"
    assert decode(decoder, refers) == [(b"x", b"y")]
    decode(decoder, EMPTY_TABLE + encode_stateless([(b"a", b"b")]))
    with pytest.raises(Http2Error) as caught:
        decode(decoder, refers)
    assert caught.value.error_code is ErrorCode.COMPRESSION_ERROR


def test_a_resize_is_never_remembered() -> None:
    """Taken from memory it would not resize."""
    interpret = Counting()
    decoder = BlockDecoder(interpret)
    block = EMPTY_TABLE + encode_stateless([(b"a", b"b")])
    decode(decoder, block)
    decode(decoder, b"\x3f\xe1\x1f" + b"\x40\x01x\x01y")
    decode(decoder, block)
    with pytest.raises(Http2Error):
        decode(decoder, b"\xbe")


def test_the_memory_of_blocks_is_bounded() -> None:
    decoder = BlockDecoder(Counting())
    assert 0 < remembered(decoder, [numbered(number) for number in range(10_000)]) <= 256
    large = encode_stateless([(b"x", b"v" * 5000)])
    assert remembered(decoder, [large]) == 0


def test_small_blocks_that_stand_for_large_lists_are_not_remembered() -> None:
    """An index of one byte may name an entry of four kilobytes."""
    decoder = BlockDecoder(Counting())
    decode(decoder, b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000)
    assert remembered(decoder, [b"\xbe" * 2 + numbered(number) for number in range(200)]) == 0
    assert 0 < remembered(decoder, [b"\x82" * 70 + numbered(number) for number in range(200)]) < 40


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\x80", ErrorCode.COMPRESSION_ERROR),
        (b"\xbe", ErrorCode.COMPRESSION_ERROR),
        (b"\x00\x05abc", ErrorCode.COMPRESSION_ERROR),
        (b"\x00\x81\xff\x00", ErrorCode.COMPRESSION_ERROR),
        (b"\x82\x20", ErrorCode.COMPRESSION_ERROR),
        (b"\x3f\xff\x1f", ErrorCode.COMPRESSION_ERROR),
        (b"\xff" + b"\xff" * 20, ErrorCode.COMPRESSION_ERROR),
        (bytes(MAX_HEADER_LIST_BYTES + 1), ErrorCode.ENHANCE_YOUR_CALM),
        (b"\x00\x01a\x7f\x81\xff\x03" + bytes(65_664), ErrorCode.ENHANCE_YOUR_CALM),
        (b"\x82" * 2000, ErrorCode.ENHANCE_YOUR_CALM),
        (b"\x20" * 16, ErrorCode.ENHANCE_YOUR_CALM),
        (b"\x3f\x81\x00\x21" * 8, ErrorCode.ENHANCE_YOUR_CALM),
    ],
    ids=[
        "index 0",
        "index beyond the table",
        "cut name",
        "bad Huffman code",
        "resize behind a header",
        "resize above the limit",
        "endless integer",
        "long block",
        "long value",
        "list that unpacks to more",
        "many table updates",
        "many kinds of table updates",
    ],
)
def test_a_bad_block_is_an_error(block: bytes, code: ErrorCode) -> None:
    with pytest.raises(Http2Error) as caught:
        BlockDecoder(Counting()).add(block)
    assert caught.value.error_code is code


names = st.binary(min_size=1, max_size=300)
headers = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([b":path", b":method", b"te", b"x-a", b"x-b", b"grpc-timeout"]), names),
        st.one_of(st.sampled_from([b"", b"POST", b"1", b"2", b"trailers"]), st.binary(max_size=400)),
    ),
    max_size=8,
)
steps = st.lists(
    st.one_of(headers, st.integers(0, 4096)),
    min_size=1,
    max_size=30,
)


@pytest.mark.slow
@given(steps=steps, sensitive=st.booleans(), huffman=st.booleans())
def test_blocks_of_the_hpack_encoder_mean_what_it_encoded(
    steps: list[Any], sensitive: bool, huffman: bool
) -> None:
    encoder = Encoder()
    decoder = BlockDecoder(Counting())
    for step in steps:
        if isinstance(step, int):
            if step != encoder.header_table_size:  # or it forgets to announce the change before this one
                encoder.header_table_size = step
            continue
        pairs = [(n, v, sensitive and i % 2 == 0) for i, (n, v) in enumerate(step)]
        block = encoder.encode(pairs, huffman=huffman)
        assert decode(decoder, block) == step


@given(blocks=st.lists(st.binary(max_size=60), max_size=5))
def test_arbitrary_bytes_are_headers_or_an_error_of_the_connection(blocks: list[bytes]) -> None:
    decoder = BlockDecoder(Counting())
    with suppress(Http2Error):
        for block in blocks:
            decode(decoder, block)


@pytest.mark.slow
@given(headers=st.lists(headers, max_size=5))
def test_our_stateless_blocks_mean_what_we_encoded_and_leave_no_trace(headers: list[list[Header]]) -> None:
    decoder = Decoder()
    for pairs in headers:
        assert [tuple(h) for h in decoder.decode(encode_stateless(pairs), raw=True)] == pairs
    assert len(decoder.header_table.dynamic_entries) == 0


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 16_383, 16_511, 40_000])
def test_lengths_of_every_form_are_encoded(size: int) -> None:
    pairs = [(b"n" * max(1, size % 500), b"v" * size), (b"content-type", b"t" * size)]
    decoded = Decoder(1 << 20).decode(encode_stateless(pairs), raw=True)
    assert [tuple(h) for h in decoded] == pairs


def test_stateless_blocks_use_the_static_table() -> None:
    block = encode_stateless(
        [(b":method", b"POST"), (b":scheme", b"http"), (b":scheme", b"https"), (b":status", b"200")]
    )
    assert block == struct.pack("4B", 0x83, 0x86, 0x87, 0x88)
