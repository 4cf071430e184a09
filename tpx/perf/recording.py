"""Single requests beyond their figures: the seam between a level's records and the files that are made of
them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import CLOCK_REALTIME, clock_gettime_ns, perf_counter_ns
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tpx.perf.clients.base import Failure
from tpx.perf.levels import Level
from tpx.perf.records import Records, Rows, Times

PIECE_ROWS = 1 << 14


def wall_offset_ns() -> int:
    """Return what is added to a time of the monotonic clock to make it nanoseconds since 1970; asked once a
    run, so that no step of the system's clock comes into the figures."""
    return clock_gettime_ns(CLOCK_REALTIME) - perf_counter_ns()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResponseTimes:
    """When each response to some rows came: those of row i are `times_ns[starts[i]:starts[i + 1]]`."""

    times_ns: Times
    starts: Times

    def first_ns(self) -> Times:
        """Return the first response of each row that has one."""
        return self.times_ns[self.starts[:-1][np.diff(self.starts) > 0]]

    def gaps_ns(self) -> Times:
        """Return the times between two responses of the same request, all of them."""
        if not len(self.times_ns):
            return self.times_ns
        gaps = np.diff(self.times_ns)
        borders = self.starts[1:-1]
        inside = np.ones(len(gaps), dtype=bool)
        inside[borders[(borders > 0) & (borders <= len(gaps))] - 1] = False
        return gaps[inside]

    def only(self, rows: npt.NDArray[np.bool_]) -> "ResponseTimes":
        """Return those of some of the rows."""
        counts = np.diff(self.starts)
        return ResponseTimes(
            times_ns=self.times_ns[np.repeat(rows, counts)],
            starts=np.concatenate(([0], np.cumsum(counts[rows]))),
        )


def response_times(records: Records, numbers: range, begins: int | None = None) -> ResponseTimes:
    """Return those of some rows of `records`; `begins` is how many responses the rows before had, where that
    is known."""
    rows = records.between(numbers.start, numbers.stop)
    if not len(records.arrivals):
        came = rows["responses"] > 0
        starts = np.concatenate(([0], np.cumsum(came)))
        return ResponseTimes(times_ns=rows["end_ns"][came], starts=starts)
    if begins is None:
        begins = int(records.between(0, numbers.start)["responses"].sum())
    starts = np.concatenate(([0], np.cumsum(rows["responses"])))
    return ResponseTimes(times_ns=records.arrivals.times(begins, begins + int(starts[-1])), starts=starts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LevelRecords:
    """The requests of one level: those of window i are `records` from `indices[i]` to `indices[i + 1]`, and
    it lasts from `borders_ns[i]` to `borders_ns[i + 1]`."""

    level: Level
    records: Records
    borders_ns: tuple[int, ...]
    indices: tuple[int, ...]
    failures: Mapping[int, Failure]
    """The meaning of the statuses of failed requests."""

    @property
    def span(self) -> range:
        """The numbers of the rows of all windows."""
        return range(self.indices[0], self.indices[-1]) if self.indices else range(0)

    def pieces(self) -> Iterator["Piece"]:
        """The rows of all windows, not too many at a time: what is made of them is many times their size."""
        span, records = self.span, self.records
        before = int(records.between(0, span.start)["responses"].sum())
        for start in range(span.start, span.stop, PIECE_ROWS):
            numbers = range(start, min(start + PIECE_ROWS, span.stop))
            rows = records.between(numbers.start, numbers.stop)
            yield Piece(numbers=numbers, rows=rows, times=response_times(records, numbers, before))
            before += int(rows["responses"].sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """Some rows, their numbers, and when their responses came."""

    numbers: range
    rows: Rows
    times: ResponseTimes


class Recorder(Protocol):
    """Writes the records of each level when it is over."""

    def begin(self, records: Records) -> None:
        """A level begins, whose rows will be in `records`."""

    def record(self, level: LevelRecords) -> None:
        """A level is over, whatever has become of it."""

    def close(self) -> None:
        """No level follows: the file is complete."""

    def abandon(self) -> None:
        """The run came to nothing; no file is left."""
