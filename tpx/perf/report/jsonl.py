"""One line of JSON for every request: when it should have been sent, when it was, what came back."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tpx.perf.recording import LevelRecords, Piece
from tpx.perf.records import MODEL_SHIFT, SUCCESS, Records
from tpx.perf.report.streams import TextFile

_TIMES = ("intended_ns", "start_ns", "sent_ns", "first_byte_ns", "end_ns")


class JsonLines:
    """Implements Recorder. Times are nanoseconds since 1970, from a clock that does not jump."""

    def __init__(self, path: Path, offset_ns: int) -> None:
        self._file = TextFile(path)
        self._offset_ns = offset_ns

    def begin(self, records: Records) -> None:
        """What is written is all in the records."""

    def record(self, level: LevelRecords) -> None:
        for piece in level.pieces():
            self._write(level, piece)

    def _write(self, level: LevelRecords, piece: Piece) -> None:
        rows, times = piece.rows, piece.times
        at = np.arange(piece.numbers.start, piece.numbers.stop)
        windows = np.searchsorted(np.asarray(level.indices[1:]), at, "right").tolist()
        columns = {name: rows[name].tolist() for name in (*_TIMES, "status", "step", "sequence")}
        head = {"mode": level.level.mode, "value": level.level.value}
        for i in range(len(rows)):
            line: dict[str, Any] = head | {"window": windows[i] + 1}
            line |= {name: columns[name][i] + self._offset_ns for name in _TIMES}
            line["latency_us"] = (columns["end_ns"][i] - columns["intended_ns"][i]) / 1000
            status = columns["status"][i]
            line["ok"] = status == SUCCESS
            if status != SUCCESS:
                failure = level.failures.get(status)
                line["error"] = failure.code if failure is not None else str(status)
            if len(level.records.arrivals):
                arrived = times.times_ns[times.starts[i] : times.starts[i + 1]]
                line["responses_ns"] = (arrived + self._offset_ns).tolist()
            model, line["step"] = divmod(columns["step"][i], 1 << MODEL_SHIFT)
            if model:
                line["model"] = model
            if columns["sequence"][i]:
                line["sequence"] = columns["sequence"][i]
            self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        self._file.abandon()
