"""The tables of the page: their columns for a configuration under a load, and the rows of each."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
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
from tpx.report.document import Cell, Column, DataTable, TableRow
from tpx.report.table import NO_VALUE, TableField, count, field, number, quantity, table, text, text_cell

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

    def cell(line: TableLine) -> Cell:
        m = line.measurement
        return figure(metric.value(m), metric.unit, metric.interval(m))

    return field(header, cell, hint=hint, minor=minor)


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


GAIN: Shown = field(
    "vs default", _gain_cell, hint="gain over the default on the objectives, each at its own best load"
)


def configuration_columns(lines: Sequence[TableLine]) -> Iterator[Shown]:
    """Yield the columns that distinguish configurations; batching only if some configuration batches.

    Parameters have one if some configuration changes them.
    """
    yield field(
        "Instances",
        lambda line: number(line.configuration.instances, lambda _: line.configuration.instance_group),
    )
    if any(line.configuration.max_batch_size for line in lines):
        yield count("Max batch", lambda line: line.configuration.max_batch_size)
        yield text("Dynamic batching", lambda line: "on" if line.configuration.dynamic_batching else "off")
    for name in dict.fromkeys(name for line in lines for name in changed_parameters(line.ranked.run.variant)):
        yield text(name, partial(_show_parameter, name))


def _show_parameter(name: str, line: TableLine) -> str:
    return changed_parameters(line.ranked.run.variant).get(name, "default")


def load_columns(lines: Sequence[TableLine], *, batch_first: bool = False) -> tuple[Shown, ...]:
    """Return the columns of the load; the batch size only if not always one, or if it comes first."""

    def batch_cell(line: TableLine) -> Cell:
        load = line.measurement.load
        alike = len(set(load.batch_sizes)) == 1
        return number(
            load.batch_size, "{:,}".format if alike else lambda _: "+".join(map(str, load.batch_sizes))
        )

    def load_cell(line: TableLine) -> Cell:
        load = line.measurement.load
        parts = "+".join(f"{part.value:,.10g}" for part in load.members or (load,))
        return replace(number(load.value, lambda _: parts), title=str(load) if load.members else "")

    rates = bool(lines) and lines[0].measurement.load.kind == "request_rate"
    header, hint = ("Rate", "requests a second") if rates else ("Concurrency", "requests in flight")
    value: Shown = field(header, load_cell, hint=hint)
    single = all({*line.measurement.load.batch_sizes} == {1} for line in lines)
    if single and not batch_first:
        return (value,)
    batch: Shown = field("Batch", batch_cell, hint="inferences in one request")
    return (batch, value) if batch_first else (value, batch)


def _members_cell(line: TableLine) -> Cell:
    return text_cell(" + ".join(rounded(m.throughput) for m in line.measurement.members) or NO_VALUE)


MEMBERS: Shown = field("infer/s of each", _members_cell, hint="in the order of the models", numeric=False)
"""Throughput of each of several models measured together."""
_LATENCIES = (
    ("avg", "mean latency of a request", False),
    ("p50", "latency that half of the requests do not exceed", True),
    ("p90", "latency that 90 of 100 requests do not exceed", True),
    ("p95", "latency that 95 of 100 requests do not exceed", True),
    ("p99", "latency that 99 of 100 requests do not exceed", False),
)
"""Statistics of the latency: header, hint, and whether the column is minor."""
_TOKENS = {
    "time_to_first_token_p99": "first token p99",
    "inter_token_latency_p99": "between tokens p99",
    "output_token_throughput": "tokens/s",
    "output_token_throughput_per_user": "tokens/s of a user",
    "goodput": "goodput/s",
}
"""Headers of language models' metrics."""


def latency_columns(*, few: bool = False) -> Iterator[Shown]:
    """Yield latencies of requests and of language models' tokens; with `few`, neither p90 nor p95."""
    for name, hint, minor in _LATENCIES:
        if not few or name not in ("p90", "p95"):
            yield measured(f"perf_latency_{name}", name, hint, minor=minor)
    yield from map(_token_column, _TOKENS)


def _token_column(tag: str) -> Shown:
    return measured(tag, _TOKENS[tag], METRICS[tag].header)


