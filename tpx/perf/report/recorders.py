"""Files about single requests, combined into one Recorder: JSON lines and a HdrHistogram log.

The log has one line per window, tagged by its level, in ns. The layout of buckets and bytes follows
HdrHistogram's documentation of AbstractHistogram and of the log, version 2.
"""

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


import base64
import struct
import zlib
from datetime import UTC, datetime

import numpy.typing as npt

from tpx.perf.records import succeeded
from tpx.protocol.tensors import Array

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
    if config.output.hdr_log is not None:
        recorders.append(HdrLog(config.output.hdr_log, offset_ns))
    every = Recorders(recorders, problems)
    try:
        yield every
    except BaseException:
        every.abandon()
        raise
    every.close()


DIGITS = 3
"""Significant decimal digits."""
_HALF_BITS = 10
_HALF = 1 << _HALF_BITS
"""Half of the linear sub-buckets per bucket, which are 2 * 10**DIGITS rounded up to a power of two."""
_COOKIE = 0x1C849303 | 0x10
_COMPRESSED_COOKIE = 0x1C849304 | 0x10
_HEADER = struct.Struct(">iiiiqqd")


def encode(values: Array) -> str:
    """Encode integers of at least 0 as a compressed histogram in base64."""
    counts = np.bincount(_compute_indices(values)) if len(values) else np.zeros(0, np.int64)
    payload = _encode_zigzag(counts.tolist())
    highest = max(2, int(values.max())) if len(values) else 2
    head = _HEADER.pack(_COOKIE, len(payload), 0, DIGITS, 1, highest, 1.0)
    squeezed = zlib.compress(head + payload)
    return base64.b64encode(struct.pack(">ii", _COMPRESSED_COOKIE, len(squeezed)) + squeezed).decode()


def _compute_indices(values: Array) -> npt.NDArray[np.int64]:
    """Return the index of each value's count."""
    whole = np.maximum(values, 0).astype(np.int64)
    # the exponent of a double is the bit length of an integer below 2**53
    _, bits = np.frexp((whole | (2 * _HALF - 1)).astype(np.float64))
    bucket = bits.astype(np.int64) - _HALF_BITS - 1
    places: npt.NDArray[np.int64] = ((bucket + 1) << _HALF_BITS) + (whole >> bucket) - _HALF
    return places


def _encode_zigzag(counts: list[int]) -> bytes:
    """Encode counts as ZigZag LEB128; a run of zeros is one negative number."""
    out = bytearray()
    zeros = 0
    for count in counts:
        if not count:
            zeros += 1
            continue
        if zeros:
            _append_zigzag(out, -zeros)
            zeros = 0
        _append_zigzag(out, count)
    return bytes(out)


def _append_zigzag(out: bytearray, value: int) -> None:
    rest = (value << 1) ^ (value >> 63)
    rest &= (1 << 64) - 1
    for _ in range(8):
        if rest < 0x80:
            out.append(rest)
            return
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


VERSION = "1.3"
_MAX_UNIT_NS = 1_000_000
"""Unit of the log's column of maxima: milliseconds."""


class HdrLog(RecorderFile):
    """Implements Recorder: one histogram per window."""

    def __init__(self, path: Path, offset_ns: int) -> None:
        super().__init__(path, offset_ns)
        self._begun = False

    def record(self, level: LevelRecords) -> None:
        self._write_header((level.borders_ns or (0,))[0])
        tag = f"{level.level.mode}={level.level.value:g}"
        for i, (start, end) in enumerate(zip(level.borders_ns, level.borders_ns[1:], strict=False)):
            first, last = level.indices[i : i + 2]
            good = succeeded(level.records.between(first, last))
            latency = good["end_ns"] - good["intended_ns"]
            most = int(latency.max()) / _MAX_UNIT_NS if len(latency) else 0.0
            at_s, took_s = (start + self.offset_ns) / 1e9, (end - start) / 1e9
            line = f"Tag={tag},{at_s:.3f},{took_s:.3f},{most:.3f},{encode(latency)}\n"
            self.write(line.encode())

    def close(self) -> None:
        self._write_header(0)
        super().close()

    def _write_header(self, begun_ns: int) -> None:
        if self._begun:
            return
        self._begun = True
        start_s = (begun_ns + self.offset_ns) / 1e9
        when = datetime.fromtimestamp(start_s, UTC).isoformat(timespec="milliseconds")
        self.write(
            f"#[Logged by tpx perf]\n#[Histogram log format version {VERSION}]\n"
            f"#[StartTime: {start_s:.3f} (seconds since epoch), {when}]\n"
            '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'.encode()
        )
