"""Measurement options: goals, how a configuration is measured, what is monitored, which files are written."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tpx.analyzer.metrics import BACKEND_PARAMETER, COLUMNS, METRICS
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.results.goals import Constraint, Goals, ModelGoals, WeightedObjective
from tpx.analyzer.values import Flags, flags, from_yaml_text, read_constraints, read_objectives
from tpx.errors import UsageError
from tpx.options import Options, flag_of, nearest, option
from tpx.perf.settings import Shape, parse_shape
from tpx.sources import show_config

_MAP = "{KEY: VALUE}"
Gate = Literal["satisfied", "conclusive"]


class GoalSpec(Options):
    """Objectives, constraints, and the number of best configurations to show."""

    objectives: tuple[WeightedObjective, ...] = option(
        (),
        "metrics to optimize: a list, or a map with weights (default perf_throughput; "
        "output_token_throughput with --model-type LLM)",
        metavar="TAG,TAG|{TAG: WEIGHT}",
        parse=from_yaml_text(read_objectives),
        read=read_objectives,
        common=True,
    )
    constraints: tuple[Constraint, ...] = option(
        (),
        "limits of metrics: `perf_latency_p99<=10`, or a map from tags to min or max",
        metavar="TAG<=N,TAG>=N",
        parse=from_yaml_text(read_constraints),
        read=read_constraints,
        common=True,
    )
    weighting: float | None = option(
        None, "weight of one model among several: set it for each model in the file"
    )
    latency_budget: float | None = option(
        None, "maximum p99 latency in milliseconds", metavar="MS", common=True, above=0
    )
    min_throughput: float | None = option(None, "minimum inferences per second", metavar="N", above=0)
    require: tuple[Gate, ...] = option(
        (),
        "exit with an error unless the verdict is satisfied (4: no configuration satisfies the "
        "constraints) or conclusive (7: it is undecided)",
        metavar="satisfied,conclusive",
        comma=True,
        common=True,
    )
    allow_partial: bool = option(False, "do not exit with 130 after Ctrl-C: use what was measured")
    num_configs_per_model: int = option(
        3, "best configurations that the report charts and details", minimum=0
    )
    num_top_model_configs: int = option(
        0, "best configurations over all models, shown together; 0 = none", minimum=0
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range, or for inconsistent goals."""
        if self.weighting is not None:
            raise UsageError(
                "weighting applies to one model: set it as a key of that model in profile_models"
            )
        if self.num_top_model_configs and not (self.constraints or self._list_budgets()):
            raise UsageError(
                "--num-top-model-configs compares models by constraints that hold for all of them: "
                "give constraints, --latency-budget or --min-throughput"
            )
        _ = self.goals_for(())

    def goals_for(self, models: Sequence[ModelToProfile]) -> Goals:
        """Return the goals of the run and of models with their own; budgets apply to every model."""
        own = tuple(
            ModelGoals(
                model=model.name,
                weight=model.weighting,
                objectives=model.objectives,
                constraints=None if model.constraints is None else self._add_budgets(model.constraints),
            )
            for model in models
            if (model.objectives, model.constraints, model.weighting) != (None, None, 1.0)
        )
        return Goals(
            objectives=self.objectives or Goals().objectives,
            constraints=self._add_budgets(self.constraints),
            models=own,
        )

    def _add_budgets(self, limits: tuple[Constraint, ...]) -> tuple[Constraint, ...]:
        budgets = self._list_budgets()
        shadowed = {(limit.tag, limit.bound) for limit in budgets}
        return tuple(limit for limit in limits if (limit.tag, limit.bound) not in shadowed) + budgets

    def _list_budgets(self) -> tuple[Constraint, ...]:
        limits = []
        if self.latency_budget is not None:
            limits.append(Constraint(tag="perf_latency_p99", bound="max", limit=self.latency_budget))
        if self.min_throughput is not None:
            limits.append(Constraint(tag="perf_throughput", bound="min", limit=self.min_throughput))
        return tuple(limits)


