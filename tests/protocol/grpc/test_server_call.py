"""Calls at the server, asked by a peer that speaks frame by frame."""

import asyncio
import base64
import gzip
import zlib
from typing import Any

import pytest

from tests.protocol.grpc.service import CHAT, ECHO, FAIL, HOLD, QUIT, TOGETHER, serving
from tests.protocol.http2.raw import Header, RawPeer, grpc_headers
from tpx.protocol.grpc.framing import frame_message, pack_prefix, unpack_prefix
from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.grpc.status import Status, percent_decode
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import DATA, END_STREAM, HEADERS, ErrorCode, Setting


@pytest.mark.parametrize("size", [0, 1, 4, 5, 16379, 16380, 16384, 65535, 600_000])
async def test_a_message_comes_back_whatever_its_size(size: int) -> None:
    message = bytes(range(256)) * (size // 256 + 1)
    async with (
        serving() as server,
        await RawPeer.connect(server.port, settings={Setting.INITIAL_WINDOW_SIZE: 1 << 20}) as peer,
    ):
        peer.grant(0, 1 << 20)
        peer.call(1, ECHO, message[:size])
        answer = await peer.answer(1)
        assert answer.status == 0
        assert answer.message == message[:size]
        assert server.connection.streams == {}


async def test_a_response_to_a_small_call_is_three_frames_of_constant_form() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, ECHO, b"hi")
        answer = await peer.answer(1)
        assert [f.kind for f in peer.seen if f.stream_id == 1] == [HEADERS, DATA, HEADERS]
        assert answer.blocks == [
            {b":status": b"200", b"content-type": b"application/grpc"},
            {b"grpc-status": b"0"},
        ]


async def test_a_message_may_be_cut_anywhere() -> None:
    framed = frame_message(b"0123456789")
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        for cut in range(len(framed) + 1):
            stream_id = 2 * cut + 1
            peer.open(stream_id, ECHO)
            peer.send(DATA, 0, stream_id, framed[:cut])
            await asyncio.sleep(0)
            peer.send(DATA, END_STREAM, stream_id, framed[cut:])
            assert (await peer.answer(stream_id)).message == b"0123456789"


async def test_many_messages_in_one_frame_and_one_message_in_many_frames_of_a_stream() -> None:
    messages = [b"", b"a", b"bc" * 500, b"", b"d" * 40_000]
    stream = b"".join(map(frame_message, messages))
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.grant(0, 1 << 20)
        peer.open(1, CHAT)
        for at in range(0, len(stream), 16384):
            peer.send(DATA, 0, 1, stream[at : at + 16384])
        peer.open(3, CHAT)
        for at in range(0, len(stream), 977):
            peer.send(DATA, 0, 3, stream[at : at + 977])
        peer.send(DATA, END_STREAM, 1)
        peer.send(DATA, END_STREAM, 3)
        for stream_id in (1, 3):
            answer = await peer.answer(stream_id)
            assert answer.status == 0
            assert answer.data == stream
        assert server.service.half_closed == [1, 3]


@pytest.mark.parametrize(
    ("sizes", "frames_of_data"),
    [((3, 0, 500), 4), ((9000, 7000), None), ((40_000, 5), None), ((50,) * 200, 201)],
    ids=["small", "too large for a frame", "too large for the window", "many"],
)
async def test_messages_sent_together_are_those_sent_one_by_one(
    sizes: tuple[int, ...], frames_of_data: int | None
) -> None:
    """The first time, the headers have not been sent: each has a frame."""
    stream = b"".join(frame_message(bytes([size % 251]) * size) for size in sizes)
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, TOGETHER)
        for at in range(0, len(stream), 16384):
            peer.send(DATA, 0, 1, stream[at : at + 16384])
        peer.send(DATA, END_STREAM, 1)
        peer.grant(0, 1 << 20)
        peer.grant(1, 1 << 20)
        answer = await peer.answer(1)
    assert answer.status == 0
    assert answer.data == 2 * stream
    if frames_of_data is not None:
        assert [each.kind for each in peer.seen if each.stream_id == 1].count(DATA) == frames_of_data


