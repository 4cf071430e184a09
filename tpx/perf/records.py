"""The record of every request: one row of 64-bit integers, appended when the request ends."""

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import CLOCK_REALTIME, clock_gettime_ns, perf_counter_ns
from typing import cast

import numpy as np
import numpy.typing as npt

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
    "prompt_units",
    "cached_units",
    "reasoning_units",
    "first_output_ns",
)
ROW = np.dtype([(name, "<i8") for name in FIELDS])

ROW_BYTES = ROW.itemsize
_CONTENT_AT = FIELDS.index("units") * 8
"""Offset in a row of the fields that describe the content of responses."""
# "n" is packed in less time than "q", and the row in less time than assigned to the array
_pack_row = struct.Struct(f"{_CONTENT_AT // 8}n{ROW_BYTES - _CONTENT_AT}x").pack_into
_pack_content = struct.Struct(f"{(ROW_BYTES - _CONTENT_AT) // 8}n").pack_into
_WHOLE = np.dtype((np.void, ROW_BYTES))
"""A row without fields: NumPy copies rows of ROW field by field, which takes ten to thirty times as long."""
BLOCK_ROWS = 1 << 15

SUCCESS = 0
"""Status of a successful request; every other value is the transport's own failure code."""

Rows = npt.NDArray[np.void]
"""Rows of dtype ROW: `rows["end_ns"]` is a column."""
Times = npt.NDArray[np.int64]


