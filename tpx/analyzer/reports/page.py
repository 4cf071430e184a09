"""A run turned into the view model of its report page."""

import difflib
import shlex
from collections.abc import Sequence
from pathlib import Path

from tpx.analyzer.objectives import METRICS, RankedVariant
from tpx.analyzer.reports.chart import draw
from tpx.analyzer.reports.grids import configurations_grid, in_detail, measurements_grid, signed_percent
from tpx.analyzer.reports.verdict import (
    Finding,
    Verdict,
    caution,
    is_about_equal,
    judge,
    milliseconds,
    plural,
)
from tpx.analyzer.reports.view import (
    DiffLine,
    FailureCard,
    ModelPage,
    Page,
    Recommendation,
    TraceStep,
    VerdictCard,
)
from tpx.analyzer.results.measurement import Measurement
from tpx.analyzer.results.run import ModelRun, Run, VariantRun
from tpx.pages.view import Fact, Span, Tile

_BADGES = {
    Finding.BETTER: ("Better configuration found", "good"),
    Finding.DEFAULT: ("Default is best", "neutral"),
    Finding.DEFAULT_FAILS: ("Recommended", "good"),
    Finding.INCONCLUSIVE: ("Inconclusive", "warn"),
    Finding.NONE_SATISFIES: ("No configuration satisfies", "bad"),
    Finding.NOTHING: ("Nothing measured", "bad"),
}
_NO_VALUE = "\u2013"


def build(run: Run, repository: Path) -> Page:
    """The report of a run whose variants lie in the output repository `repository`."""
    started = run.started
    names = ", ".join(started.models)
    configurations = sum(len(m.measured) for m in run.models)
    measurements = sum(m.measurement_count for m in run.models)
    return Page(
        title=f"Model analysis: {names}",
        subtitle=(
            f"{started.provenance.started.replace('T', ' ').replace('+00:00', ' UTC')} \u00b7 "
            f"{started.provenance.host.get('Host', 'unknown host')} \u00b7 "
            f"{plural(measurements, 'measurement')}, {plural(configurations, 'configuration')}, "
            f"{duration(run.elapsed_ns)}"
        ),
        notice=_notice(run),
        models=tuple(_model_page(model, run, repository, index) for index, model in enumerate(run.models)),
        command=shlex.join(started.provenance.command),
        host=_facts(started.provenance.host),
        versions=_facts(started.provenance.versions),
        settings=tuple(Fact(label=name, value=_as_text(value)) for name, value in started.settings.items()),
    )


