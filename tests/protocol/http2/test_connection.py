"""The rules of RFC 9113, asked of the server by a peer that speaks frame by frame."""

import asyncio

import pytest

from tests.protocol.grpc.service import CHAT, ECHO, HOLD, serving
from tests.protocol.http2.raw import RawPeer, grpc_headers
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_FRAME_BYTES,
    MAX_STREAM_ID,
    PADDED,
    PREFACE,
    PRIORITIZED,
    ErrorCode,
    Setting,
)
from tpx.protocol.http2.hpack import encode_stateless
from tpx.protocol.http2.sender import STREAM_WINDOW

CALL = frames.frame(HEADERS, END_HEADERS, 1, encode_stateless(grpc_headers(ECHO))) + frames.frame(
    DATA, END_STREAM, 1, frame_message(b"hello")
)


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


async def test_the_server_speaks_first_with_settings_and_acknowledges_ours() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        first = await peer.frame()
        assert (first.kind, first.flags, first.stream_id) == (frames.SETTINGS, 0, 0)
        settings = dict(frames.parse_settings(first.payload))
        assert settings[Setting.MAX_FRAME_SIZE] == MAX_FRAME_BYTES
        assert settings[Setting.INITIAL_WINDOW_SIZE] == STREAM_WINDOW
        ack = await peer.next(frames.SETTINGS)
        assert (ack.flags, ack.payload) == (ACK, b"")


async def test_a_ping_is_answered_with_its_own_eight_bytes() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.send(frames.PING, payload=b"8 bytes!")
        pong = await peer.next(frames.PING)
        assert (pong.flags, pong.payload) == (ACK, b"8 bytes!")


async def test_the_reserved_bit_of_a_stream_number_is_ignored() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        block = peer.encoder.encode(grpc_headers(ECHO))
        peer.send(HEADERS, END_HEADERS, 1 << 31 | 1, block)
        peer.send(DATA, END_STREAM, 1 << 31 | 1, frame_message(b"hello"))
        assert (await peer.answer(1)).message == b"hello"


async def test_frames_of_unknown_types_and_priorities_are_ignored() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.send(0xFA, 0xFF, 0, b"what is this")
        peer.send(frames.PRIORITY, 0, 3, u32(1) + b"\x10")
        peer.call(1, ECHO, b"still here")
        assert (await peer.answer(1)).message == b"still here"


async def test_headers_with_padding_and_priority_are_understood() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        block = peer.encoder.encode(grpc_headers(ECHO))
        payload = b"\x07" + u32(0) + b"\x10" + block + bytes(7)
        peer.send(HEADERS, END_HEADERS | PADDED | PRIORITIZED, 1, payload)
        peer.send(DATA, END_STREAM | PADDED, 1, b"\x03" + frame_message(b"padded") + bytes(3))
        assert (await peer.answer(1)).message == b"padded"


async def test_a_header_block_may_come_in_continuations() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        block = peer.encoder.encode(grpc_headers(ECHO, (b"x-long", b"v" * 300)))
        cuts = [block[:1], b"", block[1:50], block[50:]]
        peer.send(HEADERS, 0, 1, cuts[0])
        peer.send(CONTINUATION, 0, 1, cuts[1])
        peer.send(CONTINUATION, 0, 1, cuts[2])
        peer.send(CONTINUATION, END_HEADERS, 1, cuts[3])
        peer.send_message(1, b"in pieces", end_stream=True)
        assert (await peer.answer(1)).message == b"in pieces"


@pytest.mark.slow
async def test_padding_is_given_back_to_the_window_of_its_stream() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, CHAT)
        payload = b"\xff" + frame_message(b"x") + bytes(255)
        sent = 0
        while sent <= STREAM_WINDOW:
            peer.send(DATA, PADDED, 1, payload)
            sent += len(payload)
            if sent % (1 << 18) < len(payload):
                await peer.writer.drain()
        peer.send(DATA, END_STREAM, 1)
        updates = 0
        while updates < STREAM_WINDOW // 2:
            update = await peer.next(frames.WINDOW_UPDATE)
            if update.stream_id == 1:
                updates += int.from_bytes(update.payload, "big")
        assert updates <= sent


