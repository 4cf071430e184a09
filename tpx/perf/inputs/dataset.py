"""The data of a run: the user's files and directories, or generated data if there are none."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tpx.errors import UsageError
from tpx.options import nearest
from tpx.perf.clients.model import ModelDescription, TensorDescription, check_names
from tpx.perf.inputs.base import InputSource, InputSpec
from tpx.perf.inputs.json_files import read_json
from tpx.perf.inputs.makers import Maker, assumption, maker_for, maker_of_file, resolve_shapes
from tpx.perf.inputs.steps import DataSet, DataStream, Step, StepReader

ARRAY = ".npy"


def _check_names(directory: Path, known: Sequence[str]) -> None:
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and name not in known and name.removesuffix(ARRAY) not in known:
            raise UsageError(
                f"Provided data file '{name}' does not correspond to a valid model input or output"
                f"{nearest(name, known)} ({directory}; the model has: {', '.join(known)})."
            )


def _makers(
    directory: Path, specs: Sequence[TensorDescription], dims: Mapping[str, tuple[int, ...]]
) -> dict[str, Maker]:
    out: dict[str, Maker] = {}
    for spec in specs:
        for path in (directory / spec.name, directory / (spec.name + ARRAY)):
            if path.is_file():
                out[spec.name] = maker_of_file(spec, dims[spec.name], path)
    return out


class MakerStream:
    """Implements DataStream over makers: one step per row of the files, or the steps of one batch if
    there are none.
    """

    def __init__(
        self,
        inputs: Sequence[Maker],
        expected: Sequence[Maker] = (),
        *,
        directory: Path | None = None,
        batch_size: int = 1,
    ) -> None:
        """Raise UsageError if files have different numbers of rows."""
        makers = (*inputs, *expected)
        rows = {maker.steps for maker in makers} - {0, 1}
        if len(rows) > 1:
            what = "--input: files" if directory is None else f"{directory}: arrays"
            raise UsageError(f"{what} have different numbers of rows: {sorted(rows)}")
        self._inputs = inputs
        self._expected = expected
        self._where = "" if directory is None else f"{directory}: "
        endless = any(not maker.steps for maker in makers)
        self._length = rows.pop() if rows else batch_size if endless else 1

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Step:
        if not 0 <= index < self._length:
            raise IndexError(index)
        return Step(
            where=f"{self._where}step {index}",
            inputs=tuple(maker.make(index) for maker in self._inputs),
            expected=tuple(maker.make(index) for maker in self._expected),
        )


def read_directory(directory: Path, reader: StepReader) -> MakerStream:
    """Return the steps of a directory with one file per input, and per output to compare: one step, or
    one per row of its arrays.

    Raises UsageError naming the missing file, or the file that matches no tensor.
    """
    model = reader.model
    _check_names(directory, [spec.name for spec in (*model.inputs, *model.outputs)])
    inputs = _makers(directory, model.inputs, reader.dims)
    for name in inputs:
        if name in reader.makers:
            raise UsageError(f"{directory}: tensor '{name}' is given here and by --input, too")
    inputs |= reader.makers
    for spec in model.inputs:
        if spec.name not in inputs and not spec.optional:
            raise UsageError(f"{directory}: missing tensor {spec.name}: there is no file of that name")
    outputs = {spec.name: spec.shape for spec in model.outputs}
    return MakerStream(
        [inputs[spec.name] for spec in model.inputs if spec.name in inputs],
        list(_makers(directory, model.outputs, outputs).values()),
        directory=directory,
    )


def open_data(model: ModelDescription, settings: InputSpec) -> DataSet:
    """Open the data that the settings name for a model; JSON steps are parsed only on access.

    Raises UsageError if the data does not fit the model.
    """
    dims = resolve_shapes(model, settings.shape, settings.batch_size)
    check_names("--input", settings.sources, model, "input")
    made = [
        (spec, settings.sources.get(spec.name) or InputSource(name=spec.name, kind=settings.kind))
        for spec in model.inputs
        if not settings.files or spec.name in settings.sources
    ]
    for spec, source in made:
        if spec.shape_tensor and source.kind not in ("file", "range", "ones"):
            raise UsageError(
                f"can not generate data for shape tensor '{spec.name}', user-provided data is needed"
            )
    makers = {spec.name: maker_for(spec, dims[spec.name], source, settings) for spec, source in made}
    notices = tuple(
        text for spec, source in made if source.kind != "file" and (text := assumption(spec, dims[spec.name]))
    )
    if not settings.files:
        stream = MakerStream(list(makers.values()), batch_size=settings.batch_size)
        return DataSet(streams=(stream,), made=True, notices=notices)
    return _of_files(settings, StepReader(model, dims, makers), notices)


def _of_files(settings: InputSpec, reader: StepReader, notices: tuple[str, ...]) -> DataSet:
    streams: list[DataStream] = [read_directory(path, reader) for path in settings.files if path.is_dir()]
    files = [path for path in settings.files if not path.is_dir()]
    if files:
        data = read_json(files, reader)
        streams += data.streams
        notices += data.notices
    return DataSet(streams=tuple(streams), made=False, notices=notices)
