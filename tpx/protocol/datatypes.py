"""Tensor datatypes of the v2 protocol: wire names, numpy types, sizes, and names in config.pbtxt."""

from typing import Any

import msgspec
import numpy as np

from tpx.errors import InvalidRequest


class DataType(msgspec.Struct, frozen=True):
    """One datatype.

    `numpy` is the type of `Tensor.numpy()`: objects for BYTES; uint16 bits for BF16, which numpy lacks.
    `size` is in bytes per element, 0 for BYTES. `number` is the value in the ModelConfig DataType enum.
    """

    name: str
    number: int
    size: int
    numpy: np.dtype[Any]

    @property
    def config_name(self) -> str:
        """Name in config.pbtxt, such as TYPE_FP32; TYPE_STRING for BYTES."""
        return "TYPE_STRING" if self.name == "BYTES" else f"TYPE_{self.name}"


_ALL = (
    DataType("BOOL", 1, 1, np.dtype(np.bool_)),
    DataType("UINT8", 2, 1, np.dtype("u1")),
    DataType("UINT16", 3, 2, np.dtype("<u2")),
    DataType("UINT32", 4, 4, np.dtype("<u4")),
    DataType("UINT64", 5, 8, np.dtype("<u8")),
    DataType("INT8", 6, 1, np.dtype("i1")),
    DataType("INT16", 7, 2, np.dtype("<i2")),
    DataType("INT32", 8, 4, np.dtype("<i4")),
    DataType("INT64", 9, 8, np.dtype("<i8")),
    DataType("FP16", 10, 2, np.dtype("<f2")),
    DataType("FP32", 11, 4, np.dtype("<f4")),
    DataType("FP64", 12, 8, np.dtype("<f8")),
    DataType("BYTES", 13, 0, np.dtype(np.object_)),
    DataType("BF16", 14, 2, np.dtype("<u2")),
)

BY_NAME = {d.name: d for d in _ALL}
BY_NUMBER = {d.number: d for d in _ALL}
# without BF16, whose numpy type is that of UINT16
_BY_NUMPY = {d.numpy: d for d in _ALL if d.name != "BF16"}


def datatype(name: str) -> DataType:
    """Return the datatype for a wire name such as FP32. Raises InvalidRequest for an unknown one."""
    try:
        return BY_NAME[name]
    except KeyError:
        raise InvalidRequest(f"unknown datatype '{name}' (known: {', '.join(BY_NAME)})") from None


def from_numpy(dtype: np.dtype[np.generic]) -> DataType:
    """Return the datatype for a numpy type; strings and bytes of any width are BYTES. Raises
    InvalidRequest.
    """
    if dtype.kind in "SUO":
        return BY_NAME["BYTES"]
    try:
        return _BY_NUMPY[dtype.newbyteorder("<")]
    except KeyError:
        raise InvalidRequest(f"numpy type '{dtype}' has no datatype in the v2 protocol") from None
