"""The controller's end of several rings: rows of all workers in the order in which requests ended."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpx.perf.loads.ring import Ring
from tpx.perf.records import SUCCESS, Records, Rows, Times

NO_TIMES: Times = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Some rows; where they are streamed, each one's units, and the times of all responses one row after the
    other."""

    rows: Rows
    units: Times
    times_ns: Times

    def ordered(self) -> "_Batch":
        """By the end of the requests."""
        order = np.argsort(self.rows["end_ns"], kind="stable")
        if not len(self.units):
            return _Batch(self.rows[order], self.units, self.times_ns)
        counts = self.rows["responses"]
        begins = np.cumsum(counts) - counts
        theirs = counts[order]
        moved = np.repeat(begins[order] - (np.cumsum(theirs) - theirs), theirs)
        return _Batch(self.rows[order], self.units[order], self.times_ns[moved + np.arange(len(moved))])

    def split(self, at: int) -> tuple["_Batch", "_Batch"]:
        """The rows before `at`, and the others."""
        counts = self.rows["responses"] if len(self.units) else NO_TIMES
        border = int(counts[:at].sum())
        return (
            _Batch(self.rows[:at], self.units[:at], self.times_ns[:border]),
            _Batch(self.rows[at:], self.units[at:], self.times_ns[border:]),
        )


def _joined(batches: Sequence[_Batch]) -> _Batch:
    return _Batch(
        np.concatenate([batch.rows for batch in batches]),
        np.concatenate([batch.units for batch in batches]),
        np.concatenate([batch.times_ns for batch in batches]),
    )


class _Reader:
    """One ring, and the times of responses whose rows have not come yet."""

    def __init__(self, ring: Ring, *, streamed: bool) -> None:
        self.ring = ring
        self._streamed = streamed
        self._times_ns = NO_TIMES

    def take(self) -> _Batch:
        rows = self.ring.take()
        if not self._streamed:
            return _Batch(rows, NO_TIMES, NO_TIMES)
        units = self.ring.take_units(len(rows))
        times = np.concatenate((self._times_ns, self.ring.take_times()))
        count = int(rows["responses"].sum())
        self._times_ns = times[count:]
        return _Batch(rows, units, times[:count])


class Gathering:
    """Fills `records` with what the workers of one load have told, as far as all have told."""

    def __init__(self, rings: Sequence[Ring], *, streamed: bool) -> None:
        self.records = Records()
        self.failed = 0
        self.complete_ns = 0
        """Every request that ended until then is in `records`."""
        self._readers = [_Reader(ring, streamed=streamed) for ring in rings]
        self._pending: list[_Batch] = []

    def gather(self, *, everything: bool = False) -> None:
        """Take what is new, and put into order what all workers have told of, or all there is."""
        complete_ns = min(reader.ring.complete_ns for reader in self._readers)
        self._pending += [batch for reader in self._readers if len((batch := reader.take()).rows)]
        if self._pending:
            batch = _joined(self._pending).ordered()
            ends = batch.rows["end_ns"]
            cut = len(ends) if everything else int(np.searchsorted(ends, complete_ns, side="right"))
            done, left = batch.split(cut)
            self._keep(done)
            self._pending = [left] if len(left.rows) else []
        self.complete_ns = max(self.complete_ns, complete_ns)

    def _keep(self, batch: _Batch) -> None:
        records = self.records
        first = len(records)
        records.arrivals.extend(batch.times_ns)
        for row in np.flatnonzero(batch.units).tolist():
            records.arrivals.add_units(first + row, int(batch.units[row]))
        records.extend(batch.rows)
        self.failed += int(np.count_nonzero(batch.rows["status"] != SUCCESS))
