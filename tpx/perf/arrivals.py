"""When each response came, of requests that may have several: a log beside the rows of records.

A streamed request's row says in `responses` how many entries it has, and they stand here in the order of the
rows, so that the rows themselves need no reference. Requests with exactly one response need no entries: it
came when they ended.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


class Arrivals:
    """Times in ns, and with them what the responses of a row held, in the service's unit."""

    __slots__ = ("_times", "_unit_rows", "_units")

    def __init__(self) -> None:
        self._times = array("q")
        self._unit_rows = array("q")
        self._units = array("q")

    def __len__(self) -> int:
        return len(self._times)

    def add(self, times_ns: Sequence[int]) -> None:
        """Those of the row that is appended with them."""
        self._times.extend(times_ns)

    def extend(self, times_ns: Times) -> None:
        """Those of many rows, such as a worker process tells of."""
        self._times.frombytes(times_ns.tobytes())

    def add_units(self, row: int, units: int) -> None:
        """That the row of this number has so many; numbers only grow."""
        self._unit_rows.append(row)
        self._units.append(units)

    def times(self, first: int, last: int) -> Times:
        """Entries from `first` to `last`; a copy, as the log goes on growing."""
        return np.array(self._times[first:last], dtype=np.int64)

    def units(self, first_row: int, last_row: int) -> Times:
        """For each row from `first_row` to `last_row` its units, 0 where none were told."""
        out = np.zeros(last_row - first_row, np.int64)
        here = slice(bisect_left(self._unit_rows, first_row), bisect_left(self._unit_rows, last_row))
        rows = np.array(self._unit_rows[here], dtype=np.int64)
        out[rows - first_row] = np.array(self._units[here], dtype=np.int64)
        return out
