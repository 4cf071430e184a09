"""A ring buffer in shared memory that carries rows from a worker process to the controller.

There is one writer and one reader. Besides rows, the worker publishes its progress: every row of a
request that ended by `complete_ns` can be read. If requests may have several responses, a row's
response times are written before the row, in pieces if the ring is full.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from time import perf_counter_ns

import numpy as np

from tpx.perf.records import ROW, SUCCESS, Records, Rows, Times
from tpx.protocol.tensors import Array

CAPACITY = 1 << 16
TIMES = 4
"""Capacity for response times, per row on average."""
_WRITTEN, _READ = range(2)
SEEN = np.dtype((np.int64, 2))
STATE = np.dtype(
    [
        ("complete_ns", np.int64),
        ("processor_ns", np.int64),
        ("skipped", np.int64),
        ("connections", np.int64),
        ("heard_ns", np.int64),
        ("finished", np.int64),
        ("rows", SEEN),
        ("times", SEEN),
    ]
)
"""The worker's progress, when it last reported, and how many rows and times each end has handled."""
NO_TIMES: Times = np.zeros(0, np.int64)


class Circle:
    """A circular buffer, with the number of items written and read so far."""

    def __init__(self, items: Array, seen: Times) -> None:
        self._items = items
        self._seen = seen

    def put(self, items: Array) -> int:
        """Write the items that fit and return their number."""
        capacity, written = len(self._items), int(self._seen[_WRITTEN])
        count = min(len(items), capacity - (written - int(self._seen[_READ])))
        at = written % capacity
        first = min(count, capacity - at)
        self._items[at : at + first] = items[:first]
        self._items[: count - first] = items[first:count]
        # publish the count last: the reader must not see items that are not written yet
        self._seen[_WRITTEN] = written + count
        return count

    def take(self) -> Array:
        """Return the items written since the last call, each once."""
        capacity, read = len(self._items), int(self._seen[_READ])
        count = int(self._seen[_WRITTEN]) - read
        at = read % capacity
        first = min(count, capacity - at)
        items = np.concatenate((self._items[at : at + first], self._items[: count - first]))
        self._seen[_READ] = read + count  # only now may the writer overwrite these items
        return items


class RowRing:
    """One end of a ring; `name` is that of a ring created by another process."""

    def __init__(self, name: str | None = None, capacity: int = CAPACITY) -> None:
        times_at = STATE.itemsize + capacity * ROW.itemsize
        size = times_at + capacity * TIMES * 8
        self._memory = SharedMemory(name, create=name is None, size=size)
        self._owner = name is None
        buffer = self._memory.buf
        self._state = seen = np.ndarray((), STATE, buffer)
        self.rows = Circle(np.ndarray(capacity, ROW, buffer, STATE.itemsize), seen["rows"])
        self.times = Circle(np.ndarray(capacity * TIMES, np.int64, buffer, times_at), seen["times"])
        if self._owner:
            self.clear()

    @property
    def name(self) -> str:
        return self._memory.name

    def clear(self) -> None:
        """Discard the previous level. The worker must not be writing."""
        self._state[()] = np.zeros((), STATE)

    def said(self, figure: str) -> int:
        """Return a field of STATE."""
        return int(self._state[figure])

    def tell(self, figure: str, value: int) -> None:
        """Set a field of STATE to the value reported by a worker on another node."""
        self._state[figure] = value

    def report(self, *, complete_ns: int, processor_ns: int, skipped: int, connections: int) -> None:
        """Publish the worker's progress; call it after the rows are written."""
        state = self._state
        state["processor_ns"], state["skipped"], state["connections"] = processor_ns, skipped, connections
        state["complete_ns"] = complete_ns  # after the rows: it promises that they can be read
        state["heard_ns"] = perf_counter_ns()

    def finish(self) -> None:
        """Publish that every request was sent and has ended."""
        self._state["finished"] = 1

    def expect(self) -> None:
        """Start the silence timeout: from now on the worker has to report."""
        self._state["heard_ns"] = perf_counter_ns()

    def close(self) -> None:
        """Unmap the memory; its creator also unlinks it."""
        del self._state, self.rows, self.times
        self._memory.close()
        if self._owner:
            self._memory.unlink()


