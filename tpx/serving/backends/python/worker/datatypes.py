"""Tensor datatypes as models name them, their numpy types, and the wire form of BYTES.

Each element of a BYTES tensor is its length in four bytes, followed by its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.serving.transport.memory import Buffer

Array = npt.NDArray[Any]
"""An array of any datatype."""

_SIZES = {"UINT": (1, 2, 4, 8), "INT": (1, 2, 4, 8), "FP": (2, 4, 8)}
NUMPY_OF = {
    "BOOL": np.dtype(np.bool_),
    **{
        f"{word}{8 * size}": np.dtype(f"{word[0].lower()}{size}")
        for word, sizes in _SIZES.items()
        for size in sizes
    },
    "BYTES": np.dtype(np.object_),
}
"""Numpy types by the wire's name; BF16 has none."""
_NAME_OF = {dtype: name for name, dtype in NUMPY_OF.items()}

CONFIG_NAMES = {f"TYPE_{name}": dtype for name, dtype in NUMPY_OF.items() if name != "BYTES"}
CONFIG_NAMES["TYPE_STRING"] = np.dtype(np.object_)
TRITON_STRING_TO_NUMPY: dict[str, type] = {name: dtype.type for name, dtype in CONFIG_NAMES.items()}
TRITON_STRING_TO_NUMPY["TYPE_BOOL"] = bool

NUMBERS = {name: number for number, name in enumerate((*NUMPY_OF, "BF16"), 1)}
"""Values of the DataType enumeration, which some models use."""
_BY_NUMBER = {number: name for name, number in NUMBERS.items()}


def name_of(dtype: npt.DTypeLike) -> str | None:
    """Return the wire's name of a numpy type, None if it has none; strings of any width are BYTES."""
    found = np.dtype(dtype)
    return _NAME_OF.get(found) or ("BYTES" if found.kind in "SUO" else _NAME_OF.get(found.newbyteorder("=")))


def triton_to_numpy_type(data_type: str | int) -> type[np.generic] | None:
    """Return the numpy type of a datatype given by number or wire name; None if it has none."""
    dtype = NUMPY_OF.get(data_type if isinstance(data_type, str) else _BY_NUMBER.get(data_type, ""))
    return None if dtype is None else dtype.type


def numpy_to_triton_type(data_type: npt.DTypeLike) -> int | None:
    """Return the number of the datatype that carries a numpy type, None if there is none."""
    return NUMBERS.get(name_of(data_type) or "")


def triton_string_to_numpy(triton_type_string: str) -> type:
    """Return the numpy type of a datatype as configurations write it: TYPE_FP32."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


_LENGTH = struct.Struct("<I")


def encode_strings(array: Array) -> bytes:
    """Return the wire form of an array of bytes or str."""
    if array.size == 1:  # a token: without an iterator and a list
        element = array.item()
        data = element if isinstance(element, bytes) else str(element).encode()
        return _LENGTH.pack(len(data)) + data
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
        raise ValueError(f"{end - at} bytes remain after the last string")
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array if shape is None else array.reshape(shape)


def serialize_byte_tensor(input_tensor: npt.ArrayLike) -> bytes | tuple[()] | None:
    """Return bytes, str, or objects in wire form, () if empty; None for any other tensor, as in Triton."""
    array = np.asarray(input_tensor)
    if array.size == 0:
        return ()
    return encode_strings(array) if array.dtype.kind in "SUO" else None


def deserialize_bytes_tensor(encoded_tensor: Buffer) -> Array:
    """Return a flat array of bytes objects decoded from the wire form."""
    return decode_strings(encoded_tensor)
