"""`tpx.measure`: `tpx perf` with the result as a value; `tpx.compare`: two results compared."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from tpx.api.serving import RunningServer, run_in_thread
from tpx.cli.perf_compare import levels_of
from tpx.errors import UsageError
from tpx.options import build, given_in_mapping
from tpx.perf.compare import Comparison, Levels, Outcome, overall, read_levels
from tpx.perf.compare import compare as compare_levels
from tpx.perf.levels import LevelRange
from tpx.perf.options import SessionSpec
from tpx.perf.options.measuring import Strictness
from tpx.perf.report.comparison import Against, Compared, comparison_document
from tpx.perf.report.json import json_text
from tpx.perf.report.model import Report
from tpx.perf.report.page import build as build_page
from tpx.perf.report.page import conclude
from tpx.perf.results import LevelResult
from tpx.perf.run import run
from tpx.report import html, text
from tpx.report.document import Document

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, repr=False)
class PerfRun:
    """The levels of one measurement and their verdict."""

    report: Report

    @property
    def levels(self) -> tuple[LevelResult, ...]:
        """Return the measured levels, in the order of measurement."""
        return self.report.levels

    @property
    def best(self) -> LevelResult | None:
        """Return the level with the highest throughput among those that met the limits, if any."""
        return self.report.best

    @property
    def meets_slo(self) -> bool:
        """Return whether the objectives of `slo` were met."""
        return not self.report.breaks_slo

    @property
    def verdict(self) -> str:
        """Return the result of the run as one sentence."""
        return conclude(self.report).sentence

    def to_json(self) -> str:
        """Return the document of `tpx perf --json`."""
        return json_text(self.report, ())

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per level: load, throughput in infer/s with its interval, latencies in us."""
        return data_frame([_make_row(level) for level in self.levels])

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the report as one page; write it to `path` if given."""
        page = html.render(build_page(self.report, ("tpx.measure",)))
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page

    def __repr__(self) -> str:
        return f"<PerfRun: {self.verdict}>"

    def _repr_html_(self) -> str:
        return embedded(self.to_html())


def measure(
    target: RunningServer | str,
    model: str,
    *,
    concurrency: int | Sequence[int] | None = None,
    request_rate: float | Sequence[float] | None = None,
    **options: object,
) -> PerfRun:
    """Measure a model on a server, level by level, until each is stable.

    `target` is a server of `tpx.serve` or the URL of any that speaks the v2 protocol; `concurrency` requests
    in flight, or `request_rate` requests per second. `options` are those of `tpx perf`, with underscores:
    `protocol="grpc"`, `batch_size=8`, `slo=["p99<=5ms"]`. Works in a notebook, too; Ctrl-C ends it with the
    levels measured so far. Raises UsageError, MeasurementError, WireError.
    """
    spec = _make_spec(target, model, concurrency, request_rate, options)
    return PerfRun(run_in_thread(lambda stop: run(spec, stop=stop)))


async def measure_async(
    target: RunningServer | str,
    model: str,
    *,
    concurrency: int | Sequence[int] | None = None,
    request_rate: float | Sequence[float] | None = None,
    stop: asyncio.Event | None = None,
    **options: object,
) -> PerfRun:
    """Measure on the running event loop, which should be otherwise idle; see `measure`."""
    return PerfRun(await run(_make_spec(target, model, concurrency, request_rate, options), stop=stop))


SavedRun = PerfRun | str | Path
"""A measurement, or a file of its `to_json()`."""


@dataclass(frozen=True, slots=True, repr=False)
class RunComparison:
    """Differences between measurements, and what they show; a table at the prompt and in a notebook."""

    comparison: Comparison
    strictness: Strictness

    @property
    def verdict(self) -> Outcome:
        """Return `worse`, `undecided`, `better` or `same`: the first that any figure is.

        `same` is certain: every figure differs by less than the margin.
        """
        return overall(self.comparison.differences)

    @property
    def more_s(self) -> float:
        """Return the seconds of measuring per side that would probably decide everything undecided."""
        return max((d.more_s for d in self.comparison.differences if d.finding == "undecided"), default=0.0)

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per load and figure: inferences per second, or ns of latency."""
        columns = ("load", "figure", "before", "after", "relative", "low", "high", "p_value", "finding")
        differences = self.comparison.differences
        return data_frame([{name: getattr(each, name) for name in columns} for each in differences])

    def __repr__(self) -> str:
        return text.render(self._build_document(), None)

    def _repr_html_(self) -> str:
        return embedded(html.render(self._build_document()))

    def _build_document(self) -> Document:
        found = self.comparison
        pair = Against(title="After against before", differences=found.differences, left_out=found.left_out)
        return comparison_document(Compared(pairs=(pair,), strictness=self.strictness))


