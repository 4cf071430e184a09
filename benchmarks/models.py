"""The same models for every server: ONNX files, and around them a repository as each server wants it.

One CPU instance with a set number of threads everywhere, so that servers are compared and not their defaults.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from tpx import examples
from tpx.examples.example import float_tensor, save_model

RUNTIMES = Path(__file__).parent / "runtimes"

Kind = Literal["tpx", "triton", "mlserver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An FP32 input or output; `dims` are those of one row."""

    name: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An ONNX model; the batch dimension comes first and is not in `dims`."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    batching: bool = True
    """Whether the graph takes more than one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model under the settings with which it stands in a repository."""

    model: Model
    dynamic_batching: bool = False
    threads: int = 1
    steps: int = 0
    """An ensemble that calls the model so many times, one after the other; the model is served beside it."""
    wait_ms: int = 0
    """The model is a `model.py` on every server, and sleeps so long before it computes."""
    instances: int = 1

    @property
    def name(self) -> str:
        if self.steps:
            return f"{self.model.name}_chain{self.steps}"
        batched = "_batched" if self.dynamic_batching else ""
        batched += f"_{self.wait_ms}ms" if self.wait_ms else ""
        return self.model.name + batched + (f"_{self.threads}threads" if self.threads > 1 else "")


IDENTITY = Model(
    name="identity",
    inputs=(Tensor(name="INPUT0", dims=(16,)),),
    outputs=(Tensor(name="OUTPUT0", dims=(16,)),),
)
ADD_SUB = Model(
    name="add_sub",
    inputs=(Tensor(name="INPUT0", dims=(16,)), Tensor(name="INPUT1", dims=(16,))),
    outputs=(Tensor(name="OUTPUT0", dims=(16,)), Tensor(name="OUTPUT1", dims=(16,))),
)
MNIST = Model(
    name="mnist",
    inputs=(Tensor(name="image", dims=(1, 8, 8)),),
    outputs=(Tensor(name="probabilities", dims=(10,)),),
)
GAP = Model(
    name="gap",
    inputs=(Tensor(name="input", dims=(3, 224, 224)),),
    outputs=(Tensor(name="output", dims=(3,)),),
)
"""600 KB in, next to no compute: the mean of each of three planes."""
ALEXNET = Model(
    name="alexnet",
    inputs=(Tensor(name="data_0", dims=(3, 224, 224)),),
    outputs=(Tensor(name="prob_1", dims=(1000,)),),
    batching=False,
)
EXAMPLES = tuple(Served(model=model) for model in (IDENTITY, ADD_SUB, MNIST, ALEXNET))
SMALL = (
    *(Served(model=model) for model in (IDENTITY, MNIST, GAP)),
    *(Served(model=model, dynamic_batching=True) for model in (IDENTITY, MNIST)),
)


class ModelStore:
    """Writes models and repositories below one directory; files are hard links to one copy."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def examples(self) -> Path:
        """The four example models as `tpx quickstart` writes them; a repository of its own."""
        directory = self._root / "quickstart"
        examples.write(directory)
        return directory

    def onnx(self, model: Model) -> Path:
        """The model's ONNX file."""
        if model is not GAP:
            return self.examples() / model.name / "1" / "model.onnx"
        path = self._root / "gap" / "1" / "model.onnx"
        if not path.is_file():
            _write_gap(self._root / "gap")
        return path

    def size_mb(self, models: Sequence[Model]) -> float:
        """The models' files together, in MB (10**6 bytes)."""
        folders = [self.onnx(model).parent for model in models]
        return sum(f.stat().st_size for folder in folders for f in folder.iterdir()) / 1e6

    def repository(self, kind: Kind, models: Sequence[Served]) -> Path:
        """A repository of these models for one kind of server, written anew."""
        directory = self._root / f"{kind}-{'-'.join(served.name for served in models)}"
        shutil.rmtree(directory, ignore_errors=True)
        for served in models:
            folder = directory / served.name
            if served.steps:
                (folder / "1").mkdir(parents=True)
                (folder / "config.pbtxt").write_text(_chain(served), encoding="utf-8")
                continue
            if kind == "mlserver":
                self._link(served.model, folder)
                _write_mlserver(folder, served)
            else:
                self._link(served.model, folder / "1")
                (folder / "config.pbtxt").write_text(_config(served, kind), encoding="utf-8")
            if _in_python(served, kind):
                shutil.copy(RUNTIMES / "triton_model.py", folder / "1" / "model.py")
        if kind == "mlserver":
            shutil.copy(RUNTIMES / "mlserver_onnx.py", directory)
        return directory

    def _link(self, model: Model, folder: Path) -> None:
        folder.mkdir(parents=True)
        for file in self.onnx(model).parent.iterdir():
            os.link(file, folder / file.name)


def _write_gap(directory: Path) -> None:
    from onnx import helper

    (directory / "1").mkdir(parents=True, exist_ok=True)
    save_model(
        directory,
        "gap",
        [
            helper.make_node("GlobalAveragePool", ["input"], ["mean"]),
            helper.make_node("Flatten", ["mean"], ["output"], axis=1),
        ],
        inputs=[float_tensor("input", "batch", *GAP.inputs[0].dims)],
        outputs=[float_tensor("output", "batch", *GAP.outputs[0].dims)],
    )


def _in_python(served: Served, kind: Kind) -> bool:
    return kind == "triton" or served.wait_ms > 0


def _config(served: Served, kind: Kind) -> str:
    model = served.model
    parameters = {"intra_op_thread_count": served.threads, "wait_ms": served.wait_ms}
    lines = [
        f'name: "{served.name}"',
        f'backend: "{"python" if _in_python(served, kind) else "onnxruntime"}"',
        f"max_batch_size: {8 if model.batching else 0}",
        *(_tensor(model, "input", tensor) for tensor in model.inputs),
        *(_tensor(model, "output", tensor) for tensor in model.outputs),
        f"instance_group [ {{ kind: KIND_CPU count: {served.instances} }} ]",
        *(
            f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
            for key, value in parameters.items()
            if value
        ),
    ]
    if served.dynamic_batching:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n"


def _chain(served: Served) -> str:
    """The configuration of an ensemble; the model has one input and one output."""
    model = served.model
    (given,), (made,) = model.inputs, model.outputs
    between = [given.name, *(f"step{n}" for n in range(1, served.steps)), made.name]
    lines = [
        f'name: "{served.name}"',
        'platform: "ensemble"',
        f"max_batch_size: {8 if model.batching else 0}",
        _tensor(model, "input", given),
        _tensor(model, "output", made),
        "ensemble_scheduling {",
    ]
    for source, target in pairwise(between):
        lines += [
            f'  step {{ model_name: "{model.name}" model_version: -1',
            f'    input_map {{ key: "{given.name}" value: "{source}" }}',
            f'    output_map {{ key: "{made.name}" value: "{target}" }} }}',
        ]
    return "\n".join([*lines, "}"]) + "\n"


def _tensor(model: Model, what: str, tensor: Tensor) -> str:
    dims = list(tensor.dims if model.batching else (1, *tensor.dims))
    return f'{what} [ {{ name: "{tensor.name}" data_type: TYPE_FP32 dims: {dims} }} ]'


def _write_mlserver(folder: Path, served: Served) -> None:
    settings = {
        "name": served.name,
        "implementation": "mlserver_onnx.OnnxModel",
        "parameters": {"uri": str(folder / "model.onnx"), "extra": {"intra_op_thread_count": served.threads}},
    }
    (folder / "model-settings.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
