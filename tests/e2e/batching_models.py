"""Models for dynamic batching: ones that wait at a gate, and ones that take ragged and optional inputs."""

from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

from tests.serving.onnx_files import graph, node, value


def gated(repository: Path, name: str, batching: str) -> None:
    """y = x once the gate is open, on one instance."""
    (repository / name / "1").mkdir(parents=True)
    io = "data_type: TYPE_FP32 dims: [ 1 ]"
    text = (
        f"backend: 'gated' max_batch_size: 1 dynamic_batching {{ {batching} }} "
        f"input [{{ name: 'x' {io} }}] output [{{ name: 'y' {io} }}]"
    )
    (repository / name / "config.pbtxt").write_text(text, encoding="utf-8")


RAGGED = """
max_batch_size: 8
dynamic_batching { max_queue_delay_microseconds: 20000000 }
input [{ name: 'x' data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }]
output [
  { name: 'y' data_type: TYPE_FP32 dims: [ -1 ] },
  { name: 'total' data_type: TYPE_FP32 dims: [ 1 ] }
]
batch_input [
  { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: 'ends' data_type: TYPE_INT32
    source_input: 'x' },
  { kind: BATCH_ELEMENT_COUNT target_name: 'counts' data_type: TYPE_FP32 source_input: 'x' },
  { kind: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE target_name: 'longest' data_type: TYPE_FP32 source_input: 'x' },
  { kind: BATCH_ITEM_SHAPE target_name: 'shapes' data_type: TYPE_INT32 source_input: 'x' }
]
batch_output [{ target_name: 'y' kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: 'x' }]
"""


def ragged() -> Any:
    """y = 2 x, end to end. total, a row for each request: its elements by all ways of counting, which agree
    only if each is right."""
    axes = [("ends", "INT32", ["n1"]), ("counts", "FP32", ["n"]), ("longest", "FP32", ["m"])]
    inputs = [value("x", "FP32", "all"), *(value(name, kind, *dims) for name, kind, dims in axes)]
    inputs.append(value("shapes", "INT32", "rows", 1))
    nodes = [
        node("Add", ["x", "x"], ["y"]),
        node("Cast", ["shapes"], ["floats"], to=1),
        node("Unsqueeze", ["counts", "one"], ["column"]),
        # 1 where counts and shapes agree
        node("Div", ["floats", "column"], ["agree"]),
        node("Shape", ["longest"], ["size"]),
        node("Cast", ["size"], ["most"], to=1),
        node("ReduceMax", ["ends"], ["last"], keepdims=1),
        node("Cast", ["last"], ["all_of_them"], to=1),
        # elements of the request, + 100 x of the longest one, + 10000 x of all
        node("Mul", ["column", "agree"], ["own"]),
        node("Mul", ["most", "hundred"], ["a"]),
        node("Mul", ["all_of_them", "myriad"], ["b"]),
        node("Add", ["a", "b"], ["c"]),
        node("Add", ["own", "c"], ["total"]),
    ]

    constants = [
        numpy_helper.from_array(np.array([1], np.int64), "one"),
        numpy_helper.from_array(np.array([100], np.float32), "hundred"),
        numpy_helper.from_array(np.array([10000], np.float32), "myriad"),
    ]
    outputs = [value("y", "FP32", "all"), value("total", "FP32", "rows", 1)]
    return graph(nodes, inputs, outputs, constants)


OPTIONAL = """
max_batch_size: 8
dynamic_batching { max_queue_delay_microseconds: 60000 }
input [
  { name: 'x' data_type: TYPE_FP32 dims: [ 2 ] },
  { name: 'w' data_type: TYPE_FP32 dims: [ 2 ] optional: true }
]
output [{ name: 'y' data_type: TYPE_FP32 dims: [ 2 ] }]
"""


def optional() -> Any:
    """y = x + w, where w is 1000 unless a request brings its own."""

    weight = numpy_helper.from_array(np.full((1, 2), 1000, np.float32), "w")
    tensors = [value(name, "FP32", "batch", 2) for name in ("x", "w")]
    return graph([node("Add", ["x", "w"], ["y"])], tensors, [value("y", "FP32", "batch", 2)], [weight])