def resource_columns(view: ModelView) -> Iterator[Shown]:
    """Yield memory, utilization, energy and cost."""

    def derived(header: str, hint: str, value: Callable[[Measurement], float | None]) -> Shown:
        return quantity(header, lambda line: value(line.measurement), hint=hint)

    prices = view.report.prices
    yield measured("cpu_used_ram", "RAM MB", "the most memory that the server held for itself")
    if view.gpus:
        above_idle = "GPU memory above that of the server without models"
        yield measured("gpu_used_memory", "GPU MB", "the most memory used on all GPUs together")
        yield measured("gpu_utilization", "GPU %", "mean utilization")
        yield derived("GPU +MB", above_idle, prices.gpu_above_idle_mb)
    one = "processor time of the server, in percent of one processor"
    yield derived("CPU %", one, lambda m: m.cpu_percent)
    yield derived("J/inf", "joules per inference: mean power divided by throughput", joules_per_inference)
    yield derived("J/inf net", "the same without the power of the idle machine", prices.joules_above_idle)
    yield derived("cost/1M", "cost of a million inferences, by the price per hour", prices.cost_per_million)


def verdict_columns(lines: Sequence[TableLine], alike: Sequence[str] = ()) -> Iterator[Shown]:
    """Yield the columns of stability (if some row is unstable), constraints (if any), and what is `alike`."""
    if any(not line.measurement.stable for line in lines):
        stable = text_cell("yes"), text_cell("no", "warn")
        hint = "whether the last windows agreed"
        yield field("Stable", lambda line: stable[not line.measurement.stable], hint=hint, numeric=False)
    if any(line.view.verdict.limits for line in lines):
        hint = "whether it keeps the constraints of the run"
        yield field(
            "Satisfies", lambda line: text_cell(*_COMPLIANCE[line.compliance]), hint=hint, numeric=False
        )
    if alike:
        hint = "not told apart from the recommended configuration by the final rounds"
        yield field(
            "Told apart",
            lambda line: text_cell("no" if line.ranked.name in alike else ""),
            hint=hint,
            numeric=False,
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
    tokens = ("output_token_throughput", "output_token_throughput_per_user")
    times = ("time_to_first_token_p99", "inter_token_latency_p99")
    figures = map(_token_column, (*tokens, *times))
    columns = (NAME, *configuration_columns(lines), *load_columns(lines), *figures)
    return table(key, "The most tokens for all users first", columns, lines)


def configurations_grid(key: str, view: ModelView) -> DataTable | None:
    """Return one row per configuration, at its best load; some carry the chart's markers."""
    ranking = view.verdict.ranking
    lines = [TableLine(view=view, ranked=ranked, measurement=ranked.figures) for ranked in ranking]
    times: Shown = text(
        "Measured", lambda line: f"{len(r.samples)} times" if (r := line.ranked.settled) else "once"
    )
    columns = (
        LINKED_NAME,
        *configuration_columns(lines),
        *load_columns(lines),
        THROUGHPUT,
        GAIN,
        MEMBERS,
        *latency_columns(few=True),
        *resource_columns(view),
        *verdict_columns(lines, view.verdict.alike),
        *_answers_column(view),
        *([times] if any(line.ranked.settled for line in lines) else ()),
    )
    best = view.verdict.recommended or (ranking[0].name if ranking and ranking[0].satisfies else "")
    kept = {r.name for r in (*view.in_detail, *(spot[0] for spot in front_of(ranking)))} | {best}

    def style(line: TableLine) -> TableRow:
        default = "default" if line.ranked.run.variant.is_default else ""
        emphasis = "best" if line.ranked.name == best else default
        return replace(_style_row(line, kept), emphasis=emphasis)

    caption = "Each configuration at its best load, the best first"
    return table(key, caption, columns, lines, style, filtered=True)


def measurements_grid(key: str, view: ModelView) -> DataTable | None:
    """Return every measurement of the search: configurations as ranked, each by load, its best marked."""
    lines = [TableLine(view=view, ranked=r, measurement=m) for r in view.verdict.ranking for m in r.by_load]
    caption, most = "Every load of every configuration, the best configuration first", view.most_measurements
    if len(lines) > most:
        caption = f"The first {most} of {len(lines)} measurements; all of them are in the JSON of the run"
    shown = lines[:most]
    columns = (NAME, *_iter_measurement_columns(shown, view), *verdict_columns(shown))
    kept = {ranked.name for ranked in view.in_detail}
    return table(key, caption, columns, shown, lambda line: _style_row(line, kept), filtered=True)


def _style_row(line: TableLine, kept: Container[str] = ()) -> TableRow:
    """Return a row that a filter shows if its configuration is in `kept`; the best load is marked."""
    return TableRow(
        emphasis="best" if line.measurement is line.ranked.figures else "",
        kept=line.ranked.name in kept,
        passes=line.compliance is not Compliance.VIOLATED,
    )


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
        _style_row,
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
    yield MEMBERS
    yield from latency_columns()
    yield measured("perf_server_queue", "queue", "mean time of a request in the server's queue", minor=True)
    yield measured("perf_server_compute_infer", "compute", "mean time of a request in the model", minor=True)
    yield from resource_columns(view)
