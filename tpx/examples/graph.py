"""Writing of ONNX files for the examples, with one set of format versions."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto, ValueInfoProto

IR_VERSION = 8
OPSET = 17
"""Opset old enough for every ONNX Runtime of recent years, including the one in Triton 2.51."""


def float_tensor(name: str, *shape: int | str) -> "ValueInfoProto":
    """Return an FP32 input or output of a graph; a name in `shape` is a dimension of any size."""
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def save_model(
    path: Path,
    name: str,
    nodes: Sequence["NodeProto"],
    *,
    inputs: Sequence["ValueInfoProto"],
    outputs: Sequence["ValueInfoProto"],
    initializers: Sequence["TensorProto"] = (),
) -> None:
    """Write a graph `name` as an ONNX file."""
    from onnx import helper

    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets, producer_name="tpx")
    path.write_bytes(model.SerializeToString(deterministic=True))
