"""A ring buffer in shared memory that carries rows from a worker process to the controller.

There is one writer and one reader. Besides rows, the worker publishes its progress: every row of a
request that ended by `complete_ns` can be read. If requests may have several responses, a row's
response times are written before the row, in pieces if the ring is full.
"""

from collections.abc import Sequence
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


class RowFlusher:
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
            self._times += self._ring.times.put(np.array(arrivals[self._times :], np.int64))
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


class RowMerger:
    """Merges the rows of all workers of a load into `records`, up to the time that all have reached."""

    def __init__(self, rings: Sequence[RowRing], *, streamed: bool) -> None:
        self.records = Records()
        self.failed = 0
        self.complete_ns = 0
        """Time up to which every ended request is in `records`."""
        self._rings = rings
        self._streamed = streamed
        self._early_ns = [NO_TIMES for _ in rings]
        """Response times of each ring whose rows have not arrived."""
        self._rows: Rows = np.zeros(0, ROW)
        self._times_ns = NO_TIMES
        """Pending rows in order of their end and, if streamed, the times of all their responses."""

    def gather(self, *, everything: bool = False) -> None:
        """Append what all workers have completed, in order; with `everything`, all that they have sent."""
        # read before the rows, so that no row that ended by then can be missing
        complete_ns = min(ring.said("complete_ns") for ring in self._rings)
        rows, times = [self._rows], [self._times_ns]
        for number, ring in enumerate(self._rings):
            rows.append(ring.rows.take())
            if self._streamed:
                known = np.concatenate((self._early_ns[number], ring.times.take()))
                count = int(rows[-1]["responses"].sum())
                times.append(known[:count])
                self._early_ns[number] = known[count:]
        found, times_ns = np.concatenate(rows), np.concatenate(times)
        order = np.argsort(found["end_ns"], kind="stable")
        counts = found["responses"] if len(times_ns) else np.zeros(len(found), np.int64)
        begins, theirs = np.cumsum(counts) - counts, counts[order]
        moved = np.repeat(begins[order] - (np.cumsum(theirs) - theirs), theirs)
        found, times_ns = found[order], times_ns[moved + np.arange(len(moved))]
        cut = len(found)
        if not everything:
            cut = int(np.searchsorted(found["end_ns"], complete_ns, side="right"))
        border = int(theirs[:cut].sum())
        self.records.arrivals.frombytes(times_ns[:border].tobytes())
        self.records.extend(found[:cut])
        self.failed += int(np.count_nonzero(found["status"][:cut] != SUCCESS))
        self._rows, self._times_ns = found[cut:], times_ns[border:]
        self.complete_ns = max(self.complete_ns, complete_ns)
