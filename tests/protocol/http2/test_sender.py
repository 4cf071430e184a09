"""The sending half by itself: windows, turns, and the order of what is written and what is told."""

from collections.abc import Callable, Iterable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpx.protocol.http2.frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW,
    END_STREAM,
    MAX_WINDOW,
    ErrorCode,
    Http2Error,
    Setting,
    header_at,
)
from tpx.protocol.http2.sender import FrameSender, Stream
from tpx.protocol.memory_budget import uncounted
from tpx.protocol.tensors import Buffer
from tpx.protocol.write_buffer import WriteBuffer


class LoggedStream(Stream):
    """Notes when its end was sent."""

    def __init__(self, stream_id: int, wire: "Wire") -> None:
        super().__init__(stream_id, wire.sender.initial_window)
        self._log = wire.log

    def sent(self) -> None:
        self._log.append(("ended", self.id))


class Wire:
    """Stands where a transport stands, and reads back the frames."""

    def __init__(self) -> None:
        self.log: list[object] = []
        self.raw = b""
        self.full_above = 1 << 60
        self.later: list[Callable[[], None]] = []
        self.sender = FrameSender(cast("WriteBuffer", self), self.later.append, uncounted())

    def write(self, data: Buffer) -> None:
        self.writelines([data])

    def writelines(self, parts: Iterable[Buffer]) -> None:
        data = b"".join(parts)
        self.raw += data
        at = 0
        while at < len(data):
            high, low, kind, flags, stream_id = header_at(data, at)
            at += 9
            size = high << 16 | low
            assert kind == DATA
            self.log.append((stream_id, data[at : at + size], bool(flags & END_STREAM)))
            at += size
        if len(self.raw) > self.full_above:
            self.sender.paused = True

    def open(self, stream_id: int) -> Stream:
        return LoggedStream(stream_id, self)

    def data(self, stream_id: int) -> bytes:
        return b"".join(
            cast("bytes", entry[1])
            for entry in self.log
            if isinstance(entry, tuple) and entry[0] == stream_id
        )

    @property
    def ended(self) -> list[int]:
        return [cast("int", e[1]) for e in self.log if isinstance(e, tuple) and e[0] == "ended"]

    @property
    def turns(self) -> list[object]:
        return [entry[0] for entry in self.log if isinstance(entry, tuple)]


@pytest.fixture
def wire() -> Wire:
    return Wire()


