"""One connection that sends as fast as it can, or changes what many streams may send: whoever else asks is
answered within a second, and the memory is back when it has gone."""

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from tests.e2e.child import FRONTENDS
from tests.hostile import wire
from tests.hostile.conftest import MIB
from tests.hostile.siege import GOOD, SERVICE, Siege
from tests.hostile.test_http2 import INFER, METADATA, STREAM
from tests.protocol.http2.raw import grpc_headers
from tests.serving.counted_models import COSTLY
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    ErrorCode,
    Setting,
)
from tpx.protocol.http2.hpack import encode_stateless

pytestmark = [pytest.mark.e2e]

LIVE = SERVICE + "ServerLive"
STATISTICS = SERVICE + "ModelStatistics"
BYTES = 4 * MIB
"""Of one round of a flood; sent again on a fresh connection until the time is over."""
BYSTANDER_S = 1.0
FLOOD_S = 1.1
"""Longer than a bystander may have to wait."""
HTTP_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


def begin(stream_id: int, path: str, more: bytes = b"", *, flags: int = END_HEADERS) -> bytes:
    """HEADERS of a call; `more` is the rest of its block."""
    return frames.frame(HEADERS, flags, stream_id, encode_stateless(grpc_headers(path)) + more)


def end(stream_id: int, message: bytes = b"") -> bytes:
    return frames.frame(DATA, END_STREAM, stream_id, frame_message(message))


def blocks(fields: Callable[[int], bytes]) -> Iterator[bytes]:
    """Calls whose headers differ, so that none of them is known from the last."""
    for number in count():
        yield begin(2 * number + 1, LIVE, fields(number)) + end(2 * number + 1)


def unique(number: int) -> bytes:
    return encode_stateless([(b"n", b"%d" % number)])


def huffman() -> bytes:
    """A value of 14 000 bytes that is to be decoded bit by bit."""
    coded: bytes = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(b"0" * 14_000)
    length, size = bytearray(b"\xff"), len(coded) - 127
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return b"\x00\x01h" + bytes([*length, size]) + coded


def calls(path: str) -> Iterator[bytes]:
    for stream_id in count(1, 2):
        yield begin(stream_id, path) + end(stream_id)