class Records:
    """Rows in the order in which requests ended.

    So `end_ns` never decreases, except if requests have several responses: it is then the time of the
    last response, and the end of the stream may be known later.

    start: the request was handed to the connection; sent: it was in the kernel or in the connection's
    buffer; first_byte: the first byte of the response was read; intended: the due time (equal to start
    in a closed loop); responses: their number; step and sequence: those of its Source; units: the
    content of its responses, in the service's own unit, such as tokens; prompt, cached and reasoning units:
    those of the request, of it those that the service had cached, and those of its responses that are no
    answer; first_output: the time of the first response with more than reasoning; 0 if there was none.
    """

    __slots__ = ("_block", "_buffer", "_full", "_limit", "_offset", "arrivals")

    def __init__(self, block_rows: int = BLOCK_ROWS) -> None:
        self._limit = block_rows * ROW_BYTES
        self._full: list[Rows] = []
        self.arrivals = array("q")
        """Arrival time, in ns, of each response to requests that may have several.

        The field `responses` of a streamed request's row says how many entries it has; entries are in
        row order, so that rows need no reference to them. A request with exactly one response needs no
        entry: the response arrived when the request ended.
        """
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
        *content: int,
    ) -> None:
        """Append a row; `content` has the fields from units on, or is empty if they are 0."""
        offset = self._offset
        _pack_row(
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
        )
        if content:
            _pack_content(self._buffer, offset + _CONTENT_AT, *content)
        self._offset = offset = offset + ROW_BYTES
        if offset == self._limit:
            self._full.append(self._block)
            self._add_block()

    def extend(self, rows: Rows) -> None:
        """Append many rows at once, such as those of a worker process."""
        while len(rows):
            at = self._offset // ROW_BYTES
            count = min(len(rows), len(self._block) - at)
            self._block.view(_WHOLE)[at : at + count] = rows[:count].view(_WHOLE)
            rows = rows[count:]
            self._offset += count * ROW_BYTES
            if self._offset == self._limit:
                self._full.append(self._block)
                self._add_block()

    def __len__(self) -> int:
        return (len(self._full) * self._limit + self._offset) // ROW_BYTES

    def amend(self, index: int, status: int) -> None:
        """Correct the status of a row right after it was appended."""
        block, at = divmod(index, self._limit // ROW_BYTES)
        rows = self._full[block] if block < len(self._full) else self._block
        rows["status"][at] = status

    def since(self, index: int) -> Rows:
        """Return the rows from `index` on: a view of rows that no longer change, or a copy across blocks."""
        return self.between(index, len(self))

    def between(self, first: int, last: int) -> Rows:
        """Return the rows from `first` up to `last`; copies them if they span several blocks."""
        parts = list(self.parts(first, last))
        if not parts:
            return self._block[:0]
        return parts[0] if len(parts) == 1 else join_rows(parts)

    def parts(self, first: int, last: int) -> Iterator[Rows]:
        """Yield the rows from `first` up to `last` as views, one for each block."""
        per_block, last = self._limit // ROW_BYTES, min(last, len(self))
        while first < last:
            block, at = divmod(first, per_block)
            rows = self._full[block] if block < len(self._full) else self._block
            part = rows[at : at + last - first]
            yield part
            first += len(part)


MODEL_SHIFT = 32
"""Position of the model's number in a row's step, if several models are measured at once."""


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts."""
    return np.concatenate([part.view(_WHOLE) for part in parts]).view(ROW)


def select_rows(rows: Rows, which: npt.NDArray[np.bool_ | np.intp]) -> Rows:
    """Return the rows that a mask selects, or those of some indexes."""
    return cast("Rows", rows.view(_WHOLE)[which].view(ROW))


def succeeded(rows: Rows) -> Rows:
    """Return the rows of successful requests: all of them as they are, others as a copy."""
    good = rows["status"] == SUCCESS
    return rows if good.all() else select_rows(rows, good)


PIECE_ROWS = 1 << 14


def wall_offset_ns() -> int:
    """Return the offset from the monotonic clock to nanoseconds since 1970.

    It is read once per run, so that steps of the system clock do not affect the figures.
    """
    return clock_gettime_ns(CLOCK_REALTIME) - perf_counter_ns()


def elapsed_ns(rows: Rows, start: str, end: str) -> Times:
    """Return the time of each request from one moment to another, such as "start_ns" and "end_ns"."""
    # without their type, mypy takes seconds for this difference, for there are many overloads
    starts: Times = rows[start]
    ends: Times = rows[end]
    return ends - starts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResponseTimes:
    """Arrival times of the responses to some rows: those of row i are `times_ns[starts[i]:starts[i + 1]]`."""

    times_ns: Times
    starts: Times

    def of_row(self, row: int, offset_ns: int) -> list[int]:
        """Return the times of one row, shifted by an offset."""
        return cast(
            "list[int]", (self.times_ns[self.starts[row] : self.starts[row + 1]] + offset_ns).tolist()
        )

    def nth_ns(self, number: int) -> Times:
        """Return the time of response `number`, from 0, of each row; 0 for rows with fewer responses."""
        has = np.diff(self.starts) > number
        times_ns = np.zeros(len(has), np.int64)
        times_ns[has] = self.times_ns[self.starts[:-1][has] + number]
        return times_ns

    def gaps_ns(self) -> Times:
        """Return all times between consecutive responses of the same request."""
        if not len(self.times_ns):
            return self.times_ns
        gaps = np.diff(self.times_ns)
        borders = self.starts[1:-1]
        inside = np.ones(len(gaps), dtype=bool)
        inside[borders[(borders > 0) & (borders <= len(gaps))] - 1] = False
        return gaps[inside]

    def only(self, rows: npt.NDArray[np.bool_]) -> "ResponseTimes":
        """Return the times of the rows selected by a mask."""
        counts = np.diff(self.starts)
        return ResponseTimes(
            times_ns=self.times_ns[np.repeat(rows, counts)],
            starts=np.concatenate(([0], np.cumsum(counts[rows]))),
        )


def response_times(records: Records, numbers: range, begins: int | None = None) -> ResponseTimes:
    """Return the response times of some rows; `begins` is the responses of earlier rows, if known."""
    rows = records.between(numbers.start, numbers.stop)
    if not len(records.arrivals):
        came = rows["responses"] > 0
        starts = np.concatenate(([0], np.cumsum(came)))
        return ResponseTimes(times_ns=rows["end_ns"][came], starts=starts)
    if begins is None:
        begins = int(records.between(0, numbers.start)["responses"].sum())
    starts = np.concatenate(([0], np.cumsum(rows["responses"])))
    times_ns = np.array(records.arrivals[begins : begins + int(starts[-1])], np.int64)
    return ResponseTimes(times_ns=times_ns, starts=starts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """Rows, their numbers, and their response times."""

    numbers: range
    rows: Rows
    times: ResponseTimes


def pieces(records: Records, span: range) -> Iterator[Piece]:
    """Yield the rows of a span in pieces: the output made of them is many times their size."""
    before = int(records.between(0, span.start)["responses"].sum())
    for start in range(span.start, span.stop, PIECE_ROWS):
        numbers = range(start, min(start + PIECE_ROWS, span.stop))
        rows = records.between(numbers.start, numbers.stop)
        yield Piece(numbers=numbers, rows=rows, times=response_times(records, numbers, before))
        before += int(rows["responses"].sum())
