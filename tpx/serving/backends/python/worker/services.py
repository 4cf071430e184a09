"""What models ask of their server besides inference: other models, the log, metrics."""

from __future__ import annotations

import base64
import itertools
import sys
from contextlib import suppress
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


class _MetricKind:
    """Values of MetricFamily's kinds."""

    COUNTER, GAUGE, HISTOGRAM = range(3)


_IDS = itertools.count(1)


class Metric:
    """One series of a family. It leaves the metrics page with its last reference."""

    def __init__(self, family: MetricFamily, labels: Any, buckets: Any) -> None:
        self._family = family
        self._id = next(_IDS)
        labels = {str(name): str(value) for name, value in (labels or {}).items()}
        RUNTIME.calls.ask(
            "metric", id=self._id, family=family._id, labels=labels, buckets=[float(b) for b in buckets or ()]
        )

    def increment(self, value: float) -> None:
        """Add to a counter or a gauge. Raises TritonModelException."""
        kind = self._family.kind
        if kind == _MetricKind.HISTOGRAM:
            raise TritonModelException("Unsupported metric operation: increment of a histogram")
        if kind == _MetricKind.COUNTER and value < 0:
            raise TritonModelException("Failed to increment metric value: a counter only goes up")
        RUNTIME.calls.tell("increment", id=self._id, value=float(value))

    def set(self, value: float) -> None:
        """Set a gauge. Raises TritonModelException."""
        if self._family.kind != _MetricKind.GAUGE:
            raise TritonModelException("Failed to set metric value: only a gauge can be set")
        RUNTIME.calls.tell("set", id=self._id, value=float(value))

    def observe(self, value: float) -> None:
        """Add to a histogram. Raises TritonModelException."""
        if self._family.kind != _MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to observe metric value: only a histogram observes")
        RUNTIME.calls.tell("observe", id=self._id, value=float(value))

    def value(self) -> float:
        """Of a counter or a gauge. Raises TritonModelException."""
        if self._family.kind == _MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to get metric value: a histogram has none")
        return float(RUNTIME.calls.ask("value", id=self._id))

    def __del__(self) -> None:
        _release("drop_metric", self.__dict__.get("_id"))


class MetricFamily:
    """Series of one name. One that another model has already made with the same words is the same."""

    COUNTER, GAUGE, HISTOGRAM = _MetricKind.COUNTER, _MetricKind.GAUGE, _MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: int) -> None:
        """Raises TritonModelException where the name has another kind or description."""
        if kind not in range(3):
            raise TritonModelException(f"there is no kind {kind} of metric families")
        self.kind = kind
        self._id = next(_IDS)
        RUNTIME.calls.ask("family", id=self._id, name=str(name), help=str(description), kind=int(kind))

    def Metric(self, labels: Any = None, buckets: Any = None) -> Metric:  # noqa: N802 (Triton's name)
        """A series with these labels; a histogram needs buckets."""
        return Metric(self, labels, buckets)

    def __del__(self) -> None:
        _release("drop_family", self.__dict__.get("_id"))


def _release(verb: str, number: Any) -> None:
    if number is not None and RUNTIME.connected:
        with suppress(Exception):  # the server has gone, and its metrics with it
            RUNTIME.calls.tell(verb, id=number)
