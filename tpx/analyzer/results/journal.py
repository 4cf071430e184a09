"""run.jsonl: every record of a run, appended and synced one by one, so that nothing measured is lost.

A file may hold several runs, one after the other; readers take the last. A line cut short by a crash is the
last one and is left out.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Configuration, Decision, Failure, Measurement, ServerOnly
from tpx.errors import MeasurementError

SCHEMA = 1


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where the figures come from."""

    command: tuple[str, ...]
    started: str
    """Date and time, UTC, ISO 8601."""
    versions: dict[str, str]
    host: dict[str, str]
    """Label to value: machine, processor, cores, memory, GPUs, load average at the start."""


class RunStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="run"):
    """A run begins: who measures what, and with which options."""

    schema: int
    models: tuple[str, ...]
    goals: Goals
    top: int
    """How many configurations a report shows in detail."""
    tolerance_percent: float
    """By how much the windows of one stable measurement may differ."""
    settings: dict[str, Any]
    """The options of the run, as a configuration file would hold them."""
    provenance: Provenance


class ServerMeasured(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="server_only"):
    """The memory of a server without models."""

    server: ServerOnly


class Configured(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="configuration"):
    """A configuration that will be measured."""

    configuration: Configuration


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="measurement"):
    """One measurement."""

    model: str
    measurement: Measurement


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="failure"):
    """A trial that gave no measurement, and why."""

    model: str
    failure: Failure


class ModelFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="model_failure"):
    """The model's own configuration could not be had, so there was nothing to search."""

    model: str
    reason: str
    log_tail: tuple[str, ...] = ()


class Decided(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="decision"):
    """What the search decided, and why."""

    model: str
    decision: Decision


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="end"):
    """The run is over."""

    outcome: Literal["complete", "interrupted"]
    elapsed_ns: int


Record = RunStarted | ServerMeasured | Configured | Measured | Failed | ModelFailed | Decided | RunEnded
_decoder = msgspec.json.Decoder(Record)
_encoder = msgspec.json.Encoder()


class Journal:
    """The open run.jsonl of a run in progress."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _cut_torn_tail(path)
            self._file = path.open("ab")
        except OSError as exc:
            raise _unwritable(path, exc) from exc

    def append(self, record: Record) -> None:
        """One more line, on the disk when this returns."""
        try:
            self._file.write(_encoder.encode(record) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as exc:
            raise _unwritable(self.path, exc) from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_last_run(path: Path) -> list[Record]:
    """The records of the last run in a run.jsonl.

    Raises MeasurementError when the file cannot be read, holds no run, or has a damaged line before its end.
    """
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise MeasurementError(f"{path}: {exc.strerror}") from exc
    complete, _, _ = content.rpartition(b"\n")
    records: list[Record] = []
    for number, line in enumerate(complete.split(b"\n") if complete else (), start=1):
        try:
            record = _decoder.decode(line)
        except msgspec.DecodeError as exc:
            raise MeasurementError(f"{path}:{number}: not a record of a run: {exc}") from exc
        if isinstance(record, RunStarted):
            if record.schema != SCHEMA:
                raise MeasurementError(
                    f"{path}:{number}: written with schema {record.schema}, this tpx reads {SCHEMA}"
                )
            records = []
        records.append(record)
    if not records or not isinstance(records[0], RunStarted):
        raise MeasurementError(f"{path}: holds no run")
    return records


def _cut_torn_tail(path: Path) -> None:
    """Drop what a crash left after the last complete line, so that the next line starts a line."""
    if not path.exists():
        return
    content = path.read_bytes()
    keep = content.rfind(b"\n") + 1
    if keep < len(content):
        os.truncate(path, keep)


def _unwritable(path: Path, error: OSError) -> MeasurementError:
    return MeasurementError(
        f"cannot write {path}: {error.strerror}. Free space or choose another --export-path"
    )
