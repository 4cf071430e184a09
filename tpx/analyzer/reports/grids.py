"""The sortable tables of the page: one row a configuration at its best load, and one row a measurement."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tpx.analyzer.objectives import METRICS, RankedVariant
from tpx.analyzer.results.measurement import Measurement
from tpx.pages.styles import STYLES
from tpx.pages.view import Cell, Column, Grid, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    ranked: RankedVariant
    measurement: Measurement
    passes: bool
    style: int | None
    gain_percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    column: Column
    cell: Callable[[_Line], Cell]


def configurations_grid(
    ranking: Sequence[RankedVariant], shown: int, default: RankedVariant | None, *, constrained: bool
) -> Grid:
    """One row a configuration, at the load where it does best; `shown` of them carry the chart's markers."""
    styles = chart_styles(ranking, shown)
    lines = [
        _Line(
            ranked=ranked,
            measurement=ranked.best,
            passes=ranked.satisfies,
            style=styles.get(ranked.name),
            gain_percent=_gain(ranked, default),
        )
        for ranked in ranking
    ]
    columns = (
        *_configuration_columns(lines),
        *_load_columns(lines),
        _THROUGHPUT,
        _GAIN,
        *_latency_columns(lines),
        *_memory_columns(lines),
        *_verdict_columns(lines, constrained=constrained),
    )
    best = ranking[0].name if ranking and ranking[0].satisfies else ""
    return _grid("Each configuration at its best load, the best first", columns, lines, best)


def measurements_grid(ranking: Sequence[RankedVariant], shown: int, *, constrained: bool) -> Grid:
    """Every measurement, in the order of the ranking."""
    styles = chart_styles(ranking, shown)
    lines = [
        _Line(ranked=ranked, measurement=m, passes=passes, style=styles.get(ranked.name), gain_percent=None)
        for ranked in ranking
        for group, passes in ((ranked.passing, True), (ranked.failing, False))
        for m in group
    ]
    columns = (
        _NAME,
        *_load_columns(lines),
        _THROUGHPUT,
        *_latency_columns(lines),
        *_breakdown_columns(lines),
        *_memory_columns(lines),
        *_verdict_columns(lines, constrained=constrained),
    )
    return _grid("Every measurement, the best of each configuration first", columns, lines, None)


def chart_styles(ranking: Sequence[RankedVariant], shown: int) -> Mapping[str, int]:
    """The chart's style of each configuration that it shows: the first ones and the default."""
    return {ranked.name: index % STYLES for index, ranked in enumerate(in_detail(ranking, shown))}


def in_detail(ranking: Sequence[RankedVariant], shown: int) -> tuple[RankedVariant, ...]:
    """The configurations that the report draws: the best ones, and the default wherever it ranks."""
    rest = [ranked for ranked in ranking[shown:] if ranked.run.variant.is_default]
    return (*ranking[:shown], *rest)


def _grid(caption: str, columns: Sequence[_Shown], lines: Sequence[_Line], best: str | None) -> Grid:
    """The rows of `best` and of the default are set off; without a `best` no row is."""
    return Grid(
        caption=caption,
        columns=tuple(shown.column for shown in columns),
        rows=tuple(
            Row(
                cells=tuple(shown.cell(line) for shown in columns),
                emphasis="" if best is None else _emphasis(line.ranked, best),
            )
            for line in lines
        ),
    )


def _emphasis(ranked: RankedVariant, best: str) -> str:
    if ranked.name == best:
        return "best"
    return "default" if ranked.run.variant.is_default else ""


def signed_percent(percent: float) -> str:
    """`+67 %`, `-3 %`, `0 %`."""
    return f"{percent:+.0f} %" if round(percent) else "0 %"


def number(value: float | None, digits: int = 1) -> Cell:
    """A figure, or a dash where there is none (which sorts last)."""
    if value is None:
        return Cell(text="\u2013", sort="", numeric=True)
    return Cell(text=f"{value:,.{digits}f}", sort=repr(round(float(value), 6)), numeric=True)


def _text(text: str, flag: str = "") -> Cell:
    return Cell(text=text, sort=text, flag=flag)


def _metric_column(tag: str, header: str, digits: int = 1, hint: str = "") -> _Shown:
    return _Shown(
        column=Column(header=header, numeric=True, hint=hint),
        cell=lambda line: number(METRICS[tag].value(line.measurement), digits),
    )


