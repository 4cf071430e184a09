import struct

import pytest

from tpx.serving.processes.ring import COUNTERS_BYTES, INLINE, RING_BYTES, Fields, FrameRing

HEAD = (1, 2, 3, 4, 5)
HEAD_SIZE = struct.Struct("=I")


def _ends() -> tuple[FrameRing, FrameRing]:
    memory = memoryview(bytearray(COUNTERS_BYTES + RING_BYTES))
    return FrameRing(memory, 0), FrameRing(memory, 0)


def _write(ring: FrameRing, data: bytes, meta: bytes = b"") -> bool:
    room = ring.write(HEAD, meta, len(data), INLINE)
    if room is not None:
        room[:] = data
    return room is not None


def _read(ring: FrameRing) -> tuple[Fields, bytes] | None:
    for fields, data in ring.frames(2):  # one may fill the end of the ring
        return fields, bytes(data)
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
        assert writer.append(HEAD, data)
        writer.publish()
        assert _read(reader) == ((-(-(40 + len(data)) // 8) * 8, *HEAD, 0, len(data), INLINE), data)
        reader.consumed()


def test_a_short_frame_finds_no_room_in_a_full_ring() -> None:
    writer, reader = _ends()
    while writer.append(HEAD, bytes(1000)):
        pass
    writer.publish()
    assert len(list(reader.frames(RING_BYTES))) == RING_BYTES // 1040


def test_a_frame_that_reaches_beyond_the_ring_is_refused() -> None:
    memory = memoryview(bytearray(COUNTERS_BYTES + RING_BYTES))
    writer, reader = FrameRing(memory, 0), FrameRing(memory, 0)
    _write(writer, b"data")
    HEAD_SIZE.pack_into(memory, COUNTERS_BYTES, RING_BYTES + 8)
    writer.publish()
    with pytest.raises(ValueError, match="before the end of the ring"):
        list(reader.frames(1))
