"""Heads of requests and responses."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpx.protocol.http1.head import (
    HeadCache,
    HttpError,
    check_partial_head,
    parse_request_head,
    parse_response_head,
)


def request(*lines: str, first: str = "POST /v2/models/m/infer?a=b HTTP/1.1") -> bytes:
    return ("\r\n".join([first, "Host: h", *lines]) + "\r\n\r\n").encode("latin-1")


def response(*lines: str, status: str = "200 OK", version: str = "1.1") -> bytes:
    return ("\r\n".join([f"HTTP/{version} {status}", *lines]) + "\r\n\r\n").encode("latin-1")


def test_a_request_head_is_understood() -> None:
    head = parse_request_head(
        request("Content-Length: 12", "X-One: a", "x-one: b", "Inference-Header-Content-Length: 7")
    )
    assert (head.method, head.path, head.query) == (b"POST", b"/v2/models/m/infer", b"a=b")
    assert head.headers[b"x-one"] == b"a, b"
    assert (head.content_length, head.tensor_offset, head.plain, head.keep_alive) == (12, 7, True, True)


@pytest.mark.parametrize("value", ["abc", "-1", "99999999999999", ""])
def test_a_bad_offset_is_the_business_of_the_codec(value: str) -> None:
    assert parse_request_head(request(f"Inference-Header-Content-Length: {value}")).tensor_offset == 0


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        (request("Content-Length: 3"), True),
        (request("Transfer-Encoding: chunked"), False),
        (request("Content-Length: 3", "Expect: 100-continue"), False),
        (request("Content-Length: 3", "Expect: something-else"), True),
    ],
)
def test_only_what_needs_no_attention_is_plain(raw: bytes, plain: bool) -> None:
    assert parse_request_head(raw).plain is plain


@pytest.mark.parametrize(
    ("first", "status"),
    [
        ("GET / HTTP/2.0", 505),
        ("GET / HTTP/1.2", 505),
        ("GET / HTTX/1.1", 400),
        ("G@T / HTTP/1.1", 400),
        ("GET  HTTP/1.1", 400),
        ("GET  / HTTP/1.1", 400),
        ("GET /  HTTP/1.1", 400),
        ("\rGET / HTTP/1.1", 400),
        ("\nGET / HTTP/1.1", 400),
        ("GET", 400),
    ],
)
def test_a_bad_request_line_is_refused(first: str, status: int) -> None:
    with pytest.raises(HttpError) as caught:
        parse_request_head(request(first=first))
    assert caught.value.status in (400, status)


def test_a_head_is_parsed_once() -> None:
    parsed = 0

    def parse(raw: bytes) -> object:
        nonlocal parsed
        parsed += 1
        return parse_request_head(raw)

    cache = HeadCache(parse)  # type: ignore[arg-type]
    raw = request()
    first = cache.get(raw) or cache.add(raw)
    assert (cache.get(raw) or cache.add(raw)) is first
    assert parsed == 1


def test_the_memory_of_heads_is_bounded() -> None:
    cache = HeadCache(parse_request_head)
    heads = [request(f"X-Number: {number}") for number in range(3000)]
    for head in heads:
        cache.add(head)
    assert 0 < sum(cache.get(head) is not None for head in heads) <= 1024
    large = request("X-Large: " + "y" * 3000)
    cache.add(large)
    assert cache.get(large) is None


def test_an_error_is_not_remembered() -> None:
    cache = HeadCache(parse_request_head)
    with pytest.raises(HttpError):
        cache.add(b"nonsense\r\n\r\n")
    assert cache.get(b"nonsense\r\n\r\n") is None


@pytest.mark.parametrize(
    ("raw", "length", "keep_alive", "plain"),
    [
        (response("Content-Length: 5"), 5, True, True),
        (response("Content-Length: 5", "Connection: close"), 5, False, True),
        (response("Transfer-Encoding: chunked"), 0, True, False),
        (response(), -1, False, False),
        (response("Content-Length: 5", version="1.0"), 5, False, True),
        (response("Content-Length: 5", "Connection: keep-alive", version="1.0"), 5, True, True),
        (response(status="204 No Content"), 0, True, True),
        (response("Content-Length: 99", status="304 Not Modified"), 0, True, True),
        (response("Transfer-Encoding: chunked", status="204 No Content"), 0, True, True),
        (response(status="100 Continue"), 0, True, False),
    ],
)
def test_where_a_response_ends(raw: bytes, length: int, keep_alive: bool, plain: bool) -> None:
    head = parse_response_head(raw)
    assert (head.content_length, head.keep_alive, head.plain) == (length, keep_alive, plain)


@pytest.mark.parametrize("value", ["a b", " a b", "a b ", "\ta b\t", " \t a b \t ", "a b \t"])
def test_white_space_around_a_value_is_no_part_of_it(value: str) -> None:
    assert parse_request_head(request(f"X:{value}")).headers[b"x"] == b"a b"


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_head_or_an_error(raw: bytes) -> None:
    for parse in (parse_request_head, parse_response_head):
        with suppress(HttpError):
            parse(raw + b"\r\n\r\n")


@given(st.integers(0, 200))
def test_every_beginning_of_a_good_head_may_become_one(cut: int) -> None:
    check_partial_head(request("Content-Length: 3", "X: y")[:cut][:-4], request=True)


@pytest.mark.parametrize(
    "raw", [b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\nHost", b"\x00", b"HELLO WORLD\r\n", b"GET /\x7f\x00"]
)
def test_what_cannot_become_a_head_is_seen_before_it_ends(raw: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        check_partial_head(raw, request=True)
    assert caught.value.status == 400