BROKEN = {
    "a CONTINUATION without HEADERS": ([(CONTINUATION, END_HEADERS, 1, b"")], ErrorCode.PROTOCOL_ERROR),
    "another frame inside a header block": (
        [(HEADERS, 0, 1, b"\x83"), (frames.PING, 0, 0, bytes(8))],
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a CONTINUATION of another stream": (
        [(HEADERS, 0, 1, b"\x83"), (CONTINUATION, END_HEADERS, 3, b"")],
        ErrorCode.PROTOCOL_ERROR,
    ),
    "HEADERS on stream 0": ([(HEADERS, END_HEADERS, 0, b"\x83")], ErrorCode.PROTOCOL_ERROR),
    "HEADERS on an even stream": ([(HEADERS, END_HEADERS, 2, b"\x83")], ErrorCode.PROTOCOL_ERROR),
    "padding longer than HEADERS": (
        [(HEADERS, END_HEADERS | PADDED, 1, b"\x09\x83")],
        ErrorCode.PROTOCOL_ERROR,
    ),
    "HEADERS too short for their priority": (
        [(HEADERS, END_HEADERS | PRIORITIZED, 1, b"\x00\x00")],
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a block that is not HPACK": (
        [(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff")],
        ErrorCode.COMPRESSION_ERROR,
    ),
    "an index beyond the table": ([(HEADERS, END_HEADERS, 1, b"\xfe")], ErrorCode.COMPRESSION_ERROR),
    "a table larger than was allowed": (
        [(HEADERS, END_HEADERS, 1, b"\x3f\xff\xff\x03")],
        ErrorCode.COMPRESSION_ERROR,
    ),
    "DATA on stream 0": ([(DATA, 0, 0, b"x")], ErrorCode.PROTOCOL_ERROR),
    "DATA on an idle stream": ([(DATA, 0, 5, b"x")], ErrorCode.PROTOCOL_ERROR),
    "padding longer than DATA": ([(DATA, PADDED, 1, b"\x05xx")], ErrorCode.PROTOCOL_ERROR),
    "padded DATA without a length": ([(DATA, PADDED, 1, b"")], ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM on an idle stream": ([(frames.RST_STREAM, 0, 5, u32(8))], ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM on stream 0": ([(frames.RST_STREAM, 0, 0, u32(8))], ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM of three bytes": ([(frames.RST_STREAM, 0, 1, b"abc")], ErrorCode.FRAME_SIZE_ERROR),
    "SETTINGS on a stream": ([(frames.SETTINGS, 0, 1, b"")], ErrorCode.PROTOCOL_ERROR),
    "SETTINGS of five bytes": ([(frames.SETTINGS, 0, 0, bytes(5))], ErrorCode.FRAME_SIZE_ERROR),
    "an ACK that carries settings": ([(frames.SETTINGS, ACK, 0, bytes(6))], ErrorCode.FRAME_SIZE_ERROR),
    "ENABLE_PUSH of 2": ([(frames.SETTINGS, 0, 0, b"\0\2" + u32(2))], ErrorCode.PROTOCOL_ERROR),
    "an initial window of 2^31": (
        [(frames.SETTINGS, 0, 0, b"\0\4" + u32(1 << 31))],
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "a frame size below 16384": ([(frames.SETTINGS, 0, 0, b"\0\5" + u32(16383))], ErrorCode.PROTOCOL_ERROR),
    "a frame size of 2^24": ([(frames.SETTINGS, 0, 0, b"\0\5" + u32(1 << 24))], ErrorCode.PROTOCOL_ERROR),
    "PUSH_PROMISE from a client": ([(frames.PUSH_PROMISE, END_HEADERS, 1, u32(2))], ErrorCode.PROTOCOL_ERROR),
    "PING on a stream": ([(frames.PING, 0, 1, bytes(8))], ErrorCode.PROTOCOL_ERROR),
    "PING of six bytes": ([(frames.PING, 0, 0, bytes(6))], ErrorCode.FRAME_SIZE_ERROR),
    "GOAWAY on a stream": ([(frames.GOAWAY, 0, 1, bytes(8))], ErrorCode.PROTOCOL_ERROR),
    "GOAWAY of seven bytes": ([(frames.GOAWAY, 0, 0, bytes(7))], ErrorCode.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of three bytes": ([(frames.WINDOW_UPDATE, 0, 0, b"abc")], ErrorCode.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE by nothing": ([(frames.WINDOW_UPDATE, 0, 0, u32(0))], ErrorCode.PROTOCOL_ERROR),
    "WINDOW_UPDATE on an idle stream": ([(frames.WINDOW_UPDATE, 0, 7, u32(1))], ErrorCode.PROTOCOL_ERROR),
    "a connection window over 2^31-1": (
        [(frames.WINDOW_UPDATE, 0, 0, u32(2**31 - 1))],
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_the_connection_ends_with_the_right_code_for(name: str) -> None:
    sent, code = BROKEN[name]
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        if name.startswith(("padding longer than DATA", "padded DATA")):
            peer.open(1, CHAT)
        for frame in sent:
            peer.send(*frame)
        goaway = await peer.goaway()
        assert ErrorCode(goaway.code) is code
        assert goaway.reason
        assert await peer.closed()


async def test_a_frame_over_our_limit_ends_the_connection_before_it_has_come() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, CHAT)
        peer.writer.write(frames.frame_header(DATA, 0, 1, MAX_FRAME_BYTES + 1))
        assert ErrorCode((await peer.goaway()).code) is ErrorCode.FRAME_SIZE_ERROR


async def test_data_after_the_end_of_a_stream_ends_the_connection() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, HOLD, b"x")
        peer.send(DATA, 0, 1, b"more")
        assert ErrorCode((await peer.goaway()).code) is ErrorCode.STREAM_CLOSED


async def test_data_that_crosses_our_early_answer_is_dropped_and_paid_back() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, "/no/such/method")
        answer = await peer.answer(1)
        assert answer.status == 12
        for _ in range(40):
            peer.send(DATA, 0, 1, bytes(16384))
        peer.send(DATA, END_STREAM, 1, b"")
        peer.call(3, ECHO, b"next")
        assert (await peer.answer(3)).message == b"next"


async def test_a_stream_window_over_its_range_ends_only_that_stream() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, HOLD, b"x")
        peer.send(frames.WINDOW_UPDATE, 0, 1, u32(2**31 - 1))
        assert (await peer.answer(1)).reset == ErrorCode.FLOW_CONTROL_ERROR
        assert server.service.gone == [1]
        peer.call(3, ECHO, b"next")
        assert (await peer.answer(3)).message == b"next"


async def test_a_stream_window_update_by_nothing_ends_only_that_stream() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, HOLD, b"x")
        peer.send(frames.WINDOW_UPDATE, 0, 1, u32(0))
        assert (await peer.answer(1)).reset == ErrorCode.PROTOCOL_ERROR
        peer.call(3, ECHO, b"next")
        assert (await peer.answer(3)).message == b"next"


MALFORMED = {
    "an upper case name": [*grpc_headers(ECHO), (b"X-Upper", b"1")],
    "a pseudo-header after a regular one": [*grpc_headers(ECHO)[1:], (b":method", b"POST")],
    "a pseudo-header twice": [(b":method", b"POST"), *grpc_headers(ECHO)],
    "a pseudo-header that does not exist": [(b":unknown", b"1"), *grpc_headers(ECHO)],
    "the pseudo-header of a response": [(b":status", b"200"), *grpc_headers(ECHO)],
    "no path": [h for h in grpc_headers(ECHO) if h[0] != b":path"],
    "an empty path": [h if h[0] != b":path" else (b":path", b"") for h in grpc_headers(ECHO)],
    "no method": [h for h in grpc_headers(ECHO) if h[0] != b":method"],
    "no scheme": [h for h in grpc_headers(ECHO) if h[0] != b":scheme"],
    "a connection header": [*grpc_headers(ECHO), (b"connection", b"keep-alive")],
    "te other than trailers": [h if h[0] != b"te" else (b"te", b"gzip") for h in grpc_headers(ECHO)],
    "a line break in a value": [*grpc_headers(ECHO), (b"x", b"a\r\nb: c")],
    "a NUL in a value": [*grpc_headers(ECHO), (b"x", b"a\0b")],
    "a space in a name": [*grpc_headers(ECHO), (b"x y", b"1")],
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_resets_its_stream_only(name: str) -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.send_headers(1, MALFORMED[name])
        assert (await peer.answer(1)).reset == ErrorCode.PROTOCOL_ERROR
        peer.call(3, ECHO, b"next")
        assert (await peer.answer(3)).message == b"next"


async def test_trailers_end_a_request() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, ECHO)
        peer.send_message(1, b"with trailers")
        peer.send_headers(1, [(b"x-checksum", b"abc")], end_stream=True)
        assert (await peer.answer(1)).message == b"with trailers"


async def test_a_second_header_block_that_does_not_end_its_stream_is_an_error() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, CHAT)
        peer.send_headers(1, [(b"x", b"y")])
        assert ErrorCode((await peer.goaway()).code) is ErrorCode.PROTOCOL_ERROR


async def test_streams_may_skip_numbers_but_not_go_back() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(MAX_STREAM_ID - 4, ECHO, b"far")
        assert (await peer.answer(MAX_STREAM_ID - 4)).message == b"far"
        peer.open(9, ECHO)
        goaway = await peer.goaway()
        assert (goaway.code, goaway.reason) == (
            ErrorCode.PROTOCOL_ERROR,
            "HEADERS on stream 9, which was skipped",
        )
        assert await peer.closed()


@pytest.mark.parametrize("kind", [HEADERS, DATA])
async def test_a_stream_that_has_ended_cannot_be_used_again(kind: int) -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, ECHO, b"once")
        assert (await peer.answer(1)).message == b"once"
        if kind == HEADERS:
            peer.open(1, ECHO)
        else:
            peer.send(DATA, 0, 1, b"more")
        goaway = await peer.goaway()
        assert (ErrorCode(goaway.code), await peer.closed()) == (ErrorCode.STREAM_CLOSED, True)


async def test_headers_behind_the_end_of_a_stream_are_an_error() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, HOLD, b"x")
        peer.open(1, HOLD)
        assert ErrorCode((await peer.goaway()).code) is ErrorCode.STREAM_CLOSED


