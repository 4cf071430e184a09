"""The analyzer's tables: of configurations at their best load, of measurements, of the final rounds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tpx.analyzer.objectives import RankedVariant, gain_percent, standing
from tpx.analyzer.reports.columns import (
    GAIN,
    NAME,
    THROUGHPUT,
    Shown,
    TableContext,
    TableLine,
    basis_columns,
    breakdown_columns,
    configuration_columns,
    latency_columns,
    load_columns,
    member_columns,
    resource_columns,
    verdict_columns,
)
from tpx.analyzer.reports.plots import Mode
from tpx.analyzer.results.measurement import Load
from tpx.report.document import Grid
from tpx.report.styles import STYLES
from tpx.report.table import table, text


def configurations_grid(key: str, ranking: Sequence[RankedVariant], context: TableContext) -> Grid | None:
    """Return a row per configuration, at the load where it does best; some carry the chart's markers."""
    styles = chart_styles(ranking, context.shown)
    lines = [
        TableLine(
            ranked=ranked,
            measurement=ranked.figures,
            standing=ranked.standing,
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
        *latency_columns(),
        *resource_columns(context),
        *verdict_columns(lines, constrained=context.constrained, tied=bool(context.tied)),
        *basis_columns(lines),
    )
    best = context.recommended
    if not best and ranking and ranking[0].satisfies:
        best = ranking[0].name
    kept = {ranked.name for ranked in in_detail(ranking, context.shown)} | context.on_front | {best}
    made = table(
        key,
        "Each configuration at its best load, the best first",
        columns,
        lines,
        lambda line: _emphasis(line.ranked, best),
    )
    return _filtered(made, lines, kept)


def measurements_grid(key: str, ranking: Sequence[RankedVariant], context: TableContext) -> Grid | None:
    """Return every measurement of the search, in the order of the ranking."""
    styles = chart_styles(ranking, context.shown)
    found = (line for ranked in ranking for line in _lines(ranked, context))
    lines = [replace(line, style=styles.get(line.ranked.name)) for line in found]
    caption, most = "Every load of every configuration, the best of each first", context.most_measurements
    if len(lines) > most:
        caption = f"The first {most} of {len(lines)} measurements; all of them are in the JSON of the run"
    made = table(key, caption, _measurement_columns(lines, context), lines[:most])
    return _filtered(made, lines[:most], set(styles))


def _lines(ranked: RankedVariant, context: TableContext) -> Iterator[TableLine]:
    for point in ranked.ordered:
        yield TableLine(ranked=ranked, measurement=point, standing=standing(point, context.goals))


def repetitions_grid(key: str, ranking: Sequence[RankedVariant], context: TableContext) -> Grid | None:
    """Return all that the means of the final rounds are made of, in their order; None without any."""
    styles = chart_styles(ranking, context.shown)
    lines = [
        TableLine(ranked=ranked, measurement=m, standing="met", style=styles.get(ranked.name))
        for ranked in ranking
        for m in (ranked.settled.samples if ranked.settled else ())
    ]
    lines.sort(key=lambda line: line.measurement.round)
    number: Shown = text("Round", lambda line: str(line.measurement.round or "search"))
    return table(
        key, "The final rounds", [number, *_measurement_columns(lines, context, verdicts=False)], lines
    )


def loads_grid(key: str, ranked: RankedVariant, context: TableContext, mode: Mode) -> Grid | None:
    """Return every load of one configuration, in Model Analyzer's order: online the highest p99 first,
    offline the most throughput first, and the batch before the load."""
    lines = sorted(_lines(ranked, context), key=lambda line: _place(line.measurement.load))
    online = mode == "online"
    lines.sort(
        key=lambda line: -(line.measurement.latency.p99_ns or 0) if online else -line.measurement.throughput
    )
    columns = [
        column
        for column in _measurement_columns(lines, context, batch_first=not online)
        if column is not NAME
    ]
    order = "the highest p99 latency first" if online else "the most throughput first"
    best = ranked.figures.load
    return table(
        key,
        f"Every load of this configuration, {order}",
        columns,
        lines,
        lambda line: "best" if line.measurement.load == best else "",
    )


def _place(load: Load) -> tuple[int, float]:
    return load.batch_size, load.value


def top_grid(
    key: str, best: Sequence[tuple[str, RankedVariant]], contexts: Mapping[str, TableContext]
) -> Grid | None:
    """Return configurations of several models, from the best on; `contexts` are by model."""
    model_of = {id(ranked): model for model, ranked in best}
    lines = [
        TableLine(
            ranked=ranked,
            measurement=ranked.figures,
            standing=ranked.standing,
            gain_percent=_gain(ranked, contexts[model]),
            gain=contexts[model].gains.get(ranked.name),
            href=contexts[model].hrefs.get(ranked.name, ""),
        )
        for model, ranked in best
    ]
    columns = (
        text("Model", lambda line: model_of[id(line.ranked)]),
        *configuration_columns(lines),
        *load_columns(lines),
        THROUGHPUT,
        GAIN,
        *latency_columns(),
        *verdict_columns(lines, constrained=True),
    )
    return table(key, "The best configurations across all models", columns, lines)


def chart_styles(ranking: Sequence[RankedVariant], shown: int) -> Mapping[str, int]:
    """Return the chart's style of each configuration that it shows: the first ones and the default."""
    return {ranked.name: index % STYLES for index, ranked in enumerate(in_detail(ranking, shown))}


def in_detail(ranking: Sequence[RankedVariant], shown: int) -> tuple[RankedVariant, ...]:
    """Return the configurations that the report draws: the best ones, and the default wherever it ranks."""
    rest = [ranked for ranked in ranking[shown:] if ranked.run.variant.is_default]
    return (*ranking[:shown], *rest)


def _measurement_columns(
    lines: Sequence[TableLine], context: TableContext, *, verdicts: bool = True, batch_first: bool = False
) -> Iterable[Shown]:
    yield NAME
    yield from load_columns(lines, batch_first=batch_first)
    yield THROUGHPUT
    yield from member_columns(lines)
    yield from latency_columns()
    yield from breakdown_columns()
    yield from resource_columns(context)
    if verdicts:
        yield from verdict_columns(lines, constrained=context.constrained)


def _filtered(made: Grid | None, lines: Sequence[TableLine], kept: set[str]) -> Grid | None:
    """Return the table with a filter over its rows; it begins with those of the configurations `kept`."""
    if made is None:
        return None
    rows = tuple(
        replace(row, kept=line.ranked.name in kept, passes=line.standing != "missed")
        for row, line in zip(made.rows, lines, strict=True)
    )
    return replace(made, rows=rows, filtered=True)


def _emphasis(ranked: RankedVariant, best: str) -> str:
    if ranked.name == best:
        return "best"
    return "default" if ranked.run.variant.is_default else ""


def _gain(ranked: RankedVariant, context: TableContext) -> float | None:
    default = context.default
    if default is None or ranked.run.variant.is_default:
        return None
    return gain_percent(ranked.figures, default.figures, context.goals)
