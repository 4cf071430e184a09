"""Exceptions of the model in the server's log: one record each, with traceback and source position.

A model that fails on every request must not fill the log: only the first exceptions of an interval are
logged, and the next record says how many were left out.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from tpx.serving.backends.python.worker.calls import RUNTIME
from tpx.serving.backends.python.worker.channel import ServerGone
from tpx.serving.backends.python.worker.errors import place_of, traceback_of
from tpx.serving.backends.python.worker.services import Logger

_INTERVAL_S = 10.0
_IN_AN_INTERVAL = 10
_MOST_CHARACTERS = 16 << 10


class Reports:
    """Logs exceptions of one model process."""

    def __init__(self) -> None:
        self._model = ""
        self._lock = threading.Lock()
        self._since_s = -_INTERVAL_S
        self._written = 0
        self._left_out = 0

    def name(self, model: str, version: str) -> None:
        """Set the model's name, and log exceptions of its threads from now on."""
        self._model = f"model '{model}' version {version}"
        threading.excepthook = self._thread_raised

    def raised(self, what: str, error: BaseException, message: str = "") -> None:
        """Log a failure, with the exception or the `message` that replaces it."""
        left_out = self._admit(time.monotonic())
        if left_out is None or not RUNTIME.connected:
            return
        more = f", {left_out} more before it were not logged" if left_out else ""
        text = f"{what}, message: {message or summary_of(error)} [{self._model}{more}]"
        if not message:
            text += f"\n{traceback_of(error)}"
        if len(text) > _MOST_CHARACTERS:
            text = text[:_MOST_CHARACTERS] + " ..."
        file, line = place_of(error)
        RUNTIME.calls.tell("log", level=Logger.ERROR, file=file, line=line, message=text)

    def _admit(self, now_s: float) -> int | None:
        """Return how many were left out before this one; None if this one is left out too."""
        with self._lock:
            if now_s - self._since_s >= _INTERVAL_S:
                self._since_s, self._written = now_s, 0
            if self._written >= _IN_AN_INTERVAL:
                self._left_out += 1
                return None
            self._written += 1
            left_out, self._left_out = self._left_out, 0
            return left_out

    def _thread_raised(self, args: Any) -> None:
        if args.exc_type is not SystemExit and not isinstance(args.exc_value, ServerGone):
            name = args.thread.name if args.thread is not None else "unknown"
            self.raised(f"thread '{name}' failed", args.exc_value or args.exc_type())

    def task_raised(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Implements an event loop's exception handler."""
        error = context.get("exception")
        if error is None:
            loop.default_exception_handler(context)
        else:
            self.raised(str(context.get("message", "a task failed")), error)


def summary_of(error: BaseException) -> str:
    """Return the type and message of an exception."""
    return f"{type(error).__name__}: {error}"
