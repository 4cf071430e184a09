"""The verdict card: what the page says first, in a sentence and in large figures."""

from tpx.analyzer.limits import describe_limits, limits_of
from tpx.analyzer.objectives import METRICS, RankedVariant
from tpx.analyzer.reports.verdict import (
    Finding,
    Verdict,
    caution,
    is_about_equal,
    milliseconds,
)
from tpx.analyzer.results.measurement import Measurement
from tpx.analyzer.results.run import ModelRun, Run
from tpx.report.document import Statement, Tile, Tone

MEMORY = (("cpu_used_ram", "Server memory"), ("gpu_used_memory", "GPU memory"))
_BADGES: dict[Finding, tuple[str, Tone]] = {
    Finding.BETTER: ("Better configuration found", "good"),
    Finding.DEFAULT: ("Default is best", "neutral"),
    Finding.DEFAULT_FAILS: ("Recommended", "good"),
    Finding.INCONCLUSIVE: ("Inconclusive", "warn"),
    Finding.NONE_SATISFIES: ("No configuration satisfies", "bad"),
    Finding.NOTHING: ("Nothing measured", "bad"),
}


def verdict_card(model: ModelRun, verdict: Verdict, run: Run, *, gpus: bool) -> Statement:
    """Return badge, sentence and figures of one model's verdict; `gpus` adds figures of GPUs."""
    tolerance = run.started.tolerance_percent
    badge, tone = _BADGES[verdict.finding]
    if is_about_equal(verdict, tolerance):
        badge, tone = "About equal", "neutral"
    elif verdict.finding is Finding.BETTER and verdict.conclusion is not None and verdict.conclusion.tied:
        badge = "Better, tied: the cheapest is recommended"
    return Statement(
        badge=badge,
        tone=tone,
        sentence=verdict.sentence + ".",
        detail=verdict.detail,
        caution=caution(verdict, model, tolerance),
        tiles=_tiles(verdict, run, gpus=gpus),
    )


def _tiles(verdict: Verdict, run: Run, *, gpus: bool) -> tuple[Tile, ...]:
    if verdict.best is None:
        return ()
    best, default = verdict.best, verdict.default
    measurement = best.figures
    other = default.figures if default is not None and default is not best else None
    tiles = [
        Tile(
            label="Throughput",
            figure=f"{measurement.throughput:,.0f}",
            unit="infer/s",
            note=_against(other, "perf_throughput", "default {:,.0f}"),
            tone="good" if verdict.finding is Finding.BETTER else "",
        ),
        *_gain_tile(verdict),
    ]
    if measurement.latency.p99_ns is not None:
        tiles.append(
            Tile(
                label="p99 latency",
                figure=milliseconds(measurement.latency.p99_ns),
                unit="ms",
                note=_default_latency(other),
            )
        )
    tiles += [_load_tile(measurement, other), _instances_tile(best), *_constraint_tile(verdict, run)]
    for tag, label in MEMORY[: 2 if gpus else 1]:
        value = METRICS[tag].value(measurement)
        if value is not None:
            note = _against(other, tag, "default {:,.0f} MB")
            tiles.append(Tile(label=label, figure=f"{value:,.0f}", unit="MB", note=note))
    return tuple(tiles)


def _gain_tile(verdict: Verdict) -> tuple[Tile, ...]:
    """Over the default at what is asked for, with its interval where the final rounds leave one."""
    percent, gain = verdict.gain_percent, verdict.gain
    if percent is None or verdict.best is verdict.default:
        return ()
    sure = gain is not None and gain.rounds > 1
    note = f"95%: {gain.low * 100:+.0f} to {gain.high * 100:+.0f} %" if gain and sure else "over the default"
    return (Tile(label="Gain", figure=f"{percent:+.0f}", unit="%", note=note),)


def _load_tile(measurement: Measurement, default: Measurement | None) -> Tile:
    load = measurement.load
    return Tile(
        label=load.kind.replace("_", " ").capitalize(),
        figure="+".join(f"{member.value:,}" for member in load.members) or f"{load.value:,}",
        unit="in flight" if load.kind == "concurrency" else "per s",
        note=f"default at {default.load.value}" if default else "",
    )


def _instances_tile(best: RankedVariant) -> Tile:
    group = best.run.configuration.instance_group
    count, _, kind = group.partition(":")
    several = " + " in group or ";" in group
    figure = str(best.run.configuration.instances) if several else count
    return Tile(label="Instances", figure=figure, unit=group if several else kind, note=_batching(best))


def _constraint_tile(verdict: Verdict, run: Run) -> tuple[Tile, ...]:
    asked = limits_of(run.started.goals, verdict.model)
    if not asked or verdict.best is None:
        return ()
    undetermined = verdict.conclusion.undetermined if verdict.conclusion else ()
    kept = verdict.best.satisfies
    figure, tone = ("kept", "good") if kept else ("missed", "bad")
    if kept and undetermined:
        figure, tone = "uncertain", ""
    return (Tile(label="Constraints", figure=figure, unit="", note=describe_limits(asked), tone=tone),)


def _default_latency(default: Measurement | None) -> str:
    if default is None or default.latency.p99_ns is None:
        return ""
    return f"default {milliseconds(default.latency.p99_ns)} ms"


def _batching(ranked: RankedVariant) -> str:
    configuration = ranked.run.configuration
    if not configuration.max_batch_size:
        return "no batching"
    dynamic = "dynamic batching" if configuration.dynamic_batching else "no dynamic batching"
    return f"max batch {configuration.max_batch_size}, {dynamic}"


def _against(other: Measurement | None, tag: str, text: str) -> str:
    value = METRICS[tag].value(other) if other else None
    return "" if value is None else text.format(value)