class Telling:
    """Writes the rows of one load to a ring; with `streamed`, also the times of their responses."""

    def __init__(self, ring: RowRing, records: Records, *, streamed: bool) -> None:
        self._ring = ring
        self._records = records
        self._streamed = streamed
        self._rows = 0
        self._responses = 0
        """Responses of the rows that were written."""
        self._times = 0

    def tell(self) -> bool:
        """Write what is new. Return True if all of it fitted."""
        if self._streamed:
            records, arrivals = self._records, self._records.arrivals
            self._times += self._ring.times.put(arrivals.times(self._times, len(arrivals)))
            rows = records.since(self._rows)
            # write only rows whose response times are all in the ring
            behind = self._responses + np.cumsum(rows["responses"])
            rows = rows[: int(np.searchsorted(behind, self._times, side="right"))]
            count = self._ring.rows.put(rows)
            self._rows += count
            if count:
                self._responses = int(behind[count - 1])
        else:
            self._rows += self._ring.rows.put(self._records.since(self._rows))
        return self._rows == len(self._records)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows; if streamed, with the times of all their responses in order."""

    rows: Rows
    times_ns: Times

    def ordered(self) -> "_Batch":
        """Return the batch sorted by the requests' end."""
        order = np.argsort(self.rows["end_ns"], kind="stable")
        if not len(self.times_ns):
            return _Batch(self.rows[order], self.times_ns)
        counts = self.rows["responses"]
        begins = np.cumsum(counts) - counts
        theirs = counts[order]
        moved = np.repeat(begins[order] - (np.cumsum(theirs) - theirs), theirs)
        return _Batch(self.rows[order], self.times_ns[moved + np.arange(len(moved))])

    def split(self, at: int) -> tuple["_Batch", "_Batch"]:
        """Return the rows before `at`, and the others."""
        counts = self.rows["responses"] if len(self.times_ns) else NO_TIMES
        border = int(counts[:at].sum())
        return (
            _Batch(self.rows[:at], self.times_ns[:border]),
            _Batch(self.rows[at:], self.times_ns[border:]),
        )


def _joined(batches: Sequence[_Batch]) -> _Batch:
    return _Batch(
        np.concatenate([batch.rows for batch in batches]),
        np.concatenate([batch.times_ns for batch in batches]),
    )


class _Reader:
    """One ring, and the response times whose rows have not arrived."""

    def __init__(self, ring: RowRing, *, streamed: bool) -> None:
        self.ring = ring
        self._streamed = streamed
        self._times_ns = NO_TIMES

    def take(self) -> _Batch:
        rows = self.ring.rows.take()
        if not self._streamed:
            return _Batch(rows, NO_TIMES)
        times = np.concatenate((self._times_ns, self.ring.times.take()))
        count = int(rows["responses"].sum())
        self._times_ns = times[count:]
        return _Batch(rows, times[:count])


class Gathering:
    """Merges the rows of all workers of a load into `records`, up to the time that all have reached."""

    def __init__(self, rings: Sequence[RowRing], *, streamed: bool) -> None:
        self.records = Records()
        self.failed = 0
        self.complete_ns = 0
        """Time up to which every ended request is in `records`."""
        self._readers = [_Reader(ring, streamed=streamed) for ring in rings]
        self._pending: list[_Batch] = []

    def gather(self, *, everything: bool = False) -> None:
        """Read what is new, and append in order what all workers have completed; with `everything`, all
        of it.
        """
        # read before the rows, so that no row that ended by then can be missing
        complete_ns = min(reader.ring.said("complete_ns") for reader in self._readers)
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
        self.records.arrivals.extend(batch.times_ns)
        self.records.extend(batch.rows)
        self.failed += int(np.count_nonzero(batch.rows["status"] != SUCCESS))
