"""The trace file, written by a separate thread so that no disk delays the event loop.

A group has the traces of one setting. They are written in Triton's portions: `log_frequency` traces per
numbered file; if every request is traced, all traces of an exhausted count to the next numbered file;
and the rest to the file itself when the setting ends. If the number is unknown, traces go to the file
as they come. After every write the file is complete JSON.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue

from tpx.serving.tracing.settings import TraceSetting
from tpx.serving.tracing.trace import Trace, encode

log = logging.getLogger(__name__)

MAX_WAITING = 4096
"""Maximum traces waiting for the disk; more are dropped."""
MAX_WAITING_BYTES = 256 << 20
"""Maximum bytes of their tensors."""
_MAX_HELD_BYTES = 16 << 20
"""Maximum text of one group waiting for its portion to be complete."""


class TraceFile:
    """The file and its numbered siblings. Used by one thread; every method raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._index = 0
        self._descriptor = -1
        self._end = 0

    def append(self, traces: Sequence[bytes]) -> None:
        """Append to the file itself; contents from before this server are removed."""
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
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
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write_at(descriptor, b"[" + b",".join(traces) + b"]", 0)
        except OSError:
            partial.unlink()
            raise
        finally:
            os.close(descriptor)
        partial.replace(path)
        self._index += 1

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _write_at(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, at)
        view, at = view[count:], at + count


class TracePortion:
    """Implements TraceGroup: traces of one setting waiting for their portion."""

    __slots__ = ("_file", "_frequency", "_held", "_immediate", "_size", "_writer")

    def __init__(self, file: TraceFile, setting: TraceSetting, writer: "TraceWriter") -> None:
        self._file = file
        self._writer = writer
        self._frequency = setting.log_frequency
        self._immediate = not setting.log_frequency and setting.trace_count < 0
        self._held: list[bytes] = []
        self._size = 0

    # called on the event loop

    def add(self, trace: Trace, *, complete: bool) -> None:
        self._writer.add(self, trace, complete=complete)

    def end(self) -> None:
        self._writer.enqueue(self.flush)

    # called by the writer's thread

    def take(self, text: bytes, *, complete: bool) -> int:
        """Add a trace, the last of its setting if `complete`; return how many were written."""
        self._held.append(text)
        self._size += len(text)
        if complete or (self._frequency and len(self._held) >= self._frequency):
            return self._write_held(self._file.number)
        if self._immediate or self._size > _MAX_HELD_BYTES:
            return self.flush()
        return 0

    def flush(self) -> int:
        """Write the remaining traces; return how many."""
        return self._write_held(self._file.number if self._frequency else self._file.append)

    def _write_held(self, write: Callable[[Sequence[bytes]], None]) -> int:
        traces, self._held, self._size = self._held, [], 0
        if traces:
            write(traces)
        return len(traces)


class TraceWriter:
    """Implements TraceSink: receives traces on the event loop and writes them in a thread."""

    def __init__(self, path: Path) -> None:
        self._file = TraceFile(path)
        self._queue: Queue[Callable[[], int] | None] = Queue(MAX_WAITING)
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failing = False
        self._dropped = 0

    def group(self, setting: TraceSetting) -> TracePortion:
        return TracePortion(self._file, setting, self)

    def add(self, group: TracePortion, trace: Trace, *, complete: bool) -> None:
        """Queue a trace to be written with its portion; `complete` marks the last one. Never blocks."""
        size = trace.total_size
        if self._closed:
            return
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            self._count_dropped("too many tensors wait to be written")
            return
        with self._lock:
            self._waiting_bytes += size
        if not self.enqueue(lambda: self._write_trace(group, trace, size, complete=complete)):
            with self._lock:
                self._waiting_bytes -= size

    def close(self, timeout_s: float = 5) -> None:
        """Write all queued traces, close the file, and end the thread; blocks for a bounded time."""
        self._closed = True
        if self._thread is None:
            return
        with suppress(Full):
            self._queue.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.error("traces are lost: they could not be written within %d s", timeout_s)
            return
        self._file.close()

    def enqueue(self, write: Callable[[], int]) -> bool:
        """Have the thread write something, if the disk keeps up; `write` returns how many traces it wrote."""
        try:
            self._queue.put_nowait(write)
        except Full:
            self._count_dropped("the disk does not keep up")
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_queued, name="trace-writer", daemon=True)
            self._thread.start()
        return True

    def _write_queued(self) -> None:
        while (write := self._queue.get()) is not None:
            self._attempt_write(write)

    def _write_trace(self, group: TracePortion, trace: Trace, size: int, *, complete: bool) -> int:
        try:
            text = encode(trace)
        except (ValueError, TypeError):  # the next trace may succeed
            log.exception("trace %d could not be encoded", trace.id)
            return 0
        finally:
            with self._lock:
                self._waiting_bytes -= size
        return group.take(text, complete=complete)

    def _attempt_write(self, write: Callable[[], int]) -> None:
        """Log a full disk once, and its recovery once."""
        try:
            written = write()
        except OSError as exc:
            if not self._failing:
                self._failing = True
                log.error(
                    "failed to write trace file '%s': %s; traces are dropped until it can be written again",
                    self._file.path,
                    exc.strerror,
                )
            return
        if written and self._failing:
            self._failing = False
            log.info("trace file '%s' can be written again", self._file.path)

    def _count_dropped(self, why: str) -> None:
        """Log the first dropped trace, and then every thousandth."""
        if self._dropped % 1000 == 0:
            log.warning("dropped a trace: %s (%d before)", why, self._dropped)
        self._dropped += 1


def open_files(setting: TraceSetting) -> TraceWriter:
    """Return the sink; files are created with their first trace."""
    return TraceWriter(Path(setting.trace_file))