def test_streams_take_turns_of_one_frame(wire: Wire) -> None:
    sender = wire.sender
    sender.paused = True
    first, second = wire.open(1), wire.open(3)
    sender.queue(first, (bytes(3 * DEFAULT_FRAME_BYTES),), ending=True)
    sender.queue(second, (bytes(DEFAULT_FRAME_BYTES // 2),), ending=True)
    sender.window = 1 << 20
    sender.resume()
    assert wire.turns == [1, 3, 1, 1, "ended", "ended"]


def test_small_parts_share_a_frame(wire: Wire) -> None:
    stream = wire.open(1)
    wire.sender.queue(stream, (b"prefix", b"", b"head", memoryview(b"tensor")), ending=True)
    assert wire.log == [(1, b"prefixheadtensor", True), ("ended", 1)]


def test_the_end_of_a_stream_is_told_after_it_is_written(wire: Wire) -> None:
    """Who hears of it may close the connection, or reset the stream."""
    stream = wire.open(1)
    wire.sender.queue(stream, (b"abc",), ending=True)
    assert wire.log == [(1, b"abc", True), ("ended", 1)]


def test_an_end_alone_needs_no_window(wire: Wire) -> None:
    wire.sender.window = 0
    stream = wire.open(1)
    stream.send_window = 0
    wire.sender.queue(stream, (), ending=True)
    assert wire.log == [(1, b"", True), ("ended", 1)]


def test_a_stream_stops_at_its_window_and_lets_others_go_on(wire: Wire) -> None:
    first, second = wire.open(1), wire.open(3)
    first.send_window = 10
    wire.sender.queue(first, (bytes(30),), ending=True)
    wire.sender.queue(second, (bytes(20),), ending=True)
    assert (wire.data(1), wire.data(3)) == (bytes(10), bytes(20))
    assert wire.sender.widen_stream(first, 5) is None
    assert len(wire.data(1)) == 15
    assert wire.sender.widen_stream(first, 100) is None
    assert len(wire.data(1)) == 30
    assert not wire.sender.queued
    assert wire.sender.window == DEFAULT_WINDOW - 50


def test_all_streams_stop_at_the_window_of_the_connection(wire: Wire) -> None:
    wire.sender.window = 10
    first, second = wire.open(1), wire.open(3)
    wire.sender.queue(first, (b"a" * 8,), ending=True)
    wire.sender.queue(second, (b"b" * 8,), ending=True)
    assert (wire.data(1), wire.data(3)) == (b"a" * 8, b"b" * 2)
    wire.sender.widen(6)
    assert wire.data(3) == b"b" * 8


def test_an_update_costs_nothing_for_streams_whose_own_window_is_shut(wire: Wire) -> None:
    """Otherwise thirteen bytes would make us look at ten thousand streams, again and again."""

    class Counted(Stream):
        looks = 0

        def __getattribute__(self, name: str) -> object:
            Counted.looks += 1
            return super().__getattribute__(name)

    for stream_id in range(1, 200, 2):
        stream = Counted(stream_id, 0)
        wire.sender.queue(stream, (b"waiting",), ending=True)
    Counted.looks = 0
    for _ in range(100):
        wire.sender.widen(1)
    assert Counted.looks == 0


def test_frames_of_single_bytes_are_sent_over_several_turns(wire: Wire) -> None:
    wire.sender.initial_window = 1
    for number in range(1300):
        wire.sender.window = 0
        wire.sender.queue(wire.open(2 * number + 1), (b"ab",))
    wire.sender.widen(1300)
    assert len(wire.log) == 512
    wire.sender.widen(1300)  # what asks for more meanwhile does not get it before its turn
    assert len(wire.log) == 512
    for sent in (1024, 1300):
        [go_on] = wire.later
        wire.later.clear()
        go_on()
        assert len(wire.log) == sent
    assert wire.later == []


def test_what_is_left_of_a_part_is_not_copied_for_each_frame(wire: Wire) -> None:
    stream = wire.open(1)
    stream.send_window = 1
    wire.sender.queue(stream, (bytes(4000),))
    left = stream.outbox
    assert left is not None
    assert [type(part) for part in left] == [memoryview]
    wire.sender.queue(stream, (b"more",))
    assert wire.sender.widen_stream(stream, 5000) is None
    assert wire.data(1) == bytes(4000) + b"more"


def test_a_smaller_initial_window_may_make_windows_negative(wire: Wire) -> None:
    """RFC 9113 section 6.9.2."""
    stream = wire.open(1)
    wire.sender.window = 1 << 20
    wire.sender.queue(stream, (bytes(DEFAULT_WINDOW + 100),), ending=True)
    assert stream.send_window == 0
    wire.sender.apply({Setting.INITIAL_WINDOW_SIZE: 0}, [stream])
    assert stream.send_window == -DEFAULT_WINDOW
    wire.sender.widen_stream(stream, DEFAULT_WINDOW)
    assert len(wire.data(1)) == DEFAULT_WINDOW
    wire.sender.widen_stream(stream, 40)
    assert len(wire.data(1)) == DEFAULT_WINDOW + 40
    wire.sender.apply({Setting.INITIAL_WINDOW_SIZE: 100}, [stream])
    wire.sender.pump()
    assert len(wire.data(1)) == DEFAULT_WINDOW + 100


def test_a_stream_whose_window_closes_while_it_waits_loses_its_turn(wire: Wire) -> None:
    wire.sender.window = 0
    stream = wire.open(1)
    wire.sender.queue(stream, (b"abc",), ending=True)
    wire.sender.apply({Setting.INITIAL_WINDOW_SIZE: 0}, [stream])
    wire.sender.widen(100)
    assert wire.log == []
    wire.sender.apply({Setting.INITIAL_WINDOW_SIZE: 3}, [stream])
    wire.sender.pump()
    assert wire.data(1) == b"abc"


@pytest.mark.parametrize(
    ("increment", "code"), [(0, ErrorCode.PROTOCOL_ERROR), (MAX_WINDOW, ErrorCode.FLOW_CONTROL_ERROR)]
)
def test_windows_out_of_range_are_errors(wire: Wire, increment: int, code: ErrorCode) -> None:
    stream = wire.open(1)
    assert wire.sender.widen_stream(stream, increment) is code
    with pytest.raises(Http2Error) as caught:
        wire.sender.widen(increment)
    assert caught.value.error_code is code


def test_an_initial_window_that_overflows_an_open_stream_is_an_error(wire: Wire) -> None:
    stream = wire.open(1)
    wire.sender.widen_stream(stream, MAX_WINDOW - DEFAULT_WINDOW)
    with pytest.raises(Http2Error, match="stream window"):
        wire.sender.apply({Setting.INITIAL_WINDOW_SIZE: DEFAULT_WINDOW + 1}, [stream])


def test_nothing_is_written_while_the_transport_is_full(wire: Wire) -> None:
    wire.sender.window = wire.sender.initial_window = 1 << 30
    wire.full_above = 1 << 20
    stream = wire.open(1)
    wire.sender.queue(stream, (bytes(8 << 20),), ending=True)
    assert 1 << 20 < len(wire.raw) < 2 << 20
    wire.full_above = 1 << 60
    wire.sender.resume()
    assert len(wire.data(1)) == 8 << 20


def test_a_forgotten_stream_holds_nothing(wire: Wire) -> None:
    wire.sender.window = 0
    first, second = wire.open(1), wire.open(3)
    wire.sender.queue(first, (b"abc",), ending=True)
    wire.sender.queue(second, (b"def",), ending=True)
    wire.sender.forget(1)
    assert first.outbox is None
    wire.sender.widen(100)
    assert wire.turns == [3, "ended"]


def test_only_a_window_kept_shut_counts_as_stalled(wire: Wire) -> None:
    sender = wire.sender
    slow, shut = wire.open(1), wire.open(3)
    slow.send_window = shut.send_window = 1
    for stream in (slow, shut):
        sender.queue(stream, (bytes(1000),), ending=True)
    for tick in range(1, 60):
        assert sender.stalled(tick, 60) == []
        sender.widen_stream(slow, 1)
    assert sender.stalled(61, 60) == []
    assert sender.stalled(62, 60) == [shut]


def test_a_connection_window_kept_shut_stalls_those_who_wait_for_it(wire: Wire) -> None:
    sender = wire.sender
    sender.window = 0
    stream = wire.open(1)
    sender.queue(stream, (bytes(1000),), ending=True)
    for tick in range(1, 200):
        sender.widen(1)
        assert sender.stalled(tick, 60) == [], "it is served, if slowly"
    stalled = [tick for tick in range(200, 300) if sender.stalled(tick, 60)]
    assert stalled[0] == 261


chunks = st.lists(st.binary(max_size=50), max_size=5)


@given(
    data=st.dictionaries(st.integers(0, 4).map(lambda n: 2 * n + 1), chunks, min_size=1),
    grants=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=60),
    frame_bytes=st.integers(1, 30),
)
def test_what_is_sent_never_exceeds_what_was_granted_and_is_whole_in_the_end(
    data: dict[int, list[bytes]], grants: list[tuple[int, int]], frame_bytes: int
) -> None:
    wire = Wire()
    sender = wire.sender
    sender.window = sender.initial_window = 0
    sender.frame_bytes = frame_bytes
    streams = {stream_id: wire.open(stream_id) for stream_id in data}
    granted = dict.fromkeys([0, *streams], 0)
    for stream_id, parts in data.items():
        sender.queue(streams[stream_id], parts, ending=True)
    for choice, increment in grants:
        target = (0, *streams)[choice % (1 + len(streams))]
        granted[target] += increment
        if target:
            sender.widen_stream(streams[target], increment)
        else:
            sender.widen(increment)
        assert sum(len(wire.data(i)) for i in streams) <= granted[0]
        assert all(len(wire.data(i)) <= granted[i] for i in streams)
    sender.widen(10_000)
    for stream in streams.values():
        sender.widen_stream(stream, 10_000)
    assert {i: wire.data(i) for i in streams} == {i: b"".join(parts) for i, parts in data.items()}
    assert sorted(
        cast("list[int]", [e[1] for e in wire.log if isinstance(e, tuple) and e[0] == "ended"])
    ) == sorted(streams)
    assert not sender.queued
