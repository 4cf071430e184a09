"""The sortable tables of the page: one row a configuration at its best load, one row a measurement, one row a
final repetition, and one row a configuration of any model."""

from collections.abc import Mapping, Sequence

from tpx.analyzer.objectives import RankedVariant, gain_percent
from tpx.analyzer.reports.columns import (
    GAIN,
    NAME,
    THROUGHPUT,
    ShownColumn,
    TableContext,
    TableLine,
    breakdown_columns,
    configuration_columns,
    latency_columns,
    load_columns,
    member_columns,
    number,
    resource_columns,
    text_cell,
    verdict_columns,
)
from tpx.analyzer.reports.plots import Mode
from tpx.report.document import Column, Grid, Row
from tpx.report.styles import STYLES


def configurations_grid(key: str, ranking: Sequence[RankedVariant], context: TableContext) -> Grid:
    """One row a configuration, at the load where it does best; some carry the chart's markers."""
    styles = chart_styles(ranking, context.shown)
    lines = [
        TableLine(
            ranked=ranked,
            measurement=ranked.figures,
            passes=ranked.satisfies,
            style=styles.get(ranked.name),
            gain_percent=_gain(ranked, context),
            gain=context.gains.get(ranked.name),
            tied=ranked.name in context.tied or (bool(context.tied) and ranked.name == context.recommended),
            href=context.hrefs.get(ranked.name, ""),
        )
        for ranked in ranking
    ]
    columns = (
        *configuration_columns(lines),
        *load_columns(lines),
        THROUGHPUT,
        GAIN,
        *member_columns(lines),
        *latency_columns(lines),
        *resource_columns(lines, context),
        *verdict_columns(lines, constrained=context.constrained, tied=bool(context.tied)),
    )
    best = context.recommended
    if not best and ranking and ranking[0].satisfies:
        best = ranking[0].name
    kept = {ranked.name for ranked in in_detail(ranking, context.shown)} | context.on_front | {best}
    return _grid(
        key,
        "Each configuration at its best load, the best first",
        columns,
        lines,
        [_emphasis(line.ranked, best) for line in lines],
        kept=kept,
    )


def measurements_grid(key: str, ranking: Sequence[RankedVariant], context: TableContext) -> Grid:
    """Every measurement of the search, in the order of the ranking."""
    styles = chart_styles(ranking, context.shown)
    lines = [
        TableLine(ranked=ranked, measurement=m, passes=passes, style=styles.get(ranked.name))
        for ranked in ranking
        for group, passes in ((ranked.passing, True), (ranked.failing, False))
        for m in group
    ]
    columns = _measurement_columns(lines, context)
    caption = "Every measurement, the best of each configuration first"
    most = context.most_measurements
    if len(lines) > most:
        caption = f"The first {most} of {len(lines)} measurements; all of them are in the JSON of the run"
    return _grid(key, caption, columns, lines[:most], [""] * most, kept=set(styles))


def repetitions_grid(key: str, ranking: Sequence[RankedVariant], context: TableContext) -> Grid | None:
    """Every measurement of the final rounds, as they were made; None without any."""
    styles = chart_styles(ranking, context.shown)
    lines = [
        TableLine(ranked=ranked, measurement=m, passes=True, style=styles.get(ranked.name))
        for ranked in ranking
        for m in ranked.run.repetitions
    ]
    if not lines:
        return None
    lines.sort(key=lambda line: line.measurement.round)
    columns = (_ROUND, *_measurement_columns(lines, context, verdicts=False))
    return _grid(key, "The final rounds", columns, lines, [""] * len(lines))


