"""Repeated calls, answered by a template: a client gets what it gets for calls that are taken one by one."""

import asyncio
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.transport import MemoryTransport
from tests.protocol.grpc.service import ECHO
from tests.protocol.http2.raw import Header, grpc_headers
from tpx.protocol.compression import Inflater
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.grpc.limits import GrpcLimits
from tpx.protocol.grpc.repeated import RepeatedCalls
from tpx.protocol.grpc.server import connection_factory
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, ErrorCode, Setting
from tpx.protocol.http2.hpack import encode_stateless
from tpx.protocol.listener import Listener
from tpx.protocol.memory_budget import MemoryBudget
from tpx.protocol.tensors import Buffer

GREETING = PREFACE + frames.settings_frame({})
START = b"start of the message"
BLOCK = encode_stateless(grpc_headers(ECHO))
STRANGE = encode_stateless(grpc_headers(ECHO, (b"other", b"yes")))


def head(stream: int, block: bytes = BLOCK) -> bytes:
    return frames.frame(HEADERS, END_HEADERS, stream, block)


def body(stream: int, tail: bytes, flags: int = END_STREAM) -> bytes:
    return frames.frame(DATA, flags, stream, frame_message(START + tail))


def call(stream: int, tail: bytes = b"tail", block: bytes = BLOCK) -> bytes:
    return head(stream, block) + body(stream, tail)


class Session:
    """A connection without a socket to a method that answers with the end of the message, three times."""

    def __init__(self, *, repeats: bool = True, most: Sequence[int] = (), together: int = 1) -> None:
        """Repeated calls are answered by template, at most `most` of each read, then all."""
        self._together = together
        self.repeated: list[int] = []
        """Number of calls of each read that were answered so."""
        self.single: list[int] = []
        """Streams of the others."""
        self.template: RepeatedCalls | None = None
        self._most = list(most)
        self._repeats = repeats
        # turns without end: what one read brings is answered in it, however busy the machine is
        self.listener = Listener(memory=MemoryBudget(1 << 30), share_s=math.inf)
        connect = connection_factory(
            self.listener, GrpcLimits(), [Method(ECHO, unary=self._answer)], Inflater()
        )
        self.connection = connect()
        self.transport = MemoryTransport()
        self.transport.set_protocol(self.connection)
        self.connection.connection_made(self.transport)
        self.read(GREETING)

    def _answer(self, call: ServerCall, message: Buffer) -> None:
        self.single.append(call.id)
        tail = bytes(message)[len(START) :]
        call.respond((tail, tail, tail))
        if self._repeats and tail and not (self.template is not None and call.repeat(self.template)):
            self.template = call.repeat_with(
                self._answer_repeated, START, len(tail), 3 * len(tail), self._together
            )

    def _answer_repeated(self, tails: Sequence[bytes]) -> list[bytes]:
        most = self._most.pop(0) if self._most else len(tails)
        self.repeated.append(min(most, len(tails)))
        return [3 * tail for tail in tails[:most]]

    def read(self, *reads: bytes) -> None:
        for each in reads:
            self.transport.feed(each)

    async def written(self) -> bytes:
        """Return what was written since the last time."""
        await asyncio.sleep(0)
        written = bytes(self.transport.written)
        self.transport.written.clear()
        return written


def answers(*streams: int, tail: bytes = b"tail") -> bytes:
    """Return what a connection writes that has no templates."""

    async def converse() -> bytes:
        session = Session(repeats=False)
        await session.written()
        session.read(*(call(stream, tail) for stream in streams))
        return await session.written()

    return asyncio.run(converse())


ANSWERS = {n: answers(*range(1, 2 * n, 2)) for n in (1, 2, 6)}


@pytest.mark.parametrize(
    "burst",
    [
        b"".join(call(stream) for stream in (3, 5, 7, 9, 11)),
        b"".join([*map(head, (3, 5, 7, 9, 11)), *(body(stream, b"tail") for stream in (3, 5, 7, 9, 11))]),
    ],
    ids=["each with its message", "headers first"],
)
@pytest.mark.parametrize("most", [5, 3])
async def test_the_calls_of_one_read_are_answered_together(burst: bytes, most: int) -> None:
    session = Session(most=[most])
    await session.written()
    session.read(call(1), burst)
    assert await session.written() == ANSWERS[6]
    assert session.repeated[0] == most
    assert session.single == [1, *range(3 + 2 * most, 13, 2)]


