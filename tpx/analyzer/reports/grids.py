"""The tables of the page: their columns for a configuration under a load, and the rows of each."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from tpx.analyzer.metrics import METRICS, joules_per_inference
from tpx.analyzer.objectives import RankedVariant, gain_percent
from tpx.analyzer.reports.charts import front_of
from tpx.analyzer.reports.view import ModelView, TableLine
from tpx.analyzer.results.measurement import Measurement
from tpx.analyzer.results.pooled import repeated
from tpx.analyzer.variants import changed_parameters
from tpx.perf.objectives import Compliance
from tpx.perf.statistics.intervals import Interval
from tpx.report.digits import LARGEST_PERCENT, MICROSECONDS, change, change_range, in_unit, rounded
from tpx.report.document import Cell, Column, DataTable
from tpx.report.table import TableField, count, number, quantity, table, text, text_cell

_COMPLIANCE = {
    Compliance.MET: ("yes", "ok"),
    Compliance.UNDECIDED: ("borderline", "warn"),
    Compliance.VIOLATED: ("no", "bad"),
}
LOPSIDED = 0.1
"""Asymmetry above which an interval is shown by its bounds, as a share of its half-width."""


Shown = TableField[TableLine]


def figure(value: float | None, unit: str = "", interval: Interval | None = None) -> Cell:
    """Return the cell of a figure with its interval as a note; None becomes a dash, which sorts last."""
    made = number(value, lambda known: in_unit(known, unit if unit == "ms" else ""))
    if value is None or interval is None or interval.high is None:
        return made
    scale = 1000 if made.text.endswith(MICROSECONDS) else 1
    half = (interval.high - interval.low) / 2
    low, high, reach = (
        rounded(bound * scale, like=value * scale) for bound in (interval.low, interval.high, half)
    )
    lopsided = abs((interval.high + interval.low) / 2 - value) > half * LOPSIDED
    note = f"{low} to {high}" if lopsided else f"\u00b1 {reach}"
    if half > value * LARGEST_PERCENT:
        note = f"\u00b1 over {LARGEST_PERCENT:.0%}"
    shown_unit = made.text.partition(" ")[2]
    title = f"95% confidence: {low} to {high} {shown_unit}".rstrip()
    return replace(made, note=note if low != high else "", title=title)


def _name_cell(line: TableLine) -> Cell:
    name = line.ranked.name
    return Cell(text=name, sort=name, chart_style=line.view.chart_styles.get(name))


def _link_cell(line: TableLine) -> Cell:
    return replace(_name_cell(line), href=line.view.report.hrefs.get(line.ranked.name, ""))


_NAME = Column(header="Configuration", marked=True)
NAME: Shown = TableField(column=_NAME, cell=_name_cell)
LINKED_NAME: Shown = TableField(column=_NAME, cell=_link_cell)
UNMARKED_NAME: Shown = TableField(
    column=replace(_NAME, marked=False), cell=lambda line: replace(_link_cell(line), chart_style=None)
)


def measured(tag: str, header: str, hint: str = "", *, minor: bool = False) -> Shown:
    """Return the column of a metric, with its confidence interval if the measurement has one."""
    metric = METRICS[tag]
    return TableField(
        column=Column(header=header, numeric=True, hint=hint, minor=minor),
        cell=lambda line: figure(
            metric.value(line.measurement), metric.unit, metric.interval(line.measurement)
        ),
    )


THROUGHPUT = measured("perf_throughput", "infer/s", "inferences a second")


def _gain_cell(line: TableLine) -> Cell:
    verdict, share = line.view.verdict, None
    if verdict.default is None or line.ranked.run.variant.is_default:
        return number(None)
    gain = verdict.conclusion.gains.get(line.ranked.name) if verdict.conclusion else None
    if gain is None:
        share = gain_percent(line.ranked.figures, verdict.default.figures, verdict.goals)
        return number(share, lambda known: change(known / 100))
    made = number(gain.value * 100, lambda known: change(known / 100))
    note = "too noisy" if gain.too_noisy else f"[{change_range(gain.low, gain.high)}]"
    return replace(made, note=note, title=f"{gain.confidence:.0%} confidence, by the final rounds")


GAIN: Shown = TableField(
    column=Column(
        header="vs default",
        numeric=True,
        hint="gain over the default on the objectives, each at its own best load",
    ),
    cell=_gain_cell,
)


def configuration_columns(lines: Sequence[TableLine]) -> Iterator[Shown]:
    """Yield the columns that distinguish configurations; batching only if some configuration batches.

    Parameters have one if some configuration changes them.
    """
    yield TableField(
        column=Column(header="Instances", numeric=True),
        cell=lambda line: Cell(
            text=line.ranked.run.configuration.instance_group,
            sort=repr(line.ranked.run.configuration.instances),
            numeric=True,
        ),
    )
    if any(line.ranked.run.configuration.max_batch_size for line in lines):
        yield count("Max batch", lambda line: line.ranked.run.configuration.max_batch_size)
        yield text(
            "Dynamic batching", lambda line: "on" if line.ranked.run.configuration.dynamic_batching else "off"
        )
    for name in dict.fromkeys(name for line in lines for name in changed_parameters(line.ranked.run.variant)):
        yield text(name, partial(_show_parameter, name))


def _show_parameter(name: str, line: TableLine) -> str:
    return changed_parameters(line.ranked.run.variant).get(name, "default")


_TIMES: Shown = text(
    "Measured", lambda line: f"{len(line.ranked.settled.samples)} times" if line.ranked.settled else "once"
)
"""How often each figure was measured, if some are means of final rounds."""


def load_columns(lines: Sequence[TableLine], *, batch_first: bool = False) -> tuple[Shown, ...]:
    """Return the columns of the load; the batch size only if not always one, or if it comes first."""

    def batch_cell(line: TableLine) -> Cell:
        load = line.measurement.load
        sizes = load.batch_sizes
        shown = f"{load.batch_size:,}" if len(set(sizes)) == 1 else "+".join(map(str, sizes))
        return Cell(text=shown, sort=repr(float(load.batch_size)), numeric=True)

    def load_cell(line: TableLine) -> Cell:
        load = line.measurement.load
        parts = "+".join(f"{part.value:,.10g}" for part in load.members or (load,))
        title = str(load) if load.members else ""
        return Cell(text=parts, sort=repr(float(load.value)), numeric=True, title=title)

    rates = bool(lines) and lines[0].measurement.load.kind == "request_rate"
    header, hint = ("Rate", "requests a second") if rates else ("Concurrency", "requests in flight")
    value: Shown = TableField(column=Column(header=header, numeric=True, hint=hint), cell=load_cell)
    single = all({*line.measurement.load.batch_sizes} == {1} for line in lines)
    if single and not batch_first:
        return (value,)
    batch: Shown = TableField(
        column=Column(header="Batch", numeric=True, hint="inferences in one request"), cell=batch_cell
    )
    return (batch, value) if batch_first else (value, batch)


def member_columns(lines: Sequence[TableLine]) -> Iterator[Shown]:
    """Yield the throughput of each of several models measured together, in the order of the models."""
    if any(line.measurement.members for line in lines):
        yield TableField(
            column=Column(header="infer/s of each", hint="in the order of the models"),
            cell=lambda line: text_cell(
                " + ".join(in_unit(member.throughput, "") for member in line.measurement.members)
            ),
        )


def latency_columns(*, few: bool = False) -> Iterator[Shown]:
    """Yield latencies of requests and of language models' tokens; with `few`, neither p90 nor p95."""
    yield measured("perf_latency_avg", "avg", "mean latency of a request")
    yield measured("perf_latency_p50", "p50", "latency that half of the requests do not exceed", minor=True)
    for p in () if few else (90, 95):
        hint = f"latency that {p} of 100 requests do not exceed"
        yield measured(f"perf_latency_p{p}", f"p{p}", hint, minor=True)
    yield measured("perf_latency_p99", "p99", "latency that 99 of 100 requests do not exceed")
    for tag, header in (
        ("time_to_first_token_p99", "first token p99"),
        ("inter_token_latency_p99", "between tokens p99"),
        ("output_token_throughput", "tokens/s"),
        ("output_token_throughput_per_user", "tokens/s of a user"),
        ("goodput", "goodput/s"),
    ):
        yield measured(tag, header, METRICS[tag].header)


