"""BYTES tensors: each element is its length in four bytes, followed by its bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tpx.serving.backends.python.worker.datatypes import Array
from tpx.serving.backends.python.worker.frames import Buffer

_LENGTH = struct.Struct("<I")


def encode_strings(array: Array) -> bytes:
    """Return the wire form of an array of bytes or str."""
    parts: list[bytes] = []
    for element in array.reshape(-1):
        data = element if isinstance(element, bytes) else str(element).encode()
        parts.append(_LENGTH.pack(len(data)))
        parts.append(data)
    return b"".join(parts)


def decode_strings(data: Buffer, shape: Sequence[int] | None = None) -> Array:
    """Return an array of bytes objects. Raises ValueError if lengths and data do not agree."""
    view = memoryview(data).cast("B")
    at, end = 0, len(view)
    elements = []
    while at + 4 <= end:
        (size,) = _LENGTH.unpack_from(view, at)
        at += 4
        if size > end - at:
            raise ValueError(f"a string of {size} bytes where only {end - at} are left")
        elements.append(bytes(view[at : at + size]))
        at += size
    if at != end:
        raise ValueError(f"{end - at} bytes are left behind the last string")
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array if shape is None else array.reshape(shape)


def serialize_byte_tensor(input_tensor: npt.ArrayLike) -> bytes | tuple[()] | None:
    """Return the wire form of a tensor of bytes, str, or objects: bytes, or () if it is empty.

    None for any other tensor, as in Triton.
    """
    array = np.asarray(input_tensor)
    if array.size == 0:
        return ()
    return encode_strings(array) if array.dtype.kind in "SUO" else None


def deserialize_bytes_tensor(encoded_tensor: Buffer) -> Array:
    """Return a flat array of bytes objects decoded from the wire form."""
    return decode_strings(encoded_tensor)