async def test_calls_may_have_to_be_answered_in_batches() -> None:
    session = Session(together=2)
    await session.written()
    session.read(call(1), call(3), b"".join(map(call, (5, 7, 9, 11))))
    assert await session.written() == ANSWERS[6]
    assert (session.repeated, session.single) == ([4], [1, 3])
    session.read(b"".join(map(call, (13, 15, 17))))
    assert (session.repeated, session.single) == ([4, 2], [1, 3, 17])


async def test_a_template_belongs_to_the_headers_of_its_call() -> None:
    """They are not always the last that came."""
    session = Session()
    session.read(head(1) + head(3, STRANGE) + body(1, b"tail"), call(5), call(7, block=STRANGE))
    assert (session.repeated, session.single) == ([1], [1, 7])


async def test_clients_may_open_windows_between_calls() -> None:
    """gRPC's C core opens that of each call for the prefix of its response, and the connection's."""
    session = Session()
    await session.written()
    opened = [head(stream) + frames.window_update(stream, 5) + body(stream, b"tail") for stream in (3, 5, 7)]
    connection, window = frames.window_update(0, 9), session.connection.sender.window
    session.read(call(1), opened[0] + connection + opened[1] + opened[2] + connection, connection + call(9))
    session.read(connection[:9], connection[9:] + call(11))
    assert await session.written() == ANSWERS[6]
    assert (session.repeated, session.single) == ([1, 2, 1, 1], [1])
    assert session.connection.sender.window == window + 4 * 9 - 6 * len(frame_message(b"tailtailtail"))


async def test_messages_may_come_after_the_headers_of_their_calls() -> None:
    session = Session()
    await session.written()
    session.read(call(1), head(3) + head(5) + body(3, b"tail") + body(5, b"tail")[:7], body(5, b"tail")[7:])
    session.read(head(7) + head(9), body(7, b"tail") + body(9, b"tail"), call(11))
    assert await session.written() == ANSWERS[6]
    assert (session.repeated, session.single) == ([1, 1], [1, 5, 7, 9])


@pytest.mark.parametrize(
    ("other", "single"),
    [
        (call(3, b"other size"), [1, 3]),
        (call(3, block=STRANGE), [1, 3]),
        (call(5), [1, 5]),
        (head(3) + body(3, b"tail", 0) + frames.frame(DATA, END_STREAM, 3, b""), [1, 3]),
        (frames.window_update(3, 7) + call(3), [1]),
        (head(3) + body(3, b"tail").replace(b"start", b"stark"), [1, 3]),
    ],
    ids=["size", "headers", "number", "two frames", "another frame first", "message"],
)
async def test_calls_that_differ_are_taken_one_by_one(other: bytes, single: list[int]) -> None:
    session = Session()
    session.read(call(1), other)
    assert session.single == single
    assert not session.repeated


async def test_a_call_that_nobody_answers_at_once_is_taken_like_any_other_and_ends_the_template() -> None:
    session = Session(most=[1, 0])
    await session.written()
    for stream in range(1, 13, 2):
        session.read(call(stream))
    assert await session.written() == ANSWERS[6]
    assert (session.repeated, session.single) == ([1, 0, 1, 1, 1], [1, 5])