def compare(
    before: SavedRun | Sequence[SavedRun],
    after: SavedRun | Sequence[SavedRun],
    *,
    alpha: float = 0.05,
    min_effect: float = 0.05,
) -> RunComparison:
    """Compare measurements at their common loads; a path is a file of `to_json()`.

    A verdict needs three or more measurements before, best made in turns with those after: fewer do not
    tell how measurements of the same thing differ. Figures that are certainly less than `min_effect` apart
    count as the same. Raises UsageError if nothing can be compared.
    """
    sides = [_read_side(each, name) for each, name in ((before, "before"), (after, "after"))]
    strictness = Strictness(alpha=alpha, min_effect=min_effect)
    found = compare_levels(sides[0], sides[1], strictness)
    if not found.differences:
        raise UsageError(f"the runs have no load to compare ({'; '.join(found.left_out)})")
    return RunComparison(found, strictness)


def _read_side(runs: SavedRun | Sequence[SavedRun], name: str) -> list[Levels]:
    if isinstance(runs, PerfRun | str | Path):
        runs = [runs]
    if not runs:
        raise UsageError(f"compare: there is no run {name}")
    return [
        read_levels(json.loads(run.to_json()), name) if isinstance(run, PerfRun) else levels_of(Path(run))
        for run in runs
    ]


def _make_spec(
    target: RunningServer | str,
    model: str,
    concurrency: int | Sequence[int] | None,
    request_rate: float | Sequence[float] | None,
    options: dict[str, object],
) -> SessionSpec:
    """Return the groups of options of a run. Raises UsageError."""
    own = ("target", "concurrency", "request_rate")
    given = given_in_mapping(SessionSpec, options, source="tpx.measure", others=own)
    given["model"] = model
    if isinstance(target, RunningServer):
        given["url"] = target.grpc if given.get("protocol") == "grpc" else target.http
    else:
        given["url"] = target
    if concurrency is not None:
        values = (concurrency,) if isinstance(concurrency, int) else tuple(concurrency)
        given["concurrency_range"] = LevelRange(mode="concurrency", listed=values)
    if request_rate is not None:
        rates = (request_rate,) if isinstance(request_rate, int | float) else tuple(request_rate)
        given["request_rate_range"] = LevelRange(mode="request_rate", listed=rates)
    return build(SessionSpec, given)


def _make_row(result: LevelResult) -> dict[str, object]:
    latency, throughput = result.latency, result.estimates.throughput if result.estimates else None
    row: dict[str, object] = {
        "mode": result.level.mode,
        "load": result.level.value,
        "throughput_infer_per_s": result.throughput_infer_per_s,
        "throughput_low": throughput.low if throughput else None,
        "throughput_high": throughput.high if throughput else None,
        "latency_mean_us": latency.mean_ns / 1000 if latency else None,
    }
    for percentile in (50, 90, 95, 99):
        row[f"latency_p{percentile}_us"] = latency.at(percentile) / 1000 if latency else None
    return {**row, "requests": result.requests, "failed": result.failed, "verdict": result.verdict.value}


FRAME_HEIGHT_PX = 720


def data_frame(rows: Sequence[Mapping[str, object]]) -> "pd.DataFrame":
    """Return rows as a DataFrame. Raises UsageError if pandas is not installed."""
    try:
        import pandas as pd
    except ImportError as exc:
        raise UsageError("to_pandas() needs pandas: pip install 'tpx[pandas]'") from exc
    return pd.DataFrame(list(rows))


def embedded(page: str) -> str:
    """Return a whole page as HTML for a notebook cell, in an iframe."""
    return (
        f'<iframe srcdoc="{escape(page, quote=True)}" style="width:100%;height:{FRAME_HEIGHT_PX}px;'
        'border:0"></iframe>'
    )