class MeasurementSpec(Options):
    """Windows and inputs."""

    model_type: Literal["generic", "LLM"] = option(
        "generic", "LLM: measure through the OpenAI API, per token", metavar="generic|LLM"
    )
    measurement_interval: int = option(
        1000, "window length in milliseconds; a trial has one to --max-trials windows", minimum=1
    )
    stability_percentage: float = option(
        10.0, "width in percent of the throughput's confidence interval that ends a trial", above=0
    )
    max_trials: int | None = option(
        None, "maximum windows per measurement of the search (default 1; 2 without final rounds)", minimum=1
    )
    shape: tuple[Shape, ...] = option(
        (),
        "shape of an input with dynamic dimensions, without the batch dimension (repeatable)",
        metavar="NAME:D,D",
        parse=parse_shape,
        common=True,
    )
    assume_shapes: bool = option(
        False, "send 1 for each dynamic dimension that neither --shape nor the model's configuration names"
    )
    input_data: Literal["zero", "random"] = option("random", "input data", metavar="zero|random", common=True)
    perf_analyzer_flags: Flags = option(
        {}, "options of tpx perf by name", metavar=_MAP, parse=from_yaml_text(flags), read=flags
    )
    genai_perf_flags: Flags = option(
        {},
        "options of genai-perf by name, for model_type LLM",
        metavar=_MAP,
        parse=from_yaml_text(flags),
        read=flags,
    )
    perf_analyzer_timeout: int = option(
        600, "seconds until a measurement fails", metavar="SECONDS", minimum=1
    )
    perf_analyzer_max_auto_adjusts: int = option(10, "not needed: see --max-trials", inert=True)
    perf_analyzer_cpu_util: float | None = option(
        None, "not needed: tpx measures without perf_analyzer", inert=True
    )
    perf_analyzer_path: str = option(
        "perf_analyzer", "not needed: tpx measures without perf_analyzer", metavar="PROGRAM", inert=True
    )
    perf_output: bool = option(False, "print each measurement as tpx perf does")
    perf_output_path: Path | None = option(
        None, "write each measurement to this file as tpx perf does", metavar="FILE"
    )


class WatchSpec(Options):
    """Figures that are monitored while the server is measured, or idle."""

    monitoring_interval: float = option(
        1.0, "seconds between two samples of memory and GPUs", "-i", metavar="SECONDS", above=0
    )
    price_per_hour: float | None = option(
        None,
        "price of the machine per hour: reports then show the cost per million inferences",
        metavar="PRICE",
        above=0,
    )
    duration_seconds: float = option(
        3.0, "seconds to monitor the server without a model", "-d", metavar="SECONDS", minimum=0
    )
    collect_cpu_metrics: bool = option(False, "add the server's memory to tables and CSV files")
    always_report_gpu_metrics: bool = option(False, "report GPU metrics for cpu_only models too")
    dcgm_disable: bool = option(
        False, "not needed: tpx does not use DCGM; only with launch mode remote", inert=True
    )


JOURNAL = "run.jsonl"
CONFIGURATIONS = "configurations"
REPORT = "report.html"
_RESULTS = "results"


def results_in(export_path: Path) -> Path:
    """Return the directory of the journal and the CSV files: the export path itself if it is `results`."""
    return export_path if export_path.name == _RESULTS else export_path / _RESULTS


def reports_in(export_path: Path) -> Path:
    """Return the directory of reports on single models and configurations, as `results_in`."""
    return export_path if export_path.name == _RESULTS else export_path / "reports"


def unwritable(path: Path) -> str:
    """Return why files cannot be created in this directory, or it cannot be created; empty if they can."""
    ancestor = path.absolute()
    while not ancestor.exists():
        ancestor = ancestor.parent
    if not ancestor.is_dir():
        return f"{ancestor} is not a directory"
    return "" if os.access(ancestor, os.W_OK | os.X_OK) else f"{ancestor} cannot be written to"


