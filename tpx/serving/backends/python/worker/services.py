"""Services for models other than inference and metrics: loading models and logging.

The exceptions of a model are logged with traceback and source position. A model that fails on every request
must not fill the log: only the first exceptions of an interval are logged, and the next record says how many
were left out.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

from tpx.serving.backends.python.worker import arguments
from tpx.serving.backends.python.worker.channel import ServerGone
from tpx.serving.backends.python.worker.errors import TritonModelException, location_of, traceback_of
from tpx.serving.backends.python.worker.runtime import RUNTIME


def load_model(model_name: str, config: str = "", files: Any = None) -> None:
    """Load a model, or `config` (JSON) and `files` as one. Raises TypeError, TritonModelException."""
    words = {
        "model": arguments.text(model_name, "load_model(): model_name"),
        "config": arguments.text(config, "load_model(): config"),
    }
    if not isinstance(files, (dict, type(None))):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file "
            "contents"
        )
    packed = {}
    for path, content in (files or {}).items():
        if not isinstance(content, bytes):
            raise arguments.wrong(content, f"load_model(): file '{path}'", "bytes")
        packed[arguments.text(path, "load_model(): each path of files")] = base64.b64encode(content).decode()
    RUNTIME.server.ask("load", blame="Failed to load model: ", **words, files=packed)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model. Raises TypeError, TritonModelException."""
    model = arguments.text(model_name, "unload_model(): model_name")
    dependents = arguments.flag(unload_dependents, "unload_model(): unload_dependents")
    RUNTIME.server.ask("unload", blame="Failed to unload model: ", model=model, dependents=dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model is ready. Raises TypeError, and TritonModelException for an invalid version."""
    model = arguments.text(model_name, "is_model_ready(): model_name")
    version = arguments.text(model_version, "is_model_ready(): model_version")
    blame = "Failed to check model readiness: "
    return bool(RUNTIME.server.ask("ready", blame=blame, model=model, version=version))


def get_model_dir() -> str:
    """Return the directory of the model's file."""
    return RUNTIME.model_directory


class _LogLevel(enum.IntEnum):
    """Log levels."""

    INFO, WARNING, ERROR, VERBOSE = range(4)


def _write_log(message: str, level: _LogLevel = _LogLevel.INFO) -> None:
    """Write a log line with the caller's source position."""
    message = arguments.text(message, "Logger: message")
    level = arguments.member(level, "Logger.log(): level", _LogLevel)
    caller = sys._getframe(1)
    if not RUNTIME.connected:
        sys.stderr.write(f"{message}\n")
        return
    RUNTIME.server.tell(
        "log", level=level, file=caller.f_code.co_filename, line=caller.f_lineno, message=message
    )


class Logger:
    """The server's log. A message that is not text, or a level that is not a LogLevel, raises TypeError."""

    LogLevel = _LogLevel
    INFO, WARNING, ERROR, VERBOSE = _LogLevel
    log = staticmethod(_write_log)
    log_info = staticmethod(partial(_write_log, level=INFO))
    log_warn = staticmethod(partial(_write_log, level=WARNING))
    log_error = staticmethod(partial(_write_log, level=ERROR))
    log_verbose = staticmethod(partial(_write_log, level=VERBOSE))


def _count_free_memory() -> int:
    """Return the bytes that no tensor occupies in the memory in which they get to the server."""
    return RUNTIME.server.free_bytes


shared_memory = SimpleNamespace(free_memory=_count_free_memory)
"""As in Triton, whose tests look for leaks with it."""


_INTERVAL_S = 10.0
_IN_AN_INTERVAL = 10
_MOST_CHARACTERS = 16 << 10


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + " ..."


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
        threading.excepthook = self._report_thread_error

    def raised(self, what: str, error: BaseException, message: str = "") -> None:
        """Log a failure, with the exception or the `message` that replaces it."""
        left_out = self._admit(time.monotonic())
        if left_out is None or not RUNTIME.connected:
            return
        more = f", {left_out} more before it were not logged" if left_out else ""
        summary = message or f"{type(error).__name__}: {error}"
        text = f"{what}, message: {summary} [{self._model}{more}]"
        trace = "" if message else _shorten(traceback_of(error))
        file, line = location_of(error)
        RUNTIME.server.tell(
            "log", level=Logger.ERROR, file=file, line=line, message=_shorten(text), traceback=trace
        )

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

    def _report_thread_error(self, args: Any) -> None:
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
