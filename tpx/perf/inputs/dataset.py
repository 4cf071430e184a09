"""The data of a run: the user's files and directories, or generated data if there are none.

Of a JSON file only the bytes are kept in memory; each step is parsed on access.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import orjson

from tpx.errors import UsageError
from tpx.options import nearest
from tpx.perf.clients.model import ModelDescription, TensorDescription, check_names
from tpx.perf.inputs.base import InputSource, InputSpec
from tpx.perf.inputs.makers import (
    Maker,
    check_shapes,
    explain_shape,
    maker_for,
    maker_of_file,
    resolve_shapes,
)
from tpx.perf.inputs.steps import DataSet, DataStream, Step, StepReader
from tpx.protocol.json_values import JsonValue

LINES = (".ndjson", ".jsonl")
MISALIGNED = "The 'validation_data' field doesn't align with 'data' field in the json file"
MIXED = "can not have a combination of objects and arrays inside of the data array"


_Unread = tuple[JsonValue, JsonValue, str]
"""An unparsed step, its expected outputs, and its origin."""


def _list_steps(
    steps: Sequence[JsonValue], expected: Sequence[JsonValue] | None, where: str
) -> list[_Unread]:
    """Return the steps of one list; `expected` has one entry per step."""
    if expected is not None and len(expected) != len(steps):
        raise UsageError(f"{where}: {MISALIGNED}: {len(expected)} steps for {len(steps)}")
    outputs = [None] * len(steps) if expected is None else expected
    return [(steps[i], outputs[i], f"{where}, step {i}") for i in range(len(steps))]


def read_json(paths: Sequence[Path], reader: StepReader) -> DataSet:
    """Read the data of several files in order: lists of steps become one stream, nested lists several.

    Raises UsageError naming the file that is not in this format, or that mixes the two forms.
    """
    flat: list[_Unread] = []
    streams: list[list[_Unread]] = []
    notices: list[str] = []
    for path in paths:
        file = _read_file(path)
        notices += file.notices
        nested = [_is_list(item) for item in file.data]
        if any(nested) and all(nested):
            streams += _iter_streams(file, path)
        elif not any(nested):
            flat += _list_steps(file.data, file.validation, f"{path}: stream 0")
        if (any(nested) and not all(nested)) or (flat and streams):
            raise UsageError(f"{path}: {MIXED}")
    if not all(streams) or not (streams or flat):
        raise UsageError(f"{', '.join(map(str, paths))}: The dataset provided is empty.")

    def stream(unread: list[_Unread]) -> DataStream:
        def make(index: int) -> Step:
            value, expected, where = unread[index]
            return reader.step(_parse_json(value, where), _parse_json(expected, where), where, index)

        return DataStream(len(unread), make)

    return DataSet(streams=tuple(map(stream, streams or [flat])), made=False, notices=tuple(notices))


def _iter_streams(file: "_File", path: Path) -> Iterator[list[_Unread]]:
    expected: Sequence[JsonValue] = [None] * len(file.data) if file.validation is None else file.validation
    if len(expected) != len(file.data):
        raise UsageError(f"{path}: {MISALIGNED}: {len(expected)} streams for {len(file.data)}")
    for number, (steps, outputs) in enumerate(zip(file.data, expected, strict=True)):
        where = f"{path}: stream {number}"
        if outputs is not None and not _is_list(outputs):
            raise UsageError(f"{where}: {MISALIGNED}")
        yield _list_steps(
            _list_items(steps, where) or [], None if outputs is None else _list_items(outputs, where), where
        )


@dataclass(frozen=True, slots=True)
class _File:
    data: Sequence[JsonValue]
    validation: Sequence[JsonValue] | None = None
    notices: tuple[str, ...] = ()


def _read_file(path: Path) -> _File:
    try:
        text = path.read_bytes()
    except OSError as exc:
        raise UsageError(f"--input-data {path}: {exc.strerror or exc}") from exc
    if path.suffix in LINES:
        return _File([msgspec.Raw(line) for line in text.splitlines() if line.strip()])
    document: JsonValue = None
    try:
        document = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as exc:
        if not isinstance(exc, msgspec.ValidationError):
            document = _parse_leniently(text, str(path), exc)
    if not isinstance(document, dict):
        raise UsageError(f"{path}: expected an object with a field 'data'")
    if "data" not in document:
        raise UsageError(f"{path}: The json file doesn't contain data field")
    data = _list_items(document["data"], str(path))
    validation = None
    if "validation_data" in document:
        validation = _list_items(document["validation_data"], str(path))
        if validation is None:
            raise UsageError(f"{path}: {MISALIGNED}")
    if data is None:
        raise UsageError(f"{path}: 'data' must be a list of steps, or of lists of steps")
    unread = sorted(set(document) - {"data", "validation_data"})
    notices = [f"{path}: the field '{name}' is not read (known: data, validation_data)" for name in unread]
    return _File(data, validation, tuple(notices))


def _parse_leniently(text: bytes, where: str, error: Exception) -> JsonValue:
    """Parse text with NaN or Infinity, which JSON lacks but perf_analyzer accepts."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: failed to parse the specified json file: {error}") from error


