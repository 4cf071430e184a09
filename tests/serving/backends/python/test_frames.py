"""Frames: what is packed is unpacked, and what lies in shared memory is only pointed to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpx.serving.backends.python.worker import frames
from tpx.serving.transport.frame_socket import HEADER
from tpx.serving.transport.memory import Buffer

names = st.text(min_size=1, max_size=20)
shapes = st.lists(st.integers(0, 2**40), max_size=5)


@pytest.mark.slow
@given(st.lists(st.tuples(names, st.sampled_from(["FP32", "BYTES"]), shapes), max_size=5), names)
def test_a_head_is_what_it_was(tensors: list[tuple[str, str, list[int]]], text: str) -> None:
    head = frames.decode_head(frames.encode_head(tensors, {"text": text}))
    assert [(t.name, t.datatype, list(t.shape)) for t in head.tensors] == tensors
    assert head.extra == {"text": text}


class _Memory:
    """Keeps what it is given; a location is a place in a list."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def put(self, data: Buffer, size: int) -> int:
        assert size == len(data)
        self.kept.append(bytes(data))
        return len(self.kept) - 1

    def view(self, location: int, size: int) -> Buffer:
        assert size == len(self.kept[location])
        return self.kept[location]


@given(st.lists(st.integers(0, 40_000), max_size=6))
def test_tensors_come_out_as_they_went_in(sizes: list[int]) -> None:
    memory = _Memory()
    tensors: list[Buffer] = [bytes([index]) * size for index, size in enumerate(sizes)]
    parts: list[Buffer] = [b"head"]
    frames.add_tensors(parts, tensors, memory)
    body = memoryview(b"".join(parts) + b"rest")
    found, at = frames.take_tensors(body, 4, len(tensors), memory)
    assert [bytes(data) for data in found] == tensors
    assert bytes(body[at:]) == b"rest"
    assert [len(data) for data in memory.kept] == [s for s in sizes if s >= frames.INLINE_BELOW_BYTES]


def test_known_heads_are_parsed_once_and_bounded() -> None:
    heads = frames.Heads(most=2)
    encoded = [frames.encode_head([("x", "FP32", (n,))], {}) for n in range(5)]
    first = heads[encoded[0]]
    assert heads[encoded[0]] is first
    for data in encoded:
        assert heads[data].tensors[0].name == "x"
    assert heads[encoded[0]] is not first


def test_a_frame_says_how_long_it_is() -> None:
    frame = frames.framed(frames.READY, [b"ab", b"c"])
    assert HEADER.unpack_from(frame) == (3, frames.READY)
    assert frame[HEADER.size :] == b"abc"


@pytest.mark.parametrize("tensors", [[], [b"one"], [b"one", memoryview(b"two"), b""]])
def test_a_small_response_is_the_frame_of_its_parts(tensors: list[Buffer]) -> None:
    own = [b"status and head", b"more"]
    parts: list[Buffer] = [frames.RESPONSE_START.pack(2**64 - 1, frames.FINAL), *own]
    frames.add_tensors(parts, tensors, _Memory())
    whole = frames.framed(frames.RESPONSE, parts)
    assert frames.small_response(2**64 - 1, frames.FINAL, own, tensors) == whole
