"""Output options: which files are written, and where."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpx.analyzer.objectives import BACKEND_PARAMETER, COLUMNS, METRICS
from tpx.errors import UsageError
from tpx.options import flag_of, nearest, option

JOURNAL = "run.jsonl"


def unwritable(path: Path) -> str:
    """Return why files cannot be created in this directory, or it cannot be created; empty if they can."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        return f"{there} is not a directory"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOutputSpec:
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
    quiet: bool = option(False, "show no progress on stderr", "-q")
    verbose: bool = option(False, "log every step on stderr", "-v")

    def __post_init__(self) -> None:
        """Raise UsageError for an unknown column."""
        for name in ("inference_output_fields", "gpu_output_fields", "server_output_fields"):
            for tag in getattr(self, name):
                known = (*COLUMNS, *METRICS)
                if tag not in known and not tag.startswith(BACKEND_PARAMETER):
                    flag = flag_of(name)
                    raise UsageError(f"{flag}: there is no column '{tag}'{nearest(tag, known)}")

    @property
    def results_path(self) -> Path:
        return self.export_path / "results"

    @property
    def journal_path(self) -> Path:
        return (self.checkpoint_directory or self.results_path) / JOURNAL

    @property
    def html_path(self) -> Path | None:
        """Path of the HTML report, or None if none is written."""
        return self.html or (None if self.skip_summary_reports else self.export_path / "report.html")
