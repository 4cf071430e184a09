"""The same models twice, configured alike: in Triton's python backend, and as ONNX files for tpx."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.serving.onnx_files import Dim, graph, identity, node, save, value

_GROUP = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"

_PYTHON = """
import json
import triton_python_backend_utils as triton


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.inputs = [item["name"] for item in config["input"]]
        self.outputs = [item["name"] for item in config["output"]]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        arrays = [triton.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs]
        if len(arrays) == 2:
            arrays = [arrays[0] + arrays[1], arrays[0] - arrays[1]]
        wanted = request.requested_output_names()
        tensors = [triton.Tensor(name, array) for name, array in zip(self.outputs, arrays) if name in wanted]
        return triton.InferenceResponse(tensors)
"""

_REPEAT = """
import time

import numpy as np
import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            elements, delays, wait = (
                triton.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "DELAY", "WAIT")
            )
            sender = request.get_response_sender()
            for index, (element, delay) in enumerate(zip(elements, delays)):
                time.sleep(int(delay) / 1000)
                out = triton.Tensor("OUT", np.array([element], np.int32))
                idx = triton.Tensor("IDX", np.array([index], np.uint32))
                sender.send(triton.InferenceResponse([out, idx]))
            time.sleep(int(wait[0]) / 1000)
            sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model: `inputs` and `outputs` are (name, datatype, dims); two inputs are added and subtracted."""

    name: str
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    max_batch_size: int = 8
    more: str = ""
    versions: tuple[str, ...] = ("1",)
    decoupled: bool = False

    def config(self, backend: str) -> str:
        """config.pbtxt: of the two servers only the backend differs."""
        label = ' label_filename: "labels.txt"' if self.name == "labels" else ""
        return (
            f'name: "{self.name}"\nbackend: "{backend}"\nmax_batch_size: {self.max_batch_size}\n'
            + _tensors("input", self.inputs)
            + _tensors("output", self.outputs, label)
            + _GROUP
            + self.more
        )

    def onnx(self) -> Any:
        """The same function as a graph."""
        if len(self.inputs) == 1:
            [(_, datatype, dims)] = self.inputs
            return identity(datatype, *self._shape(dims))
        names = [name for name, _, _ in self.inputs]
        return graph(
            [
                node(kind, names, [output])
                for kind, (output, _, _) in zip(("Add", "Sub"), self.outputs, strict=True)
            ],
            [value(name, datatype, *self._shape(dims)) for name, datatype, dims in self.inputs],
            [value(name, datatype, *self._shape(dims)) for name, datatype, dims in self.outputs],
        )

    def _shape(self, dims: tuple[int, ...]) -> list[Dim]:
        free: list[Dim] = [f"n{index}" if dim == -1 else dim for index, dim in enumerate(dims)]
        return ["batch", *free] if self.max_batch_size else free


def _tensors(what: str, tensors: tuple[tuple[str, str, tuple[int, ...]], ...], more: str = "") -> str:
    types = {"BYTES": "STRING"}
    items = ", ".join(
        f'{{ name: "{name}" data_type: TYPE_{types.get(datatype, datatype)} dims: {list(dims)}{more} }}'
        for name, datatype, dims in tensors
    )
    return f"{what} [ {items} ]\n"


def _echo(name: str, datatype: str, *dims: int, **fields: Any) -> Model:
    return Model(name=name, inputs=(("x", datatype, dims),), outputs=(("y", datatype, dims),), **fields)


MODELS = (
    _echo("floats", "FP32", 4),
    _echo("flat", "FP32", -1, max_batch_size=0),
    _echo("cube", "FP32", -1, -1, max_batch_size=0),
    _echo("words", "BYTES", -1),
    _echo("word", "BYTES", 1),
    _echo("bools", "BOOL", -1),
    _echo("longs", "INT64", -1),
    _echo("counts", "UINT64", -1),
    _echo("bytes8", "UINT8", -1),
    _echo("halves", "FP16", -1),
    _echo("doubles", "FP64", -1),
    _echo("labels", "FP32", 3),
    _echo("versions", "FP32", 4, versions=("1", "3"), more="version_policy { all { } }\n"),
    _echo("spare", "FP32", 4),
    Model(
        name="pair",
        inputs=(("INPUT0", "INT32", (4,)), ("INPUT1", "INT32", (4,))),
        outputs=(("OUTPUT0", "INT32", (4,)), ("OUTPUT1", "INT32", (4,))),
        more="dynamic_batching { }\n",
    ),
    Model(
        name="repeat",
        inputs=(("IN", "INT32", (-1,)), ("DELAY", "UINT32", (-1,)), ("WAIT", "UINT32", (1,))),
        outputs=(("OUT", "INT32", (1,)), ("IDX", "UINT32", (1,))),
        max_batch_size=0,
        decoupled=True,
        more="model_transaction_policy { decoupled: true }\n",
    ),
)


_SLOTS = """
import numpy as np
import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        if any(triton.get_input_tensor_by_name(request, "x").as_numpy()[0, 0] == 13 for request in requests):
            return []
        return [self.answer(request, row, len(requests)) for row, request in enumerate(requests)]

    def answer(self, request, row, rows):
        names = ("START", "END", "READY", "CORRID")
        controls = [triton.get_input_tensor_by_name(request, name).as_numpy().item() for name in names]
        if not controls[2]:
            assert controls == [0, 0, 0, 0]
            assert not request.requested_output_names() and not request.request_id()
            return triton.InferenceResponse([])
        y = np.array([[rows, row, *controls]], np.int64)
        return triton.InferenceResponse([triton.Tensor("y", y)])