async def test_headers_that_change_the_compression_table_end_the_template() -> None:
    """The same bytes may stand for other headers then."""
    session, encoder = Session(), Encoder()
    blocks = [encoder.encode(grpc_headers(ECHO, (b"n", b"%d" % (at // 3)))) for at in range(9)]
    assert len({*blocks}) == 6
    session.read(*(call(1 + 2 * at, block=block) for at, block in enumerate(blocks)))
    assert session.single == [1, 3, 7, 9, 13, 15], "the second block of each kind is known, the third repeats"


async def test_no_more_is_sent_than_the_clients_window_permits() -> None:
    session = Session()
    session.read(call(1), frames.settings_frame({Setting.INITIAL_WINDOW_SIZE: 16}))
    await session.written()
    session.read(call(3))
    assert session.single == [1, 3], "the answer waits in its stream"
    assert (await session.written()).endswith(b"tailtailtai")
    session.read(frames.window_update(3, 1))
    assert b"grpc-status" in await session.written()

    of_connection = Session()
    tail = b"%04d" * 300
    of_connection.read(call(1, tail), b"".join(call(stream, tail) for stream in range(3, 61, 2)))
    size = len(frame_message(3 * tail))
    assert of_connection.repeated == [frames.DEFAULT_WINDOW // size - 1]
    written = await of_connection.written()
    assert frames.DEFAULT_WINDOW - size < written.count(b"%04d") * 4 <= frames.DEFAULT_WINDOW


async def test_responses_of_one_read_do_not_outgrow_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small requests may have large responses, which a client that asks for many need not read."""
    monkeypatch.setattr("tpx.protocol.http2.sender._BYTES_AT_ONCE", 100)
    session = Session()
    await session.written()
    session.read(call(1), b"".join(map(call, (3, 5, 7, 9, 11))))
    most = 100 // len(frame_message(b"tailtailtail"))
    assert session.repeated == [min(5, most)]
    monkeypatch.setattr("tpx.protocol.http2.sender._BYTES_AT_ONCE", 40)
    session.read(b"".join(map(call, (13, 15, 17, 19))))
    assert session.repeated[1:] == [2]
    assert session.single[-2:] == [17, 19]


async def test_a_server_that_drains_accepts_no_repeated_calls() -> None:
    session = Session()
    session.read(call(1), call(3))
    session.listener.release()
    assert b"tpxdrain" in await session.written()
    session.read(frames.frame(frames.PING, frames.ACK, 0, b"tpxdrain"), call(5))
    assert (session.repeated, session.single) == ([1], [1])


Piece = Callable[[int], tuple[bytes, int]]
"""Returns bytes that a client sends when its next stream is the argument, and the one after them."""


def burst(count: int, tail: bytes, *, apart: bool) -> Piece:
    def build(stream: int) -> tuple[bytes, int]:
        streams = range(stream, stream + 2 * count, 2)
        heads, bodies = list(map(head, streams)), [body(each, tail) for each in streams]
        if apart:
            return b"".join([*heads, *bodies]), streams.stop
        return b"".join(first + second for first, second in zip(heads, bodies, strict=True)), streams.stop

    return build


def odd(make: Callable[[int], bytes], on: int = 2) -> Piece:
    return lambda stream: (make(stream), stream + on)


_inserting = Encoder()
_headers: list[Header] = grpc_headers(ECHO, (b"custom", b"value"))
INSERTING = [_inserting.encode(_headers), _inserting.encode(_headers)]

PIECES = st.one_of(
    st.builds(burst, st.integers(1, 6), st.sampled_from([b"tail", b"next", b"longer"]), apart=st.booleans()),
    st.sampled_from(
        [
            odd(lambda _: frames.window_update(0, 5), 0),
            odd(lambda _: frames.window_update(0, 0), 0),
            odd(lambda stream: head(stream) + frames.window_update(stream, 5) + body(stream, b"tail")),
            odd(lambda stream: head(stream) + frames.window_update(stream, 0) + body(stream, b"tail")),
            odd(lambda stream: call(stream + 2), 4),
            odd(lambda stream: call(stream, block=STRANGE)),
            odd(lambda stream: call(stream, block=INSERTING[0]) + call(stream + 2, block=INSERTING[1]), 4),
            odd(lambda stream: head(stream) + frames.rst_stream(stream, ErrorCode.CANCEL)),
            odd(lambda stream: head(stream) + head(stream + 2) + body(stream + 2, b"tail"), 4),
            odd(lambda stream: head(stream + 2) + head(stream) + body(stream, b"tail"), 4),
            odd(lambda stream: head(stream) + body(stream + 2, b"tail")),
            odd(lambda stream: call(max(1, stream - 2)), 0),
            odd(lambda stream: frames.frame(HEADERS, 0, stream, BLOCK[:9])),
        ]
    ),
)


@given(st.lists(PIECES, max_size=12), st.lists(st.integers(0, 4), max_size=6), st.data())
@settings(max_examples=100)
def test_any_client_gets_the_same_with_templates_and_without(
    pieces: list[Piece], most: list[int], data: st.DataObject
) -> None:
    sent, stream = call(1), 3
    for piece in pieces:
        more, stream = piece(stream)
        sent += more
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=8))
    reads = [sent[start:stop] for start, stop in pairwise([0, *sorted(cuts), len(sent)])]

    async def converse(*, repeats: bool) -> bytes:
        session = Session(repeats=repeats, most=most)
        session.read(*reads)
        return await session.written()

    assert asyncio.run(converse(repeats=True)) == asyncio.run(converse(repeats=False))
