from tpx.serving.processes.ring import COUNTERS_BYTES, INLINE, RING_BYTES, FrameRing

HEAD = (1, 2, 3, 4, 5)


def _ends() -> tuple[FrameRing, FrameRing]:
    memory = memoryview(bytearray(COUNTERS_BYTES + RING_BYTES))
    return FrameRing(memory, 0), FrameRing(memory, 0)


def _write(ring: FrameRing, data: bytes, meta: bytes = b"") -> bool:
    room = ring.write(HEAD, meta, len(data), INLINE)
    if room is not None:
        room[:] = data
    return room is not None


def test_a_frame_is_seen_once_it_is_published() -> None:
    writer, reader = _ends()
    assert _write(writer, b"data", b"meta")
    assert reader.read() is None
    writer.publish()
    assert reader.read() == ((48, *HEAD, 4, 4, INLINE), b"metadata")


def test_a_ring_that_is_full_takes_nothing_until_the_reader_has_consumed() -> None:
    writer, reader = _ends()
    while _write(writer, bytes(8000)):
        pass
    writer.publish()
    assert reader.read() is not None
    assert not _write(writer, bytes(8000))
    while reader.read() is not None:
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
        got = reader.read()
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
    reader.read()
    assert reader.consumed()
    assert not reader.consumed()