async def test_what_is_on_its_way_on_streams_that_we_have_reset_is_ignored() -> None:
    """Also when these are more than are remembered."""
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        count = 1100
        for number in range(count):
            peer.open(2 * number + 1, "/no/such/method")
        for number in range(count):
            assert (await peer.answer(2 * number + 1)).status == Status.UNIMPLEMENTED
        for number in (0, count - 1):
            peer.send(DATA, 0, 2 * number + 1, b"late")
            peer.open(2 * number + 1, ECHO, end_stream=True)
        peer.call(2 * count + 1, ECHO, b"hello")
        assert (await peer.answer(2 * count + 1)).message == b"hello"


@pytest.mark.parametrize(
    "first",
    [frames.frame(frames.PING, 0, 0, bytes(8)), frames.frame(frames.SETTINGS, frames.ACK, 0), CALL],
    ids=["PING", "an acknowledgement", "a request"],
)
async def test_the_first_frame_must_be_settings(first: bytes) -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        async with RawPeer(reader, writer) as peer:
            writer.write(PREFACE + first)
            goaway = await peer.goaway()
            assert (goaway.code, goaway.reason) == (
                ErrorCode.PROTOCOL_ERROR,
                "the first frame is not SETTINGS",
            )
            assert await peer.closed()
            assert server.service.messages == []


