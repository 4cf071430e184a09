"""The three tables of a run, with Model Analyzer's columns, order and rounding, for console and CSV."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tpx.analyzer.objectives import BYTES_PER_MB, METRICS, RankedVariant, ram_mb, rank
from tpx.analyzer.results.measurement import GpuUse, Measurement
from tpx.analyzer.results.run import Run

PADDING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as text, ready to print; an unknown figure is an empty cell."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def to_csv(self) -> str:
        """One line a row and an empty line at the end, as Model Analyzer writes it."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.headers)
        writer.writerows(self.rows)
        return out.getvalue() + "\n"

    def to_console(self) -> str:
        """Title and aligned columns."""
        widths = [
            max(len(cells[i]) for cells in (self.headers, *self.rows)) + PADDING
            for i in range(len(self.headers))
        ]
        lines = [
            " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
            for cells in (self.headers, *self.rows)
        ]
        return "\n".join((f"{self.title}:", *lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    model: str
    ranked: RankedVariant
    measurement: Measurement
    passes: bool


Cell = Callable[[_Row], str]

_COLUMNS: dict[str, tuple[str, Cell]] = {
    "model": ("Model", lambda r: r.model),
    "batch": ("Batch", lambda r: str(r.measurement.load.batch_size)),
    "concurrency": ("Concurrency", lambda r: str(r.measurement.load.value)),
    "config": ("Model Config Path", lambda r: r.ranked.name),
    "instances": ("Instance Group", lambda r: r.ranked.run.configuration.instance_group),
    "max_batch": ("Max Batch Size", lambda r: str(r.ranked.run.configuration.max_batch_size)),
    "satisfies": ("Satisfies Constraints", lambda r: "Yes" if r.passes else "No"),
}
_INFERENCE = ("model", "batch", "concurrency", "config", "instances", "max_batch", "satisfies")
_GPU_BEFORE = ("model",)
_GPU_AFTER = ("batch", "concurrency", "config", "instances", "satisfies")
_GPU_METRICS = ("gpu_used_memory", "gpu_utilization", "gpu_power_usage")
_SERVER = "triton-server"


def inference_table(run: Run, *, with_memory: bool) -> Table:
    """Every measurement, the best configuration first; `with_memory` adds the server's RAM."""
    tags = ["perf_throughput", "perf_latency_p99"] + (["cpu_used_ram"] if with_memory else [])
    return Table(
        title="Models (Inference)",
        headers=tuple(_COLUMNS[name][0] for name in _INFERENCE) + tuple(METRICS[tag].header for tag in tags),
        rows=tuple(
            tuple(_COLUMNS[name][1](row) for name in _INFERENCE)
            + tuple(_rounded(METRICS[tag].value(row.measurement)) for tag in tags)
            for row in _rows(run)
        ),
    )


def gpu_table(run: Run) -> Table:
    """Every measurement on every GPU; no rows where no GPU could be read."""
    return Table(
        title="Models (GPU Metrics)",
        headers=(
            *(_COLUMNS[name][0] for name in _GPU_BEFORE),
            "GPU UUID",
            *(_COLUMNS[name][0] for name in _GPU_AFTER),
            *(METRICS[tag].header for tag in _GPU_METRICS),
        ),
        rows=tuple(
            (
                *(_COLUMNS[name][1](row) for name in _GPU_BEFORE),
                gpu.uuid,
                *(_COLUMNS[name][1](row) for name in _GPU_AFTER),
                *_gpu_cells(gpu),
            )
            for row in _rows(run)
            for gpu in row.measurement.gpus
        ),
    )


def server_table(run: Run, *, with_memory: bool) -> Table:
    """The server without a model, on every GPU; with `with_memory` also its RAM, GPU or not."""
    headers = ("Model", "GPU UUID", *(METRICS[tag].header for tag in _GPU_METRICS))
    server = run.server_only
    rows: list[tuple[str, ...]] = []
    ram = ""
    if server is not None:
        ram = _rounded(ram_mb(server.memory))
        rows = [(_SERVER, gpu.uuid, *_gpu_cells(gpu)) for gpu in server.gpus]
        if with_memory and not rows:
            rows = [(_SERVER, "", "", "", "")]
    if with_memory:
        headers = (*headers, METRICS["cpu_used_ram"].header)
        rows = [(*row, ram) for row in rows]
    return Table(title="Server Only", headers=headers, rows=tuple(rows))


def _rows(run: Run) -> Iterator[_Row]:
    goals = run.started.goals
    for model in run.models:
        for ranked in rank(model, goals):
            for measurements, passes in ((ranked.passing, True), (ranked.failing, False)):
                for measurement in measurements:
                    yield _Row(model=model.model, ranked=ranked, measurement=measurement, passes=passes)


def _gpu_cells(gpu: GpuUse) -> Sequence[str]:
    return (
        _rounded(gpu.used_bytes / BYTES_PER_MB),
        _rounded(gpu.utilization_percent),
        _rounded(gpu.power_w),
    )


def _rounded(value: float | None) -> str:
    return "" if value is None else str(round(float(value), 1))
