"""Files about single requests, combined into one Collector: JSON lines and perf_analyzer's export."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson

from tpx.errors import MeasurementError
from tpx.perf.loads.base import Load
from tpx.perf.measure.ledger import MeasuredLevel
from tpx.perf.options import SessionSpec
from tpx.perf.records import MODEL_SHIFT, SUCCESS, LevelRecords, Piece, Recorder, Records
from tpx.perf.results import Sections

if TYPE_CHECKING:
    from tpx.perf.capture import Capture

BUFFER_BYTES = 1 << 20


class RecorderFile:
    """The base of Recorders: a file that is written under a temporary name and renamed by `close`.

    A device or a pipe is written directly. Raises MeasurementError if writing fails. `offset_ns`
    converts times to nanoseconds since 1970, by a clock that does not jump.
    """

    def __init__(self, path: Path, offset_ns: int) -> None:
        self.offset_ns = offset_ns
        self._path = path
        self._as_it_is = path.exists() and not path.is_file()
        self._beside = path if self._as_it_is else path.with_name(f".{path.name}.part")
        try:
            self._file = self._beside.open("wb", buffering=BUFFER_BYTES)
        except OSError as exc:
            raise MeasurementError(f"cannot write {path}: {exc.strerror}") from exc

    def begin(self, records: Records) -> None:
        """Do nothing: everything to be written is in the records."""

    def write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as exc:
            raise MeasurementError(f"cannot write {self._path}: {exc.strerror}") from exc

    def close(self) -> None:
        """Complete the file and rename it."""
        try:
            self._file.close()
            if not self._as_it_is:
                self._beside.replace(self._path)
        except OSError as exc:
            raise MeasurementError(f"cannot write {self._path}: {exc.strerror}") from exc

    def abandon(self) -> None:
        """Remove the incomplete file."""
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._as_it_is:
            self._beside.unlink(missing_ok=True)


_TIMES = ("intended_ns", "start_ns", "sent_ns", "first_byte_ns", "end_ns")


class JsonLines(RecorderFile):
    """Implements Recorder: one line of JSON per request."""

    def record(self, level: LevelRecords) -> None:
        for piece in level.pieces():
            self._write_piece(level, piece)

    def _write_piece(self, level: LevelRecords, piece: Piece) -> None:
        rows, times = piece.rows, piece.times
        at = np.arange(piece.numbers.start, piece.numbers.stop)
        windows = np.searchsorted(np.asarray(level.indices[1:]), at, "right").tolist()
        columns = {name: rows[name].tolist() for name in (*_TIMES, "status", "step", "sequence")}
        head = {"mode": level.level.mode, "value": level.level.value}
        for i in range(len(rows)):
            line: dict[str, object] = head | {"window": windows[i] + 1}
            line |= {name: columns[name][i] + self.offset_ns for name in _TIMES}
            line["latency_us"] = (columns["end_ns"][i] - columns["intended_ns"][i]) / 1000
            status = columns["status"][i]
            line["ok"] = status == SUCCESS
            if status != SUCCESS:
                failure = level.failures.get(status)
                line["error"] = failure.code if failure is not None else str(status)
            if len(level.records.arrivals):
                line["responses_ns"] = times.of_row(i, self.offset_ns)
            model, line["step"] = divmod(columns["step"][i], 1 << MODEL_SHIFT)
            if model:
                line["model"] = model
            if columns["sequence"][i]:
                line["sequence"] = columns["sequence"][i]
            self.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


_EXPORTED_KINDS = {"inprocess": "triton_c_api"}
"""perf_analyzer's names of service kinds, if they differ from ours."""


class Recorders:
    """Implements Collector: passes each level to several recorders.

    A recorder that fails is dropped and its reason is added to the problems: a full disk costs a file,
    not the measurement.
    """

    def __init__(self, recorders: Sequence[Recorder], problems: list[str]) -> None:
        self._recorders = list(recorders)
        self._problems = problems

    async def begin(self, load: Load) -> None:
        self._call_each(lambda recorder: recorder.begin(load.records))

    async def finish(self, load: Load, measured: MeasuredLevel) -> Sections:
        level = LevelRecords(
            level=measured.level,
            records=load.records,
            borders_ns=tuple(border.time_ns for border in measured.borders),
            indices=tuple(border.index for border in measured.borders),
            failures=measured.ending.failures,
        )
        self._call_each(lambda recorder: recorder.record(level))
        return {}

    def close(self) -> None:
        """Complete the files."""
        self._call_each(lambda recorder: recorder.close())

    def abandon(self) -> None:
        """Remove the incomplete files."""
        for recorder in self._recorders:
            recorder.abandon()

    def _call_each(self, call: Callable[[Recorder], None]) -> None:
        for recorder in list(self._recorders):
            try:
                call(recorder)
            except MeasurementError as exc:
                self._problems.append(str(exc))
                self._recorders.remove(recorder)
                recorder.abandon()


@contextmanager
def open_recorders(
    config: SessionSpec, capture: "Capture | None", offset_ns: int, problems: list[str]
) -> Iterator[Recorders]:
    """Open the recorders of a run.

    The files are complete when the context ends, except those listed in `problems`. If it ends with an
    error, no file is left.
    """
    recorders: list[Recorder] = []
    if config.output.profile_export_file is not None and capture is not None:
        from tpx.perf.report.profile_export import ProfileExport  # late: few runs need it

        kind = _EXPORTED_KINDS.get(config.service.service_kind, config.service.service_kind)
        service = (kind, config.service.path)
        recorders.append(ProfileExport(config.output.profile_export_file, capture, service, offset_ns))
    if config.output.jsonl is not None:
        recorders.append(JsonLines(config.output.jsonl, offset_ns))
    every = Recorders(recorders, problems)
    try:
        yield every
    except BaseException:
        every.abandon()
        raise
    every.close()
