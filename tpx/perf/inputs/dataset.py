"""The data of a run: the user's files, or what is made where there are none."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from tpx.errors import UsageError
from tpx.options import nearest
from tpx.perf.clients.model import ModelDescription
from tpx.perf.inputs.base import InputSource, InputSpec
from tpx.perf.inputs.directories import DirectoryStream
from tpx.perf.inputs.json_files import read_json
from tpx.perf.inputs.makers import Maker, maker_for
from tpx.perf.inputs.reading import StepReader
from tpx.perf.inputs.shapes import assumption, resolve_shapes
from tpx.perf.inputs.steps import Step, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Streams of steps; `notices` say what was assumed. `made` is whether no user wrote them, so that one
    step stands for any number."""

    streams: tuple[Stream, ...]
    made: bool
    notices: tuple[str, ...] = ()

    @property
    def steps(self) -> Stream:
        """All of them as one stream: models without sequences take them in this order."""
        return self.streams[0] if len(self.streams) == 1 else _Chained(self.streams)


class _Chained:
    def __init__(self, streams: Sequence[Stream]) -> None:
        self._places = list(chain.from_iterable(((s, i) for i in range(len(s))) for s in streams))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Step:
        stream, i = self._places[index]
        return stream[i]


class MadeStream:
    """Implements Stream: steps that are made, as many as files of the inputs have; a batch has none
    twice."""

    def __init__(self, makers: Sequence[Maker], batch_size: int) -> None:
        """Raises UsageError where files have different numbers of rows."""
        rows = {maker.steps for maker in makers} - {0, 1}
        if len(rows) > 1:
            raise UsageError(f"--input: files have different numbers of rows: {sorted(rows)}")
        self._makers = makers
        endless = any(not maker.steps for maker in makers)
        self._length = rows.pop() if rows else batch_size if endless else 1

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Step:
        if not 0 <= index < self._length:
            raise IndexError(index)
        return Step(where=f"step {index}", inputs=tuple(maker.make(index) for maker in self._makers))


def open_data(model: ModelDescription, settings: InputSpec) -> DataSet:
    """The data that the settings name, for a model. Files are read, but for what only a step needs.

    Raises UsageError where they do not fit the model.
    """
    dims = resolve_shapes(model, settings.shape, settings.batch_size)
    names = [spec.name for spec in model.inputs]
    for name in settings.sources:
        if name not in names:
            raise UsageError(
                f"--input {name}: model '{model.name}' has no such input{nearest(name, names)} "
                f"(has: {', '.join(names)})"
            )
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
        stream = MadeStream(list(makers.values()), settings.batch_size)
        return DataSet(streams=(stream,), made=True, notices=notices)
    return _of_files(settings, StepReader(model, dims, makers), notices)


def _of_files(settings: InputSpec, reader: StepReader, notices: tuple[str, ...]) -> DataSet:
    streams: list[Stream] = [DirectoryStream(path, reader) for path in settings.files if path.is_dir()]
    files = [path for path in settings.files if not path.is_dir()]
    if files:
        data = read_json(files, reader)
        streams += data.streams
        notices += data.notices
    return DataSet(streams=tuple(streams), made=False, notices=notices)
