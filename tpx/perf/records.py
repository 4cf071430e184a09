"""The record of every request: one row of 64-bit integers, appended when the request ends.

The row layout is the same bytes whether the block is private memory or memory shared with a worker process.
"""

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import CLOCK_REALTIME, clock_gettime_ns, perf_counter_ns
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from tpx.perf.clients.base import Failure
from tpx.perf.levels import Level

FIELDS = (
    "start_ns",
    "intended_ns",
    "sent_ns",
    "first_byte_ns",
    "end_ns",
    "status",
    "responses",
    "step",
    "sequence",
    "units",
)
ROW = np.dtype([(name, "<i8") for name in FIELDS])

ROW_BYTES = ROW.itemsize
BLOCK_ROWS = 1 << 15

SUCCESS = 0
"""The status of a request that succeeded; every other value is the transport's own code of a failure."""

Rows = npt.NDArray[np.void]
"""Rows of dtype ROW: `rows["end_ns"]` is a column."""
Times = npt.NDArray[np.int64]


class ResponseArrivals:
    """When each response came in ns, of requests that may have several.

    A streamed request's row says in `responses` how many entries it has, and they stand here in the order of
    the rows, so that the rows themselves need no reference. Requests with exactly one response need no
    entries: it came when they ended.
    """

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times = array("q")

    def __len__(self) -> int:
        return len(self._times)

    def add(self, times_ns: Sequence[int]) -> None:
        """Add the times of the row that is appended with them."""
        self._times.extend(times_ns)

    def extend(self, times_ns: Times) -> None:
        """Add the times of many rows, such as those of a worker process."""
        self._times.frombytes(times_ns.tobytes())

    def times(self, first: int, last: int) -> Times:
        """Entries from `first` to `last`; a copy, as the log goes on growing."""
        return np.array(self._times[first:last], dtype=np.int64)


class Records:
    """Rows in the order in which requests were over. So `end_ns` never falls, but where requests have several
    responses: it is the last one's then, and the news that nothing follows may come later.

    start: the request was handed to the connection; sent: it was with the kernel, or in the connection's
    buffer; first_byte: the first byte of the answer was read; intended: when it should have started (equal
    to start in a closed loop); responses: how many it had; step and sequence: those of its Source; units:
    what its responses held, in the service's own unit.
    """

    __slots__ = ("_block", "_buffer", "_full", "_limit", "_offset", "_pack", "arrivals")

    def __init__(self, block_rows: int = BLOCK_ROWS) -> None:
        self._pack = struct.Struct(f"<{len(FIELDS)}q").pack_into
        self._limit = block_rows * ROW_BYTES
        self._full: list[Rows] = []
        self.arrivals = ResponseArrivals()
        """When the responses came, where requests may have several."""
        self._add_block()

    def _add_block(self) -> None:
        self._block: Rows = np.empty(self._limit // ROW_BYTES, dtype=ROW)
        self._buffer = self._block.view(np.uint8).data
        self._offset = 0

    def append(  # noqa: PLR0913 (a row)
        self,
        start_ns: int,
        intended_ns: int,
        sent_ns: int,
        first_byte_ns: int,
        end_ns: int,
        status: int,
        responses: int = 1,
        step: int = 0,
        sequence: int = 0,
        units: int = 0,
    ) -> None:
        offset, pack = self._offset, self._pack
        pack(
            self._buffer,
            offset,
            start_ns,
            intended_ns,
            sent_ns,
            first_byte_ns,
            end_ns,
            status,
            responses,
            step,
            sequence,
            units,
        )
        self._offset = offset = offset + ROW_BYTES
        if offset == self._limit:
            self._full.append(self._block)
            self._add_block()

    def extend(self, rows: Rows) -> None:
        """Append many rows at once, such as those of a worker process."""
        while len(rows):
            at = self._offset // ROW_BYTES
            count = min(len(rows), len(self._block) - at)
            self._block[at : at + count] = rows[:count]
            rows = rows[count:]
            self._offset += count * ROW_BYTES
            if self._offset == self._limit:
                self._full.append(self._block)
                self._add_block()

    def __len__(self) -> int:
        return (len(self._full) * self._limit + self._offset) // ROW_BYTES

    def amend(self, index: int, status: int) -> None:
        """Change the status of a row that was found to be another one at once."""
        block, at = divmod(index, self._limit // ROW_BYTES)
        rows = self._full[block] if block < len(self._full) else self._block
        rows["status"][at] = status

    def since(self, index: int) -> Rows:
        """Return the rows from `index` on: a view of rows that no longer change, or a copy across blocks."""
        per_block = self._limit // ROW_BYTES
        parts = [block for i, block in enumerate(self._full) if (i + 1) * per_block > index]
        parts.append(self._block[: self._offset // ROW_BYTES])
        skip = index - max(len(self._full) - len(parts) + 1, 0) * per_block
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return rows[skip:]

    def between(self, first: int, last: int) -> Rows:
        """The rows from `first` up to `last`; only those are copied, where they span blocks."""
        per_block = self._limit // ROW_BYTES
        blocks = [*self._full, self._block][first // per_block : -(-last // per_block)]
        if not blocks or last <= first:
            return self._block[:0]
        rows = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        skip = first % per_block
        return rows[skip : skip + min(last, len(self)) - first]


MODEL_SHIFT = 32
"""Where several models are measured at once, the bits of a row's step from here on are its model's number."""


def models_of(rows: Rows) -> npt.NDArray[np.int64]:
    """The number of each row's model among those that are measured at once."""
    return cast("npt.NDArray[np.int64]", rows["step"] >> MODEL_SHIFT)


def succeeded(rows: Rows) -> Rows:
    """The rows of successful requests."""
    return cast("Rows", rows[rows["status"] == SUCCESS])


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
    """Return those of some rows; `begins` is how many responses the rows before had, if that is known."""
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
