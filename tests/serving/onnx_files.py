"""Small ONNX files, and model repositories made of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "BF16": TensorProto.BFLOAT16,
}

Dim = int | str | None


def value(name: str, datatype: str, *shape: Dim) -> Any:
    """An input or output of a graph."""
    return helper.make_tensor_value_info(name, TYPES[datatype], list(shape))


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    """One operation."""
    return helper.make_node(kind, list(inputs), list(outputs), **attributes)


def graph(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], initializers: Sequence[Any] = ()
) -> Any:
    """A model of these nodes."""
    made = helper.make_graph(list(nodes), "net", list(inputs), list(outputs), list(initializers))
    return helper.make_model(made, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def save(model: Any, path: Path) -> Path:
    """Write a model; the directories are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def identity(datatype: str = "FP32", *shape: Dim) -> Any:
    """y = x."""
    dims = shape or ("batch", 2)
    return graph(
        [node("Identity", ["x"], ["y"])], [value("x", datatype, *dims)], [value("y", datatype, *dims)]
    )


def doubling(*shape: Dim) -> Any:
    """y = x + x, FP32."""
    dims = shape or ("batch", 2)
    return graph([node("Add", ["x", "x"], ["y"])], [value("x", "FP32", *dims)], [value("y", "FP32", *dims)])


def accumulator(corrid: str = "UINT64", datatype: str = "FP32", *, resets: bool = True) -> Any:
    """y = x + state: a running sum; if it `resets`, x alone where START is 1. `id` is the CORRID it was told,
    `ready` its READY."""
    nodes = [
        node("Cast", ["START"], ["starts"], to=TYPES["BOOL"]),
        node("Where", ["starts", "zero", "state_in"], ["before"]),
        node("Add", ["before" if resets else "state_in", "x"], ["y"]),
        node("Identity", ["y"], ["state_out"]),
        node("Identity", ["CORRID"], ["id"]),
        node("Identity", ["READY"], ["ready"]),
    ]
    inputs = [value(name, datatype, "batch", 1) for name in ("x", "state_in")]
    inputs += [value("START", "INT32", "batch", 1), value("READY", "FP32", "batch", 1)]
    inputs += [value("CORRID", corrid, "batch", 1)]
    outputs = [value(name, datatype, "batch", 1) for name in ("y", "state_out")]
    outputs += [value("id", corrid, "batch", 1), value("ready", "FP32", "batch", 1)]
    zero = numpy_helper.from_array(np.array(0, helper.tensor_dtype_to_np_dtype(TYPES[datatype])), "zero")
    return graph(nodes, inputs, outputs, [zero])


def remembering() -> Any:
    """`seen` is every x of a sequence so far, behind the 0 that it begins with: its state grows by one."""
    nodes = [
        node("Concat", ["state_in", "x"], ["state_out"], axis=1),
        node("Identity", ["state_out"], ["seen"]),
    ]
    inputs = [value("x", "FP32", "batch", 1), value("state_in", "FP32", "batch", "before")]
    outputs = [value(name, "FP32", "batch", "after") for name in ("seen", "state_out")]
    return graph(nodes, inputs, outputs)


def busy(rounds: int = 40, width: int = 700) -> Any:
    """y = x + x, after some hundredths of a second of work that cancels out; two values a row."""
    size = numpy_helper.from_array(np.array([width, width], dtype=np.int64), "size")
    zero = numpy_helper.from_array(np.array(0, dtype=np.float32), "zero")
    nodes = [
        node("ReduceMax", ["x"], ["largest"], keepdims=0),
        node("Mul", ["largest", "zero"], ["nothing"]),
        node("Expand", ["nothing", "size"], ["m0"]),
        *(node("MatMul", [f"m{n}", f"m{n}"], [f"m{n + 1}"]) for n in range(rounds)),
        node("ReduceMax", [f"m{rounds}"], ["rest"], keepdims=0),
        node("Add", ["x", "x"], ["sum"]),
        node("Add", ["sum", "rest"], ["y"]),
    ]
    io = [value("x", "FP32", "batch", 2)], [value("y", "FP32", "batch", 2)]
    return graph(nodes, *io, [size, zero])


def slow_to_load(rounds: int = 400, width: int = 1500) -> Any:
    """y = x + x, and a constant that takes ONNX Runtime many seconds to fold while it loads."""
    size = numpy_helper.from_array(np.array([width, width], dtype=np.int64), "size")
    nodes = [
        node("ConstantOfShape", ["size"], ["m0"]),
        *(node("MatMul", [f"m{n}", f"m{n}"], [f"m{n + 1}"]) for n in range(rounds)),
        node("ReduceMax", [f"m{rounds}"], ["rest"], keepdims=0),
        node("Add", ["x", "x"], ["sum"]),
        node("Add", ["sum", "rest"], ["y"]),
    ]
    io = [value("x", "FP32", "batch", 2)], [value("y", "FP32", "batch", 2)]
    return graph(nodes, *io, [size])


def heavy(mebibytes: int) -> Any:
    """y = x * 1, with weights that are large."""
    weights = np.zeros((mebibytes << 20) // 4, dtype=np.float32)
    weights[0] = 1
    one = numpy_helper.from_array(weights, "w")
    nodes = [
        node("Sub", ["x", "x"], ["nothing"]),  # depends on the input, so that nothing is folded
        node("ReduceMax", ["nothing"], ["zero"], keepdims=0),
        node("Cast", ["zero"], ["index"], to=7),
        node("Gather", ["w", "index"], ["one"]),
        node("Mul", ["x", "one"], ["y"]),
    ]
    io = [value("x", "FP32", "batch", 2)], [value("y", "FP32", "batch", 2)]
    return graph(nodes, *io, [one])


def with_weights(directory: Path) -> Path:
    """y = x + w, with `w` in a file beside the model."""

    weights = numpy_helper.from_array(np.full(2048, 3, dtype=np.float32), "w")
    model = graph(
        [node("Add", ["x", "w"], ["y"])],
        [value("x", "FP32", "batch", 2048)],
        [value("y", "FP32", "batch", 2048)],
        [weights],
    )
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def write_model(
    repository: Path, name: str, model: Any = None, config: str | None = None, version: str = "1"
) -> Path:
    """<repository>/<name>/<version>/model.onnx, and a config.pbtxt where one is given."""
    directory = repository / name
    save(doubling() if model is None else model, directory / version / "model.onnx")
    if config is not None:
        (directory / "config.pbtxt").write_text(config, encoding="utf-8")
    return directory