class ProfileOutputSpec(Options):
    """Directories, files, columns."""

    mode: Literal["online", "offline"] = option(
        "online", "focus of the reports: online (latency and memory) or offline (throughput and batch sizes)"
    )
    export_path: Path = option(Path(), "directory for results and reports", "-e", metavar="DIR", common=True)
    checkpoint_directory: Path | None = option(
        None,
        "directory of run.jsonl, from which reports are made (default: results in the export path)",
        "-s",
        metavar="DIR",
    )
    resume: bool = option(False, "continue the run in run.jsonl; nothing is measured twice", common=True)
    retry_failed: bool = option(
        False,
        "continue the run in run.jsonl, even if complete, and retry failed trials, with new final rounds",
    )
    filename_model_inference: str = option(
        "metrics-model-inference.csv", "name of the CSV file of inference results"
    )
    filename_model_gpu: str = option("metrics-model-gpu.csv", "name of the CSV file of GPU results")
    filename_server_only: str = option(
        "metrics-server-only.csv", "name of the CSV file of the server without models"
    )
    inference_output_fields: tuple[str, ...] = option(
        (), "columns of the inference table", metavar="TAG,TAG", comma=True
    )
    gpu_output_fields: tuple[str, ...] = option((), "columns of the GPU table", metavar="TAG,TAG", comma=True)
    server_output_fields: tuple[str, ...] = option(
        (), "columns of the table of the server without models", metavar="TAG,TAG", comma=True
    )
    skip_summary_reports: bool = option(False, "write no summary reports except those named by options")
    skip_detailed_reports: bool = option(False, "write no reports on single configurations")
    html: Path | None = option(
        None, "HTML report (default: report.html in the export path)", metavar="FILE", common=True
    )
    pdf: Path | None = option(None, "the report as PDF (tpx[report])", metavar="FILE", common=True)
    markdown: Path | None = option(None, "verdict and table as Markdown", metavar="FILE")
    json: Path | None = option(None, "all figures as JSON", metavar="FILE", common=True)
    junit: Path | None = option(None, "verdicts and constraints as JUnit XML", metavar="FILE")
    step_summary: bool = option(False, "append the Markdown to $GITHUB_STEP_SUMMARY")
    dry_run: bool = option(
        False, "show what would be measured and how long it would take, and exit", common=True
    )
    show_config: bool = show_config()
    quiet: bool = option(False, "show no progress on stderr", "-q")
    verbose: bool = option(False, "log every step on stderr", "-v")

    def __post_init__(self) -> None:
        """Raise UsageError for an unknown column."""
        for name in ("inference_output_fields", "gpu_output_fields", "server_output_fields"):
            for tag in getattr(self, name):
                known = (*COLUMNS, *METRICS)
                if tag not in known and not tag.startswith(BACKEND_PARAMETER):
                    flag = flag_of(name)
                    raise UsageError(f"{flag}: unknown column '{tag}'{nearest(tag, known)}")

    @property
    def continues(self) -> bool:
        """Return True if the run in the journal goes on."""
        return self.resume or self.retry_failed

    @property
    def results_path(self) -> Path:
        return results_in(self.export_path)

    @property
    def journal_path(self) -> Path:
        return (self.checkpoint_directory or self.results_path) / JOURNAL

    @property
    def html_path(self) -> Path | None:
        """Path of the HTML report, or None if none is written."""
        return self.html or (None if self.skip_summary_reports else self.export_path / REPORT)

    @property
    def files(self) -> tuple[Path, ...]:
        """Paths of all that a run leaves in the export path, except its variants."""
        names = (self.filename_model_inference, self.filename_model_gpu, self.filename_server_only)
        details = (reports_in(self.export_path) / name for name in ("detailed", "summaries"))
        return (self.export_path / REPORT, *(self.results_path / name for name in names), *details)
