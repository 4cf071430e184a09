"""A worker's end of its ring: what of a load's records is written there, and what is still to be."""

import numpy as np

from tpx.perf.loads.ring import Ring
from tpx.perf.records import Records


class Telling:
    """Writes the rows of one load as they come; `streamed` rows with the times of their responses."""

    def __init__(self, ring: Ring, records: Records, *, streamed: bool) -> None:
        self._ring = ring
        self._records = records
        self._streamed = streamed
        self._rows = 0
        self._responses = 0
        """Of the rows that were written."""
        self._times = 0

    def tell(self) -> bool:
        """Write what is new; whether there was room for all of it."""
        if self._streamed:
            self._tell_streamed()
        else:
            self._rows += self._ring.put(self._records.since(self._rows))
        return self._rows == len(self._records)

    def _tell_streamed(self) -> None:
        records, arrivals = self._records, self._records.arrivals
        self._times += self._ring.put_times(arrivals.times(self._times, len(arrivals)))
        rows = records.since(self._rows)
        behind = self._responses + np.cumsum(rows["responses"])
        rows = rows[: int(np.searchsorted(behind, self._times, side="right"))]
        count = self._ring.put_streamed(rows, arrivals.units(self._rows, self._rows + len(rows)))
        self._rows += count
        if count:
            self._responses = int(behind[count - 1])