_NAME = _Shown(
    column=Column(header="Configuration", marked=True),
    cell=lambda line: Cell(text=line.ranked.name, sort=line.ranked.name, chart_style=line.style),
)
_THROUGHPUT = _metric_column("perf_throughput", "infer/s", 1, "inferences a second")
_GAIN = _Shown(
    column=Column(
        header="vs default", numeric=True, hint="throughput over the default's, each at its own best load"
    ),
    cell=lambda line: Cell(
        text="\u2013" if line.gain_percent is None else signed_percent(line.gain_percent),
        sort="" if line.gain_percent is None else repr(round(line.gain_percent, 6)),
        numeric=True,
    ),
)


def _configuration_columns(lines: Sequence[_Line]) -> tuple[_Shown, ...]:
    """What sets the configurations apart; batching only where some configuration batches."""
    instances = _Shown(
        column=Column(header="Instances", numeric=True),
        cell=lambda line: Cell(
            text=line.ranked.run.configuration.instance_group,
            sort=repr(line.ranked.run.configuration.instances),
            numeric=True,
        ),
    )
    if not any(line.ranked.run.configuration.max_batch_size for line in lines):
        return (_NAME, instances)
    batching = _Shown(
        column=Column(header="Max batch", numeric=True),
        cell=lambda line: number(line.ranked.run.configuration.max_batch_size, 0),
    )
    dynamic = _Shown(
        column=Column(header="Dynamic batching"),
        cell=lambda line: _text("on" if line.ranked.run.configuration.dynamic_batching else "off"),
    )
    return (_NAME, instances, batching, dynamic)


def _load_columns(lines: Sequence[_Line]) -> tuple[_Shown, ...]:
    """The load, in every row of every table; the batch size only where it is not one throughout."""
    concurrency = _Shown(
        column=Column(header="Concurrency", numeric=True, hint="requests in flight"),
        cell=lambda line: number(line.measurement.load.value, 0),
    )
    if all(line.measurement.load.batch_size == 1 for line in lines):
        return (concurrency,)
    batch = _Shown(
        column=Column(header="Batch", numeric=True, hint="inferences in one request"),
        cell=lambda line: number(line.measurement.load.batch_size, 0),
    )
    return (concurrency, batch)


def _verdict_columns(lines: Sequence[_Line], *, constrained: bool) -> tuple[_Shown, ...]:
    """Whether it became stable, where one did not; whether it satisfies, where there are constraints."""
    stable = _Shown(
        column=Column(header="Stable", hint="whether the last three windows agreed"),
        cell=lambda line: _text("yes") if line.measurement.stable else _text("no", "warn"),
    )
    satisfies = _Shown(
        column=Column(header="Satisfies", hint="whether it keeps the constraints of the run"),
        cell=lambda line: _text("yes", "ok") if line.passes else _text("no", "bad"),
    )
    unstable = any(not line.measurement.stable for line in lines)
    return (*((stable,) if unstable else ()), *((satisfies,) if constrained else ()))


def _latency_columns(lines: Sequence[_Line]) -> tuple[_Shown, ...]:
    return _measured_columns(
        lines,
        (
            ("perf_latency_avg", "avg ms", 2, "mean latency of a request"),
            ("perf_latency_p99", "p99 ms", 2, "latency that 99 of 100 requests do not exceed"),
        ),
    )


def _breakdown_columns(lines: Sequence[_Line]) -> tuple[_Shown, ...]:
    return _measured_columns(
        lines,
        (
            ("perf_server_queue", "queue ms", 2, "mean time of a request in the server's queue"),
            ("perf_server_compute_infer", "compute ms", 2, "mean time of a request in the model"),
        ),
    )


def _memory_columns(lines: Sequence[_Line]) -> tuple[_Shown, ...]:
    return _measured_columns(
        lines,
        (
            ("cpu_used_ram", "RAM MB", 0, "the most memory that the server held for itself"),
            ("gpu_used_memory", "GPU MB", 0, "the most memory used on all GPUs together"),
            ("gpu_utilization", "GPU %", 0, "mean utilization"),
        ),
    )


def _measured_columns(
    lines: Sequence[_Line], wanted: Sequence[tuple[str, str, int, str]]
) -> tuple[_Shown, ...]:
    """Only the columns that have a figure in some row: absent is not zero."""
    return tuple(
        _metric_column(tag, header, digits, hint)
        for tag, header, digits, hint in wanted
        if any(METRICS[tag].value(line.measurement) is not None for line in lines)
    )


def _gain(ranked: RankedVariant, default: RankedVariant | None) -> float | None:
    if default is None or ranked.run.variant.is_default or default.best.throughput <= 0:
        return None
    return (ranked.best.throughput / default.best.throughput - 1) * 100
