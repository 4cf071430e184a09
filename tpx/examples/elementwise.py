"""`add_sub`, `identity` and `accumulator`: models so small that benchmarks measure the server.

`accumulator` sums the requests of a sequence; the server keeps the model's state.
"""

from pathlib import Path

from tpx.examples.example import Example, float_tensor, save_model

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
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
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
        directory,
        "add_sub",
        [helper.make_node("Add", names, ["OUTPUT0"]), helper.make_node("Sub", names, ["OUTPUT1"])],
        inputs=[float_tensor(name, "batch", WIDTH) for name in names],
        outputs=[float_tensor(name, "batch", WIDTH) for name in ("OUTPUT0", "OUTPUT1")],
    )


def _write_identity(directory: Path) -> None:
    from onnx import helper

    save_model(
        directory,
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
    description="returns a row of 16 floats; shows the overhead of the server itself",
    config=IDENTITY_CONFIG,
    size_bytes=SIZE_BYTES,
    needs_onnx=True,
    write_files=_write_identity,
)


ACCUMULATOR_CONFIG = """\
# SUM is INPUT and all that the same sequence sent before; COUNT is how many requests that were.
# A client marks the first request of a sequence (sequence_start) and the last (sequence_end), and gives all
# of them the same sequence_id. Between them the server keeps the two states: the model itself has no memory.
# A sequence stays with one instance, where up to 8 at a time are computed together; others wait for a slot,
# and one that is silent for a minute ends.
name: "accumulator"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [
  { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] },
  { name: "COUNT" data_type: TYPE_FP32 dims: [ 1 ] }
]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  direct { }
  control_input [
    {
      name: "READY"
      control [ { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } ]
    }
  ]
  state [
    {
      input_name: "SUM_BEFORE"
      output_name: "SUM"
      data_type: TYPE_FP32
      dims: [ 1 ]
      initial_state: { name: "nothing" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }
    },
    {
      input_name: "COUNT_BEFORE"
      output_name: "COUNT"
      data_type: TYPE_FP32
      dims: [ 1 ]
      initial_state: { name: "nothing" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }
    }
  ]
}
"""


def _write_accumulator(directory: Path) -> None:
    from onnx import helper

    save_model(
        directory,
        "accumulator",
        [
            helper.make_node("Add", ["SUM_BEFORE", "INPUT"], ["SUM"]),
            # READY is 1 in the rows that have a request, 0 in those of slots that have none
            helper.make_node("Add", ["COUNT_BEFORE", "READY"], ["COUNT"]),
        ],
        inputs=[float_tensor(name, "batch", 1) for name in ("INPUT", "READY", "SUM_BEFORE", "COUNT_BEFORE")],
        outputs=[float_tensor(name, "batch", 1) for name in ("SUM", "COUNT")],
    )


ACCUMULATOR = Example(
    name="accumulator",
    description="sums the requests of a sequence; the server keeps its state",
    config=ACCUMULATOR_CONFIG,
    size_bytes=SIZE_BYTES,
    needs_onnx=True,
    write_files=_write_accumulator,
)