PRIORITIES = {
    "on no stream": (0, bytes(5), ErrorCode.PROTOCOL_ERROR),
    "too short on an idle stream": (3, bytes(4), ErrorCode.FRAME_SIZE_ERROR),
    "too long on an idle stream": (3, bytes(6), ErrorCode.FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize("what", PRIORITIES)
async def test_priority_of_a_wrong_form_ends_the_connection(what: str) -> None:
    stream_id, payload, code = PRIORITIES[what]
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, CHAT)
        peer.send(frames.PRIORITY, 0, stream_id, payload)
        goaway = await peer.goaway()
        assert (ErrorCode(goaway.code), await peer.closed()) == (code, True)


async def test_priority_of_a_wrong_size_ends_its_stream() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, CHAT)
        peer.send(frames.PRIORITY, 0, 1, bytes(4))
        assert (await peer.answer(1)).reset == ErrorCode.FRAME_SIZE_ERROR
        peer.send(DATA, END_STREAM, 1, b"late")
        peer.send(frames.PRIORITY, 0, 7, bytes(5))
        peer.call(3, ECHO, b"hello")
        assert (await peer.answer(3)).message == b"hello"


@pytest.mark.parametrize("size", [0, 4096 - 1])
async def test_a_client_with_a_smaller_header_table_is_told_that_ours_is_empty(size: int) -> None:
    """RFC 9113 section 4.3.1: after we acknowledge a smaller table, our next block begins with an update."""
    settings = {Setting.HEADER_TABLE_SIZE: size}
    async with serving() as server, await RawPeer.connect(server.port, settings=settings) as peer:
        await peer.next(frames.SETTINGS)
        for stream_id, path in ((1, ECHO), (3, ECHO), (5, "/no/such/method")):
            peer.call(stream_id, path, b"hello")
            await peer.answer(stream_id)
        blocks = [frame.payload for frame in peer.seen if frame.kind == HEADERS]
        assert blocks[0][:1] == b"\x20"
        assert all(block[:1] != b"\x20" for block in blocks[1:])
