"""What foreign clients ask for and send: models, the awkward values of every datatype, and when an answer is
the same."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.utils import triton_to_np_dtype

from tests.serving.onnx_files import TYPES, busy, doubling, graph, identity, node, value, write_model
from tpx.examples import write

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


DELAY_S = 1.0
"""How long `patient` lets a request wait, which costs no CPU."""


def counting() -> Any:
    """y = 0, 1, ... n - 1: an answer as large as one asks for."""
    nodes = [node("Squeeze", ["n"], ["limit"]), node("Range", ["zero", "limit", "one"], ["y"])]
    constants = [
        node("Constant", [], ["zero"], value_int=0),
        node("Constant", [], ["one"], value_int=1),
    ]
    return graph([*constants, *nodes], [value("n", "INT64", 1)], [value("y", "INT64", "many")])


def write_models(repository: Path) -> Path:
    """The small examples, an identity of every datatype, and the models that are hard on a client."""
    write(repository, ["add_sub", "identity", "mnist"])
    for datatype in TYPES:
        write_model(repository, f"echo_{datatype.lower()}", identity(datatype, "batch", "n"))
    write_model(repository, "large", identity("FP32", 1, "n"))
    write_model(repository, "counting", counting())
    delay = f"dynamic_batching {{ max_queue_delay_microseconds: {int(DELAY_S * 1e6)} }}"
    write_model(repository, "patient", doubling(), f"max_batch_size: 8 {delay}")
    one_core = "parameters { key: 'intra_op_thread_count' value { string_value: '1' } }"
    write_model(repository, "busy", busy(rounds=50), f"max_batch_size: 8 {one_core}")
    return repository
