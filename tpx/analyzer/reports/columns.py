"""The columns of the analyzer's tables, for a configuration under a load."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tpx.analyzer.gains import Gain
from tpx.analyzer.objectives import METRICS, RankedVariant, gain_percent, standing
from tpx.analyzer.reports.view import ModelView
from tpx.analyzer.results.costs import joules_per_inference
from tpx.analyzer.results.goals import Standing
from tpx.analyzer.results.measurement import LoadPoint, Measurement, Range
from tpx.report.digits import in_unit, percent, rounded
from tpx.report.document import Cell, Column
from tpx.report.table import TableField, count, number, quantity, text, words

_STANDINGS = {"met": ("yes", "ok"), "borderline": ("borderline", "warn"), "missed": ("no", "bad")}
LOPSIDED = 0.1
"""Asymmetry above which an interval is shown by its bounds, as a share of its half-width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """The data of a table row: a configuration of a model under a load."""

    view: ModelView
    ranked: RankedVariant
    measurement: Measurement

    @property
    def standing(self) -> Standing:
        return standing(self.measurement, self.view.goals)

    @property
    def gain_percent(self) -> float | None:
        """Gain over the default, each at its own best load; None for the default itself."""
        default = self.view.default
        if default is None or self.ranked.run.variant.is_default:
            return None
        return gain_percent(self.ranked.figures, default.figures, self.view.goals)

    @property
    def gain(self) -> Gain | None:
        """Gain over the default in the final rounds."""
        conclusion = self.view.verdict.conclusion
        return conclusion.gains.get(self.ranked.name) if conclusion else None

    @property
    def tied(self) -> bool:
        """True for the best configuration and those tied with it, if there are any."""
        return bool(self.view.tied) and self.ranked.name in (*self.view.tied, self.view.recommended)


Shown = TableField[TableLine]


def figure(value: float | None, unit: str = "", interval: Range | None = None) -> Cell:
    """Return the cell of a figure with its interval as a note; None becomes a dash, which sorts last.

    Milliseconds carry their unit, since values below 1 are shown in us.
    """
    made = number(value, lambda known: in_unit(known, unit if unit == "ms" else ""))
    if value is None or interval is None or interval.high is None:
        return made
    scale = 1000 if made.text.endswith(" us") else 1
    half = (interval.high - interval.low) / 2
    low, high, reach = (
        rounded(bound * scale, like=value * scale) for bound in (interval.low, interval.high, half)
    )
    lopsided = abs((interval.high + interval.low) / 2 - value) > half * LOPSIDED
    note = f"{low} to {high}" if lopsided else f"\u00b1 {reach}"
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
    if line.gain_percent is None:
        return number(None)
    made = number(line.gain_percent, lambda known: percent(known / 100))
    if line.gain is None or line.gain.rounds < 2:
        return made
    low, high = f"{line.gain.low * 100:.0f}", f"{line.gain.high * 100:.0f}"
    if low == high:
        return made
    return replace(made, note=f"[{low}, {high}]", title="95% confidence, by the final rounds")


GAIN: Shown = TableField(
    column=Column(
        header="vs default",
        numeric=True,
        hint="better at what is asked for than the default, each at its own best load",
    ),
    cell=_gain_cell,
)


def configuration_columns(lines: Sequence[TableLine]) -> Iterator[Shown]:
    """Yield the columns that distinguish configurations; batching only if some configuration batches."""
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


def load_columns(lines: Sequence[TableLine], *, batch_first: bool = False) -> tuple[Shown, ...]:
    """Return the columns of the load, which every table has.

    The batch size is included only if it is not always one, or if it comes first.
    """
    rates = bool(lines) and lines[0].measurement.load.kind == "request_rate"
    header, hint = ("Rate", "requests a second") if rates else ("Concurrency", "requests in flight")
    value: Shown = TableField(column=Column(header=header, numeric=True, hint=hint), cell=_load_cell)
    single = all(part.batch_size == 1 for line in lines for part in _parts(line.measurement.load))
    if single and not batch_first:
        return (value,)
    batch: Shown = TableField(
        column=Column(header="Batch", numeric=True, hint="inferences in one request"), cell=_batch_cell
    )
    return (batch, value) if batch_first else (value, batch)


def _parts(load: LoadPoint) -> Sequence[LoadPoint]:
    return load.members or (load,)