def resource_columns(view: ModelView) -> Iterator[Shown]:
    """Yield memory, utilization, energy and cost."""
    yield measured("cpu_used_ram", "RAM MB", "the most memory that the server held for itself")
    if view.gpus:
        yield measured("gpu_used_memory", "GPU MB", "the most memory used on all GPUs together")
        yield measured("gpu_utilization", "GPU %", "mean utilization")
    prices = view.report.prices
    figures: Iterable[tuple[str, str, Callable[[Measurement], float | None]]] = (
        ("GPU +MB", "GPU memory above that of the server without models", prices.gpu_above_idle_mb),
        ("CPU %", "processor time of the server, in percent of one processor", lambda m: m.cpu_percent),
        ("J/inf", "joules per inference: mean power divided by throughput", joules_per_inference),
        ("J/inf net", "the same without the power of the idle machine", prices.joules_above_idle),
        ("cost/1M", "cost of a million inferences, by the price per hour", prices.cost_per_million),
    )
    for header, hint, value in figures:
        if view.gpus or not header.startswith("GPU"):
            yield quantity(header, partial(_read_value, value), hint=hint)


def _read_value(value: Callable[[Measurement], float | None], line: TableLine) -> float | None:
    return value(line.measurement)


def verdict_columns(lines: Sequence[TableLine], alike: Sequence[str] = ()) -> Iterator[Shown]:
    """Yield the columns of stability (if some row is unstable), constraints (if any), and what is `alike`."""
    if any(not line.measurement.stable for line in lines):
        yield TableField(
            column=Column(header="Stable", hint="whether the last windows agreed"),
            cell=lambda line: text_cell("yes") if line.measurement.stable else text_cell("no", "warn"),
        )
    if any(line.view.verdict.limits for line in lines):
        yield TableField(
            column=Column(header="Satisfies", hint="whether it keeps the constraints of the run"),
            cell=lambda line: text_cell(*_COMPLIANCE[line.compliance]),
        )
    if alike:
        hint = "not told apart from the recommended configuration by the final rounds"
        yield TableField(
            column=Column(header="Told apart", hint=hint),
            cell=lambda line: text_cell("no") if line.ranked.name in alike else text_cell(""),
        )


