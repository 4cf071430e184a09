"""Responses that match a template: what comes of them is what came of their frames one by one."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import Any

import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.transport import MemoryTransport
from tests.protocol.grpc.scripted import OK, TRAILERS
from tests.protocol.grpc.service import ECHO
from tests.protocol.http2.raw import Header
from tpx.protocol.grpc.client import GrpcClientConnection
from tpx.protocol.grpc.client_call import GrpcResponse
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.http2 import frames
from tpx.protocol.http2.connection import CONNECTION_WINDOW
from tpx.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, Setting
from tpx.protocol.http2.hpack import encode_stateless
from tpx.protocol.tensors import new_scratch

Encode = Callable[[Sequence[Header]], bytes]
LOST: list[Header] = [(b"grpc-status", b"5"), (b"grpc-message", b"gone")]
GREETING = frames.settings_frame({})


def head(stream: int, headers: Sequence[Header] = OK, encode: Encode = encode_stateless) -> bytes:
    return frames.frame(HEADERS, END_HEADERS, stream, encode(headers))


def data(stream: int, message: bytes) -> bytes:
    return frames.frame(DATA, 0, stream, frame_message(message))


def end(stream: int, trailers: Sequence[Header] = TRAILERS, encode: Encode = encode_stateless) -> bytes:
    return frames.frame(HEADERS, END_HEADERS | END_STREAM, stream, encode(trailers))


def answer(stream: int, message: bytes) -> bytes:
    return head(stream) + data(stream, message) + end(stream)


class Session:
    """Calls on a connection without a socket; by default, each that ends is followed by another."""

    def __init__(self, calls: int) -> None:
        self.transport = MemoryTransport()
        self.connection = GrpcClientConnection(new_scratch(), "test", tls=False)
        self.http2 = self.connection.http2
        self.transport.set_protocol(self.http2)
        self.http2.connection_made(self.transport)
        self._prepared = self.connection.prepare(ECHO, b"request")
        self.ends: list[tuple[int, str, bytes, dict[str, bytes]]] = []
        self.objects: list[GrpcResponse] = []
        self.then: Callable[[], object] = self.call
        self.streams = [self.call() for _ in range(calls)]
        self.read(GREETING)

    def call(self) -> int:
        return self.connection.call(self._prepared, self._ended)

    def read(self, *reads: bytes) -> None:
        for each in reads:
            self.transport.feed(each)

    @property
    def messages(self) -> list[bytes]:
        return [data for _, _, data, _ in self.ends]

    def _ended(self, response: GrpcResponse) -> None:
        assert response.first_byte_ns > 0 or response.status
        self.objects.append(response)
        self.ends.append((response.status, response.message, bytes(response.data), dict(response.metadata)))
        self.then()


async def test_answers_that_are_alike_are_shown_in_one_object_each_with_its_message() -> None:
    session = Session(1)
    session.read(*(answer(2 * n + 1, b"%03d" % n) for n in range(6)))
    assert session.messages == [b"%03d" % n for n in range(6)]
    assert [end[:2] for end in session.ends] == [(0, "")] * 6
    assert session.ends[5][3] == session.ends[0][3]
    assert len(set(map(id, session.objects[2:]))) == 1


async def test_a_read_may_bring_several_of_them_in_any_order() -> None:
    session = Session(4)
    together = [(1, 3), (5, 7, 9, 11), (17, 15, 13), (19,)]
    for streams in together:
        session.read(b"".join(answer(n, b"a%02d" % n) for n in streams))
    assert session.messages == [b"a%02d" % n for streams in together for n in streams]
    assert len(session.http2.streams) == 4


async def test_a_server_may_give_the_connections_window_back_between_them() -> None:
    session = Session(4)
    window = session.http2.sender.window
    updates = [frames.window_update(0, increment) for increment in (292, 584, 1)]
    session.read(answer(1, b"abc"), answer(3, b"abc"))
    session.read(answer(5, b"one") + updates[0])
    session.read(answer(7, b"two") + answer(9, b"two") + updates[1] + answer(11, b"six") + updates[2])
    session.read(updates[0] + answer(13, b"ten"), updates[2])
    session.read(answer(15, b"now"))
    assert session.messages[2:] == [b"one", b"two", b"two", b"six", b"ten", b"now"]
    assert len({id(shown) for shown in (*session.objects[2:6], session.objects[7])}) == 1
    called_since = len(session.ends) * len(frame_message(b"request"))
    assert session.http2.sender.window == window + 2 * 292 + 584 + 2 * 1 - called_since


@pytest.mark.parametrize("cut", range(1, 13))
async def test_a_window_that_is_given_back_in_pieces_is_put_together(cut: int) -> None:
    session = Session(1)
    update = frames.window_update(0, 292)
    session.read(answer(1, b"abc"), answer(3, b"abc"))
    window = session.http2.sender.window
    session.read(answer(5, b"one") + update[:cut], update[cut:] + answer(7, b"two"))
    assert session.messages[2:] == [b"one", b"two"]
    assert session.http2.sender.window == window + 292 - 2 * len(frame_message(b"request"))


async def test_a_window_of_one_call_is_not_the_connections() -> None:
    session = Session(2)
    session.read(answer(1, b"abc"), answer(5, b"abc"))
    window, of_call = session.http2.sender.window, session.http2.streams[3].send_window
    session.read(answer(7, b"one") + frames.window_update(3, 7))
    assert session.http2.streams[3].send_window == of_call + 7
    assert session.http2.sender.window == window - len(frame_message(b"request"))
    session.read(answer(3, b"two") + frames.window_update(99, 7))
    assert session.messages[2:] == [b"one", b"two"]
    assert session.connection.closing


@pytest.mark.parametrize("increment", [0, 2**31 - 1])
async def test_a_window_that_cannot_be_ends_the_connection(increment: int) -> None:
    session = Session(2)
    session.read(answer(1, b"abc"), answer(3, b"abc"))
    session.read(answer(5, b"one") + frames.window_update(0, increment) + answer(7, b"two"))
    assert session.messages == [b"abc", b"abc", b"one"]
    assert session.connection.closing


async def test_another_status_or_length_is_seen() -> None:
    session = Session(1)
    session.read(*(answer(n, b"abc") for n in (1, 3, 5)))
    session.read(head(7) + data(7, b"abc") + end(7, [(b"grpc-status", b"8")]))
    session.read(head(9) + data(9, b"ab") + end(9, [*TRAILERS, (b"x", b"1")]))
    session.read(answer(11, b"longer"))
    assert [(status, data) for status, _, data, _ in session.ends[3:]] == [
        (8, b"abc"),
        (0, b"ab"),
        (0, b"longer"),
    ]
    assert session.ends[4][3]["x"] == b"1"


async def test_a_block_that_changes_the_table_changes_what_the_next_ones_mean() -> None:
    encoder = Encoder()
    session = Session(1)

    def encoded(stream: int, value: bytes) -> bytes:
        trailers = encode_stateless(TRAILERS) + encoder.encode([(b"x-a", value)])
        return head(stream) + data(stream, b"abc") + end(stream, encode=lambda _: trailers)

    reads = [encoded(n, b"1") for n in (1, 3, 5, 7)]
    changed, again = encoded(9, b"2"), encoded(11, b"2")
    assert again == reads[3].replace(bytes([0, 0, 0, 7]), bytes([0, 0, 0, 11]))
    session.read(*reads, changed, again)
    assert [metadata["x-a"] for *_, metadata in session.ends] == [b"1"] * 4 + [b"2"] * 2


async def test_a_call_whose_answer_has_begun_is_not_begun_again() -> None:
    session = Session(1)
    session.read(answer(1, b"abc"), answer(3, b"abc"), head(5))
    begun_ns = perf_counter_ns()
    session.read(answer(5, b"xyz"))
    assert session.messages[2:] == [b"xyz"]
    assert session.objects[2].first_byte_ns < begun_ns


async def test_frames_of_several_streams_are_not_one_answer() -> None:
    session = Session(2)
    session.read(answer(1, b"abc"), answer(5, b"abc"))
    session.read(head(3) + data(7, b"xyz") + end(3))
    session.read(answer(9, b"abc"), answer(11, b"abc"))
    session.read(head(13) + data(13, b"xyz") + end(15))
    session.read(answer(13, b"two")[len(head(13)) :])
    assert [end[:3] for end in (*session.ends[2:4], *session.ends[6:])] == [
        (13, "the response has DATA before its headers", b""),
        (0, "", b""),
        (0, "", b""),
        (0, "", b"two"),
    ]


async def test_trailers_end_a_call_when_they_say_so() -> None:
    session = Session(1)
    session.read(answer(1, b"abc"), answer(3, b"abc"))
    session.read(head(5) + data(5, b"xyz") + head(5, TRAILERS))
    assert session.messages == [b"abc", b"abc"]
    session.read(end(5))
    assert session.messages == [b"abc", b"abc", b"xyz"]


async def test_a_call_that_takes_the_place_of_another_has_its_own_state() -> None:
    session = Session(1)
    session.read(answer(1, b"abc"), answer(3, b"abc"))
    session.then = lambda: [session.call() for _ in range(2)]
    session.read(answer(5, b"abc"))
    session.then = lambda: None
    session.read(head(7) + data(7, b"seven"), head(9), end(9), end(7))
    assert session.messages[3:] == [b"", b"seven"]


async def test_a_call_that_takes_the_place_of_a_refused_one_may_be_refused_as_often() -> None:
    session = Session(1)
    session.read(answer(1, b"abc"), answer(3, b"abc"))
    stream = 5
    for _ in range(2):
        for _ in range(4):
            session.read(frames.rst_stream(stream, frames.ErrorCode.REFUSED_STREAM))
            stream += 2
        session.read(answer(stream, b"abc"))
        stream += 2
    assert [end[0] for end in session.ends] == [0] * 4


async def test_answers_to_calls_that_were_cancelled_are_passed_over() -> None:
    session = Session(2)
    session.read(answer(1, b"abc"), answer(5, b"abc"), answer(7, b"abc"))
    session.connection.cancel(3)
    session.read(answer(9, b"one") + answer(3, b"two") + answer(11, b"six"))
    assert session.messages == [b"abc"] * 3 + [b"", b"one", b"six"]
    assert session.ends[3][0] == 1


async def test_an_answer_on_a_stream_that_was_never_opened_ends_the_connection() -> None:
    session = Session(1)
    session.read(answer(1, b"abc"), answer(3, b"abc"), answer(99, b"abc"))
    assert session.connection.closing
    assert session.transport.closed


async def test_an_answer_in_the_middle_of_a_header_block_ends_the_connection() -> None:
    session = Session(1)
    session.read(answer(1, b"abc"), answer(3, b"abc"))
    session.read(frames.frame(HEADERS, 0, 5, encode_stateless(OK)), answer(5, b"abc"))
    assert session.connection.closing
    assert session.messages == [b"abc", b"abc"]


async def test_nothing_is_read_once_a_callback_has_closed_the_connection() -> None:
    session = Session(3)
    session.read(answer(1, b"abc"), answer(3, b"abc"))
    session.then = session.connection.close
    session.read(answer(5, b"one") + answer(7, b"two"))
    assert session.messages == [b"abc", b"abc", b"one"]


async def test_calls_that_wait_for_their_turn_are_made() -> None:
    session = Session(0)
    session.read(frames.settings_frame({Setting.MAX_CONCURRENT_STREAMS: 2}))
    session.then = lambda: None
    for _ in range(9):
        session.call()
    assert session.connection.in_flight == 9
    for streams in ((1, 3), (5, 7), (9, 11), (13, 15), (17,)):
        session.read(b"".join(answer(n, b"n%02d" % n) for n in streams))
    assert session.messages == [b"n%02d" % n for n in range(1, 18, 2)]
    assert session.connection.in_flight == 0


async def test_the_window_of_the_connection_is_given_back() -> None:
    session = Session(1)
    message = bytes(8000)
    count = CONNECTION_WINDOW // 2 // len(message) + 1
    before = bytes(session.transport.written).count(frames.window_update(0, 0)[:9])
    session.read(*(answer(2 * n + 1, message) for n in range(count)))
    assert bytes(session.transport.written).count(frames.window_update(0, 0)[:9]) == before + 1


async def test_the_last_answers_of_a_server_that_goes_away_close_the_connection() -> None:
    session = Session(2)
    session.read(answer(1, b"abc"), answer(5, b"abc"))
    session.then = lambda: None
    session.read(frames.goaway(9, frames.ErrorCode.NO_ERROR), answer(3, b"abc"))
    assert not session.transport.closed
    session.read(answer(7, b"abc"))
    assert session.transport.closed


@pytest.mark.parametrize("headers", [[], [(b":status", b"103")]], ids=["no headers", "interim headers"])
async def test_a_message_before_the_headers_of_its_response_is_refused(headers: list[Header]) -> None:
    session = Session(1)
    session.read(*([head(1, headers)] if headers else []), data(1, b"abc") + end(1))
    assert session.ends[0][:3] == (13, "the response has DATA before its headers", b"")
    session.read(answer(3, b"abc"))
    assert session.ends[1][0] == 0


# whatever comes, and however it is cut

ANSWERS: dict[str, Callable[[int, bytes, Encode], bytes]] = {
    "plain": lambda stream, message, _: answer(stream, message),
    "indexed": lambda stream, message, encode: (
        head(stream, OK, encode) + data(stream, message) + end(stream, [*TRAILERS, (b"x-m", message)], encode)
    ),
    "only trailers": lambda stream, _, encode: end(stream, [*OK, *LOST], encode),
    "an error after a message": lambda stream, message, _: (
        head(stream) + data(stream, message) + end(stream, LOST)
    ),
    "two messages": lambda stream, message, _: (
        head(stream) + data(stream, message) + data(stream, message[::-1]) + end(stream)
    ),
    "two heads": lambda stream, message, encode: head(stream, OK, encode) + answer(stream, message),
    "no trailers": lambda stream, message, _: (
        head(stream) + frames.frame(DATA, END_STREAM, stream, frame_message(message))
    ),
    "a message that ends all": lambda stream, message, _: (
        head(stream) + frames.frame(DATA, END_STREAM, stream, frame_message(message)) + end(stream)
    ),
    "a head that ends all": lambda stream, message, _: (
        frames.frame(HEADERS, END_HEADERS | END_STREAM, stream, encode_stateless(OK))
        + data(stream, message)
        + end(stream)
    ),
    "a head padded": lambda stream, message, _: (
        frames.frame(HEADERS, END_HEADERS | frames.PADDED, stream, b"\x00" + encode_stateless(OK))
        + data(stream, message)
        + end(stream)
    ),
    "an unexpected compression": lambda stream, message, _: (
        head(stream) + frames.frame(DATA, 0, stream, pack_prefix(1, len(message)) + message) + end(stream)
    ),
    "no message": lambda stream, _, __: head(stream) + end(stream),
}
BETWEEN = {
    "ping": frames.frame(frames.PING, 0, 0, b"12345678"),
    "settings": GREETING,
    "window": frames.window_update(0, 1),
    "ended": answer(1, b"abc"),
}
PLAIN = st.tuples(st.just("plain"), st.sampled_from([b"abc", b"xyz", b"\x00\x00\x00", b"four"]))
OTHER = st.tuples(st.sampled_from(list(ANSWERS)), st.sampled_from([b"abc", b"abc", b"", bytes(range(200))]))
STEPS = st.lists(
    st.tuples(
        st.one_of(PLAIN, OTHER),
        st.sampled_from([None] * 16 + ["window"] * 4 + list(BETWEEN)),
        st.integers(0, 3),  # which of the calls in flight
        st.sampled_from(["after"] * 6 + ["", "inside", "behind its first frame"]),  # a read ends
    ),
    max_size=40,
)


def reads_of(steps: Iterable[Any], calls: int) -> list[bytes]:
    """What a server sends that answers as the steps say, in the pieces that they say."""
    encoder, in_flight, following = Encoder(), [2 * n + 1 for n in range(calls)], 2 * calls + 1
    reads = [b""]
    for (kind, message), between, which, where in steps:
        stream = in_flight.pop(which % calls)
        in_flight.append(following)
        following += 2
        said = ANSWERS[kind](stream, message, encoder.encode)
        if between is not None and (between != "ended" or 1 not in in_flight):
            said += BETWEEN[between]
        cut = {"": 0, "after": 0, "inside": len(said) // 2}.get(where, 9 + int.from_bytes(said[:3], "big"))
        reads[-1] += said[:cut]
        if cut:
            reads.append(b"")
        reads[-1] += said[cut:]
        if where:
            reads.append(b"")
    return [each for each in reads if each]


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(STEPS, st.integers(1, 4))
def test_any_answers_are_what_they_are_byte_by_byte(steps: list[Any], calls: int) -> None:
    familiar = [(("plain", b"abc"), None, 0, "after")] * 3
    reads = reads_of(familiar + steps, calls)

    async def converse(pieces: Iterable[bytes]) -> tuple[Any, bytes]:
        session = Session(calls)
        session.read(*pieces)
        await asyncio.sleep(0)
        return session.ends, bytes(session.transport.written)

    everything = b"".join(reads)
    by_bytes = asyncio.run(converse(everything[at : at + 1] for at in range(len(everything))))
    assert asyncio.run(converse(reads)) == by_bytes
    assert len(by_bytes[0]) == len(familiar) + len(steps)
