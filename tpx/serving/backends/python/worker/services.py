"""Services for models other than inference and metrics: loading models and logging."""

from __future__ import annotations

import base64
import enum
import sys
from typing import Any

from tpx.serving.backends.python.worker import arguments
from tpx.serving.backends.python.worker.calls import RUNTIME
from tpx.serving.backends.python.worker.errors import TritonModelException


def load_model(model_name: str, config: str = "", files: Any = None) -> None:
    """Load a model from the repository, or from `config` (JSON) and `files`.

    Raises TypeError, TritonModelException.
    """
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
    _ask("load model", "load", **words, files=packed)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model. Raises TypeError, TritonModelException."""
    model = arguments.text(model_name, "unload_model(): model_name")
    dependents = arguments.flag(unload_dependents, "unload_model(): unload_dependents")
    _ask("unload model", "unload", model=model, dependents=dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model is ready. Raises TypeError, and TritonModelException for an invalid version."""
    model = arguments.text(model_name, "is_model_ready(): model_name")
    version = arguments.text(model_version, "is_model_ready(): model_version")
    return bool(_ask("check model readiness", "ready", model=model, version=version))


def _ask(doing: str, verb: str, **words: object) -> Any:
    try:
        return RUNTIME.calls.ask(verb, **words)
    except TritonModelException as exc:
        raise TritonModelException(f"Failed to {doing}: {exc}") from None


def get_model_dir() -> str:
    """Return the directory of the model's file."""
    return RUNTIME.model_directory


class _LogLevel(enum.IntEnum):
    """Log levels."""

    INFO, WARNING, ERROR, VERBOSE = range(4)


class Logger:
    """The server's log. A message that is not text, or a level that is not a LogLevel, raises TypeError."""

    LogLevel = _LogLevel
    INFO, WARNING, ERROR, VERBOSE = _LogLevel

    @staticmethod
    def log(message: str, level: _LogLevel = INFO) -> None:
        """Write a log line with the caller's source position."""
        _write(message, level)

    @staticmethod
    def log_info(message: str) -> None:
        _write(message, Logger.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        _write(message, Logger.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        _write(message, Logger.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        _write(message, Logger.VERBOSE)


def _write(message: str, level: _LogLevel) -> None:
    message = arguments.text(message, "Logger: message")
    level = arguments.member(level, "Logger.log(): level", _LogLevel)
    caller = sys._getframe(2)
    if not RUNTIME.connected:
        sys.stderr.write(f"{message}\n")
        return
    RUNTIME.calls.tell(
        "log", level=level, file=caller.f_code.co_filename, line=caller.f_lineno, message=message
    )
