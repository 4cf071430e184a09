"""run.jsonl: the records of a run, each synced when appended, so that no measurement is lost.

A file may hold several runs; readers use the last one. A crash can only cut the last line short:
readers skip it, and the next writer removes it.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import (
    Configuration,
    Decision,
    Measurement,
    Models,
    ServerOnly,
    TrialFailure,
)
from tpx.analyzer.results.old_journals import upgraded
from tpx.errors import MeasurementError, TpxError, UsageError

SCHEMA = 2
_OLD_SCHEMA = 1


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of the figures."""

    command: tuple[str, ...]
    started: str
    """Date and time, UTC, ISO 8601."""
    versions: dict[str, str]
    host: dict[str, str]
    """Label to value: machine, processor, cores, memory, GPUs, load average at the start."""


class RunStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="run"):
    """A run begins: its models, goals and options, and the machine and versions that measure."""

    schema: int
    models: tuple[Models, ...]
    """The models of each search."""
    goals: Goals
    top: int
    """Number of configurations that a report shows in detail."""
    settings: dict[str, Any]
    """Options of the run, in the form of a configuration file."""
    provenance: Provenance


class ServerMeasured(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="server_only"):
    """Memory and energy use of a server without models."""

    server: ServerOnly


class Configured(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="configuration"):
    """A configuration that is about to be measured."""

    configuration: Configuration


class ModelRead(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="model"):
    """A model's own configuration as the server completed it, the base of all variants."""

    model: str
    config: dict[str, Any]
    gpu: bool
    """True if instances without a kind run on GPUs."""
    fingerprint: str = ""
    """Fingerprint of the model's directory in the repository; empty if the directory is not accessible."""


class VariantPrepared(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="preparation"):
    """Record of how a configuration was brought onto a server."""

    model: str
    variant: str
    how: Literal["loaded", "started", "restarted", "found"]
    """`loaded` into the running server, or with a server that was `started`; `found`: nothing was needed."""
    why: str = ""
    """Reason for a restart."""
    duration_ns: int = 0
    node: str = ""
    """Name of the node, if several measure."""
    answers: str = ""
    """How many greedy answers of a language model are the default's, if they may differ."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="measurement"):
    """One measurement."""

    model: str
    measurement: Measurement


class TrialFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="failure"):
    """A trial without a measurement, with the reason."""

    model: str
    failure: TrialFailure


class ModelFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="model_failure"):
    """The model's own configuration could not be read, so there was nothing to search."""

    model: str
    reason: str
    log_tail: tuple[str, ...] = ()


class Decided(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="decision"):
    """A decision of the search, with its reason."""

    model: str
    decision: Decision


class RunResumed(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="resumed"):
    """A run that ended early resumes; the following records belong to it."""

    provenance: Provenance
    retry: bool = False
    """True if failed trials are repeated: the final rounds and decisions up to here are discarded."""


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="end"):
    """The run is over, or paused until it is resumed."""

    outcome: Literal["complete", "interrupted"]
    elapsed_ns: int
    """Duration of all parts of the run."""
    reason: str = ""
    """Cause of an interruption that the user did not request."""


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
    """The open run.jsonl of a run in progress, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Raises MeasurementError if it is not writable, UsageError if another process writes it."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise _make_write_error(path, exc) from exc
        try:
            self._lock_file()
        except TpxError:
            os.close(self._descriptor)
            raise

    def append(self, record: Record) -> None:
        """Append one line, which is on disk when this returns. A line that does not fit is removed again."""
        line = memoryview(_encoder.encode(record) + b"\n")
        written = 0
        try:
            while written < len(line):
                written += os.pwrite(self._descriptor, line[written:], self._size + written)
            os.fsync(self._descriptor)
        except OSError as exc:
            # remove the partial line: readers accept an incomplete line only at the end
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise _make_write_error(self.path, exc) from exc
        self._size += len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def _lock_file(self) -> None:
        """Lock the file, drop an incomplete last line left by a crash, and sync the directory entry."""
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
            # fsync of a new file does not cover its directory entry
            directory = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as exc:
            raise _make_write_error(self.path, exc) from exc


def read_last_run(path: Path) -> list[Record]:
    """Return the records of the last run in a run.jsonl. Raises MeasurementError unless it is intact."""
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise MeasurementError(f"{path}: {exc.strerror}") from exc
    complete, _, _ = content.rpartition(b"\n")
    records: list[Record] = []
    for number, line in enumerate(complete.split(b"\n") if complete else (), start=1):
        try:
            record = _decode(line)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise MeasurementError(f"{path}:{number}: not a record of a run: {exc}") from exc
        if isinstance(record, RunStarted):
            if record.schema not in (_OLD_SCHEMA, SCHEMA):
                raise MeasurementError(
                    f"{path}:{number}: written with schema {record.schema}, this tpx reads {SCHEMA}"
                )
            records = []
        records.append(record)
    if not records or not isinstance(records[0], RunStarted):
        raise MeasurementError(f"{path}: contains no run")
    return records


def _decode(line: bytes) -> Record:
    """Decode one record; one that today's form does not fit may be of an earlier tpx."""
    try:
        record: Record = _decoder.decode(line)
    except msgspec.ValidationError as exc:
        try:
            record = msgspec.convert(upgraded(msgspec.json.decode(line)), Record, str_keys=True)
        except (msgspec.ValidationError, LookupError, TypeError, AttributeError):
            raise exc from None
    return record


def holds_run(path: Path) -> bool:
    """Return True if there is a run to read, complete or not."""
    try:
        return bool(read_last_run(path))
    except MeasurementError:
        return False


def _make_write_error(path: Path, error: OSError) -> MeasurementError:
    return MeasurementError(
        f"cannot write {path}: {error.strerror}. Free space or choose another --export-path"
    )
