"""`add_sub` and `identity`: models so small that benchmarks measure the server."""

from pathlib import Path

from tpx.examples.example import Example
from tpx.examples.graph import float_tensor, save_model

WIDTH = 16
SIZE_BYTES = 16 * 1024

ADD_SUB_CONFIG = """\
# OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1.
# Everything is spelled out here, so nothing is completed from the model file; without
# dynamic_batching each request runs by itself, with up to 8 rows.
name: "add_sub"
backend: "onnxruntime"
max_batch_size: 8
input [
  {
    name: "INPUT0"
    data_type: TYPE_FP32
    dims: [ 16 ]
  },
  {
    name: "INPUT1"
    data_type: TYPE_FP32
    dims: [ 16 ]
  }
]
output [
  {
    name: "OUTPUT0"
    data_type: TYPE_FP32
    dims: [ 16 ]
  },
  {
    name: "OUTPUT1"
    data_type: TYPE_FP32
    dims: [ 16 ]
  }
]
"""

IDENTITY_CONFIG = """\
# OUTPUT0 = INPUT0, 16 floats a row.
# Backend, inputs and outputs are completed from 1/model.onnx.
max_batch_size: 8
dynamic_batching { }
"""


def _write_add_sub(directory: Path) -> None:
    from onnx import helper

    names = ["INPUT0", "INPUT1"]
    save_model(
        directory / "1" / "model.onnx",
        "add_sub",
        [helper.make_node("Add", names, ["OUTPUT0"]), helper.make_node("Sub", names, ["OUTPUT1"])],
        inputs=[float_tensor(name, "batch", WIDTH) for name in names],
        outputs=[float_tensor(name, "batch", WIDTH) for name in ("OUTPUT0", "OUTPUT1")],
    )


def _write_identity(directory: Path) -> None:
    from onnx import helper

    save_model(
        directory / "1" / "model.onnx",
        "identity",
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        inputs=[float_tensor("INPUT0", "batch", WIDTH)],
        outputs=[float_tensor("OUTPUT0", "batch", WIDTH)],
    )


ADD_SUB = Example(
    name="add_sub",
    description="sum and difference of two rows of 16 floats",
    config=ADD_SUB_CONFIG,
    size_bytes=SIZE_BYTES,
    needs_onnx=True,
    write_files=_write_add_sub,
)

IDENTITY = Example(
    name="identity",
    description="gives back a row of 16 floats; shows what the server itself costs",
    config=IDENTITY_CONFIG,
    size_bytes=SIZE_BYTES,
    needs_onnx=True,
    write_files=_write_identity,
)