def behind(first: bytes, again: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield again * 100


def settings(window: int) -> bytes:
    return frames.settings_frame({Setting.INITIAL_WINDOW_SIZE: window})


def toggled(windows: tuple[int, ...], path: str, *, waits: bool) -> Iterator[bytes]:
    """Very many open streams, or answers that wait for their windows, and settings that move these."""
    yield settings(0) + frames.window_update(0, 1 << 30)
    for number in range(9990):
        yield begin(2 * number + 1, path) + (end(2 * number + 1) if waits else b"")
    while True:
        for window in windows:
            yield settings(window)


def single_bytes() -> Iterator[bytes]:
    """Windows that let a thousand answers through byte by byte."""
    yield settings(0)
    for stream_id in range(1, 2000, 2):
        yield begin(stream_id, METADATA) + end(stream_id)
    while True:
        yield b"".join(frames.window_update(stream_id, 1) for stream_id in range(1, 2000, 2))


def trailers() -> Iterator[bytes]:
    for number in count():
        stream_id = 2 * number + 1
        last = frames.frame(HEADERS, END_HEADERS | END_STREAM, stream_id, unique(number) * 60)
        yield begin(stream_id, LIVE) + frames.frame(DATA, 0, stream_id, frame_message(b"")) + last


def continuations() -> Iterator[bytes]:
    for number in count():
        stream_id = 2 * number + 1
        rest = frames.frame(CONTINUATION, END_HEADERS, stream_id, unique(number))
        yield begin(stream_id, LIVE, flags=0) + rest + end(stream_id)


def resets() -> Iterator[bytes]:
    for stream_id in count(1, 2):
        yield begin(stream_id, INFER) + frames.rst_stream(stream_id, ErrorCode.CANCEL)


def heads() -> Iterator[bytes]:
    for number in count():
        yield HTTP_LIVE + b"X: %d\r\n" % number + b"".join(b"h%d: \r\n" % n for n in range(90)) + b"\r\n"


LARGE = begin(1, INFER) + frames.frame(DATA, 0, 1, pack_prefix(0, 8 * MIB - 1))
FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "1400 tiny fields": lambda: blocks(lambda n: unique(n) + b"\x00\x01a\x00" * 1400),
    "400 tiny fields": lambda: blocks(lambda n: unique(n) + b"\x00\x01a\x00" * 400),
    "60 fields": lambda: blocks(lambda n: unique(n) + b"\x00\x01a\x00" * 50),
    "Huffman codes": lambda: blocks(lambda n: unique(n) + huffman()),
    "entries of the table": lambda: blocks(
        lambda n: b"".join(b"\x40\x05%05d\x00" % ((40 * n + k) % 10**5) for k in range(40))
    ),
    "ServerLive": lambda: calls(LIVE),
    "statistics": lambda: calls(STATISTICS),
    "streams": lambda: calls(STREAM),
    "trailers": trailers,
    "continuations": continuations,
    "resets": resets,
    "PING": lambda: behind(b"", frames.frame(frames.PING, 0, 0, bytes(8))),
    "SETTINGS": lambda: behind(b"", frames.settings_frame({})),
    "updates of a window": lambda: behind(begin(1, STREAM), frames.window_update(1, 1)),
    "updates of the connection's window": lambda: behind(b"", frames.window_update(0, 1)),
    "bytes of a message": lambda: behind(LARGE, frames.frame(DATA, 0, 1, b"x")),
    "padding": lambda: behind(LARGE, frames.frame(DATA, frames.PADDED, 1, b"\0x")),
    "empty messages": lambda: behind(begin(1, STREAM), frames.frame(DATA, 0, 1, frame_message(b"") * 3000)),
    "the initial window, open streams": lambda: toggled((65535, 0), STREAM, waits=False),
    "the initial window, answers": lambda: toggled(tuple(range(1, 99)), METADATA, waits=True),
    "the initial window, there and back": lambda: toggled((1, 0), METADATA, waits=True),
    "windows of single bytes": single_bytes,
}
HTTP_FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "requests": lambda: behind(b"", HTTP_LIVE + b"\r\n"),
    "requests for statistics": lambda: behind(
        b"", b"GET /v2/models/stats HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ),
    "requests for nothing": lambda: behind(
        b"", b"GET /v2/models/x/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ),
    "inferences": lambda: behind(b"", wire.post_request("/v2/models/double/infer", GOOD)),
    "heads": heads,
    "chunks": lambda: behind(b"", CHUNKED + b"1\r\nx\r\n" * 60_000 + b"0\r\n\r\n"),
    "extensions of chunks": lambda: behind(b"", CHUNKED + b"1;a\r\nx\r\n" * 60_000 + b"0\r\n\r\n"),
}


def round_of(flood: Iterator[bytes]) -> bytes:
    out = bytearray()
    while len(out) < BYTES:
        out += next(flood)
    return bytes(out)


def send_and_read(sock: socket.socket, data: bytes, until: float) -> None:
    """Send for as long as the server takes it, and read its answers away."""
    sock.setblocking(False)
    left = memoryview(data)
    while left and time.perf_counter() < until:
        readable, writable, _ = select.select([sock], [sock], [], 0.05)
        if readable and not sock.recv(MIB):
            return
        if writable:
            left = left[sock.send(left) :]


def play(siege: Siege, port: int, data: bytes) -> None:
    before = siege.footprint().resident_bytes
    with siege.bystander() as others:
        until = time.perf_counter() + FLOOD_S
        while time.perf_counter() < until:
            with wire.connect(port) as sock, suppress(OSError):
                send_and_read(sock, data, until)
    assert others.worst_s < BYSTANDER_S
    most = before + 32 * MIB * max(1, FRONTENDS)  # every process that was flooded keeps some
    after = siege.settles(lambda now: now.resident_bytes < most, timeout_s=10)
    assert after.resident_bytes < most
    siege.alive()


@pytest.mark.parametrize("what", FLOODS)
def test_a_flood_over_grpc_holds_up_nobody(siege: Siege, what: str) -> None:
    play(siege, siege.grpc, PREFACE + frames.settings_frame({}) + round_of(FLOODS[what]()))


@pytest.mark.parametrize("what", HTTP_FLOODS)
def test_a_flood_over_http_holds_up_nobody(siege: Siege, what: str) -> None:
    play(siege, siege.http, round_of(HTTP_FLOODS[what]()))


@pytest.mark.slow
@pytest.mark.parametrize("name", COSTLY)
def test_v1_a_value_that_costs_a_short_model_seconds_holds_up_nobody(siege: Siege, name: str) -> None:
    quick, costly = COSTLY[name].quick, COSTLY[name].costly
    path = f"/v2/models/{name}/infer"

    def request(n: int) -> bytes:
        return wire.post_request(
            path, {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [n]}]}
        )

    with siege.bystander() as others, wire.connect(siege.http) as sock:
        sock.settimeout(40)  # on a busy machine its seconds are several times as long
        for value in (*[quick] * 200, costly, *[quick] * 200, costly):
            sock.sendall(request(value))
            assert wire.read_answer(sock).status == 200
    assert others.worst_s < BYSTANDER_S
