"""Rows on their way from a worker process to the controller, through memory that both have mapped.

One writes, one reads. Beside the rows the worker says how far it has come: every row of a request that ended
until `complete_ns` is there to be read. Where requests may have several responses, the times of a row's
responses and its units are written before the row is, the times in as many pieces as it takes.
"""

from multiprocessing.shared_memory import SharedMemory
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.perf.records import ROW, Rows, Times

CAPACITY = 1 << 16
TIMES = 4
"""Room for so many times a row, on average."""
_COMPLETE, _PROCESSOR, _FINISHED, _SKIPPED, _CONNECTIONS, _HEARD = range(6)
_ROWS, _UNITS, _TIMES = (slice(6, 8), slice(8, 10), slice(10, 12))
_HEADER_WORDS = 16
_HEADER_BYTES = _HEADER_WORDS * 8
_WRITTEN, _READ = range(2)


class _Circle:
    """An array that is written and read round and round, and how many items of it each end has seen."""

    def __init__(self, items: npt.NDArray[Any], seen: Times) -> None:
        self._items = items
        self._seen = seen

    def put(self, items: npt.NDArray[Any]) -> int:
        capacity, written = len(self._items), int(self._seen[_WRITTEN])
        count = min(len(items), capacity - (written - int(self._seen[_READ])))
        at = written % capacity
        first = min(count, capacity - at)
        self._items[at : at + first] = items[:first]
        self._items[: count - first] = items[first:count]
        self._seen[_WRITTEN] = written + count
        return count

    def take(self, most: int | None = None) -> npt.NDArray[Any]:
        capacity, read = len(self._items), int(self._seen[_READ])
        count = int(self._seen[_WRITTEN]) - read
        count = count if most is None else min(count, most)
        at = read % capacity
        first = min(count, capacity - at)
        items = np.concatenate((self._items[at : at + first], self._items[: count - first]))
        self._seen[_READ] = read + count
        return items


class Ring:
    """One end of it; `name` is that of a ring that another process has made."""

    def __init__(self, name: str | None = None, capacity: int = CAPACITY) -> None:
        units_at = _HEADER_BYTES + capacity * ROW.itemsize
        times_at = units_at + capacity * 8
        size = times_at + capacity * TIMES * 8
        self._memory = SharedMemory(name, create=name is None, size=size)
        self._owner = name is None
        buffer = self._memory.buf
        words: Times = np.ndarray(_HEADER_WORDS, np.int64, buffer)
        self._words = words
        self._rows = _Circle(np.ndarray(capacity, ROW, buffer, _HEADER_BYTES), words[_ROWS])
        self._units = _Circle(np.ndarray(capacity, np.int64, buffer, units_at), words[_UNITS])
        self._times = _Circle(np.ndarray(capacity * TIMES, np.int64, buffer, times_at), words[_TIMES])
        if self._owner:
            self.clear()

    @property
    def name(self) -> str:
        return self._memory.name

    def clear(self) -> None:
        """Forget the level before; nobody writes now."""
        self._words[:] = 0

    # the worker's end

    def put(self, rows: Rows) -> int:
        """Write as many rows as there is room for; returns how many."""
        return self._rows.put(rows)

    def put_streamed(self, rows: Rows, units: Times) -> int:
        """The same of rows whose responses' times are written; `units` are theirs."""
        return self._rows.put(rows[: self._units.put(units)])

    def put_times(self, times_ns: Times) -> int:
        """Write as many of the responses' times as there is room for; returns how many."""
        return self._times.put(times_ns)

    def report(self, *, complete_ns: int, processor_ns: int, skipped: int, connections: int) -> None:
        """Say how far the worker has come; after the rows themselves."""
        words = self._words
        words[_PROCESSOR], words[_SKIPPED], words[_CONNECTIONS] = processor_ns, skipped, connections
        words[_COMPLETE] = complete_ns
        words[_HEARD] = perf_counter_ns()

    def finish(self) -> None:
        """Everything was sent and has ended."""
        self._words[_FINISHED] = 1

    # the controller's end

    def expect(self) -> None:
        """From now on the worker has something to say."""
        self._words[_HEARD] = perf_counter_ns()

    def take(self) -> Rows:
        """The rows written since the last call."""
        return self._rows.take()

    def take_units(self, count: int) -> Times:
        """Those of rows that were taken, each once."""
        return self._units.take(count)

    def take_times(self) -> Times:
        """The responses' times written since the last call: those of the rows that were taken before, and
        of some that follow."""
        return self._times.take()

    @property
    def complete_ns(self) -> int:
        return int(self._words[_COMPLETE])

    @property
    def heard_ns(self) -> int:
        """When the worker last said how far it has come, or was to begin."""
        return int(self._words[_HEARD])

    @property
    def processor_ns(self) -> int:
        return int(self._words[_PROCESSOR])

    @property
    def finished(self) -> bool:
        return bool(self._words[_FINISHED])

    @property
    def skipped(self) -> int:
        return int(self._words[_SKIPPED])

    @property
    def connections(self) -> int:
        return int(self._words[_CONNECTIONS])

    def close(self) -> None:
        """Unmap the memory; its maker also gives it back."""
        del self._words, self._rows, self._units, self._times
        self._memory.close()
        if self._owner:
            self._memory.unlink()
