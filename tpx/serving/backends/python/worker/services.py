"""What models ask of their server besides inference and metrics: other models, the log."""

from __future__ import annotations

import base64
import sys
from typing import Any

from tpx.serving.backends.python.worker.calls import RUNTIME
from tpx.serving.backends.python.worker.errors import TritonModelException


def load_model(model_name: str, config: str = "", files: Any = None) -> None:
    """Load a model, as it lies in the repository or as `config` (JSON) and `files` say.

    Raises TritonModelException.
    """
    packed = {path: base64.b64encode(content).decode() for path, content in (files or {}).items()}
    RUNTIME.calls.ask("load", model=model_name, config=config, files=packed)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model. Raises TritonModelException."""
    RUNTIME.calls.ask("unload", model=model_name, dependents=bool(unload_dependents))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model can answer. Raises TritonModelException for a version that is no number."""
    return bool(RUNTIME.calls.ask("ready", model=model_name, version=str(model_version)))


def get_model_dir() -> str:
    """The directory of the model's file."""
    return RUNTIME.model_directory


class Logger:
    """The server's log."""

    INFO, WARNING, ERROR, VERBOSE = range(4)

    @staticmethod
    def log(message: str, level: int = INFO) -> None:
        """Write a line, as of where this is called."""
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


def _write(message: str, level: int) -> None:
    if level not in range(4):
        raise TritonModelException(f"there is no log level {level}")
    caller = sys._getframe(2)
    if not RUNTIME.connected:
        sys.stderr.write(f"{message}\n")
        return
    RUNTIME.calls.tell(
        "log", level=level, file=caller.f_code.co_filename, line=caller.f_lineno, message=str(message)
    )