def _batch_cell(line: TableLine) -> Cell:
    load = line.measurement.load
    sizes = [part.batch_size for part in _parts(load)]
    shown = f"{load.batch_size:,}" if len(set(sizes)) == 1 else "+".join(map(str, sizes))
    return Cell(text=shown, sort=repr(float(load.batch_size)), numeric=True)


def _load_cell(line: TableLine) -> Cell:
    load = line.measurement.load
    parts = "+".join(f"{part.value:,.10g}" for part in _parts(load))
    return Cell(
        text=parts, sort=repr(float(load.value)), numeric=True, title=str(load) if load.members else ""
    )


def member_columns(lines: Sequence[TableLine]) -> Iterator[Shown]:
    """Yield the throughput of each of several models measured together, in the order of the models."""
    if any(line.measurement.members for line in lines):
        yield TableField(
            column=Column(header="infer/s of each", hint="in the order of the models"),
            cell=lambda line: words(
                " + ".join(in_unit(member.throughput, "") for member in line.measurement.members)
            ),
        )


def latency_columns() -> Iterator[Shown]:
    """Yield latencies of requests and of language models' tokens."""
    yield measured("perf_latency_avg", "avg", "mean latency of a request")
    yield measured("perf_latency_p50", "p50", "latency that half of the requests do not exceed", minor=True)
    for p in (90, 95):
        hint = f"latency that {p} of 100 requests do not exceed"
        yield measured(f"perf_latency_p{p}", f"p{p}", hint, minor=True)
    yield measured("perf_latency_p99", "p99", "latency that 99 of 100 requests do not exceed")
    for tag, header in (
        ("time_to_first_token_p99", "first token p99"),
        ("inter_token_latency_p99", "between tokens p99"),
        ("output_token_throughput", "tokens/s"),
    ):
        yield measured(tag, header, METRICS[tag].header)


def breakdown_columns() -> Iterator[Shown]:
    """Yield the server's components of the mean latency."""
    yield measured("perf_server_queue", "queue", "mean time of a request in the server's queue", minor=True)
    yield measured("perf_server_compute_infer", "compute", "mean time of a request in the model", minor=True)


def resource_columns(view: ModelView) -> Iterator[Shown]:
    """Yield memory, utilization, energy and cost."""
    yield measured("cpu_used_ram", "RAM MB", "the most memory that the server held for itself")
    if view.gpus:
        yield measured("gpu_used_memory", "GPU MB", "the most memory used on all GPUs together")
        yield measured("gpu_utilization", "GPU %", "mean utilization")
    prices = view.report.prices
    figures: Iterable[tuple[str, str, Callable[[Measurement], float | None]]] = (
        ("GPU +MB", "GPU memory beyond the server without models", prices.gpu_above_idle_mb),
        ("CPU %", "processor time of the server, in percent of one processor", lambda m: m.cpu_percent),
        ("J/inf", "joules of an inference: mean power over throughput", joules_per_inference),
        ("J/inf net", "the same without the power of the idle machine", prices.joules_above_idle),
        ("cost/1M", "of a million inferences, by the price of an hour", prices.cost_per_million),
    )
    for header, hint, value in figures:
        if view.gpus or not header.startswith("GPU"):
            yield _of_measurement(header, hint, value)


def _of_measurement(header: str, hint: str, value: Callable[[Measurement], float | None]) -> Shown:
    return quantity(header, lambda line: value(line.measurement), hint=hint)


def verdict_columns(lines: Sequence[TableLine], *, tied: bool = False) -> Iterator[Shown]:
    """Yield the columns of stability (if some row is unstable), constraints (if there are any) and ties
    (if `tied`).
    """
    if any(not line.measurement.stable for line in lines):
        yield TableField(
            column=Column(header="Stable", hint="whether the last windows agreed"),
            cell=lambda line: words("yes") if line.measurement.stable else words("no", "warn"),
        )
    if any(line.view.limits for line in lines):
        yield TableField(
            column=Column(header="Satisfies", hint="whether it keeps the constraints of the run"),
            cell=lambda line: words(*_STANDINGS[line.standing]),
        )
    if tied:
        yield TableField(
            column=Column(header="Tied", hint="cannot be told from the best by the final rounds"),
            cell=lambda line: words("tied", "ok") if line.tied else words(""),
        )


def basis_columns(lines: Sequence[TableLine]) -> Iterator[Shown]:
    """Yield how often each figure was measured, if some are means of final rounds."""
    if any(line.ranked.settled for line in lines):
        yield text(
            "Measured",
            lambda line: f"{len(line.ranked.settled.samples)} times" if line.ranked.settled else "once",
        )
