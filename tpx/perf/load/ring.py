"""Rows on their way from a worker process to the controller, through memory that both have mapped.

One writes, one reads. Beside the rows the worker says how far it has come: every row of a request that ended
until `complete_ns` is there to be read.
"""

from multiprocessing.shared_memory import SharedMemory

import numpy as np
import numpy.typing as npt

from tpx.perf.records import ROW, Rows

CAPACITY = 1 << 16
_WRITTEN, _READ, _COMPLETE, _PROCESSOR, _FINISHED, _SKIPPED, _CONNECTIONS = range(7)
_HEADER_WORDS = 16
_HEADER_BYTES = _HEADER_WORDS * 8


class Ring:
    """One end of it; `name` is that of a ring that another process has made."""

    def __init__(self, name: str | None = None, capacity: int = CAPACITY) -> None:
        size = _HEADER_BYTES + capacity * ROW.itemsize
        self._memory = SharedMemory(name, create=name is None, size=size)
        self._owner = name is None
        self._capacity = capacity
        self._words: npt.NDArray[np.int64] = np.ndarray(_HEADER_WORDS, np.int64, self._memory.buf)
        self._rows: Rows = np.ndarray(capacity, ROW, self._memory.buf, _HEADER_BYTES)
        if self._owner:
            self._words[:] = 0

    @property
    def name(self) -> str:
        return self._memory.name

    def clear(self) -> None:
        """Forget the level before; nobody writes now."""
        self._words[:] = 0

    # the worker's end

    def put(self, rows: Rows) -> int:
        """Write as many rows as there is room for; returns how many."""
        written = int(self._words[_WRITTEN])
        count = min(len(rows), self._capacity - (written - int(self._words[_READ])))
        at = written % self._capacity
        first = min(count, self._capacity - at)
        self._rows[at : at + first] = rows[:first]
        self._rows[: count - first] = rows[first:count]
        self._words[_WRITTEN] = written + count
        return count

    def report(self, *, complete_ns: int, processor_ns: int, skipped: int, connections: int) -> None:
        """Say how far the worker has come; after the rows themselves."""
        words = self._words
        words[_PROCESSOR], words[_SKIPPED], words[_CONNECTIONS] = processor_ns, skipped, connections
        words[_COMPLETE] = complete_ns

    def finish(self) -> None:
        """Everything was sent and has ended."""
        self._words[_FINISHED] = 1

    # the controller's end

    def take(self) -> Rows:
        """The rows written since the last call."""
        written, read = int(self._words[_WRITTEN]), int(self._words[_READ])
        at, count = read % self._capacity, written - read
        first = min(count, self._capacity - at)
        rows = np.concatenate((self._rows[at : at + first], self._rows[: count - first]))
        self._words[_READ] = written
        return rows

    @property
    def complete_ns(self) -> int:
        return int(self._words[_COMPLETE])

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
        del self._words, self._rows
        self._memory.close()
        if self._owner:
            self._memory.unlink()
