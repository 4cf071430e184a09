"""The view model of the report page: texts and figures as shown, nothing left for the template to decide."""

from dataclasses import dataclass

from tpx.analyzer.reports.chart import Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A table cell: what it shows and what it is sorted by."""

    text: str
    sort: str = ""
    """A number for numeric columns, else the text itself."""
    numeric: bool = False
    chart_style: int | None = None
    """Which of the chart's colours marks this cell; None is none."""
    flag: str = ""
    """`ok`, `bad` or `warn`: how the cell is set off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: its heading and how its cells are set."""

    header: str
    numeric: bool = False
    hint: str = ""
    marked: bool = False
    """Its cells may carry a marker of the chart, so that the others keep the room of one free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table, with what marks it out."""

    cells: tuple[Cell, ...]
    emphasis: str = ""
    """`best`, `default` or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A sortable table."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One large figure of the verdict card."""

    label: str
    figure: str
    unit: str
    note: str
    tone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCard:
    """What the page says first."""

    badge: str
    tone: str
    """`good`, `neutral`, `warn` or `bad`."""
    sentence: tuple["Span", ...]
    detail: str
    caution: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A run of text, as code or not."""

    text: str
    code: bool = False


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
    configurations: Grid | None
    measurements: Grid | None
    failures: tuple[FailureCard, ...]
    trace: tuple[TraceStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A label and its value."""

    label: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole report."""

    title: str
    subtitle: str
    notice: str
    """That the run was cut short, when it was."""
    models: tuple[ModelPage, ...]
    command: str
    host: tuple[Fact, ...]
    versions: tuple[Fact, ...]
    settings: tuple[Fact, ...]
