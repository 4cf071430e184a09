"""Custom metrics of a model: families and their series, which live as long as the family."""

from __future__ import annotations

import enum
import itertools
from contextlib import suppress
from typing import Any

from tpx.serving.backends.python.worker import arguments
from tpx.serving.backends.python.worker.errors import TritonModelException
from tpx.serving.backends.python.worker.runtime import RUNTIME

_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' "
    "object should be deleted AFTER its corresponding 'Metric' objects have been deleted."
)
_IDS = itertools.count(1)


class MetricKind(enum.IntEnum):
    """Kind of a metric family."""

    COUNTER, GAUGE, HISTOGRAM = range(3)


class Metric:
    """One series of a family. It stays on the metrics page until its family is deleted."""

    __slots__ = ("_deleted", "_kind", "_number")

    def __init__(self, kind: MetricKind) -> None:
        self._kind, self._number, self._deleted = kind, next(_IDS), False

    def increment(self, value: float) -> None:
        """Increase a counter or a gauge. Raises TritonModelException."""
        doing = "increment metric"
        number, kind = self._check_kind(doing, "Increment", MetricKind.COUNTER, MetricKind.GAUGE)
        value = arguments.real(value, "Metric.increment(): value")
        if kind is MetricKind.COUNTER and value < 0:
            raise _make_error(
                doing, f"{_format_kind(kind)} can only be incremented monotonically by non-negative values."
            )
        RUNTIME.server.tell("increment", id=number, value=value)

    def set(self, value: float) -> None:
        """Set a gauge. Raises TritonModelException."""
        number, _ = self._check_kind("set metric", "Set", MetricKind.GAUGE)
        RUNTIME.server.tell("set", id=number, value=arguments.real(value, "Metric.set(): value"))

    def observe(self, value: float) -> None:
        """Add an observation to a histogram. Raises TritonModelException."""
        number, _ = self._check_kind("observe metric", "Observe", MetricKind.HISTOGRAM)
        RUNTIME.server.tell("observe", id=number, value=arguments.real(value, "Metric.observe(): value"))

    def value(self) -> float:
        """Return the value of a counter or a gauge. Raises TritonModelException."""
        number, _ = self._check_kind("get metric", "Value", MetricKind.COUNTER, MetricKind.GAUGE)
        value = RUNTIME.server.ask("value", id=number)
        assert isinstance(value, (int, float))
        return float(value)

    def _check_kind(self, doing: str, operation: str, *kinds: MetricKind) -> tuple[int, MetricKind]:
        if self._deleted:
            raise _make_error(doing, _DELETED)
        if self._kind not in kinds:
            raise _make_error(doing, f"{_format_kind(self._kind)} does not support {operation}")
        return self._number, self._kind


class MetricFamily:
    """Series of one name. Families with the same name and kind share it; the first description is used."""

    COUNTER, GAUGE, HISTOGRAM = MetricKind

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        """Create a family. Raises TritonModelException if the name is invalid or has another kind."""
        self._series: dict[str, Metric] = {}
        self._kind = arguments.member(kind, "MetricFamily(): kind", MetricKind)
        number = next(_IDS)
        name = arguments.text(name, "MetricFamily(): name")
        words = arguments.text(description, "MetricFamily(): description")
        blame = "Error when creating MetricFamily: "
        RUNTIME.server.ask("family", blame=blame, id=number, name=name, help=words, kind=int(kind))
        self._number = number

    def Metric(self, labels: Any = None, buckets: Any = None) -> Metric:  # noqa: N802 (Triton's name)
        """Return the series with these labels; a histogram needs buckets. Raises TritonModelException."""
        if not isinstance(labels, (dict, type(None))):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        self._check_buckets(buckets)
        for name, value in (labels or {}).items():
            if not isinstance(value, str):
                why = f"the value of label '{name}' must be a str, got {type(value).__name__}"
                raise TritonModelException(f"Error when creating Metric: {why}")
        texts = {str(name): value for name, value in (labels or {}).items()}
        bounds = [arguments.real(bucket, "Metric(): each of buckets") for bucket in buckets or ()]
        key = repr((sorted(texts.items()), bounds))
        series = self._series.get(key)
        if series is None:
            series = Metric(self._kind)
            words = {"family": self._number, "labels": texts, "buckets": bounds}
            RUNTIME.server.ask("metric", blame="Error when creating Metric: ", id=series._number, **words)
            self._series[key] = series
        return series

    def _check_buckets(self, buckets: Any) -> None:
        if self._kind is not MetricKind.HISTOGRAM:
            if buckets is not None:
                raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        elif buckets is None:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        elif not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")

    def __del__(self) -> None:
        number = self.__dict__.get("_number")
        if number is None or not RUNTIME.connected:
            return
        for series in self._series.values():
            series._deleted = True
        with suppress(Exception):  # the server and its metrics have gone
            numbers = [series._number for series in self._series.values()]
            RUNTIME.server.tell("drop_family", id=number, metrics=numbers)


def _make_error(doing: str, why: str) -> TritonModelException:
    return TritonModelException(f"Failed to {doing} value: {why}")


def _format_kind(kind: MetricKind) -> str:
    return f"TRITONSERVER_METRIC_KIND_{kind.name}"
