"""The model tests that the onnx package brings: models, inputs, and the outputs that are expected of them."""

import importlib
import pkgutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper
from onnx.backend.test.case import node
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from tests.serving.onnx_files import TYPES

KINDS = ("light", "simple", "pytorch-converted", "pytorch-operator")
"""Those that lie in files; those of one operator, with each of its options, are computed."""
_LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
_POOLS = {"averagepool", "lppool", "maxpool"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Inputs and the outputs they must give, in the order of the graph."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model and what it must compute."""

    name: str
    kind: str
    path: Path | None
    """Of a model in a file."""
    tested: Any
    """The onnx package's own TestCase."""

    @property
    def rtol(self) -> float:
        return float(self.tested.rtol)

    @property
    def atol(self) -> float:
        return float(self.tested.atol)

    @property
    def model(self) -> Any:
        """The ModelProto."""
        return self.tested.model if self.path is None else onnx.load(self.path)

    def write(self, directory: Path) -> None:
        """Put the model where a repository has it."""
        directory.mkdir(parents=True)
        if self.path is not None:
            (directory / "model.onnx").symlink_to(self.path)
        else:
            (directory / "model.onnx").write_bytes(self.model.SerializeToString())

    def examples(self) -> Iterator[Example]:
        """What is asked, and what must be answered."""
        if self.path is None:
            for inputs, outputs in self.tested.data_sets:
                yield Example(
                    inputs=[_value(item) for item in inputs], outputs=[_value(item) for item in outputs]
                )
            return
        graph = self.model.graph
        if self.kind == "light":
            weights = {item.name for item in graph.initializer}
            made = [Runner.generate_dummy_data(item) for item in graph.input if item.name not in weights]
            files = sorted(_LIGHT.glob(f"{self.path.stem}_output_*.pb"))
            yield Example(inputs=made, outputs=_read(files, graph.output))
            return
        for directory in sorted(self.path.parent.glob("test_data_set*")):
            yield Example(
                inputs=_read(sorted(directory.glob("input_*.pb"), key=_index), graph.input),
                outputs=_read(sorted(directory.glob("output_*.pb"), key=_index), graph.output),
            )


def in_files(kind: str) -> list[Case]:
    """Every test of one of KINDS, by name."""
    return _by_name(kind, load_model_tests(kind="real" if kind == "light" else kind))


def of_operators(*, pools: bool) -> list[Case]:
    """Every test of an operator, by name; those of pools take three quarters of the time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the onnx package computes overflows on purpose
        for module in pkgutil.walk_packages(node.__path__, f"{node.__name__}."):
            if pools or module.name.rpartition(".")[2] not in _POOLS:
                importlib.import_module(module.name)
    return _by_name("node", node._NodeTestCases)


def _by_name(kind: str, tested: Sequence[Any]) -> list[Case]:
    found = [
        Case(name=_name(kind, item), kind=kind, path=_path(kind, item), tested=item)
        for item in sorted(tested, key=lambda item: str(item.name))
    ]
    assert found
    return found


def _name(kind: str, tested: Any) -> str:
    return str(tested.name).replace("test_", "light_" if kind == "light" else "", 1)


def _path(kind: str, tested: Any) -> Path | None:
    if kind == "light":
        return _LIGHT / Path(tested.url).name
    return Path(tested.model_dir) / "model.onnx" if tested.model_dir else None


def _index(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _read(files: Sequence[Path], described: Sequence[Any]) -> list[Any]:
    """The tensors of files, for the inputs or outputs of the graph."""
    out = []
    for path, item in zip(files, described, strict=False):
        assert item.type.HasField("tensor_type"), f"{path} is no tensor"
        message = onnx.TensorProto()
        message.ParseFromString(path.read_bytes())
        out.append(numpy_helper.to_array(message))
    return out


def _value(item: Any) -> Any:
    return numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item


def not_carried(case: Case) -> list[str]:
    """The inputs and outputs of a model whose types the v2 protocol does not have."""
    graph = case.model.graph
    weights = {item.name for item in graph.initializer}
    described = [item for item in (*graph.input, *graph.output) if item.name not in weights]
    return [item.name for item in described if item.type.tensor_type.elem_type not in _CARRIED]


_CARRIED = frozenset(TYPES.values())
