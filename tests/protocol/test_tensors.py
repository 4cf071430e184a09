"""Tensors as bytes, and bytes as tensors."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpx.errors import InvalidRequest
from tpx.protocol.datatypes import BY_NAME, BY_NUMBER, datatype, from_numpy
from tpx.protocol.tensors import ALIGNMENT, Tensor, aligned, as_array, decode_bytes, encode_bytes, raw_bytes


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_bytes_elements_come_back(elements: list[bytes]) -> None:
    assert decode_bytes(encode_bytes(elements), len(elements)) == elements


@given(st.binary(max_size=40), st.integers(0, 6))
def test_arbitrary_bytes_are_so_many_elements_or_an_error(data: bytes, count: int) -> None:
    try:
        elements = decode_bytes(data, count)
    except InvalidRequest:
        return
    assert len(elements) == count
    assert encode_bytes(elements) == data


def length(size: int) -> bytes:
    return struct.pack("<I", size)


@pytest.mark.parametrize(
    ("data", "count", "words"),
    [
        (b"\x01\x00", 1, "expecting 4 bytes but only 2 bytes available"),
        (length(4) + b"abc", 1, "expecting 4 bytes but only 3 bytes available"),
        (length(0xFFFFFFFF) + b"abc", 1, "expecting 4294967295 bytes"),
        (length(1) + b"a" + length(1) + b"b", 1, "unexpected number of string elements 2, expecting 1"),
        (length(1) + b"a", 2, "expected 2 string elements, got 1"),
        (b"", 1, "expected 1 string elements, got 0"),
        (length(1) + b"a" + b"x", 1, "expecting 4 bytes but only 1 bytes available"),
    ],
)
def test_lengths_that_lie_are_refused(data: bytes, count: int, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        decode_bytes(data, count)


def test_a_shape_that_the_bytes_do_not_fill_takes_no_memory() -> None:
    with pytest.raises(InvalidRequest, match="string elements"):
        as_array(encode_bytes([b"a"]), "BYTES", (2**50,))


@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "BYTES"])
def test_numbers_are_views_in_the_order_of_the_wire(name: str) -> None:
    kind = BY_NAME[name]
    data = bytearray(range(6 * kind.size)) if name != "BOOL" else bytearray([0, 1] * 3)
    array = Tensor("x", name, [2, 3], data).numpy()
    assert array.shape == (2, 3)
    assert array.dtype == kind.numpy
    assert array.tobytes() == bytes(data)
    data[0] ^= 1
    assert array.tobytes() == bytes(data), "no copy"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.int32).reshape(3, 4),
        np.arange(12, dtype=np.int32).reshape(3, 4).T,
        np.arange(24, dtype=np.float64)[::2],
        np.arange(4, dtype=">i4"),
        np.array(5, dtype=np.int16),
        np.zeros((0, 3), dtype=np.float32),
        np.array([True, False]),
        np.arange(3, dtype=np.float16),
    ],
    ids=["contiguous", "transposed", "strided", "big-endian", "scalar", "empty", "bool", "half"],
)
def test_any_array_becomes_bytes_in_row_major_little_endian_order(array: Any) -> None:
    tensor = Tensor.from_numpy("x", array)
    assert tensor.shape == array.shape
    assert bytes(tensor.data) == array.astype(array.dtype.newbyteorder("<")).tobytes()
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_a_contiguous_array_is_not_copied() -> None:
    array = np.arange(10, dtype=np.float32)
    data = raw_bytes(array)
    array[0] = 7
    assert np.frombuffer(data, np.float32)[0] == 7


@pytest.mark.parametrize(
    "array",
    [
        np.array([b"a", b"\0\xff"], dtype=np.object_),
        np.array(["a", "\xe9"], dtype=np.object_),
        np.array(["a", "bc"]),
        np.array([b"a", b"bc"]),
    ],
)
def test_strings_of_any_kind_are_bytes(array: Any) -> None:
    tensor = Tensor.from_numpy("x", array)
    assert tensor.datatype == "BYTES"
    expected = [element if isinstance(element, bytes) else element.encode() for element in array.tolist()]
    assert tensor.numpy().tolist() == expected


def test_bfloat16_travels_as_its_bits() -> None:
    array = np.array([0x3F80, 0x4000], dtype=np.uint16)
    tensor = Tensor.from_numpy("x", array, "BF16")
    assert tensor.datatype == "BF16"
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_datatypes_have_their_names_numbers_and_sizes() -> None:
    assert len(BY_NAME) == len(BY_NUMBER) == 14
    assert datatype("BYTES").config_name == "TYPE_STRING"
    assert datatype("FP32").config_name == "TYPE_FP32"
    with pytest.raises(InvalidRequest, match="unknown datatype 'FP33'"):
        datatype("FP33")
    for name, kind in BY_NAME.items():
        if name not in ("BYTES", "BF16"):
            assert kind.size == kind.numpy.itemsize
            assert from_numpy(kind.numpy).name == name
    assert from_numpy(np.dtype(np.uint16)).name == "UINT16"
    with pytest.raises(InvalidRequest, match="complex128"):
        from_numpy(np.dtype(np.complex128))


@pytest.mark.parametrize("offset", [0, 1, 37, 64, 100])
@pytest.mark.parametrize("size", [0, 1, 1000])
def test_buffers_are_aligned_where_tensors_begin(size: int, offset: int) -> None:
    buffer = aligned(size, offset)
    assert len(buffer) == size
    assert not buffer.readonly
    if size:
        address = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
        assert (address + offset) % ALIGNMENT == 0