def _answers_column(view: ModelView) -> Iterator[Shown]:
    """Yield the number of a language model's answers that are the default's, if variants were asked."""
    told = {p.variant: p.answers.partition(" greedy")[0] for p in view.verdict.run.preparations if p.answers}
    if told:
        yield text("Greedy answers as the default's", lambda line: told.get(line.ranked.name, ""))


def users_grid(key: str, view: ModelView) -> DataTable | None:
    """Return the loads that no other beats in tokens for a user and for all users; None without tokens."""

    def speeds(line: TableLine) -> tuple[float, float]:
        tags = ("output_token_throughput", "output_token_throughput_per_user")
        total, own = (METRICS[tag].value(line.measurement) for tag in tags)
        return (total or 0.0, own or 0.0)

    every = (
        TableLine(view=view, ranked=ranked, measurement=m)
        for ranked in view.verdict.ranking
        for m in ranked.ordered
    )
    lines: list[TableLine] = []
    for line in sorted(every, key=speeds, reverse=True):
        if speeds(line)[1] > (speeds(lines[-1])[1] if lines else 0.0):
            lines.append(line)
    figures = ("tokens/s", "tokens/s of a user", "first token p99", "between tokens p99")
    wanted = {shown.column.header: shown for shown in latency_columns(few=True)}
    columns = (NAME, *configuration_columns(lines), *load_columns(lines), *(wanted[name] for name in figures))
    return table(key, "The most tokens for all users first", columns, lines)


