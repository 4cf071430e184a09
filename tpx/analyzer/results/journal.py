"""run.jsonl: every record of a run, appended and synced one by one, so that nothing measured is lost.

A file may hold several runs, one after the other; readers take the last. A line cut short by a crash is the
last one: readers leave it out, and whoever writes next removes it.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Configuration, Decision, Measurement, ServerOnly, TrialFailure
from tpx.errors import MeasurementError, TpxError, UsageError

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
    final_rounds: int = 0
    """In how many the finalists of each model are measured again, at most."""


class ServerMeasured(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="server_only"):
    """The memory of a server without models."""

    server: ServerOnly


class Configured(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="configuration"):
    """A configuration that will be measured."""

    configuration: Configuration


class ModelRead(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="model"):
    """A model's own configuration as the server completed it: what every variant is a change of."""

    model: str
    config: dict[str, Any]
    gpu: bool
    """Whether its instances go to GPUs where it does not say."""
    fingerprint: str = ""
    """Of its directory in the model repository; empty where that is not at hand."""


class VariantPrepared(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="preparation"):
    """How a configuration came onto a server: on a warm one, or on one that was started for it."""

    model: str
    variant: str
    how: Literal["loaded", "started", "restarted", "found"]
    """`loaded` on the server that ran already; `found`: nothing had to be done."""
    why: str = ""
    """Of a restart: what made it necessary."""
    duration_ns: int = 0
    node: str = ""
    """Where, of several nodes."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="measurement"):
    """One measurement."""

    model: str
    measurement: Measurement


class TrialFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="failure"):
    """A trial that gave no measurement, and why."""

    model: str
    failure: TrialFailure


class ModelFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="model_failure"):
    """The model's own configuration could not be had, so there was nothing to search."""

    model: str
    reason: str
    log_tail: tuple[str, ...] = ()


class Decided(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="decision"):
    """A decision of the search, and its reason."""

    model: str
    decision: Decision


class RunResumed(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="resumed"):
    """A run that had ended too early goes on; what follows belongs to it."""

    provenance: Provenance
    retry: bool = False
    """What failed before is carried out again: final rounds and decisions up to here do not count."""


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="end"):
    """The run is over, or rests until it is resumed."""

    outcome: Literal["complete", "interrupted"]
    elapsed_ns: int
    """Of all its parts."""
    reason: str = ""
    """What interrupted it, where nobody asked for that."""


Record = (
    RunStarted
    | ServerMeasured
    | ModelRead
    | Configured
    | VariantPrepared
    | Measured
    | TrialFailed
    | ModelFailed
    | Decided
    | RunResumed
    | RunEnded
)
_decoder = msgspec.json.Decoder(Record)
_encoder = msgspec.json.Encoder()


class Journal:
    """The open run.jsonl of a run in progress; one process at a time has it."""

    def __init__(self, path: Path) -> None:
        """Raises MeasurementError where it cannot be written, UsageError where another process writes it."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise _unwritable(path, exc) from exc
        try:
            self._take()
        except TpxError:
            os.close(self._descriptor)
            raise

    def append(self, record: Record) -> None:
        """One more line, on the disk when this returns. A line that does not fit leaves nothing behind."""
        line = memoryview(_encoder.encode(record) + b"\n")
        written = 0
        try:
            while written < len(line):
                written += os.pwrite(self._descriptor, line[written:], self._size + written)
            os.fsync(self._descriptor)
        except OSError as exc:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise _unwritable(self.path, exc) from exc
        self._size += len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def _take(self) -> None:
        """Lock the file, drop what a crash left after its last complete line, put its name on the disk."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise UsageError(
                f"{self.path} is being written by another tpx analyze: wait for it, or choose another "
                "--checkpoint-directory or --export-path"
            ) from exc
        try:
            self._size = self.path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(self._descriptor, self._size)
            directory = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as exc:
            raise _unwritable(self.path, exc) from exc


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


def holds_run(path: Path) -> bool:
    """Return whether there is a run to read, complete or not."""
    try:
        return bool(read_last_run(path))
    except MeasurementError:
        return False


def _unwritable(path: Path, error: OSError) -> MeasurementError:
    return MeasurementError(
        f"cannot write {path}: {error.strerror}. Free space or choose another --export-path"
    )
