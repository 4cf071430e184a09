"""The options that say what is written, and where."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tpx.analyzer.objectives import METRICS
from tpx.analyzer.options.values import words
from tpx.analyzer.results.fields import BACKEND_PARAMETER, COLUMNS
from tpx.errors import UsageError
from tpx.options import Option, nearest

_OUTPUT = "Output"
JOURNAL = "run.jsonl"


def unwritable(path: Path) -> str:
    """Why files cannot be made in this directory, or it cannot be made; empty where they can."""
    there = path.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        return f"{there} is not a directory"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to"


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Directories, files, columns."""

    mode: Annotated[
        Literal["online", "offline"],
        Option(
            "what reports look at: online latency and memory, offline throughput and batches",
            (),
            _OUTPUT,
        ),
    ] = "online"
    export_path: Annotated[Path, Option("directory for results and reports", ("-e",), _OUTPUT, "DIR")] = (
        Path()
    )
    checkpoint_directory: Annotated[
        Path | None,
        Option(
            "directory of run.jsonl, which every report is made from (results in the export path when not "
            "given)",
            ("-s",),
            _OUTPUT,
            "DIR",
        ),
    ] = None
    resume: Annotated[
        bool,
        Option("go on with the run in run.jsonl: nothing is measured twice", (), _OUTPUT),
    ] = False
    retry_failed: Annotated[
        bool,
        Option(
            "go on with the run in run.jsonl, also a complete one, and try again what failed: as --resume, "
            "with new final rounds",
            (),
            _OUTPUT,
        ),
    ] = False
    filename_model_inference: Annotated[str, Option("name of the CSV file of inferences", (), _OUTPUT)] = (
        "metrics-model-inference.csv"
    )
    filename_model_gpu: Annotated[str, Option("name of the CSV file of GPUs", (), _OUTPUT)] = (
        "metrics-model-gpu.csv"
    )
    filename_server_only: Annotated[
        str, Option("name of the CSV file of the server without models", (), _OUTPUT)
    ] = "metrics-server-only.csv"
    inference_output_fields: Annotated[
        tuple[str, ...],
        Option("columns of the table of inferences", (), _OUTPUT, "TAG,TAG", comma=True, read=words),
    ] = ()
    gpu_output_fields: Annotated[
        tuple[str, ...],
        Option("columns of the table of GPUs", (), _OUTPUT, "TAG,TAG", comma=True, read=words),
    ] = ()
    server_output_fields: Annotated[
        tuple[str, ...],
        Option(
            "columns of the table of the bare server",
            (),
            _OUTPUT,
            "TAG,TAG",
            comma=True,
            read=words,
        ),
    ] = ()
    skip_summary_reports: Annotated[
        bool, Option("no report of the whole run but those that are named", (), _OUTPUT)
    ] = False
    skip_detailed_reports: Annotated[bool, Option("no reports of single configurations", (), _OUTPUT)] = False
    html: Annotated[
        Path | None,
        Option("HTML report (report.html in the export path when not given)", (), _OUTPUT, "FILE"),
    ] = None
    pdf: Annotated[Path | None, Option("the same report as PDF (tpx[report])", (), _OUTPUT, "FILE")] = None
    markdown: Annotated[Path | None, Option("the verdict and a table as Markdown", (), _OUTPUT, "FILE")] = (
        None
    )
    json: Annotated[Path | None, Option("every figure as JSON", (), _OUTPUT, "FILE")] = None
    junit: Annotated[Path | None, Option("verdicts and constraints as JUnit's XML", (), _OUTPUT, "FILE")] = (
        None
    )
    step_summary: Annotated[
        bool,
        Option("add the Markdown to $GITHUB_STEP_SUMMARY, the page of a GitHub job", (), _OUTPUT),
    ] = False
    dry_run: Annotated[bool, Option("tell what would be measured and for how long, and end", (), _OUTPUT)] = (
        False
    )
    quiet: Annotated[bool, Option("no progress on stderr", ("-q",), _OUTPUT)] = False
    verbose: Annotated[bool, Option("tell every step on stderr", ("-v",), _OUTPUT)] = False

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

    def check_output(self) -> None:
        """Raise UsageError for a column that there is none of."""
        for name in ("inference_output_fields", "gpu_output_fields", "server_output_fields"):
            for tag in getattr(self, name):
                known = (*COLUMNS, *METRICS)
                if tag not in known and not tag.startswith(BACKEND_PARAMETER):
                    flag = f"--{name.replace('_', '-')}"
                    raise UsageError(f"{flag}: there is no column '{tag}'{nearest(tag, known)}")
