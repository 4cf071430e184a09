"""Chunked bodies, cut anywhere, and what is no chunked body."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpx.protocol.http1.chunked import MAX_CHUNKS, ChunkedDecoder
from tpx.protocol.http1.head import HttpError

extensions = st.sampled_from([b"", b";a", b";a=b", b' ;a="b;c"', b"\t;x"])
chunks = st.lists(st.tuples(st.binary(min_size=1, max_size=40), extensions, st.booleans()), max_size=6)
trailers = st.lists(st.sampled_from([b"X: y", b"Y:", b"Z: a, b"]), max_size=3)


def encode(parts: list[tuple[bytes, bytes, bool]], trailing: list[bytes]) -> bytes:
    out = b""
    for data, extension, upper in parts:
        size = b"%X" % len(data) if upper else b"%x" % len(data)
        out += size + extension + b"\r\n" + data + b"\r\n"
    return out + b"0\r\n" + b"".join(line + b"\r\n" for line in trailing) + b"\r\n"


def feed(decoder: ChunkedDecoder, pieces: list[bytes]) -> bytes | None:
    """What follows the body, once it is complete."""
    for number, piece in enumerate(pieces):
        rest = decoder.feed(piece)
        if rest is not None:
            return bytes(rest) + b"".join(pieces[number + 1 :])
    return None


@given(
    parts=chunks,
    trailing=trailers,
    cuts=st.lists(st.integers(0, 600), max_size=15),
    behind=st.binary(max_size=9),
)
def test_a_body_comes_whole_however_it_is_cut(
    parts: list[tuple[bytes, bytes, bool]], trailing: list[bytes], cuts: list[int], behind: bytes
) -> None:
    stream = encode(parts, trailing) + behind
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    decoder = ChunkedDecoder(1000)
    assert feed(decoder, [stream[a:b] for a, b in pairwise(edges)]) == behind
    assert bytes(decoder.body()) == b"".join(data for data, _, _ in parts)


def test_a_body_comes_whole_byte_by_byte() -> None:
    stream = encode([(b"abc", b";x=y", False), (b"z" * 300, b"", True)], [b"A: b"]) + b"next"
    decoder = ChunkedDecoder(1000)
    assert feed(decoder, [bytes((byte,)) for byte in stream]) == b"next"
    assert bytes(decoder.body()) == b"abc" + b"z" * 300


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_arbitrary_bytes_are_a_body_or_an_error(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    whole, pieces = ChunkedDecoder(100), ChunkedDecoder(100)
    try:
        expected: object = feed(whole, [stream])
    except HttpError as error:
        expected = error.status
    try:
        got: object = feed(pieces, [stream[a:b] for a, b in pairwise(edges)])
    except HttpError as error:
        got = error.status
    assert got == expected or expected is None, (
        "where the cuts are makes no difference, but for when it is seen"
    )


BAD = {
    "no size": b"\r\nabc\r\n",
    "a letter": b"g\r\nabc\r\n",
    "a prefix": b"0x3\r\nabc\r\n",
    "a sign": b"-1\r\n",
    "an underscore": b"1_0\r\n",
    "a space in front": b" 3\r\nabc\r\n",
    "a space behind": b"3 \r\nabc\r\n",
    "seventeen digits": b"00000000000000003\r\nabc\r\n",
    "a CR in the size": b"3\r \r\nabc\r\n",
    "a bare LF": b"3\nabc\n0\n\n",
    "a bare LF in an extension": b"3;a\nb\r\nabc\r\n",
    "a longer chunk": b"3\r\nabcd\r\n",
    "CRLF in the wrong order": b"3\r\nabc\n\r",
    "no CRLF": b"3\r\nabc3\r\nabc",
    "a trailer without a colon": b"0\r\nnonsense\r\n\r\n",
    "a trailer without a name": b"0\r\n: x\r\n\r\n",
    "a NUL in a trailer's name": b"0\r\na\0: x\r\n\r\n",
    "a NUL in a trailer": b"0\r\na: \0\r\n\r\n",
    "an endless size line": b"1" * 300,
    "an endless extension": b"1;" + b"x" * 1000,
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("cut", [False, True])
def test_broken_framing_is_an_error(name: str, cut: bool) -> None:
    pieces = [bytes((b,)) for b in BAD[name]] if cut else [BAD[name]]
    with pytest.raises(HttpError) as caught:
        feed(ChunkedDecoder(1000), pieces)
    assert caught.value.status == 400


def test_the_limit_is_of_what_is_announced() -> None:
    assert feed(ChunkedDecoder(10), [b"a\r\n0123456789\r\n0\r\n\r\n"]) == b""
    for stream in (b"b\r\n", b"5\r\nabcde\r\n6\r\n", b"ffffffffffffffff\r\n"):
        with pytest.raises(HttpError) as caught:
            feed(ChunkedDecoder(10), [stream])
        assert caught.value.status == 413


def test_one_chunk_more_than_allowed_is_an_error() -> None:
    decoder = ChunkedDecoder(1 << 20)
    assert feed(decoder, [b"1\r\na\r\n" * MAX_CHUNKS]) is None
    with pytest.raises(HttpError, match="65536 non-empty chunks"):
        feed(decoder, [b"1\r\na\r\n"])


def test_trailers_may_not_go_on_for_ever() -> None:
    decoder = ChunkedDecoder(10)
    assert feed(decoder, [b"0\r\n"]) is None
    with pytest.raises(HttpError) as caught:
        feed(decoder, [b"X: " + b"y" * 1000 + b"\r\n"] * 20)
    assert caught.value.status == 431


def test_a_body_of_many_small_pieces_takes_no_more_memory_than_its_bytes() -> None:
    decoder = ChunkedDecoder(1 << 20)
    feed(decoder, [b"186a0\r\n", *[b"x"] * 100_000])
    assert decoder.body().obj.__sizeof__() < 130_000


def test_chunks_of_the_same_size_are_checked_as_closely_as_the_first() -> None:
    decoder = ChunkedDecoder(1000)
    for _ in range(3):
        assert decoder.feed(b"3\r\nabc\r\n") is None
    assert decoder.feed(b"3\r\nab") is None
    assert decoder.feed(b"c\r\n") is None
    assert decoder.feed(b"3\r\nabc\r\n0\r\n") is None
    assert decoder.feed(b"\r\nGET") == b"GET"
    assert bytes(decoder.body()) == b"abc" * 5


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (b"3\r\nabc\r\n", b"abc"),
        (b"00b\r\n0123456\r\n89\r\n", b"0123456\r\n89"),
        (b"A\r\n0123456789\r\n", b"0123456789"),
        (b"3\r\nabc\r\n3\r\nabc\r\n", None),
        (b"3\r\nab", None),
        (b"3\r\nabcde", None),
        (b"3;x=1\r\nabc\r\n", None),
        (b"+3\r\nabc\r\n", None),
        (b"0_3\r\nabc\r\n", None),
        (b"\r\n\r\n", None),
        (b"0\r\n\r\n", None),
    ],
)
def test_a_read_that_is_surely_one_chunk_is_taken_whole(read: bytes, content: bytes | None) -> None:
    decoder = ChunkedDecoder(1000)
    assert decoder.take_whole(read) == content
    assert bytes(decoder.body()) == (content or b"")


@pytest.mark.parametrize("second", [b"3\r\nabcde", b"3\r\nabc\n\n", b"3\r\nabc\r\r"])
def test_a_chunk_of_the_same_size_must_end_as_well(second: bytes) -> None:
    decoder = ChunkedDecoder(1000)
    assert decoder.feed(b"3\r\nabc\r\n") is None
    with pytest.raises(HttpError, match="chunk does not end with CRLF"):
        decoder.feed(second)


def test_the_limits_hold_for_chunks_of_the_same_size() -> None:
    decoder = ChunkedDecoder(10)
    for _ in range(3):
        decoder.feed(b"3\r\nabc\r\n")
    with pytest.raises(HttpError, match="exceeds the maximum"):
        decoder.feed(b"3\r\nabc\r\n")


def test_what_looks_like_a_chunk_behind_the_last_is_none() -> None:
    decoder = ChunkedDecoder(10)
    assert decoder.feed(b"0\r\n") is None
    with pytest.raises(HttpError, match="malformed trailer"):
        decoder.feed(b"0\r\n\r\n")
