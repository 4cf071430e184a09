"""What foreign clients send: the awkward values of every datatype, and when an answer is the same."""

from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.utils import triton_to_np_dtype

_FLOATS = [0.0, -0.0, 1.5, -3.25, np.nan, np.inf, -np.inf]


def _extremes(kind: Any) -> npt.NDArray[Any]:
    limits = np.iinfo(kind)
    return np.array([[limits.min, 0, 1, limits.max - 1, limits.max]], dtype=kind)


def _floats(kind: Any) -> npt.NDArray[Any]:
    limits = np.finfo(kind)
    return np.array([[*_FLOATS, limits.max, limits.min, limits.tiny]], dtype=kind)


SAMPLES: dict[str, npt.NDArray[Any]] = {
    "BOOL": np.array([[True, False, True]]),
    "UINT8": _extremes(np.uint8),
    "UINT16": _extremes(np.uint16),
    "UINT32": _extremes(np.uint32),
    "UINT64": _extremes(np.uint64),
    "INT8": _extremes(np.int8),
    "INT16": _extremes(np.int16),
    "INT32": _extremes(np.int32),
    "INT64": _extremes(np.int64),
    "FP16": _floats(np.float16),
    "FP32": _floats(np.float32),
    "FP64": _floats(np.float64),
    "BF16": np.array([_FLOATS], dtype=triton_to_np_dtype("BF16")),
    "BYTES": np.array([[b"", b"a", "日本".encode(), b"\0 \0", b"x" * 70_000]], dtype=np.object_),
}
"""By datatype, one row each; BF16 as the client library has it, strings as ONNX has them, in UTF-8."""


def same(got: Any, sent: npt.NDArray[Any]) -> bool:
    """Whether an answer has the type, the shape and every bit."""
    if got is None or got.dtype != sent.dtype or got.shape != sent.shape:
        return False
    if sent.dtype == np.object_:
        return list(got.ravel()) == list(sent.ravel())
    return bool(got.tobytes() == sent.tobytes())
