"""`tpx.analyze`: the search of `tpx analyze profile`, with the run as its result."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.file import check_options
from tpx.analyzer.profile import Event
from tpx.analyzer.reports import page
from tpx.analyzer.reports.json import report_text
from tpx.analyzer.reports.tables import inference_table
from tpx.analyzer.reports.view import ReportView
from tpx.analyzer.results.journal import read_last_run
from tpx.analyzer.results.run import Run
from tpx.analyzer.verdict import ModelVerdict, judge
from tpx.api.measuring import data_frame, embedded
from tpx.api.serving import RunningServer, run_in_thread
from tpx.cli.launching import open_search
from tpx.options import build, given_in_mapping
from tpx.report import html

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, repr=False)
class AnalysisRun:
    """The measurements and verdicts of a search."""

    run: Run
    directory: Path
    """Export path of the run: an argument of `tpx analyze apply -e`."""
    configurations: Path
    """Directory of the configuration variants."""

    @property
    def verdicts(self) -> tuple[ModelVerdict, ...]:
        """Return the verdict on each model, with the recommended configuration as `best`."""
        return tuple(judge(model, self.run.started.goals) for model in self.run.models)

    @property
    def verdict(self) -> str:
        """Return one sentence per model."""
        return " ".join(f"{each.sentence}." for each in self.verdicts)

    def to_json(self) -> str:
        """Return the document of `tpx analyze --json`."""
        return report_text(ReportView.of(self.run))

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per measurement, with the columns of Model Analyzer's table, in its order."""
        columns = {"collect_cpu_metrics": True, "inference_output_fields": ()}
        table = inference_table(ReportView.of(self.run, columns))
        return data_frame([dict(zip(table.headers, row, strict=True)) for row in table.rows])

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the report as one page; write it to `path` if given."""
        view = ReportView.of(self.run, repository=self.configurations, export_path=self.directory)
        text = html.render(page.build(view))
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def __repr__(self) -> str:
        return f"<AnalysisRun: {self.verdict}>"

    def _repr_html_(self) -> str:
        return embedded(self.to_html())


def analyze(
    models: str | Sequence[str],
    *,
    repository: str | Path | None = None,
    target: RunningServer | None = None,
    directory: str | Path | None = None,
    **options: object,
) -> AnalysisRun:
    """Search for the best configuration of models, and return everything that was measured.

    `repository` holds the models; with `target` they are measured on that server, whose repository must be
    the `output_model_repository_path` and which runs with `model_control_mode="explicit"`. `options` are
    those of `tpx analyze profile`, with underscores: `budget="1m"`, `constraints="perf_latency_p99<=5"`. The
    journal and the variants go to `directory`, a new temporary one by default; an earlier run there is moved
    into its `earlier`. Raises UsageError, MeasurementError.
    """
    place = Path(directory) if directory is not None else Path(tempfile.mkdtemp(prefix="tpx-analyze-"))
    given: dict[str, object] = {
        "profile_models": [models] if isinstance(models, str) else list(models),
        "export_path": str(place),
        **options,
    }
    if repository is not None:
        given["model_repository"] = str(repository)
    if target is not None:
        given |= {"triton_launch_mode": "remote", "triton_http_endpoint": target.http}
        given |= {
            "triton_grpc_endpoint": target.grpc,
            "triton_metrics_url": f"http://{target.metrics}/metrics",
        }
    spec = check_options(build(ProfileSpec, given_in_mapping(ProfileSpec, given, source="tpx.analyze")))
    run_in_thread(lambda stop: _run_search(spec, stop))
    run = Run.from_records(read_last_run(spec.output.journal_path))
    return AnalysisRun(run, spec.output.export_path, spec.configurations_path)


async def _run_search(spec: ProfileSpec, stop: asyncio.Event) -> None:
    """Run the search; stop after the current measurement once `stop` is set."""
    with open_search(spec, _ignore_event, _ignore_event, stop) as search:
        if search is not None:
            await search.run(("tpx.analyze",))


def _ignore_event(_: Event | str) -> None:
    """Ignore a line that the command line would print."""
