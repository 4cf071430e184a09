"""The verdict card: what the page says first, in a sentence and in large figures."""

from collections.abc import Iterator

from tpx.analyzer.limits import describe_limits, limits_of, shown
from tpx.analyzer.objectives import METRICS, RankedVariant
from tpx.analyzer.results.measurement import Measurement
from tpx.analyzer.results.run import Run
from tpx.analyzer.verdict import Finding, Verdict
from tpx.report.digits import percent
from tpx.report.document import Statement, Tile

_TONES = {"met": "good", "borderline": "", "missed": "bad"}


def verdict_card(verdict: Verdict, run: Run, *, gpus: bool) -> Statement:
    """Return badge, sentence and figures of one model's verdict; `gpus` adds figures of GPUs."""
    return Statement(
        badge=verdict.badge,
        tone=verdict.tone,
        sentence=verdict.sentence + ".",
        detail=verdict.detail,
        caution=verdict.caution,
        tiles=tuple(_tiles(verdict, run, gpus=gpus)),
    )


def metric_tile(
    tag: str, label: str, ranked: RankedVariant, other: RankedVariant | None = None, tone: str = ""
) -> Iterator[Tile]:
    """Yield the large figure of a metric with that of the default, where it is known."""
    metric = METRICS[tag]
    value = metric.value(ranked.figures)
    if value is None:
        return
    figure, _, unit = shown(metric, value).partition(" ")
    default = metric.value(other.figures) if other is not None else None
    note = "" if default is None else f"default {shown(metric, default).removesuffix(' infer/s')}"
    yield Tile(label=label, figure=figure, unit=unit, note=note, tone=tone)


def memory_tiles(ranked: RankedVariant, other: RankedVariant | None, *, gpus: bool) -> Iterator[Tile]:
    """Yield the memory of the server, and of its GPUs."""
    yield from metric_tile("cpu_used_ram", "Server memory", ranked, other)
    if gpus:
        yield from metric_tile("gpu_used_memory", "GPU memory", ranked, other)


def _tiles(verdict: Verdict, run: Run, *, gpus: bool) -> Iterator[Tile]:
    best = verdict.best
    if best is None:
        return
    other = verdict.default if verdict.default is not best else None
    good = "good" if verdict.finding is Finding.BETTER else ""
    yield from metric_tile("perf_throughput", "Throughput", best, other, good)
    if verdict.gain_percent is not None and other is not None:
        gain = verdict.gain
        note = f"95%: {gain.interval.strip()} %" if gain and gain.interval else "over the default"
        figure = percent(verdict.gain_percent / 100).removesuffix("%")
        yield Tile(label="Gain", figure=figure, unit="%", note=note)
    yield from metric_tile("perf_latency_p99", "p99 latency", best, other)
    yield _load_tile(best.figures, other.figures if other else None)
    yield _instances_tile(best)
    asked = limits_of(run.started.goals, verdict.model)
    if asked:
        standing = verdict.standing
        limits = describe_limits(asked)
        yield Tile(label="Constraints", figure=standing, unit="", note=limits, tone=_TONES[standing])
    yield from memory_tiles(best, other, gpus=gpus)


def _load_tile(measurement: Measurement, default: Measurement | None) -> Tile:
    load = measurement.load
    return Tile(
        label=load.kind.replace("_", " ").capitalize(),
        figure="+".join(f"{member.value:,}" for member in load.members) or f"{load.value:,}",
        unit="in flight" if load.kind == "concurrency" else "per s",
        note=f"default at {default.load.value}" if default else "",
    )


def _instances_tile(best: RankedVariant) -> Tile:
    configuration = best.run.configuration
    group = configuration.instance_group
    count, _, kind = group.partition(":")
    several = " + " in group or ";" in group
    batching = "no batching"
    if configuration.max_batch_size:
        dynamic = "dynamic batching" if configuration.dynamic_batching else "no dynamic batching"
        batching = f"max batch {configuration.max_batch_size}, {dynamic}"
    figure = str(configuration.instances) if several else count
    return Tile(label="Instances", figure=figure, unit=group if several else kind, note=batching)