@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_messages_sent_together_are_compressed_one_by_one(encoding: str) -> None:
    messages = [b"a" * 100, b"b" * 200]
    limits = GrpcLimits(response_encoding=encoding)
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, TOGETHER, (b"grpc-accept-encoding", b"gzip"))
        peer.send(DATA, END_STREAM, 1, b"".join(map(frame_message, messages)))
        data = bytes((await peer.answer(1)).data)
    found, at = list[bytes](), 0
    while at < len(data):
        flag, size = unpack_prefix(data, at)
        at += 5 + size
        found.append(gzip.decompress(data[at - size : at]) if flag else data[at - size : at])
    assert found == 2 * messages


async def test_a_reset_reaches_the_request_once_and_its_answer_is_dropped() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, HOLD, b"a")
        peer.call(3, HOLD, b"b")
        peer.reset(1)
        peer.reset(1)
        await peer.sync()
        assert server.service.gone == [1]
        assert list(server.connection.streams) == [3]
        server.service.release()
        assert (await peer.answer(3)).message == b"done"
        assert 1 not in peer.answers


async def test_a_lost_connection_reaches_all_its_requests() -> None:
    async with serving() as server:
        async with await RawPeer.connect(server.port) as peer:
            for stream_id in (1, 3):
                peer.call(stream_id, HOLD, b"x")
            peer.open(5, CHAT)
            await peer.sync()
        await server.empty()
        assert server.service.gone == [1, 3, 5]
        server.service.release()  # into the void, without a complaint


async def test_an_end_before_the_client_has_ended_comes_whole_and_then_resets() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, QUIT)
        peer.send_message(1, b"100000")
        while (DATA, 1) not in {(f.kind, f.stream_id) for f in peer.seen}:
            await peer.frame()
        peer.grant(0, 1 << 20)
        peer.grant(1, 1 << 20)
        while 1 not in peer.answers or peer.answers[1].reset is None:
            await peer.frame()
        answer = peer.answers[1]
        assert answer.message == b"x" * 100_000
        assert answer.status == 0
        assert answer.reset == ErrorCode.NO_ERROR
        last = [f.kind for f in peer.seen if f.stream_id == 1][-2:]
        assert last == [HEADERS, frames.RST_STREAM]
        assert server.connection.streams == {}


async def test_what_comes_after_the_answer_does_not_cut_the_answer_short() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, QUIT)
        peer.send_message(1, b"100000")
        peer.send(DATA, 0, 1, b"\xff not a message")
        peer.grant(0, 1 << 20)
        peer.grant(1, 1 << 20)
        answer = await peer.answer(1)
        assert (answer.status, answer.message) == (0, b"x" * 100_000)


async def test_a_deadline_ends_the_call_and_reaches_the_request() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, HOLD, b"x", (b"grpc-timeout", b"20m"))
        peer.open(3, CHAT, (b"grpc-timeout", b"20m"))
        for stream_id in (1, 3):
            answer = await peer.answer(stream_id)
            assert answer.status == Status.DEADLINE_EXCEEDED
            assert answer.blocks[-1][b"grpc-message"] == b"Deadline Exceeded"
        assert server.service.gone == [1, 3]
        assert server.connection.streams == {}


async def test_a_deadline_that_was_met_leaves_no_timer() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        loop = asyncio.get_running_loop()
        made: list[asyncio.TimerHandle] = []
        call_later = loop.call_later

        def note(delay: float, *rest: Any, **options: Any) -> asyncio.TimerHandle:
            made.append(call_later(delay, *rest, **options))
            return made[-1]

        setattr(loop, "call_later", note)  # noqa: B010
        peer.call(1, ECHO, b"x", (b"grpc-timeout", b"7S"))
        peer.call(3, HOLD, b"x", (b"grpc-timeout", b"8S"))
        peer.reset(3)
        peer.open(5, "/unknown", (b"grpc-timeout", b"9S"))
        await peer.answer(1)
        await peer.answer(5)
        deadlines = [timer for timer in made if 6 < timer.when() - loop.time() < 10]
        assert len(deadlines) == 3
        assert all(timer.cancelled() for timer in deadlines)


@pytest.mark.parametrize("deadline", [b"", b"5", b"S", b"-1S", b"1.5S", b"123456789S", b"5s", b" 5S"])
async def test_a_malformed_deadline_is_an_error(deadline: bytes) -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, ECHO, b"x", (b"grpc-timeout", deadline))
        assert (await peer.answer(1)).status == Status.INTERNAL


@pytest.mark.parametrize("deadline", [b"99999999H", b"1M", b"1S", b"900m", b"99999999u", b"99999999n"])
async def test_every_unit_of_a_deadline_is_understood(deadline: bytes) -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, ECHO, b"in time", (b"grpc-timeout", deadline))
        assert (await peer.answer(1)).message == b"in time"


