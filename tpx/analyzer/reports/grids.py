"""The analyzer's tables: configurations at their best load, measurements, final rounds."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tpx.analyzer.objectives import RankedVariant
from tpx.analyzer.reports.columns import (
    GAIN,
    LINKED_NAME,
    NAME,
    THROUGHPUT,
    UNMARKED_NAME,
    Shown,
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
from tpx.analyzer.reports.view import ModelView
from tpx.report.document import DataTable
from tpx.report.table import table, text


def configurations_grid(key: str, view: ModelView) -> DataTable | None:
    """Return one row per configuration, at its best load; some carry the chart's markers."""
    ranking = view.ranking
    lines = [TableLine(view=view, ranked=ranked, measurement=ranked.figures) for ranked in ranking]
    columns = (
        LINKED_NAME,
        *configuration_columns(lines),
        *load_columns(lines),
        THROUGHPUT,
        GAIN,
        *member_columns(lines),
        *latency_columns(),
        *resource_columns(view),
        *verdict_columns(lines, tied=bool(view.tied)),
        *basis_columns(lines),
    )
    best = view.recommended or (ranking[0].name if ranking and ranking[0].satisfies else "")
    kept = {ranked.name for ranked in view.in_detail} | view.on_front | {best}

    def emphasis(line: TableLine) -> str:
        if line.ranked.name == best:
            return "best"
        return "default" if line.ranked.run.variant.is_default else ""

    made = table(key, "Each configuration at its best load, the best first", columns, lines, emphasis)
    return _filtered(made, lines, kept)


def measurements_grid(key: str, view: ModelView) -> DataTable | None:
    """Return every measurement of the search, in the order of the ranking."""
    lines = [line for ranked in view.ranking for line in _lines(view, ranked)]
    caption, most = "Every load of every configuration, the best of each first", view.most_measurements
    if len(lines) > most:
        caption = f"The first {most} of {len(lines)} measurements; all of them are in the JSON of the run"
    shown = lines[:most]
    columns = (NAME, *_measurement_columns(shown, view), *verdict_columns(shown))
    return _filtered(table(key, caption, columns, shown), shown, {ranked.name for ranked in view.in_detail})


def _lines(view: ModelView, ranked: RankedVariant) -> list[TableLine]:
    return [TableLine(view=view, ranked=ranked, measurement=point) for point in ranked.ordered]


def repetitions_grid(key: str, view: ModelView, alone: RankedVariant | None = None) -> DataTable | None:
    """Return the samples of the final rounds' means in order, of one configuration or of all; None
    without any.
    """
    lines = [
        TableLine(view=view, ranked=ranked, measurement=m)
        for ranked in ((alone,) if alone else view.ranking)
        for m in (ranked.settled.samples if ranked.settled else ())
    ]
    lines.sort(key=lambda line: line.measurement.round)
    number: Shown = text("Round", lambda line: str(line.measurement.round or "search"))
    first = (number,) if alone else (number, NAME)
    return table(key, "The final rounds", (*first, *_measurement_columns(lines, view)), lines)


def loads_grid(key: str, view: ModelView, ranked: RankedVariant) -> DataTable | None:
    """Return every load of one configuration in Model Analyzer's order.

    Online: highest p99 first; offline: highest throughput first, with the batch size before the load.
    """
    lines = _lines(view, ranked)
    lines.sort(key=lambda line: (line.measurement.load.batch_size, line.measurement.load.value))
    online = view.report.mode == "online"
    lines.sort(
        key=lambda line: -(line.measurement.latency.p99_ns or 0) if online else -line.measurement.throughput
    )
    order = "the highest p99 latency first" if online else "the most throughput first"
    best = ranked.figures.load
    return table(
        key,
        f"Every load of this configuration, {order}",
        (*_measurement_columns(lines, view, batch_first=not online), *verdict_columns(lines)),
        lines,
        lambda line: "best" if line.measurement.load == best else "",
    )


def top_grid(key: str, lines: Sequence[TableLine]) -> DataTable | None:
    """Return configurations of several models, in the given order."""
    columns = (
        text("Model", lambda line: line.view.name),
        UNMARKED_NAME,
        *configuration_columns(lines),
        *load_columns(lines),
        THROUGHPUT,
        GAIN,
        *latency_columns(),
        *verdict_columns(lines),
    )
    return table(key, "The best configurations across all models", columns, lines)


def _measurement_columns(
    lines: Sequence[TableLine], view: ModelView, *, batch_first: bool = False
) -> Iterable[Shown]:
    yield from load_columns(lines, batch_first=batch_first)
    yield THROUGHPUT
    yield from member_columns(lines)
    yield from latency_columns()
    yield from breakdown_columns()
    yield from resource_columns(view)


def _filtered(made: DataTable | None, lines: Sequence[TableLine], kept: set[str]) -> DataTable | None:
    """Return the table with a row filter, initially showing the configurations in `kept`."""
    if made is None:
        return None
    rows = tuple(
        replace(row, kept=line.ranked.name in kept, passes=line.standing != "missed")
        for row, line in zip(made.rows, lines, strict=True)
    )
    return replace(made, rows=rows, filtered=True)
