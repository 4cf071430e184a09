"""Tensors in wire form (name, datatype, shape, and raw bytes, row-major and little-endian), and the memory
that the network writes into and models read from.
"""

import ctypes
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.errors import InvalidRequest
from tpx.protocol.datatypes import BY_NAME, from_numpy

Buffer = bytes | bytearray | memoryview
Array = npt.NDArray[Any]
"""Array of any datatype."""

SCRATCH_BYTES = 256 << 10
ALIGNMENT = 64

Allocator = Callable[[int], npt.NDArray[np.uint8]]
"""Returns uninitialized memory of the given size in bytes. Raises MemoryError."""
_length = struct.Struct("<I")
_ELEMENTS_AT_ONCE = 16 << 10
"""Number of elements encoded before other threads may run."""


class Tensor:
    """One named tensor in wire form; each element of a BYTES tensor is a uint32 length and the bytes."""

    __slots__ = ("data", "datatype", "name", "shape")

    def __init__(self, name: str, datatype: str, shape: Sequence[int], data: Buffer) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = tuple(shape)
        self.data = data

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype}, {list(self.shape)}, {len(self.data)} bytes)"

    @classmethod
    def from_numpy(cls, name: str, array: Array, datatype: str | None = None) -> "Tensor":
        """Create a tensor over `array`'s memory, or over a copy if it is not contiguous."""
        datatype = datatype or from_numpy(array.dtype).name
        return cls(name, datatype, array.shape, raw_bytes(array))

    def numpy(self) -> Array:
        """Return an array of the tensor's shape: a view, except for BYTES, which become objects (bytes)."""
        return as_array(self.data, self.datatype, self.shape)


def as_array(data: Buffer, datatype: str, shape: Sequence[int]) -> Array:
    """View raw bytes as an array of `shape`. Raises InvalidRequest if BYTES elements do not fit the data."""
    if datatype == "BYTES":
        decoded = decode_bytes(data, math.prod(shape))
        elements = np.empty(len(decoded), dtype=np.object_)
        elements[:] = decoded
        return elements.reshape(shape)
    return np.frombuffer(data, dtype=BY_NAME[datatype].numpy).reshape(shape)


def raw_bytes(array: Array) -> Buffer:
    """Return the wire bytes of an array: a view if it is contiguous and numeric, else a copy."""
    if array.dtype.kind in "SUO":
        return encode_bytes([e if isinstance(e, bytes) else str(e).encode() for e in array.flat])
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.reshape(-1).view(np.uint8).data


def encode_bytes(elements: Sequence[bytes]) -> bytes:
    """Encode BYTES elements in wire form."""
    parts: list[bytes] = []
    for at in range(0, len(elements), _ELEMENTS_AT_ONCE):
        some = elements[at : at + _ELEMENTS_AT_ONCE]
        lengths = map(_length.pack, map(len, some))
        parts.append(b"".join(chain.from_iterable(zip(lengths, some, strict=True))))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def decode_bytes(data: Buffer, count: int) -> list[bytes]:
    """Decode the `count` elements of a BYTES tensor. Raises InvalidRequest if lengths and data disagree."""
    return list(chain.from_iterable(decode_in_pieces(data, count, _ELEMENTS_AT_ONCE)))


def decode_in_pieces(data: Buffer, count: int, at_once: int) -> Iterator[list[bytes]]:
    """Decode like `decode_bytes`, yielding up to `at_once` elements at a time."""
    view = memoryview(data)
    end = len(view)
    at = done = 0
    out: list[bytes] = []
    while at < end:
        if end - at < 4:
            raise InvalidRequest(
                f"incomplete string length indicator, expecting 4 bytes but only {end - at} bytes available. "
                "Please make sure the string length indicator is in one buffer."
            )
        (size,) = _length.unpack_from(view, at)
        at += 4
        if size > end - at:
            raise InvalidRequest(
                f"incomplete string data, expecting {size} bytes but only {end - at} bytes available"
            )
        if done == count:
            raise InvalidRequest(f"unexpected number of string elements {count + 1}, expecting {count}")
        out.append(bytes(view[at : at + size]))
        done += 1
        at += size
        if len(out) == at_once:
            yield out
            out = []
    if done != count:
        raise InvalidRequest(f"expected {count} string elements, got {done}")
    if out:
        yield out


class _Process:
    """Allocator of this process; one that forwards messages to another process uses shared memory."""

    allocate: Allocator = staticmethod(lambda size: np.empty(size, np.uint8))


def allocate_with(allocate: Allocator) -> None:
    """Allocate buffers for messages that arrive in pieces with `allocate` from now on, in this process."""
    _Process.allocate = staticmethod(allocate)


def new_scratch() -> memoryview:
    """Return a read buffer for all connections of one event loop, which copy out what they keep.

    Its pages take no memory until they are read into.
    """
    return np.empty(SCRATCH_BYTES, np.uint8).data


def aligned(size: int, offset: int = 0, track: Callable[[Array], None] | None = None) -> memoryview:
    """Return `size` writable, uninitialized bytes whose byte `offset` is on a 64-byte boundary.

    Tensors at `offset` of a message are then aligned for the model without another copy. `track` is
    called with the array that the bytes are in.
    """
    block = _Process.allocate(size + ALIGNMENT)
    if track is not None:
        track(block)
    data = block.data
    # a fifth of the time that the array takes to tell its address
    start = -(ctypes.addressof(ctypes.c_char.from_buffer(data)) + offset) % ALIGNMENT
    return data[start : start + size]
