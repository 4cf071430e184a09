"""Statuses, and their words on the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpx.errors import Code
from tpx.protocol.grpc.status import (
    MAX_MESSAGE_BYTES,
    Status,
    from_code,
    percent_decode,
    percent_encode,
    to_code,
    trailers_block,
    trailers_only_block,
)


@given(st.text(max_size=40))
def test_words_come_back_as_they_were(words: str) -> None:
    encoded = percent_encode(words)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert percent_decode(encoded) == words


@pytest.mark.parametrize(
    ("words", "encoded"),
    [("a b~", b"a b~"), ("100%", b"100%25"), ("\n", b"%0A"), ("é", b"%C3%A9"), ("\x7f", b"%7F")],
)
def test_only_what_must_be_is_escaped(words: str, encoded: bytes) -> None:
    assert percent_encode(words) == encoded


@pytest.mark.parametrize("raw", [b"%", b"%4", b"%+1", b"%zz", b"%-1", b"% 1", b"100% sure", b"%\xc3"])
def test_what_is_no_escape_stays_as_it_is(raw: bytes) -> None:
    assert percent_decode(raw) == raw.decode("utf-8", "replace")


def test_bytes_that_are_not_utf8_do_not_hide_the_words() -> None:
    assert percent_decode(b"bad %FF byte") == "bad \ufffd byte"


@pytest.mark.parametrize("character", ["a", "%", "é", "日", "\U0001f600"])
def test_long_words_are_cut_between_characters(character: str) -> None:
    encoded = percent_encode(character * 10_000)
    assert MAX_MESSAGE_BYTES - 12 <= len(encoded) <= MAX_MESSAGE_BYTES
    assert set(percent_decode(encoded)) == {character}


def test_words_that_utf8_cannot_carry_do_not_stop_an_error_from_being_told() -> None:
    assert percent_decode(percent_encode("lone \ud800 surrogate")) == "lone ? surrogate"


def test_every_code_has_a_status_and_comes_back() -> None:
    for code in Code:
        assert to_code(from_code(code)) is code


@pytest.mark.parametrize("status", [Status.ABORTED, Status.DATA_LOSS, 17, 99, -1])
def test_a_status_without_a_code_of_ours_is_unknown(status: int) -> None:
    assert to_code(status) is Code.UNKNOWN


def test_trailers_without_words_have_no_message() -> None:
    assert b"grpc-message" not in trailers_block(Status.OK)
    assert trailers_only_block(Status.OK, "").endswith(trailers_block(Status.OK))
