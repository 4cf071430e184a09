"""What is kept of single requests beyond their figures: the seam between a level's records and the files that
are made of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import CLOCK_REALTIME, clock_gettime_ns, perf_counter_ns
from typing import Protocol

from tpx.perf.clients.base import Failure
from tpx.perf.levels import Level
from tpx.perf.records import Records, Rows
from tpx.perf.streaming import ResponseTimes, response_times

PIECE_ROWS = 1 << 14


def wall_offset_ns() -> int:
    """What is added to a time of the monotonic clock to make it nanoseconds since 1970; asked once a run, so
    that no step of the system's clock comes into the figures."""
    return clock_gettime_ns(CLOCK_REALTIME) - perf_counter_ns()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LevelRecords:
    """The requests of one level: those of window i are `records` from `indices[i]` to `indices[i + 1]`, and
    it lasts from `borders_ns[i]` to `borders_ns[i + 1]`."""

    level: Level
    records: Records
    borders_ns: tuple[int, ...]
    indices: tuple[int, ...]
    failures: Mapping[int, Failure]
    """What the statuses of failed requests mean."""

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