async def test_a_deadline_of_nothing_has_passed() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, HOLD, b"x", (b"grpc-timeout", b"0n"))
        assert (await peer.answer(1)).status == Status.DEADLINE_EXCEEDED


@pytest.mark.parametrize(("encoding", "pack"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
async def test_compressed_messages_are_inflated(encoding: bytes, pack: "type[bytes]") -> None:
    message = b"abc" * 10_000
    packed = pack(message)
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, CHAT, (b"grpc-encoding", encoding))
        peer.send(DATA, 0, 1, pack_prefix(1, len(packed)) + packed)
        peer.send(DATA, END_STREAM, 1, frame_message(b"plain in between"))
        answer = await peer.answer(1)
        assert answer.data == frame_message(message) + frame_message(b"plain in between")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_responses_are_compressed_for_clients_that_accept_it(encoding: str) -> None:
    limits = GrpcLimits(response_encoding=encoding)
    accept = (b"grpc-accept-encoding", f"identity, {encoding}".encode())
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, ECHO, b"abc" * 1000, accept)
        answer = await peer.answer(1)
        assert answer.blocks[0][b"grpc-encoding"] == encoding.encode()
        assert answer.data[0] == 1
        inflate = gzip.decompress if encoding == "gzip" else zlib.decompress
        assert inflate(answer.message) == b"abc" * 1000
        peer.call(3, ECHO, b"abc" * 1000)
        plain = await peer.answer(3)
        assert b"grpc-encoding" not in plain.blocks[0]
        assert plain.message == b"abc" * 1000


async def test_a_response_is_smaller_with_more_effort() -> None:
    message = b"".join(b"%d and %d, " % (number, number * number) for number in range(3000))
    sizes = []
    for level in (1, 9):
        limits = GrpcLimits(response_encoding="gzip", response_level=level)
        async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
            peer.call(1, ECHO, message, (b"grpc-accept-encoding", b"gzip"))
            sizes.append(len((await peer.answer(1)).message))
    assert sizes[0] > sizes[1]


async def test_an_unknown_compression_is_refused_with_what_is_known() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, ECHO, b"x", (b"grpc-encoding", b"br"))
        answer = await peer.answer(1)
        assert answer.status == Status.UNIMPLEMENTED
        assert answer.blocks[-1][b"grpc-accept-encoding"] == b"identity,gzip,deflate"


BAD_MESSAGES: dict[str, tuple[bytes, tuple[Header, ...], Status]] = {
    "compressed without an encoding": (pack_prefix(1, 1) + b"x", (), Status.INTERNAL),
    "a flag of 2": (pack_prefix(2, 1) + b"x", (), Status.INTERNAL),
    "not gzip": (pack_prefix(1, 4) + b"abcd", ((b"grpc-encoding", b"gzip"),), Status.INVALID_ARGUMENT),
    "half a gzip": (
        pack_prefix(1, 15) + gzip.compress(b"abc", mtime=0)[:15],
        ((b"grpc-encoding", b"gzip"),),
        Status.INVALID_ARGUMENT,
    ),
    "larger than the limit": (pack_prefix(0, 1001) + bytes(1001), (), Status.RESOURCE_EXHAUSTED),
    "announced larger than the limit": (pack_prefix(0, 2**32 - 1), (), Status.RESOURCE_EXHAUSTED),
    "a bomb": (frame_message(b"")[:0], ((b"grpc-encoding", b"gzip"),), Status.RESOURCE_EXHAUSTED),
    "half a message": (pack_prefix(0, 10) + b"12345", (), Status.INTERNAL),
    "half a prefix": (b"\0\0", (), Status.INTERNAL),
    "no message": (b"", (), Status.INTERNAL),
    "two messages": (frame_message(b"a") + frame_message(b"b"), (), Status.INTERNAL),
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
async def test_a_bad_request_message_gets_a_status(name: str) -> None:
    data, headers, status = BAD_MESSAGES[name]
    if name == "a bomb":
        packed = gzip.compress(bytes(10_000_000))
        data = pack_prefix(1, len(packed)) + packed
    limits = GrpcLimits(max_message_bytes=100_000 if name == "a bomb" else 1000)
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, ECHO, *headers)
        peer.send(DATA, END_STREAM, 1, data)
        answer = await peer.answer(1)
        assert answer.status == status
        assert answer.blocks[-1][b"grpc-message"]
        assert server.service.messages == []
        assert server.connection.streams == {}
        peer.call(3, ECHO, b"the connection lives")
        assert (await peer.answer(3)).message == b"the connection lives"