def loads_grid(key: str, ranked: RankedVariant, context: TableContext, mode: Mode) -> Grid:
    """Every load of one configuration, in Model Analyzer's order: online the highest p99 first, offline the
    most throughput first, and the batch before the load."""
    pairs = [(m, True) for m in ranked.passing] + [(m, False) for m in ranked.failing]
    pairs.sort(key=lambda pair: (pair[0].load.batch_size, pair[0].load.value))
    online = mode == "online"
    pairs.sort(key=lambda pair: -(pair[0].latency.p99_ns or 0) if online else -pair[0].throughput)
    lines = [TableLine(ranked=ranked, measurement=m, passes=passes) for m, passes in pairs]
    columns = _measurement_columns(lines, context, batch_first=not online)[1:]
    marks = ["best" if line.measurement.load == ranked.figures.load else "" for line in lines]
    order = "the highest p99 latency first" if online else "the most throughput first"
    return _grid(key, f"Every load of this configuration, {order}", columns, lines, marks)


def top_grid(
    key: str, best: Sequence[tuple[str, RankedVariant]], contexts: Mapping[str, TableContext]
) -> Grid:
    """Configurations of several models, from the best on; `contexts` are by model."""
    model_of = {id(ranked): model for model, ranked in best}
    lines = [
        TableLine(
            ranked=ranked,
            measurement=ranked.figures,
            passes=ranked.satisfies,
            gain_percent=_gain(ranked, contexts[model]),
            gain=contexts[model].gains.get(ranked.name),
            href=contexts[model].hrefs.get(ranked.name, ""),
        )
        for model, ranked in best
    ]
    model = ShownColumn(column=Column(header="Model"), cell=lambda line: text_cell(model_of[id(line.ranked)]))
    name, *rest = configuration_columns(lines)
    columns = (
        model,
        name,
        *rest,
        *load_columns(lines),
        THROUGHPUT,
        GAIN,
        *latency_columns(lines),
        *verdict_columns(lines, constrained=True),
    )
    return _grid(key, "The best configurations across all models", columns, lines, [""] * len(lines))


def chart_styles(ranking: Sequence[RankedVariant], shown: int) -> Mapping[str, int]:
    """The chart's style of each configuration that it shows: the first ones and the default."""
    return {ranked.name: index % STYLES for index, ranked in enumerate(in_detail(ranking, shown))}


def in_detail(ranking: Sequence[RankedVariant], shown: int) -> tuple[RankedVariant, ...]:
    """The configurations that the report draws: the best ones, and the default wherever it ranks."""
    rest = [ranked for ranked in ranking[shown:] if ranked.run.variant.is_default]
    return (*ranking[:shown], *rest)


def _measurement_columns(
    lines: Sequence[TableLine], context: TableContext, *, verdicts: bool = True, batch_first: bool = False
) -> tuple[ShownColumn, ...]:
    return (
        NAME,
        *load_columns(lines, batch_first=batch_first),
        THROUGHPUT,
        *member_columns(lines),
        *latency_columns(lines),
        *breakdown_columns(lines),
        *resource_columns(lines, context),
        *(verdict_columns(lines, constrained=context.constrained) if verdicts else ()),
    )


_ROUND = ShownColumn(
    column=Column(header="Round", numeric=True), cell=lambda line: number(line.measurement.round, 0)
)


def _grid(
    key: str,
    caption: str,
    columns: Sequence[ShownColumn],
    lines: Sequence[TableLine],
    emphasis: Sequence[str],
    *,
    kept: set[str] | None = None,
) -> Grid:
    """`kept` are the configurations that a filtered table begins with; None is a table without a filter."""
    return Grid(
        key=key,
        caption=caption,
        columns=tuple(shown.column for shown in columns),
        rows=tuple(
            Row(
                cells=tuple(shown.cell(line) for shown in columns),
                emphasis=mark,
                kept=kept is None or line.ranked.name in kept,
                passes=line.passes,
            )
            for line, mark in zip(lines, emphasis, strict=False)
        ),
        filtered=kept is not None,
    )


def _emphasis(ranked: RankedVariant, best: str) -> str:
    if ranked.name == best:
        return "best"
    return "default" if ranked.run.variant.is_default else ""


def _gain(ranked: RankedVariant, context: TableContext) -> float | None:
    default = context.default
    if default is None or ranked.run.variant.is_default:
        return None
    return gain_percent(ranked.figures, default.figures, context.goals)
