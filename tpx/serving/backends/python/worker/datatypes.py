"""Tensor datatypes as models name them, and their numpy types."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any datatype."""

NUMPY_OF = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
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
    if found.kind in "SUO":
        return "BYTES"
    return _NAME_OF.get(found.newbyteorder("="))


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
