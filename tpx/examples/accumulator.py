"""`accumulator`: sums the requests of a sequence; the server keeps the model's state."""

from pathlib import Path

from tpx.examples.example import Example
from tpx.examples.graph import float_tensor, save_model

CONFIG = """\
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


def _write(directory: Path) -> None:
    from onnx import helper

    save_model(
        directory / "1" / "model.onnx",
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
    description="adds up the requests of a sequence: a model whose memory the server keeps",
    config=CONFIG,
    size_bytes=16 * 1024,
    needs_onnx=True,
    write_files=_write,
)
