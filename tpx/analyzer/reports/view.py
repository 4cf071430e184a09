"""A run and its models as reports show them: the data behind every table, chart and page."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tpx.analyzer.metrics import METRICS, joules_per_inference
from tpx.analyzer.objectives import RankedVariant, compliance_of
from tpx.analyzer.reports.charts import Mode, Plot
from tpx.analyzer.results.measurement import Configuration, GpuUse, Measurement, Models, ServerOnly
from tpx.analyzer.results.run import Run
from tpx.analyzer.verdict import ModelVerdict, judge
from tpx.perf.objectives import Compliance
from tpx.report.chart import STYLES

MOST_MEASUREMENTS = 600
"""Limit of rows in the table of measurements and of points in the Pareto chart, divided among all models."""

SECONDS_PER_HOUR = 3600
MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Values besides a measurement that its costs depend on."""

    per_hour: float | None = None
    """Price of the machine per hour, in any currency; None if unknown."""
    idle: ServerOnly | None = None
    """The server without models: memory and power to subtract."""

    def joules_above_idle(self, measurement: Measurement) -> float | None:
        """Return the joules per inference above the idle machine's."""
        idle = self.idle.energy if self.idle else None
        return None if idle is None or idle.watts is None else joules_per_inference(measurement, idle)

    def cost_per_million(self, measurement: Measurement) -> float | None:
        """Return the cost of a million inferences on a machine with this price under the measured load."""
        if self.per_hour is None or measurement.throughput <= 0:
            return None
        return self.per_hour / SECONDS_PER_HOUR / measurement.throughput * MILLION

    def gpu_above_idle_mb(self, measurement: Measurement) -> float | None:
        """Return the GPU memory above that of the server without models, in MB."""
        if not measurement.gpus or self.idle is None or not self.idle.gpus:
            return None
        used = sum(gpu.used_bytes for gpu in measurement.gpus)
        return (used - sum(gpu.used_bytes for gpu in self.idle.gpus)) / 1e6


@dataclass(frozen=True, kw_only=True)
class ReportView:
    """A run and the display options of its reports, none of which changes a figure."""

    run: Run
    repository: Path = Path()
    """Output repository, with a directory per variant."""
    export_path: Path = Path()
    """Directory by which `tpx analyze apply` finds the run."""
    settings: Mapping[str, Any]
    """Options that affect reports, in the form of a configuration file."""
    plots: tuple[Plot, ...] | None = None
    """Plots of single configurations; None uses those of the mode."""
    hrefs: Mapping[str, str] = field(default_factory=dict)
    """Links to the pages of single configurations, relative to the current page."""
    parent: str = ""
    """Link to the page above the current one; empty for the report of the run."""

    @classmethod
    def of(
        cls,
        run: Run,
        settings: Mapping[str, Any] | None = None,
        *,
        repository: Path = Path(),
        export_path: Path = Path(),
    ) -> Self:
        """Return the view with the run's own options, overridden by `settings`."""
        merged = {**run.started.settings, **(settings or {})}
        return cls(run=run, settings=merged, repository=repository, export_path=export_path)

    @property
    def mode(self) -> Mode:
        """Model Analyzer's mode: online focuses on latency, offline on throughput and batch sizes."""
        return "offline" if self.settings.get("mode") == "offline" else "online"

    @property
    def prices(self) -> Prices:
        price = self.settings.get("price_per_hour")
        return Prices(per_hour=float(price) if price else None, idle=self.run.server_only)

    @cached_property
    def models(self) -> tuple["ModelView", ...]:
        """Every model of the run with its verdict."""
        goals = self.run.started.goals
        return tuple(ModelView(report=self, verdict=judge(m, goals)) for m in self.run.models)

    @property
    def collects_memory(self) -> bool:
        """True if tables have the server's memory."""
        return bool(self.settings.get("collect_cpu_metrics", False))

    def fields(self, table: str) -> tuple[str, ...]:
        """Return the tags of the columns that the options choose for `inference`, `gpu` or `server`."""
        return tuple(self.settings.get(f"{table}_output_fields", ()))

    def shows_gpus(self, models: Models) -> bool:
        """Return True if GPU figures are relevant for a model, or for one of several."""
        if self.settings.get("always_report_gpu_metrics"):
            return True
        listed = self.settings.get("profile_models", ())
        own = [m for m in listed if isinstance(m, Mapping)] if isinstance(listed, list | tuple) else []
        on_cpu = {name for models in own for name, settings in models.items() if settings.get("cpu_only")}
        return not set(models) <= on_cpu


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """One model of a run with its verdict and the settings of its tables and charts."""

    report: ReportView
    verdict: ModelVerdict

    @cached_property
    def gpus(self) -> bool:
        """True if GPU figures are relevant for these configurations."""
        return self.report.shows_gpus(self.verdict.run.models)

    def value(self, tag: str, ranked: RankedVariant) -> float | None:
        """Return a metric at the best load; None if unknown, or of GPUs that are not relevant."""
        return METRICS[tag].value(ranked.figures) if self.gpus or not tag.startswith("gpu_") else None

    def apply_command(self, name: str) -> str:
        """Return the command that applies a configuration."""
        words = ["tpx", "analyze", "apply", name, "--export-path", str(self.report.export_path)]
        if len(self.report.run.started.models) > 1:
            words += ["--model", self.verdict.model]
        return shlex.join(words)

    @property
    def remedy(self) -> str:
        """Return the command that applies the recommended configuration; empty if the default should stay."""
        best = self.verdict.best
        changes = best is not None and best.satisfies and not best.run.variant.is_default
        return self.apply_command(best.name) if best is not None and changes else ""

    @property
    def most_measurements(self) -> int:
        """Limit of rows in the table of all measurements, and of points in the Pareto chart."""
        return MOST_MEASUREMENTS // max(1, len(self.report.run.models))

    @cached_property
    def in_detail(self) -> tuple[RankedVariant, ...]:
        """Configurations that the report charts: the best ones, and the default wherever it ranks."""
        shown = self.report.run.started.top
        ranking = self.verdict.ranking
        return (*ranking[:shown], *(ranked for ranked in ranking[shown:] if ranked.run.variant.is_default))

    @property
    def chart_styles(self) -> Mapping[str, int]:
        """Style index of each configuration that the charts show."""
        return {ranked.name: index % STYLES for index, ranked in enumerate(self.in_detail)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """The data of a table row: a configuration of a model under a load."""

    view: ModelView
    ranked: RankedVariant
    measurement: Measurement
    gpu: GpuUse | None = None
    """The only GPU that the row is about; None for all."""

    @property
    def configuration(self) -> Configuration:
        return self.ranked.run.configuration

    @property
    def compliance(self) -> Compliance:
        return compliance_of(self.measurement, self.view.verdict.goals)