"""
_CONTROLS = "".join(
    f'{{ name: "{kind}" control [ {{ kind: CONTROL_SEQUENCE_{kind} {values} }} ] }}, '
    for kind, values in (
        ("START", "int32_false_true: [ 0, 1 ]"),
        ("END", "int32_false_true: [ 0, 1 ]"),
        ("READY", "int32_false_true: [ 0, 1 ]"),
        ("CORRID", "data_type: TYPE_UINT64"),
    )
)
_OF_SEQUENCES = f"""
backend: "python"
max_batch_size: 4
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "y" data_type: TYPE_INT64 dims: [ 6 ] }} ]
{_GROUP}
sequence_batching {{
  max_sequence_idle_microseconds: 60000000
  %s
  control_input [ {_CONTROLS.rstrip(", ")} ]
}}
"""
SEQUENCES = {
    "slots": _OF_SEQUENCES % "direct { }",
    "candidates": _OF_SEQUENCES % "oldest { max_candidate_sequences: 4 }",
}
"""Python models for both servers: rows, row and controls of a request in its execution."""

ENSEMBLES = {
    "chain": """
platform: "ensemble"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "floats" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "between" } },
  { model_name: "floats" model_version: -1
    input_map { key: "x" value: "between" } output_map { key: "y" value: "y" } }
] }
""",
    "outer": """
platform: "ensemble"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "chain" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }
] }
""",
}


def write_for_triton(repository: Path) -> Path:
    """Every model in Triton's python backend."""
    for model in MODELS:
        for version in model.versions:
            path = repository / model.name / version / "model.py"
            path.parent.mkdir(parents=True)
            path.write_text(_REPEAT if model.decoupled else _PYTHON, encoding="utf-8")
        _write_config(repository, model, "python")
    _write_alike(repository)
    return repository


def write_for_tpx(repository: Path) -> Path:
    """Every model as an ONNX file, the decoupled one in the backend made for it."""
    for model in MODELS:
        for version in model.versions:
            (repository / model.name / version).mkdir(parents=True)
            if not model.decoupled:
                save(model.onnx(), repository / model.name / version / "model.onnx")
        _write_config(repository, model, "repeat" if model.decoupled else "onnxruntime")
    _write_alike(repository)
    return repository


def _write_alike(repository: Path) -> None:
    """What both servers have in the same way."""
    for name, config in {**ENSEMBLES, **SEQUENCES}.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config, encoding="utf-8")
        if name in SEQUENCES:
            (repository / name / "1" / "model.py").write_text(_SLOTS, encoding="utf-8")


def _write_config(repository: Path, model: Model, backend: str) -> None:
    directory = repository / model.name
    (directory / "config.pbtxt").write_text(model.config(backend), encoding="utf-8")
    if model.name == "labels":
        (directory / "labels.txt").write_text("cat\ndog\n", encoding="utf-8")