def _is_list(value: JsonValue) -> bool:
    if isinstance(value, msgspec.Raw):
        return bytes(memoryview(value)[:1]) == b"["
    return isinstance(value, list)


def _list_items(value: JsonValue, where: str) -> Sequence[JsonValue] | None:
    """Return the items of a list; None for anything else."""
    if not _is_list(value):
        return None
    if isinstance(value, msgspec.Raw):
        try:
            return msgspec.json.decode(value, type=list[msgspec.Raw])
        except msgspec.DecodeError as exc:
            value = _parse_leniently(bytes(value), where, exc)
    items: list[JsonValue] = value
    return items


def _parse_json(value: JsonValue, where: str) -> JsonValue:
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return orjson.loads(memoryview(value))
    except orjson.JSONDecodeError as exc:
        return _parse_leniently(bytes(value), where, exc)


ARRAY = ".npy"


def made_stream(
    inputs: Sequence[Maker],
    expected: Sequence[Maker] = (),
    *,
    directory: Path | None = None,
    batch_size: int = 1,
) -> DataStream:
    """Return one step per row of the makers' files, or the steps of one batch if there are none.

    Raises UsageError if files have different numbers of rows.
    """
    makers = (*inputs, *expected)
    rows = {maker.steps for maker in makers} - {0, 1}
    if len(rows) > 1:
        what = "--input: files" if directory is None else f"{directory}: arrays"
        raise UsageError(f"{what} have different numbers of rows: {sorted(rows)}")
    endless = any(not maker.steps for maker in makers)

    def make(index: int) -> Step:
        return Step(
            where=f"step {index}" if directory is None else f"{directory}: step {index}",
            inputs=tuple(maker.make(index) for maker in inputs),
            expected=tuple(maker.make(index) for maker in expected),
        )

    return DataStream(rows.pop() if rows else batch_size if endless else 1, make)


def read_directory(directory: Path, reader: StepReader) -> DataStream:
    """Return the steps of a directory with one file per input, and per output to compare: one step, or
    one per row of its arrays.

    Raises UsageError naming the missing file, or the file that matches no tensor.
    """
    model = reader.model
    known = [spec.name for spec in (*model.inputs, *model.outputs)]
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and name not in known and name.removesuffix(ARRAY) not in known:
            raise UsageError(
                f"Provided data file '{name}' does not correspond to a valid model input or output"
                f"{nearest(name, known)} ({directory}; the model has: {', '.join(known)})."
            )

    def makers(specs: Sequence[TensorDescription], dims: Mapping[str, tuple[int, ...]]) -> dict[str, Maker]:
        return {
            spec.name: maker_of_file(spec, dims[spec.name], path)
            for spec in specs
            for path in (directory / spec.name, directory / (spec.name + ARRAY))
            if path.is_file()
        }

    inputs = makers(model.inputs, reader.dims)
    for name in inputs:
        if name in reader.makers:
            raise UsageError(f"{directory}: tensor '{name}' is given here and by --input")
    inputs |= reader.makers
    for spec in model.inputs:
        if spec.name not in inputs and not spec.optional:
            raise UsageError(f"{directory}: missing tensor {spec.name}: there is no file of that name")
    expected = makers(model.outputs, {spec.name: spec.shape for spec in model.outputs})
    ordered = [inputs[spec.name] for spec in model.inputs if spec.name in inputs]
    return made_stream(ordered, list(expected.values()), directory=directory)


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
    generated = [(spec, dims[spec.name]) for spec, source in made if source.kind != "file"]
    if not settings.assume_shapes:
        check_shapes(model, generated)
    makers = {spec.name: maker_for(spec, dims[spec.name], source, settings) for spec, source in made}
    given = {shape.name for shape in settings.shape}
    shapes = [explain_shape(*each, given) for each in generated]
    notices = tuple(text for text, guessed in shapes if text and not guessed)
    guesses = tuple(text for text, guessed in shapes if guessed)
    if not settings.files:
        stream = made_stream(list(makers.values()), batch_size=settings.batch_size)
        return DataSet(streams=(stream,), made=True, notices=notices, guesses=guesses)
    reader = StepReader(model, dims, makers)
    streams = [read_directory(path, reader) for path in settings.files if path.is_dir()]
    files = [path for path in settings.files if not path.is_dir()]
    if files:
        data = read_json(files, reader)
        streams += data.streams
        notices += data.notices
    return DataSet(streams=tuple(streams), made=False, notices=notices, guesses=guesses)