def duration(elapsed_ns: int) -> str:
    """`42 s`, `3 min 05 s`, `2 h 07 min`."""
    minutes, seconds = divmod(round(elapsed_ns / 1e9), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def _notice(run: Run) -> str:
    if run.outcome == "complete":
        return ""
    how = "was interrupted" if run.outcome == "interrupted" else "did not come to its end"
    return f"This run {how}: the figures below are valid, but the space was not searched to its end."


def _model_page(model: ModelRun, run: Run, repository: Path, index: int) -> ModelPage:
    goals, top = run.started.goals.of(model.model), run.started.top
    verdict = judge(model, goals)
    shown = in_detail(verdict.ranking, top)
    others = [ranked for ranked in verdict.ranking if ranked not in shown]
    constrained = bool(goals.constraints)
    ranking = verdict.ranking
    return ModelPage(
        key=f"model-{index}",
        model=model.model,
        verdict=_card(model, verdict, run),
        recommendation=_recommendation(verdict, repository),
        chart=draw(f"chart-{index}", shown, others, goals),
        configurations=configurations_grid(ranking, top, verdict.default, constrained=constrained)
        if ranking
        else None,
        measurements=measurements_grid(ranking, top, constrained=constrained) if ranking else None,
        failures=_failures(model),
        trace=tuple(_trace_step(variant, model) for variant in model.variants),
    )


def _card(model: ModelRun, verdict: Verdict, run: Run) -> VerdictCard:
    tolerance = run.started.tolerance_percent
    badge, tone = _BADGES[verdict.finding]
    if is_about_equal(verdict, tolerance):
        badge, tone = "About equal", "neutral"
    return VerdictCard(
        badge=badge,
        tone=tone,
        sentence=spans(verdict.sentence + "."),
        detail=verdict.detail,
        caution=caution(verdict, model, tolerance),
        tiles=_tiles(verdict),
    )


def spans(text: str) -> tuple[Span, ...]:
    """Text with code between backticks, cut into runs."""
    return tuple(Span(text=part, code=i % 2 == 1) for i, part in enumerate(text.split("`")) if part)


def _tiles(verdict: Verdict) -> tuple[Tile, ...]:
    if verdict.best is None:
        return ()
    best, default = verdict.best, verdict.default
    measurement, configuration = best.best, best.run.configuration
    other = default.best if default is not None and default is not best else None
    tiles = [
        Tile(
            label="Throughput",
            figure=f"{measurement.throughput:,.0f}",
            unit="infer/s",
            note=_against(other, "perf_throughput", "default {:,.0f}"),
            tone="good" if verdict.finding is Finding.BETTER else "",
        )
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
    tiles.append(
        Tile(
            label=measurement.load.kind.replace("_", " ").capitalize(),
            figure=f"{measurement.load.value:,}",
            unit="in flight" if measurement.load.kind == "concurrency" else "per s",
            note=f"default at {other.load.value}" if other else "",
        )
    )
    tiles.append(
        Tile(
            label="Instances",
            figure=configuration.instance_group.partition(":")[0],
            unit=configuration.instance_group.partition(":")[2],
            note=_batching(best),
        )
    )
    for tag, label in (("cpu_used_ram", "Server memory"), ("gpu_used_memory", "GPU memory")):
        value = METRICS[tag].value(measurement)
        if value is not None:
            tiles.append(
                Tile(
                    label=label,
                    figure=f"{value:,.0f}",
                    unit="MB",
                    note=_against(other, tag, "default {:,.0f} MB"),
                )
            )
    return tuple(tiles)


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


def _recommendation(verdict: Verdict, repository: Path) -> Recommendation | None:
    best, default = verdict.best, verdict.default
    if best is None or not best.satisfies or best is default or best.run.variant.is_default:
        return None
    config = best.run.configuration
    return Recommendation(
        name=best.name,
        against=default.name if default else "",
        columns=("", "Default", best.name, "Change") if default else (),
        rows=_comparison(default, best) if default else (),
        diff=_diff(default.run, best.run) if default else (),
        config_text=config.text,
        path=str(repository / best.name / "config.pbtxt"),
    )


_COMPARED = (
    ("perf_throughput", "Throughput, infer/s", 1),
    ("perf_latency_avg", "Average latency, ms", 2),
    ("perf_latency_p99", "p99 latency, ms", 2),
    ("cpu_used_ram", "Server memory, MB", 0),
    ("gpu_used_memory", "GPU memory, MB", 0),
)


def _comparison(default: RankedVariant, best: RankedVariant) -> tuple[tuple[str, ...], ...]:
    """Both at their best load, then both at the default's, so that nobody takes more load for more speed."""
    rows = [("Each at its best load", str(default.best.load), str(best.best.load), "")]
    rows += _metric_rows(default.best, best.best)
    same = next((m for m in best.ordered if m.load == default.best.load), None)
    if same is not None and same.load != best.best.load:
        rows.append(("At the same load", str(default.best.load), str(same.load), ""))
        rows += _metric_rows(default.best, same)
    return tuple(rows)


def _metric_rows(before: Measurement, after: Measurement) -> list[tuple[str, str, str, str]]:
    rows = []
    for tag, label, digits in _COMPARED:
        old, new = METRICS[tag].value(before), METRICS[tag].value(after)
        if old is None or new is None:
            continue
        change = signed_percent((new / old - 1) * 100) if old else _NO_VALUE
        rows.append((label, f"{old:,.{digits}f}", f"{new:,.{digits}f}", change))
    return rows


def _diff(default: VariantRun, best: VariantRun) -> tuple[DiffLine, ...]:
    lines = difflib.unified_diff(
        default.configuration.text.splitlines(),
        best.configuration.text.splitlines(),
        f"{default.variant.name}/config.pbtxt",
        f"{best.variant.name}/config.pbtxt",
        lineterm="",
    )
    kinds = {"+": "add", "-": "remove", "@": "hunk"}
    return tuple(
        DiffLine(kind="hunk" if number < 2 else kinds.get(line[:1], "same"), text=line)
        for number, line in enumerate(lines)
    )


def _failures(model: ModelRun) -> tuple[FailureCard, ...]:
    if model.unavailable:
        return (
            FailureCard(
                name=model.model,
                load="before the first measurement",
                reason=model.unavailable.reason,
                log_tail="\n".join(model.unavailable.log_tail),
            ),
        )
    return tuple(
        FailureCard(name=f.variant, load=f"at {f.load}", reason=f.reason, log_tail="\n".join(f.log_tail))
        for f in model.failures
    )


def _trace_step(variant: VariantRun, model: ModelRun) -> TraceStep:
    loads = [m.load for m in variant.measurements]
    failed = f", {len(variant.failures)} failed" if variant.failures else ""
    best = max((m.throughput for m in variant.measurements), default=None)
    return TraceStep(
        name=variant.variant.name,
        tried=f"{_span([load.value for load in loads])} ({len(loads)} measured{failed})",
        best=_NO_VALUE if best is None else f"{best:,.1f} infer/s",
        notes=tuple(d.text for d in model.decisions if d.variant == variant.variant.name),
    )


def _span(values: Sequence[int]) -> str:
    distinct = sorted(set(values))
    if not distinct:
        return "no load"
    return f"{distinct[0]}" if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"


def _facts(values: dict[str, str]) -> tuple[Fact, ...]:
    return tuple(Fact(label=label, value=value) for label, value in values.items())


def _as_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
