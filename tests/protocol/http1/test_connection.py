"""What the reading half makes of a byte stream, whatever each read brings of it."""

import asyncio

import pytest

from tests.fuzz.transport import MemoryTransport
from tpx.protocol.http1.connection import HttpConnection
from tpx.protocol.http1.head import HeadCache, HttpError, HttpHead, parse_request_head
from tpx.protocol.tensors import new_scratch

PLAIN = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n"
OTHER = b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n"
CHUNKED = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


class Reader(HttpConnection):
    """Notes the messages; `read` is one read of the event loop."""

    def __init__(self) -> None:
        super().__init__(HeadCache(parse_request_head), new_scratch(), 1 << 20)
        self.messages: list[tuple[bytes, bytes]] = []
        self.errors: list[HttpError] = []
        self.ended = False

    def read(self, *pieces: bytes) -> list[tuple[bytes, bytes]]:
        """The messages that are complete with these pieces, each brought by a read of its own."""
        for piece in pieces:
            self.data_received(piece)
        found, self.messages = self.messages, []
        return found

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True

    def _handle_message(self, head: HttpHead, body: bytes | memoryview) -> bool:
        self.messages.append((head.path, bytes(body)))
        return True

    def _handle_head(self, head: HttpHead) -> None:
        pass

    def _reject_message(self, error: HttpError) -> None:
        self.errors.append(error)


def test_the_same_head_with_another_body_is_another_message() -> None:
    reader = Reader()
    bodies = (b"first", b"other", b"third")
    assert [reader.read(PLAIN + body) for body in bodies] == [[(b"/a", body)] for body in bodies]


def test_another_head_of_the_same_size_is_read_as_what_it_is() -> None:
    reader = Reader()
    assert reader.read(PLAIN + b"first", OTHER + b"other", PLAIN + b"third") == [
        (b"/a", b"first"), (b"/b", b"other"), (b"/a", b"third"),
    ]  # fmt: skip
    broken = b"x" * len(PLAIN + b"12345")
    assert reader.read(broken) == []
    assert [error.status for error in reader.errors] == [400]


def test_a_read_of_that_size_in_the_middle_of_a_message_is_part_of_it() -> None:
    message = PLAIN + b"first"
    reader = Reader()
    assert reader.read(message) == [(b"/a", b"first")]
    size = b"%x\r\n" % len(message)
    assert reader.read(CHUNKED + size, message, b"\r\n0\r\n\r\n") == [(b"/c", message)]
    long = b"POST /d HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (2 * len(message))
    reader.read(message)
    assert reader.read(long, message, message) == [(b"/d", message + message)]
    reader.read(message)
    assert reader.read(b"POST /e HTTP/1.1\r\nX: ", message) == [(b"/e", b"first")], "the rest of a head"
    assert reader.errors == []


def test_what_follows_in_the_same_read_is_not_lost() -> None:
    message = PLAIN + b"first"
    reader = Reader()
    assert reader.read(message, message + OTHER[:10], OTHER[10:] + b"other", message) == [
        (b"/a", b"first"), (b"/a", b"first"), (b"/b", b"other"), (b"/a", b"first"),
    ]  # fmt: skip
    assert reader.read(message * 2, message * 2, message) == [(b"/a", b"first")] * 5


def test_a_body_in_pieces_ends_where_the_next_message_begins() -> None:
    reader = Reader()
    assert reader.read(PLAIN + b"fi", b"rs", b"t" + OTHER + b"other" + PLAIN, b"third") == [
        (b"/a", b"first"), (b"/b", b"other"), (b"/a", b"third"),
    ]  # fmt: skip


@pytest.mark.parametrize("step", [1000, 64 << 10, 100_003, 1 << 20])
def test_from_the_first_large_body_on_reads_go_into_buffers_and_nothing_is_lost(step: int) -> None:
    large = bytes(range(256)) * 1000
    head = b"POST /l HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(large)
    reader, transport = Reader(), MemoryTransport()
    transport.set_protocol(reader)
    reader.connection_made(transport)
    transport.feed(PLAIN + b"first")
    assert transport.protocol is reader, "small messages come as bytes"
    stream = (head + large + PLAIN + b"other" + OTHER + b"third" + CHUNKED + b"2\r\nab\r\n0\r\n\r\n") * 3
    for at in range(0, len(stream), step):
        transport.feed(stream[at : at + step])
    assert isinstance(transport.protocol, asyncio.BufferedProtocol)
    assert reader.messages == [
        (b"/a", b"first"),
        *[(b"/l", large), (b"/a", b"other"), (b"/b", b"third"), (b"/c", b"ab")] * 3,
    ]
    transport.protocol.connection_lost(None)
    assert reader.ended, "the connection still hears of its end"
