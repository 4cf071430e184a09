"""A recorded table in the place of a server: the same search again, in a moment, with the same outcome."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tpx.analyzer.results.measurement import Configuration, Latency, Load, Measurement
from tpx.errors import MeasurementError


class ReplayRunner:
    """Answers every trial from a table; a trial that was not recorded fails."""

    def __init__(self, defaults: Mapping[str, dict[str, Any]], recorded: Iterable[Measurement]) -> None:
        """`defaults` are the models' own configurations as JSON, by model."""
        self._defaults = defaults
        self._recorded = {(m.variant, m.load): m for m in recorded}
        self._prepared = ""

    @property
    def server(self) -> None:
        return None

    async def default_config(self, model: str) -> dict[str, Any]:
        if model not in self._defaults:
            raise MeasurementError(f"model '{model}' was not recorded (has: {', '.join(self._defaults)})")
        return self._defaults[model]

    async def prepare(self, configuration: Configuration | None, directory: Path) -> None:  # noqa: ARG002
        self._prepared = configuration.variant.name if configuration else ""

    async def measure(self, load: Load) -> Measurement:
        found = self._recorded.get((self._prepared, load))
        if found is None:
            raise MeasurementError(f"'{self._prepared}' at {load} was not recorded")
        return found

    async def close(self) -> None:
        return


def read_table(path: Path) -> list[Measurement]:
    """Measurements from a CSV with the columns of metrics-model-inference.csv, Model Analyzer's or ours.

    Needed are `Model Config Path`, `Concurrency` and `Throughput (infer/sec)`; `Batch` and latencies are read
    where they are. Raises MeasurementError naming the line and the column.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            return [_measurement(row, f"{path}:{rows.line_num}") for row in rows]
    except OSError as exc:
        raise MeasurementError(f"{path}: {exc.strerror}") from exc


def _measurement(row: Mapping[str, str], place: str) -> Measurement:
    try:
        return Measurement(
            variant=row["Model Config Path"],
            load=Load(value=int(row["Concurrency"]), batch_size=int(row.get("Batch") or 1)),
            throughput=float(row["Throughput (infer/sec)"]),
            latency=Latency(
                avg_ns=_ns(row.get("Avg Latency (ms)")),
                p90_ns=_ns(row.get("p90 Latency (ms)")),
                p95_ns=_ns(row.get("p95 Latency (ms)")),
                p99_ns=_ns(row.get("p99 Latency (ms)")),
            ),
        )
    except KeyError as exc:
        raise MeasurementError(f"{place}: no column {exc}") from exc
    except ValueError as exc:
        raise MeasurementError(f"{place}: {exc}") from exc


def _ns(milliseconds: str | None) -> int | None:
    return round(float(milliseconds) * 1e6) if milliseconds else None
