"""The view model of the report page: texts and figures as shown, nothing left for the template to decide."""

from dataclasses import dataclass

from tpx.analyzer.reports.heat import HeatMap
from tpx.perf.report.breakdown import Breakdown
from tpx.report.chart import Chart
from tpx.report.view import Fact, Grid, Span, Tile


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCard:
    """What the page says first."""

    badge: str
    tone: str
    """`good`, `neutral`, `warn` or `bad`."""
    sentence: tuple[Span, ...]
    detail: str
    caution: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffLine:
    """A line of a unified diff; kind is `add`, `remove`, `hunk` or `same`."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The configuration to take, against the default."""

    name: str
    against: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Label, the default's figure, the recommended one's, the change."""
    diff: tuple[DiffLine, ...]
    config_text: str
    path: str
    command: str
    """That writes it into the model repository."""
    certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCard:
    """A configuration that gave no figures, and why."""

    name: str
    load: str
    reason: str
    log_tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """One configuration of the search: what was tried, and why it went no further."""

    name: str
    tried: str
    best: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPage:
    """Everything the page shows of one model."""

    key: str
    model: str
    verdict: VerdictCard
    recommendation: Recommendation | None
    chart: Chart | None
    plots: tuple[Chart, ...]
    """Model Analyzer's, of the mode that was asked for."""
    pareto: Chart | None
    heat: HeatMap | None
    breakdown: Breakdown | None
    drift: Chart | None
    configurations: Grid | None
    measurements: Grid | None
    repetitions: Grid | None
    failures: tuple[FailureCard, ...]
    trace: tuple[TraceStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole report."""

    title: str
    subtitle: str
    notice: str
    """That the run was cut short, when it was."""
    models: tuple[ModelPage, ...]
    top: Grid | None
    """The best of all models, where that was asked for."""
    command: str
    host: tuple[Fact, ...]
    versions: tuple[Fact, ...]
    settings: tuple[Fact, ...]
    hashes: tuple[Fact, ...]
    data: str
    """JSON of all figures, safe between script tags; empty for none."""
    file_name: str
    """Of the data, without an ending."""
    parent: str
