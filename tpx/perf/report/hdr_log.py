"""A log of HdrHistograms: one line a window, tagged by its level, values in nanoseconds."""

from datetime import UTC, datetime
from pathlib import Path

from tpx.perf.recording import LevelRecords
from tpx.perf.records import Records, succeeded
from tpx.perf.report.hdr import encode
from tpx.perf.report.streams import TextFile

VERSION = "1.3"
_MAX_UNIT_NS = 1_000_000
"""The log's column of maxima is in milliseconds."""


class HdrLog:
    """Implements Recorder."""

    def __init__(self, path: Path, offset_ns: int) -> None:
        self._file = TextFile(path)
        self._offset_ns = offset_ns
        self._begun = False

    def begin(self, records: Records) -> None:
        """What is written is all in the records."""

    def record(self, level: LevelRecords) -> None:
        self._head((level.borders_ns or (0,))[0])
        tag = f"{level.level.mode}={level.level.value:g}"
        for i, (start, end) in enumerate(zip(level.borders_ns, level.borders_ns[1:], strict=False)):
            first, last = level.indices[i : i + 2]
            good = succeeded(level.records.between(first, last))
            latency = good["end_ns"] - good["intended_ns"]
            most = int(latency.max()) / _MAX_UNIT_NS if len(latency) else 0.0
            at_s, took_s = (start + self._offset_ns) / 1e9, (end - start) / 1e9
            line = f"Tag={tag},{at_s:.3f},{took_s:.3f},{most:.3f},{encode(latency)}\n"
            self._file.write(line.encode())

    def close(self) -> None:
        self._head(0)
        self._file.close()

    def abandon(self) -> None:
        self._file.abandon()

    def _head(self, begun_ns: int) -> None:
        if self._begun:
            return
        self._begun = True
        start_s = (begun_ns + self._offset_ns) / 1e9
        when = datetime.fromtimestamp(start_s, UTC).isoformat(timespec="milliseconds")
        self._file.write(
            f"#[Logged by tpx perf]\n#[Histogram log format version {VERSION}]\n"
            f"#[StartTime: {start_s:.3f} (seconds since epoch), {when}]\n"
            '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'.encode()
        )
