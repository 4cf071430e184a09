"""Definition of one example, and writing of ONNX files with one set of format versions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto, ValueInfoProto


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Example model: its config.pbtxt as text, and the function that writes its other files."""

    name: str
    description: str
    config: str
    size_bytes: int
    """Disk space of the whole model directory, rounded up; checked before writing."""
    needs_onnx: bool = False
    """True if `write_files` needs the `onnx` package."""
    needs: str = ""
    """Extra package needed to serve it; without the package, the example is written only if named."""
    calls: tuple[str, ...] = ()
    """Other examples that it needs to be served; they are written with it."""
    write_files: Callable[[Path], None]
    """Writes files into the model directory, in which version directory `1` exists."""


IR_VERSION = 8
OPSET = 17
"""Opset old enough for every ONNX Runtime of recent years, including the one in Triton 2.51."""


def text_file(name: str, text: str) -> Callable[[Path], None]:
    """Return a function that writes a text file into the model directory."""

    def write(directory: Path) -> None:
        (directory / name).write_text(text, encoding="utf-8")

    return write


def float_tensor(name: str, *shape: int | str) -> "ValueInfoProto":
    """Return an FP32 input or output of a graph; a name in `shape` is a dimension of any size."""
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def save_model(
    directory: Path,
    name: str,
    nodes: Sequence["NodeProto"],
    *,
    inputs: Sequence["ValueInfoProto"],
    outputs: Sequence["ValueInfoProto"],
    initializers: Sequence["TensorProto"] = (),
) -> None:
    """Write a graph `name` as the ONNX file of version 1 of the model in `directory`."""
    from onnx import helper

    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets, producer_name="tpx")
    (directory / "1" / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
