"""A model of sequences for both servers: the same tensors and controls, a running sum each."""

import shutil
from pathlib import Path

from benchmarks.models import RUNTIMES, Kind
from tpx.examples.example import float_tensor, save_model

_CONTROLS = """
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
"""
_STATE = """
  state [ { input_name: "BEFORE" output_name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
SLOTS = 32
"""Sequences at a time, of either strategy."""
STRATEGIES = {
    "direct": "direct { }",
    "oldest": f"oldest {{ max_candidate_sequences: {SLOTS} }}",
}


def write(root: Path, kind: Kind) -> Path:
    """A repository with a model of each strategy for one kind of server, written anew."""
    directory = root / f"{kind}-accumulators"
    shutil.rmtree(directory, ignore_errors=True)
    for strategy in STRATEGIES:
        folder = directory / strategy / "1"
        folder.mkdir(parents=True)
        (folder.parent / "config.pbtxt").write_text(_config(strategy, kind), encoding="utf-8")
        if kind == "tpx":
            _write_graph(folder.parent)
        else:
            shutil.copy(RUNTIMES / "triton_accumulator.py", folder / "model.py")
    return directory


def _config(strategy: str, kind: Kind) -> str:
    return f"""\
name: "{strategy}"
backend: "{"onnxruntime" if kind == "tpx" else "python"}"
max_batch_size: {SLOTS}
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
sequence_batching {{
  max_sequence_idle_microseconds: 60000000
  {STRATEGIES[strategy]}
{_CONTROLS}{_STATE if kind == "tpx" else ""}}}
"""


def _write_graph(directory: Path) -> None:
    from onnx import TensorProto, helper

    save_model(
        directory,
        "accumulator",
        [helper.make_node("Add", ["BEFORE", "INPUT"], ["OUTPUT"])],
        inputs=[
            *(float_tensor(name, "batch", 1) for name in ("INPUT", "START", "END", "READY", "BEFORE")),
            helper.make_tensor_value_info("CORRID", TensorProto.UINT64, ["batch", 1]),
        ],
        outputs=[float_tensor("OUTPUT", "batch", 1)],
    )