def configurations_grid(key: str, view: ModelView) -> DataTable | None:
    """Return one row per configuration, at its best load; some carry the chart's markers."""
    ranking = view.verdict.ranking
    lines = [TableLine(view=view, ranked=ranked, measurement=ranked.figures) for ranked in ranking]
    columns = (
        LINKED_NAME,
        *configuration_columns(lines),
        *load_columns(lines),
        THROUGHPUT,
        GAIN,
        *member_columns(lines),
        *latency_columns(few=True),
        *resource_columns(view),
        *verdict_columns(lines, view.verdict.alike),
        *_answers_column(view),
        *([_TIMES] if any(line.ranked.settled for line in lines) else ()),
    )
    best = view.verdict.recommended or (ranking[0].name if ranking and ranking[0].satisfies else "")
    kept = {r.name for r in (*view.in_detail, *(spot[0] for spot in front_of(ranking)))} | {best}

    def emphasis(line: TableLine) -> str:
        if line.ranked.name == best:
            return "best"
        return "default" if line.ranked.run.variant.is_default else ""

    made = table(key, "Each configuration at its best load, the best first", columns, lines, emphasis)
    return _add_row_filter(made, lines, kept)


def measurements_grid(key: str, view: ModelView) -> DataTable | None:
    """Return every measurement of the search: configurations as ranked, each by load, its best marked."""
    lines = [TableLine(view=view, ranked=r, measurement=m) for r in view.verdict.ranking for m in r.by_load]
    caption, most = "Every load of every configuration, the best configuration first", view.most_measurements
    if len(lines) > most:
        caption = f"The first {most} of {len(lines)} measurements; all of them are in the JSON of the run"
    shown = lines[:most]
    columns = (NAME, *_iter_measurement_columns(shown, view), *verdict_columns(shown))
    return _add_row_filter(
        table(key, caption, columns, shown, _mark_best_load),
        shown,
        {ranked.name for ranked in view.in_detail},
    )


def _mark_best_load(line: TableLine) -> str:
    return "best" if line.measurement is line.ranked.figures else ""


def repetitions_grid(key: str, view: ModelView, alone: RankedVariant | None = None) -> DataTable | None:
    """Return the samples of the final rounds' means, of one configuration or all; None without any."""
    lines = [
        TableLine(view=view, ranked=ranked, measurement=m)
        for ranked in ((alone,) if alone else view.verdict.ranking)
        for point in ranked.by_load
        for m in (point.samples if repeated(point) else ())
    ]
    lines.sort(key=lambda line: line.measurement.round)
    number: Shown = text("Round", lambda line: str(line.measurement.round or "search"))
    first = (number,) if alone else (number, NAME)
    return table(
        key, "Each measurement behind the means", (*first, *_iter_measurement_columns(lines, view)), lines
    )


def loads_grid(key: str, view: ModelView, ranked: RankedVariant) -> DataTable | None:
    """Return a configuration's loads, the best marked."""
    lines = [TableLine(view=view, ranked=ranked, measurement=point) for point in ranked.by_load]
    offline = view.report.mode == "offline"
    return table(
        key,
        "Every load of this configuration",
        (*_iter_measurement_columns(lines, view, batch_first=offline), *verdict_columns(lines)),
        lines,
        _mark_best_load,
    )


def top_grid(key: str, lines: Sequence[TableLine]) -> DataTable | None:
    """Return configurations of several models, in the given order."""
    columns = (
        text("Model", lambda line: line.view.verdict.model),
        UNMARKED_NAME,
        *configuration_columns(lines),
        *load_columns(lines),
        THROUGHPUT,
        GAIN,
        *latency_columns(),
        *verdict_columns(lines),
    )
    return table(key, "The best configurations across all models", columns, lines)


def _iter_measurement_columns(
    lines: Sequence[TableLine], view: ModelView, *, batch_first: bool = False
) -> Iterable[Shown]:
    yield from load_columns(lines, batch_first=batch_first)
    yield THROUGHPUT
    yield from member_columns(lines)
    yield from latency_columns()
    yield measured("perf_server_queue", "queue", "mean time of a request in the server's queue", minor=True)
    yield measured("perf_server_compute_infer", "compute", "mean time of a request in the model", minor=True)
    yield from resource_columns(view)


def _add_row_filter(made: DataTable | None, lines: Sequence[TableLine], kept: set[str]) -> DataTable | None:
    """Return the table with a row filter, initially showing the configurations in `kept`."""
    if made is None:
        return None
    rows = tuple(
        replace(row, kept=line.ranked.name in kept, passes=line.compliance is not Compliance.VIOLATED)
        for row, line in zip(made.rows, lines, strict=True)
    )
    return replace(made, rows=rows, filtered=True)