async def test_a_bad_message_ends_a_stream_that_is_still_open() -> None:
    limits = GrpcLimits(max_message_bytes=1000)
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, CHAT)
        peer.send(DATA, 0, 1, frame_message(b"good") + pack_prefix(0, 1 << 30))
        answer = await peer.answer(1)
        assert answer.data == frame_message(b"good")
        assert answer.status == Status.RESOURCE_EXHAUSTED
        assert "1073741824 vs. 1000" in percent_decode(answer.blocks[-1][b"grpc-message"])


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        (b":method", b"GET", b"405"),
        (b":method", b"PUT", b"405"),
        (b"content-type", b"application/json", b"415"),
        (b"content-type", b"application/grpcx", b"415"),
        (b"content-type", b"application/grpc-web+proto", b"415"),
        (b"content-type", b"text/html", b"415"),
        (b"content-type", None, b"415"),
    ],
)
async def test_what_is_not_grpc_is_answered_in_http(name: bytes, value: bytes | None, status: bytes) -> None:
    headers = [(n, value if n == name else v) for n, v in grpc_headers(ECHO)]
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.send_headers(1, [(n, v) for n, v in headers if v is not None], end_stream=True)
        answer = await peer.answer(1)
        assert answer.ended
        assert answer.blocks[0][b":status"] == status


@pytest.mark.parametrize("value", [b"application/grpc", b"application/grpc+proto", b"application/grpc;v=1"])
async def test_the_content_types_of_grpc_are_taken(value: bytes) -> None:
    headers = [(n, value if n == b"content-type" else v) for n, v in grpc_headers(ECHO)]
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.send_headers(1, headers)
        peer.send_message(1, b"x", end_stream=True)
        assert (await peer.answer(1)).message == b"x"


async def test_metadata_comes_as_text_and_as_bytes() -> None:
    raw = bytes(range(256))
    coded = base64.b64encode(raw)
    extra: list[Header] = [
        (b"x-text", b"one"),
        (b"x-text", b"two"),
        (b"x-raw-bin", coded),
        (b"x-bare-bin", base64.b64encode(b"12345").rstrip(b"=")),
        (b"x-twice-bin", base64.b64encode(b"a")),
        (b"x-twice-bin", base64.b64encode(b"b").rstrip(b"=")),
        (b"x-empty-bin", b""),
    ]
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, HOLD, b"", *extra)
        await peer.sync()
        (call,) = server.service.held
        assert call.head.metadata == {
            "x-text": "one,two",
            "x-raw-bin": raw,
            "x-bare-bin": b"12345",
            "x-twice-bin": b"a,b",
            "x-empty-bin": b"",
        }


async def test_metadata_that_is_not_base64_is_an_error() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, ECHO, b"", (b"x-bin", b"*not base64*"))
        answer = await peer.answer(1)
        assert answer.status == Status.INTERNAL
        assert b"x-bin" in answer.blocks[-1][b"grpc-message"]


@pytest.mark.parametrize("words", ["plain words", "50% of it", "über\n\ttabs", "日本語", "\x00\x7f", "a\rb"])
async def test_error_words_travel_percent_encoded(words: str) -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, FAIL, f"3 {words}".encode())
        answer = await peer.answer(1)
        raw = answer.blocks[-1][b"grpc-message"]
        assert all(0x20 <= byte <= 0x7E for byte in raw)
        assert percent_decode(raw) == words
        assert answer.status == Status.INVALID_ARGUMENT
        assert answer.blocks[-1][b":status"] == b"200"
        assert len(answer.blocks) == 1, "trailers only"


async def test_an_unknown_method_is_refused_before_its_messages_come() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        peer.open(1, "/test.Wire/Missing")
        answer = await peer.answer(1)
        assert answer.status == Status.UNIMPLEMENTED
        assert percent_decode(answer.blocks[0][b"grpc-message"]) == "unknown method /test.Wire/Missing"


async def test_http1_on_this_port_is_told_so() -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\0\0")  # our settings come first: every server of HTTP/2 speaks at once
        rest = await reader.read()
        assert b"HTTP/1.1 400 Bad Request\r\n" in rest
        assert b"speaks HTTP/2" in rest
        writer.close()
        await writer.wait_closed()
