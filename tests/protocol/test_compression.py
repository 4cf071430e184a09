"""Compressed bodies, inflated up to a limit."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpx.errors import Code, InvalidRequest, Unsupported
from tpx.protocol.compression import ENCODINGS, deflate, inflate


@given(data=st.binary(max_size=500), encoding=st.sampled_from(ENCODINGS))
def test_what_was_deflated_inflates(data: bytes, encoding: str) -> None:
    assert inflate(deflate(data, encoding), encoding, 500) == data
    assert inflate(memoryview(deflate(memoryview(data), encoding)), encoding, 500) == data


def test_the_formats_are_those_of_everybody_else() -> None:
    assert gzip.decompress(deflate(b"abc", "gzip")) == b"abc"
    assert zlib.decompress(deflate(b"abc", "deflate")) == b"abc"
    assert deflate(b"abc", "gzip") == deflate(b"abc", "gzip"), "no time in it"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_limit_is_exact(encoding: str) -> None:
    packed = deflate(bytes(1000), encoding)
    assert inflate(packed, encoding, 1000) == bytes(1000)
    with pytest.raises(InvalidRequest) as caught:
        inflate(packed, encoding, 999)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bomb_is_stopped_long_before_it_is_out(encoding: str) -> None:
    bomb = deflate(bytes(64 << 20), encoding)
    with pytest.raises(InvalidRequest) as caught:
        inflate(bomb, encoding, 10_000)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert inflate(deflate(bomb, encoding), encoding, 1 << 20) == bomb, "a bomb in a bomb is inflated once"


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("damage", ["empty", "garbage", "cut", "longer", "twice", "other"])
def test_damaged_data_is_refused(encoding: str, damage: str) -> None:
    good = deflate(b"some data to damage" * 10, encoding)
    other = deflate(b"some data", "deflate" if encoding == "gzip" else "gzip")
    data = {
        "empty": b"",
        "garbage": b"not compressed at all",
        "cut": good[:-4],
        "longer": good + b"x",
        "twice": good + good,
        "other": other,
    }[damage]
    with pytest.raises(InvalidRequest) as caught:
        inflate(data, encoding, 10_000)
    assert caught.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("encoding", ["br", "zstd", "GZIP", "", "identity"])
def test_an_unknown_encoding_is_named(encoding: str) -> None:
    with pytest.raises(Unsupported, match="known: gzip, deflate"):
        inflate(b"", encoding, 10)
