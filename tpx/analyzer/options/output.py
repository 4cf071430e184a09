"""The options that say what is written, and where."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpx.analyzer.objectives import BACKEND_PARAMETER, COLUMNS, METRICS
from tpx.errors import UsageError
from tpx.options import flag_of, nearest, option

JOURNAL = "run.jsonl"


def unwritable(path: Path) -> str:
    """Why files cannot be made in this directory, or it cannot be made; empty where they can."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        return f"{there} is not a directory"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """Directories, files, columns."""

    mode: Literal["online", "offline"] = option(
        "online",
        "what reports look at: online latency and memory, offline throughput and batches",
    )
    export_path: Path = option(Path(), "directory for results and reports", "-e", metavar="DIR", common=True)
    checkpoint_directory: Path | None = option(
        None,
        "directory of run.jsonl, which every report is made from (results in the export path when not given)",
        "-s",
        metavar="DIR",
    )
    resume: bool = option(False, "go on with the run in run.jsonl: nothing is measured twice", common=True)
    retry_failed: bool = option(
        False,
        "go on with the run in run.jsonl, also a complete one, and try again what failed: as --resume, "
        "with new final rounds",
    )
    filename_model_inference: str = option(
        "metrics-model-inference.csv", "name of the CSV file of inferences"
    )
    filename_model_gpu: str = option("metrics-model-gpu.csv", "name of the CSV file of GPUs")
    filename_server_only: str = option(
        "metrics-server-only.csv", "name of the CSV file of the server without models"
    )
    inference_output_fields: tuple[str, ...] = option(
        (), "columns of the table of inferences", metavar="TAG,TAG", comma=True
    )
    gpu_output_fields: tuple[str, ...] = option(
        (), "columns of the table of GPUs", metavar="TAG,TAG", comma=True
    )
    server_output_fields: tuple[str, ...] = option(
        (),
        "columns of the table of the bare server",
        metavar="TAG,TAG",
        comma=True,
    )
    skip_summary_reports: bool = option(False, "no report of the whole run but those that are named")
    skip_detailed_reports: bool = option(False, "no reports of single configurations")
    html: Path | None = option(
        None, "HTML report (report.html in the export path when not given)", metavar="FILE", common=True
    )
    pdf: Path | None = option(None, "the same report as PDF (tpx[report])", metavar="FILE", common=True)
    markdown: Path | None = option(None, "the verdict and a table as Markdown", metavar="FILE")
    json: Path | None = option(None, "every figure as JSON", metavar="FILE", common=True)
    junit: Path | None = option(None, "verdicts and constraints as JUnit's XML", metavar="FILE")
    step_summary: bool = option(False, "add the Markdown to $GITHUB_STEP_SUMMARY, the page of a GitHub job")
    dry_run: bool = option(False, "tell what would be measured and for how long, and end", common=True)
    quiet: bool = option(False, "no progress on stderr", "-q")
    verbose: bool = option(False, "tell every step on stderr", "-v")

    def __post_init__(self) -> None:
        """Raise UsageError for a column that there is none of."""
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
        """None where no report of the whole run is wanted."""
        return self.html or (None if self.skip_summary_reports else self.export_path / "report.html")
