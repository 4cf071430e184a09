"""The trace file.

A group has the traces of one setting. They are written in Triton's portions: `log_frequency` traces per
numbered file; if every request is traced, all traces of an exhausted count to the next numbered file;
and the rest to the file itself when the setting ends. If the number is unknown, traces go to the file
as they come. After every write the file is complete JSON.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tpx.serving.tracing.queue import TraceQueue
from tpx.serving.tracing.settings import TraceSetting
from tpx.serving.tracing.trace import Trace, encode

log = logging.getLogger(__name__)

_MAX_WAITING_BYTES = 256 << 20
"""Maximum bytes of traces waiting for the disk."""
_TRACE_BYTES = 64 << 10
"""Bytes charged for a trace in addition to its tensors."""
_MAX_HELD_BYTES = 16 << 20
"""Maximum text of one group waiting for its portion to be complete."""

_FILES_PER_S = 10
_FILES_AT_ONCE = 100
"""Numbered files that are made per second, and at once after a pause. Later traces wait for the next one."""

Work = Callable[[], int]
"""Writes traces of one setting; returns how many."""


class TraceFile:
    """The file and its numbered siblings, which hold clients' tensors: only their owner may read them.
    Implements TraceOutput; every method raises OSError.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._files_left = float(_FILES_AT_ONCE)
        self._refilled_s = clock()
        self._index = 0
        self._descriptor = -1
        self._end = 0

    def write(self, batch: Sequence[Work]) -> bool:
        return sum(work() for work in batch) > 0

    def append(self, traces: Sequence[bytes]) -> None:
        """Append to the file itself; contents from before this server are removed."""
        if self._descriptor < 0:
            self._descriptor = _create(self.path)
            self._end = 0
        text = (b"," if self._end else b"[") + b",".join(traces)
        try:
            _write_at(self._descriptor, text + b"]", self._end)
        except OSError:
            # restore the file after a partial write
            try:
                os.ftruncate(self._descriptor, self._end)
                if self._end:
                    _write_at(self._descriptor, b"]", self._end)
            except OSError as exc:
                log.debug("trace file '%s' stays incomplete: %s", self.path, exc.strerror)
            raise
        self._end += len(text)

    def number(self, traces: Sequence[bytes]) -> None:
        """Write the next numbered file, which gets its name once it is complete."""
        path = self.path.with_name(f"{self.path.name}.{self._index}")
        partial = path.with_name(f"{path.name}.partial")
        descriptor = _create(partial)
        try:
            _write_at(descriptor, b"[" + b",".join(traces) + b"]", 0)
        except OSError:
            partial.unlink()
            raise
        finally:
            os.close(descriptor)
        partial.replace(path)
        self._index += 1
        self._files_left -= 1

    @property
    def may_number(self) -> bool:
        """True if another numbered file may be made: clients' settings must not fill a directory."""
        now_s = self._clock()
        refilled = (now_s - self._refilled_s) * _FILES_PER_S
        self._files_left, self._refilled_s = min(_FILES_AT_ONCE, self._files_left + refilled), now_s
        return self._files_left >= 1

    def call_off(self) -> None:
        """Do nothing: a write cannot be interrupted."""

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)


def _write_at(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, at)
        view, at = view[count:], at + count


class TracePortion:
    """Implements TraceGroup: traces of one setting waiting for their portion."""

    __slots__ = ("_file", "_frequency", "_held", "_immediate", "_queue", "_size")

    def __init__(self, file: TraceFile, setting: TraceSetting, queue: TraceQueue[Work]) -> None:
        self._file = file
        self._queue = queue
        self._frequency = setting.log_frequency
        self._immediate = not setting.log_frequency and setting.trace_count < 0
        self._held: list[bytes] = []
        self._size = 0

    # called on the event loop

    def add(self, trace: Trace, *, complete: bool) -> None:
        self._queue.put(lambda: self.take(encode(trace), complete=complete), trace.total_size + _TRACE_BYTES)

    def end(self) -> None:
        self._queue.put(self.flush, 1)

    # called by the queue's thread

    def take(self, text: bytes, *, complete: bool) -> int:
        """Add a trace, the last of its setting if `complete`; return how many were written."""
        self._held.append(text)
        self._size += len(text)
        due = complete or (self._frequency and len(self._held) >= self._frequency)
        if due and self._file.may_number:
            return self._write_held(self._file.number)
        if self._immediate or self._size > _MAX_HELD_BYTES:
            return self.flush()
        return 0

    def flush(self) -> int:
        """Write the remaining traces; return how many."""
        numbers = self._frequency and self._file.may_number
        return self._write_held(self._file.number if numbers else self._file.append)

    def _write_held(self, write: Callable[[Sequence[bytes]], None]) -> int:
        traces, self._held, self._size = self._held, [], 0
        if traces:
            write(traces)
        return len(traces)


class TraceWriter:
    """Implements TraceSink: writes traces to files, in a thread that creates them with their first trace."""

    def __init__(self, path: Path) -> None:
        self._file = TraceFile(path)
        self._queue = TraceQueue[Work](self._file, f"trace file '{path}'", limit=_MAX_WAITING_BYTES)
        self.close = self._queue.close

    def group(self, setting: TraceSetting) -> TracePortion:
        return TracePortion(self._file, setting, self._queue)
