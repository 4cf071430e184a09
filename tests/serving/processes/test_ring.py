import struct

import pytest

from tpx.serving.processes.ring import COUNTERS_BYTES, INLINE, RING_BYTES, Fields, FrameRing, PlainHead

HEAD = (1, 2, 3, 4, 5)
HEAD_PAYLOAD = struct.Struct("=Q")
HEAD_SIZE = struct.Struct("=I")


def _plain(size: int) -> PlainHead:
    return PlainHead(HEAD[0], HEAD[1], HEAD[3], HEAD[4], size)


def _ends() -> tuple[FrameRing, FrameRing]:
    memory = memoryview(bytearray(COUNTERS_BYTES + RING_BYTES))
    return FrameRing(memory, 0), FrameRing(memory, 0)


def _write(ring: FrameRing, data: bytes, meta: bytes = b"") -> bool:
    room = ring.write(HEAD, meta, len(data), INLINE)
    if room is not None:
        room[:] = data
    return room is not None


def _read(ring: FrameRing) -> tuple[Fields, bytes] | None:
    for fields, _, data in ring.frames(1):
        return fields, bytes(data[0])
    return None


def test_a_frame_is_seen_once_it_is_published() -> None:
    writer, reader = _ends()
    assert _write(writer, b"data", b"meta")
    assert _read(reader) is None
    writer.publish()
    assert _read(reader) == ((48, *HEAD, 4, 4, INLINE), b"metadata")


def test_a_ring_that_is_full_takes_nothing_until_the_reader_has_consumed() -> None:
    writer, reader = _ends()
    while _write(writer, bytes(8000)):
        pass
    writer.publish()
    assert _read(reader) is not None
    assert not _write(writer, bytes(8000))
    while _read(reader) is not None:
        pass
    reader.consumed()
    assert _write(writer, bytes(8000))


def test_frames_of_all_sizes_survive_the_end_of_the_ring() -> None:
    writer, reader = _ends()
    sizes = [size % 8001 for size in range(0, 8001 * 40, 997)]
    for size in sizes:
        data = bytes([size % 251]) * size
        assert _write(writer, data)
        writer.publish()
        got = _read(reader)
        assert got is not None
        assert got[1] == data
        reader.consumed()


def test_a_reader_that_sleeps_is_woken_once() -> None:
    writer, reader = _ends()
    assert reader.fall_asleep()
    _write(writer, b"1")
    assert writer.publish()
    _write(writer, b"2")
    assert not writer.publish()


def test_a_reader_does_not_fall_asleep_over_a_frame() -> None:
    writer, reader = _ends()
    _write(writer, b"1")
    writer.publish()
    assert not reader.fall_asleep()


def test_a_writer_that_waits_for_room_is_told_of_it() -> None:
    writer, reader = _ends()
    _write(writer, b"1")
    writer.publish()
    writer.writer_waits[0] = 1
    _read(reader)
    assert reader.consumed()
    assert not reader.consumed()


def test_short_frames_survive_the_end_of_the_ring() -> None:
    writer, reader = _ends()
    for number in range(RING_BYTES // 20):
        data = number.to_bytes(8, "little") * (1 + number % 5)
        assert writer.append(_plain(len(data)), HEAD[2], data)
        writer.publish()
        assert _read(reader) == ((-(-(40 + len(data)) // 8) * 8, *HEAD, 0, len(data), INLINE), data)
        reader.consumed()


def test_a_short_frame_finds_no_room_in_a_full_ring() -> None:
    writer, reader = _ends()
    count = 0
    while writer.append(_plain(1000), count, bytes(1000)):
        count += 1
    writer.publish()
    assert count == RING_BYTES // 1040
    found = [number for _, numbers, _ in reader.frames(RING_BYTES) for number in numbers]
    assert found == list(range(count))


def test_frames_that_differ_only_in_their_number_are_read_together() -> None:
    writer, reader = _ends()
    for number, (size, data) in enumerate(((3, b"abc"), (3, b"def"), (2, b"gh"), (3, b"ijk"))):
        assert writer.append(_plain(size), number, data)
    assert _write(writer, b"lmn", b"meta")
    assert writer.append(_plain(3), 9, b"opq")
    writer.publish()
    found = [(list(numbers), [bytes(each) for each in data]) for _, numbers, data in reader.frames(100)]
    assert found == [
        ([0, 1], [b"abc", b"def"]),
        ([2], [b"gh"]),
        ([3], [b"ijk"]),
        ([3], [b"metalmn"]),
        ([9], [b"opq"]),
    ]


def test_no_more_frames_are_read_than_wanted() -> None:
    writer, reader = _ends()
    for number in range(10):
        assert writer.append(_plain(3), number, b"abc")
    writer.publish()
    assert [list(numbers) for _, numbers, _ in reader.frames(4)] == [[0, 1, 2, 3]]
    assert [list(numbers) for _, numbers, _ in reader.frames(9)] == [[4, 5, 6, 7, 8, 9]]


def test_frames_that_are_shown_still_wake_a_reader_that_sleeps() -> None:
    writer, reader = _ends()
    assert reader.fall_asleep()
    assert writer.append(_plain(1), 0, b"1")
    writer.show()
    assert _read(reader) is not None
    assert writer.publish()
    assert not writer.publish()


def test_a_frame_that_reaches_beyond_the_ring_is_refused() -> None:
    memory = memoryview(bytearray(COUNTERS_BYTES + RING_BYTES))
    writer, reader = FrameRing(memory, 0), FrameRing(memory, 0)
    _write(writer, b"data")
    HEAD_SIZE.pack_into(memory, COUNTERS_BYTES, RING_BYTES + 8)
    writer.publish()
    with pytest.raises(ValueError, match="in the last 48 of the ring"):
        list(reader.frames(1))


def test_a_position_that_no_writer_has_is_refused() -> None:
    memory = memoryview(bytearray(COUNTERS_BYTES + RING_BYTES))
    reader = FrameRing(memory, 0)
    HEAD_PAYLOAD.pack_into(memory, 0, RING_BYTES + 8)
    with pytest.raises(ValueError, match="of at most 1048576"):
        list(reader.frames(1))


@pytest.mark.parametrize("payload_size", [1, 3, 9000])
def test_a_plain_frame_whose_sizes_disagree_is_refused(payload_size: int) -> None:
    memory = memoryview(bytearray(COUNTERS_BYTES + RING_BYTES))
    writer, reader = FrameRing(memory, 0), FrameRing(memory, 0)
    assert writer.append(_plain(30), 0, bytes(30))
    HEAD_PAYLOAD.pack_into(memory, COUNTERS_BYTES + 24, payload_size)
    writer.publish()
    with pytest.raises(ValueError, match="a frame of 72 bytes with"):
        list(reader.frames(1))
