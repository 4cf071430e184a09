"""Data in directories: a file for each input, and for each output that is to be compared."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tpx.errors import UsageError
from tpx.options import nearest
from tpx.perf.clients.model import TensorSpec
from tpx.perf.inputs.makers import Maker, maker_of_file
from tpx.perf.inputs.reading import StepReader
from tpx.perf.inputs.steps import Step

ARRAY = ".npy"


class DirectoryStream:
    """Implements Stream: the steps of one directory: one, or as many as its arrays have rows."""

    def __init__(self, directory: Path, reader: StepReader) -> None:
        """Raises UsageError naming the file that is missing, or that belongs to no tensor."""
        model = reader.model
        _check_names(directory, [spec.name for spec in (*model.inputs, *model.outputs)])
        self._directory = directory
        self._inputs = _makers(directory, model.inputs, reader.dims)
        for spec in model.inputs:
            if spec.name in self._inputs and spec.name in reader.makers:
                raise UsageError(f"{directory}: tensor '{spec.name}' is given here and by --input, too")
        self._inputs |= reader.makers
        for spec in model.inputs:
            if spec.name not in self._inputs and not spec.optional:
                raise UsageError(f"{directory}: missing tensor {spec.name}: there is no file of that name")
        outputs = {spec.name: spec.shape for spec in model.outputs}
        self._expected = _makers(directory, model.outputs, outputs)
        self._order = [spec.name for spec in model.inputs]
        rows = {maker.steps for maker in (*self._inputs.values(), *self._expected.values())} - {0, 1}
        if len(rows) > 1:
            raise UsageError(f"{directory}: arrays have different numbers of rows: {sorted(rows)}")
        self._length = rows.pop() if rows else 1

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Step:
        if not 0 <= index < self._length:
            raise IndexError(index)
        return Step(
            where=f"{self._directory}: step {index}",
            inputs=tuple(self._inputs[name].make(index) for name in self._order if name in self._inputs),
            expected=tuple(maker.make(index) for maker in self._expected.values()),
        )


def _check_names(directory: Path, known: Sequence[str]) -> None:
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and name not in known and name.removesuffix(ARRAY) not in known:
            raise UsageError(
                f"Provided data file '{name}' does not correspond to a valid model input or output"
                f"{nearest(name, known)} ({directory}; the model has: {', '.join(known)})."
            )


def _makers(
    directory: Path, specs: Sequence[TensorSpec], dims: Mapping[str, tuple[int, ...]]
) -> dict[str, Maker]:
    out: dict[str, Maker] = {}
    for spec in specs:
        for path in (directory / spec.name, directory / (spec.name + ARRAY)):
            if path.is_file():
                out[spec.name] = maker_of_file(spec, dims[spec.name], path)
    return out
