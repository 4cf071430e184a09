"""The columns of the page's tables: what each shows of a configuration under a load, and what it sorts by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tpx.analyzer.gains import Gain
from tpx.analyzer.objectives import METRICS, RankedVariant
from tpx.analyzer.results.costs import Prices, joules_per_inference
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Load, Measurement, Range
from tpx.report.document import Cell, Column

_DASH = "\u2013"
LOPSIDED = 0.1
"""An interval whose middle is further from the value, as a share of half of it, is told by its ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """A row before it is text."""

    ranked: RankedVariant
    measurement: Measurement
    passes: bool
    style: int | None = None
    gain_percent: float | None = None
    gain: Gain | None = None
    tied: bool = False
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownColumn:
    """A column and what stands in it."""

    column: Column
    cell: Callable[[TableLine], Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableContext:
    """What rows need to know beside their measurement."""

    shown: int
    default: RankedVariant | None
    goals: Goals
    most_measurements: int
    """In the table of all of them, and in the chart of compromises."""
    constrained: bool
    prices: Prices = field(default_factory=Prices)
    recommended: str = ""
    tied: tuple[str, ...] = ()
    gains: Mapping[str, Gain] = field(default_factory=dict)
    hrefs: Mapping[str, str] = field(default_factory=dict)
    """Pages of single configurations."""
    on_front: frozenset[str] = frozenset()
    gpus: bool = True
    """Whether figures of GPUs say something about these configurations."""


def number(value: float | None, digits: int = 1, interval: Range | None = None) -> Cell:
    """A figure, or a dash where there is none (which sorts last); how far it is sure stands under it."""
    if value is None:
        return Cell(text=_DASH, sort="", numeric=True)
    note = ""
    if interval is not None and interval.high is not None:
        half = (interval.high - interval.low) / 2
        if abs((interval.high + interval.low) / 2 - value) > half * LOPSIDED:
            note = f"{interval.low:,.{digits}f} to {interval.high:,.{digits}f}"
        elif float(f"{half:.{digits}f}"):
            note = f"\u00b1 {half:,.{digits}f}"
    return Cell(
        text=f"{value:,.{digits}f}",
        sort=repr(round(float(value), 6)),
        numeric=True,
        note=note,
        title="" if interval is None or interval.high is None else _in_words(interval, digits),
    )


def _in_words(interval: Range, digits: int) -> str:
    return f"95% confidence: {interval.low:,.{digits}f} to {interval.high or 0.0:,.{digits}f}"


def text_cell(text: str, flag: str = "") -> Cell:
    """Words, sorted as such."""
    return Cell(text=text, sort=text, flag=flag)


def signed_percent(percent: float) -> str:
    """`+67 %`, `-3 %`, `0 %`."""
    return f"{percent:+.0f} %" if round(percent) else "0 %"


NAME = ShownColumn(
    column=Column(header="Configuration", marked=True),
    cell=lambda line: Cell(
        text=line.ranked.name, sort=line.ranked.name, chart_style=line.style, href=line.href
    ),
)


_MINOR = frozenset(
    {"perf_latency_p50", "perf_latency_p90", "perf_latency_p95"}
    | {"perf_server_queue", "perf_server_compute_infer"}
)
"""Figures that the others say something about already."""


def measured_column(tag: str, header: str, digits: int = 1, hint: str = "") -> ShownColumn:
    """A metric, with its interval where the measurement has one."""

    def cell(line: TableLine) -> Cell:
        measured = METRICS[tag]
        return number(measured.value(line.measurement), digits, measured.interval(line.measurement))

    return ShownColumn(column=Column(header=header, numeric=True, hint=hint, minor=tag in _MINOR), cell=cell)


THROUGHPUT = measured_column("perf_throughput", "infer/s", 1, "inferences a second")


def _gain_cell(line: TableLine) -> Cell:
    if line.gain_percent is None:
        return number(None)
    note = ""
    if line.gain is not None and line.gain.rounds > 1:
        low, high = f"{line.gain.low * 100:.0f}", f"{line.gain.high * 100:.0f}"
        note = "" if low == high else f"[{low}, {high}]"
    return Cell(
        text=signed_percent(line.gain_percent),
        sort=repr(round(line.gain_percent, 6)),
        numeric=True,
        note=note,
        title="95% confidence, by the final rounds" if note else "",
    )


GAIN = ShownColumn(
    column=Column(
        header="vs default",
        numeric=True,
        hint="better at what is asked for than the default, each at its own best load",
    ),
    cell=_gain_cell,
)


def configuration_columns(lines: Sequence[TableLine]) -> tuple[ShownColumn, ...]:
    """What sets the configurations apart; batching only where some configuration batches."""
    instances = ShownColumn(
        column=Column(header="Instances", numeric=True),
        cell=lambda line: Cell(
            text=line.ranked.run.configuration.instance_group,
            sort=repr(line.ranked.run.configuration.instances),
            numeric=True,
        ),
    )
    if not any(line.ranked.run.configuration.max_batch_size for line in lines):
        return (NAME, instances)
    batching = ShownColumn(
        column=Column(header="Max batch", numeric=True),
        cell=lambda line: number(line.ranked.run.configuration.max_batch_size, 0),
    )
    dynamic = ShownColumn(
        column=Column(header="Dynamic batching"),
        cell=lambda line: text_cell("on" if line.ranked.run.configuration.dynamic_batching else "off"),
    )
    return (NAME, instances, batching, dynamic)


def load_columns(lines: Sequence[TableLine], *, batch_first: bool = False) -> tuple[ShownColumn, ...]:
    """The load, in every row of every table; the batch size only where it is not one throughout, or where it
    is what comes first."""
    rates = bool(lines) and lines[0].measurement.load.kind == "request_rate"
    header, hint = ("Rate", "requests a second") if rates else ("Concurrency", "requests in flight")
    value = ShownColumn(column=Column(header=header, numeric=True, hint=hint), cell=_load_cell)
    single = all(part.batch_size == 1 for line in lines for part in _parts(line.measurement.load))
    if single and not batch_first:
        return (value,)
    batch = ShownColumn(
        column=Column(header="Batch", numeric=True, hint="inferences in one request"),
        cell=_batch_cell,
    )
    return (batch, value) if batch_first else (value, batch)


def _parts(load: Load) -> Sequence[Load]:
    return load.members or (load,)


def _batch_cell(line: TableLine) -> Cell:
    load = line.measurement.load
    whole = number(load.batch_size, 0)
    sizes = {part.batch_size for part in _parts(load)}
    if len(sizes) == 1:
        return whole
    return Cell(text="+".join(str(part.batch_size) for part in load.members), sort=whole.sort, numeric=True)


def _load_cell(line: TableLine) -> Cell:
    load = line.measurement.load
    whole = number(load.value, 0)
    if not load.members:
        return whole
    parts = "+".join(f"{member.value:g}" for member in load.members)
    return Cell(text=parts, sort=whole.sort, numeric=True, title=str(load))


def member_columns(lines: Sequence[TableLine]) -> tuple[ShownColumn, ...]:
    """Of several models measured together, what each one reached; in the order of the models."""
    if not any(line.measurement.members for line in lines):
        return ()

    def each(line: TableLine) -> Cell:
        members = line.measurement.members
        return text_cell(" + ".join(f"{member.throughput:,.1f}" for member in members))

    return (
        ShownColumn(column=Column(header="infer/s of each", hint="in the order of the models"), cell=each),
    )


def latency_columns(lines: Sequence[TableLine]) -> tuple[ShownColumn, ...]:
    """Of requests; of language models also those of tokens, where they were measured."""
    tokens = tuple(
        (tag, header, 2, METRICS[tag].header)
        for tag, header in (
            ("time_to_first_token_p99", "first token p99 ms"),
            ("inter_token_latency_p99", "between tokens p99 ms"),
            ("output_token_throughput", "tokens/s"),
        )
        if tag in METRICS
    )
    return _known(
        lines,
        (
            ("perf_latency_avg", "avg ms", 2, "mean latency of a request"),
            ("perf_latency_p50", "p50 ms", 2, "latency that half of the requests do not exceed"),
            ("perf_latency_p90", "p90 ms", 2, "latency that 90 of 100 requests do not exceed"),
            ("perf_latency_p95", "p95 ms", 2, "latency that 95 of 100 requests do not exceed"),
            ("perf_latency_p99", "p99 ms", 2, "latency that 99 of 100 requests do not exceed"),
            *tokens,
        ),
    )


def breakdown_columns(lines: Sequence[TableLine]) -> tuple[ShownColumn, ...]:
    """The server's parts of the mean latency."""
    return _known(
        lines,
        (
            ("perf_server_queue", "queue ms", 2, "mean time of a request in the server's queue"),
            ("perf_server_compute_infer", "compute ms", 2, "mean time of a request in the model"),
        ),
    )


def resource_columns(lines: Sequence[TableLine], context: TableContext) -> tuple[ShownColumn, ...]:
    """Memory, utilization, energy and money, as far as they are known."""
    prices = context.prices
    wanted = (
        ("cpu_used_ram", "RAM MB", 0, "the most memory that the server held for itself"),
        ("gpu_used_memory", "GPU MB", 0, "the most memory used on all GPUs together"),
        ("gpu_utilization", "GPU %", 0, "mean utilization"),
    )
    measured = _known(lines, [each for each in wanted if context.gpus or not each[0].startswith("gpu_")])
    figures: tuple[tuple[str, str, int, Callable[[Measurement], float | None]], ...] = (
        ("GPU +MB", "GPU memory beyond the server without models", 0, prices.gpu_above_idle_mb),
        ("CPU %", "processor time of the server, in percent of one processor", 0, lambda m: m.cpu_percent),
        ("J/inf", "joules of an inference: mean power over throughput", 3, joules_per_inference),
        ("J/inf net", "the same without the power of the idle machine", 3, prices.joules_above_idle),
        ("cost/1M", "of a million inferences, by the price of an hour", 3, prices.cost_per_million),
    )
    if not context.gpus:
        figures = figures[1:]
    return (*measured, *(_figure(*f) for f in figures if any(f[3](x.measurement) is not None for x in lines)))


def verdict_columns(
    lines: Sequence[TableLine], *, constrained: bool, tied: bool = False
) -> tuple[ShownColumn, ...]:
    """Whether it became stable, where one did not; whether it satisfies, where there are constraints; whether
    it cannot be told from the best, where some cannot."""
    stable = ShownColumn(
        column=Column(header="Stable", hint="whether the last windows agreed"),
        cell=lambda line: text_cell("yes") if line.measurement.stable else text_cell("no", "warn"),
    )
    satisfies = ShownColumn(
        column=Column(header="Satisfies", hint="whether it keeps the constraints of the run"),
        cell=lambda line: text_cell("yes", "ok") if line.passes else text_cell("no", "bad"),
    )
    ties = ShownColumn(
        column=Column(header="Tied", hint="cannot be told from the best by the final rounds"),
        cell=lambda line: text_cell("tied", "ok") if line.tied else text_cell(""),
    )
    unstable = any(not line.measurement.stable for line in lines)
    return (
        *((stable,) if unstable else ()),
        *((satisfies,) if constrained else ()),
        *((ties,) if tied else ()),
    )


def _figure(header: str, hint: str, digits: int, value: Callable[[Measurement], float | None]) -> ShownColumn:
    return ShownColumn(
        column=Column(header=header, numeric=True, hint=hint),
        cell=lambda line: number(value(line.measurement), digits),
    )


def _known(
    lines: Sequence[TableLine], wanted: Sequence[tuple[str, str, int, str]]
) -> tuple[ShownColumn, ...]:
    """Only the columns that have a figure in some row: absent is not zero."""
    return tuple(
        measured_column(tag, header, digits, hint)
        for tag, header, digits, hint in wanted
        if any(METRICS[tag].value(line.measurement) is not None for line in lines)
    )
