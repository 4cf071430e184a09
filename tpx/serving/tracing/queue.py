"""A bounded queue of traces, and the thread that writes or exports them.

Neither a disk nor a collector may delay the event loop: when the queue is full, traces are dropped.
Failures and drops are logged.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

log = logging.getLogger(__name__)

_CLOSE_S = 5.0
_FAILING_CLOSE_S = 1.0
_CALLED_OFF_S = 1.0
_LOG_EVERY = 1000

T = TypeVar("T")
_Item = TypeVar("_Item", contravariant=True)


class TraceOutput(Protocol[_Item]):
    """Destination of a queue; used by its thread."""

    def write(self, batch: Sequence[_Item]) -> bool:
        """Write or send a batch; blocks. Return False if nothing had to be written yet.

        Raises OSError, ValueError or TypeError.
        """

    def call_off(self) -> None:
        """Make a running `write` return soon, if possible; it is the last one."""

    def close(self) -> None:
        """Release the destination; nothing is written any more."""


class TraceQueue(Generic[T]):
    """Passes items to its output in batches. The thread starts with the first item."""

    def __init__(
        self, output: TraceOutput[T], where: str, *, limit: int, full: int = 1, delay_s: float | None = None
    ) -> None:
        """Items of at most `limit` in total may wait. A batch is due when it is `full`, or after a delay;
        `where` names the output in messages.
        """
        self._output = output
        self._where = where
        self._limit = limit
        self._full = full
        self._delay_s = delay_s
        self._queue: deque[tuple[T, int]] = deque()
        self._changed = threading.Condition()
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._closed = self._given_up = self._failing = False
        self._dropped = 0

    def put(self, item: T, size: int) -> None:
        """Add an item, or drop it if the queue is full. Never blocks."""
        if self._closed:
            return
        if self._waiting + size > self._limit:
            if self._dropped % _LOG_EVERY == 0:
                log.warning(
                    "dropped a trace: the queue of %s is full (%d before)", self._where, self._dropped
                )
            self._dropped += 1
            return
        with self._changed:
            self._queue.append((item, size))
            self._waiting += size
            if self._waiting >= self._full:
                self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_batches, name="trace-writer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write what waits, and close the output; blocks for a bounded time."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        thread, patience_s = self._thread, _FAILING_CLOSE_S if self._failing else _CLOSE_S
        if thread is not None:
            thread.join(patience_s)
            if thread.is_alive():
                log.error("traces are lost: %s did not accept them within %g s", self._where, patience_s)
                self._given_up = True
                self._output.call_off()
                thread.join(_CALLED_OFF_S)
            if thread.is_alive():
                return
        self._output.close()

    def _write_batches(self) -> None:
        while not self._given_up and (batch := self._take_batch()):
            why = ""
            try:
                if not self._output.write(batch):
                    continue
            except (OSError, ValueError, TypeError) as exc:  # the next batch may succeed
                log.debug("writing traces failed", exc_info=True)
                why = (exc.strerror if isinstance(exc, OSError) else "") or str(exc) or type(exc).__name__
            if not self._given_up:
                self._log_outcome(why)

    def _take_batch(self) -> list[T]:
        """Return the next batch once it is due; an empty one means the end."""
        with self._changed:
            while not self._closed:
                due = self._changed.wait_for(
                    lambda: self._closed or self._waiting >= self._full, self._delay_s
                )
                if due or self._queue:
                    break
            batch: list[T] = []
            size = 0
            while self._queue and (not batch or size + self._queue[0][1] <= self._full):
                item, own = self._queue.popleft()
                batch.append(item)
                size += own
            self._waiting -= size
            return batch

    def _log_outcome(self, why: str) -> None:
        """Log a failure once, and its end once."""
        if why and not self._failing:
            log.error("%s does not accept traces: %s; they are dropped until it does", self._where, why)
        elif self._failing and not why:
            log.info("%s accepts traces again", self._where)
        self._failing = bool(why)
