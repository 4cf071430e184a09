"""The report of a single configuration as a `Document`."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from tpx.analyzer.limits import describe_misses, limits_of
from tpx.analyzer.objectives import RankedVariant
from tpx.analyzer.reports.card import memory_tiles, metric_tile
from tpx.analyzer.reports.charts import breakdown_of_loads, load_chart
from tpx.analyzer.reports.grids import in_detail, loads_grid, repetitions_grid
from tpx.analyzer.reports.page import Places, duration, failure_blocks, plot_section, table_context
from tpx.analyzer.reports.plots import DETAILED, Manner, draw_plots
from tpx.analyzer.reports.recommendation import config_diff, paths_of, whole_text
from tpx.analyzer.results.run import ModelRun, Run
from tpx.analyzer.verdict import Finding, Verdict, judge, plural
from tpx.errors import UsageError
from tpx.options import nearest
from tpx.report.digits import rounded
from tpx.report.document import (
    Document,
    Fact,
    Group,
    Section,
    Statement,
    Tile,
    Tone,
    bullets,
    code,
    fact_groups,
    section,
)
from tpx.report.html import chart_picture


def detailed_names(run: Run) -> tuple[str, ...]:
    """The configurations that have a page of their own: the best of each model, and its default."""
    return tuple(
        ranked.name
        for model in run.models
        for ranked in in_detail(judge(model, run.started.goals).ranking, run.started.top)
    )


def detail_path(name: str) -> Path:
    """Where Model Analyzer has it, below the export path."""
    return Path("reports") / "detailed" / name / "detailed_report.html"


def build_detail(run: Run, name: str, places: Places, manner: Manner | None = None) -> Document:
    """Return the report of a measured configuration.

    Raises UsageError where the run has none of this name.
    """
    manner = manner or Manner.of(run)
    model, verdict, ranked = _find(run, name)
    goals = run.started.goals.of(model.model)
    context = table_context(verdict, run, {}, manner)
    default = verdict.default
    compared = (ranked,) if default is None or default is ranked else (ranked, default)
    chart = load_chart("chart", compared, (), goals)
    load = "" if chart is None else chart.label_name
    sections = [
        Section(blocks=(_statement(ranked, verdict, run, gpus=context.gpus),)),
        *section(
            "Throughput and latency",
            chart_picture(chart),
            lead=f"Under growing load; the numbers beside the points are the {load}. "
            "Better is up and to the left.",
        ),
        *section(
            "Where the time goes",
            breakdown_of_loads("breakdown", ranked),
            lead="The mean latency under each load, in parts that add up to it.",
        ),
    ]
    plots = DETAILED[manner.mode] if manner.plots is None else manner.plots
    for plot in draw_plots("plot", plots, (ranked,), gpus=context.gpus):
        sections += plot_section(plot)
    failures = [
        block
        for f in ranked.run.failures
        for block in failure_blocks(name, f"at {f.load}", f.reason, f.log_tail)
    ]
    reasons = [d.text for d in model.decisions if d.variant == name]
    sections += [
        *section("Loads", loads_grid("loads", ranked, context, manner.mode)),
        *section("Final rounds", repetitions_grid("repetitions", (ranked,), context)),
        *section("Why the search ended here", bullets(reasons)),
        *section("Failed trials", *failures),
        _configuration(ranked, default, run, places),
    ]
    return Document(
        product="analyze",
        title=name,
        subtitle=f"{model.model} \u00b7 {plural(len(ranked.ordered), 'load')} measured \u00b7 "
        f"{duration(sum(m.duration_ns for m in ranked.ordered))} under load",
        sections=tuple(sections),
        parent=places.parent,
    )


def _configuration(ranked: RankedVariant, default: RankedVariant | None, run: Run, places: Places) -> Section:
    words = ("tpx", "analyze", "apply", ranked.name, "--export-path", str(places.export_path))
    text = code(whole_text(ranked.run.configuration), label="config.pbtxt")
    groups = [*fact_groups(("Facts", _facts(ranked, run, places)))]
    if default is not None and default is not ranked:
        groups.append(Group(title="Against the default", blocks=(config_diff(default.run, ranked.run),)))
    groups.append(Group(title="`config.pbtxt`", blocks=(text,)))
    return Section(title="The configuration", blocks=(code(shlex.join(words), command=True), *groups))


def _statement(ranked: RankedVariant, verdict: Verdict, run: Run, *, gpus: bool) -> Statement:
    badge, tone = _badge(ranked, verdict)
    sentence = _sentence(ranked, verdict, run)
    return Statement(badge=badge, tone=tone, sentence=sentence, tiles=tuple(_tiles(ranked, gpus=gpus)))


def _find(run: Run, name: str) -> tuple[ModelRun, Verdict, RankedVariant]:
    known: list[str] = []
    for model in run.models:
        verdict = judge(model, run.started.goals)
        for ranked in verdict.ranking:
            if ranked.name == name:
                return model, verdict, ranked
            known.append(ranked.name)
    raise UsageError(f"the run has not measured '{name}'{nearest(name, known)}")


def _badge(ranked: RankedVariant, verdict: Verdict) -> tuple[str, Tone]:
    if verdict.best is not None and ranked.name == verdict.best.name and ranked.satisfies:
        sure = verdict.finding is not Finding.INCONCLUSIVE
        return ("Recommended", "good") if sure else ("Inconclusive", "warn")
    if not ranked.satisfies:
        return "Misses the constraints", "bad"
    if verdict.conclusion is not None and ranked.name in verdict.conclusion.tied:
        return "Tied with the best", "good"
    return ("The default", "neutral") if ranked.run.variant.is_default else ("Measured", "neutral")


def _sentence(ranked: RankedVariant, verdict: Verdict, run: Run) -> str:
    place = [r.name for r in verdict.ranking].index(ranked.name) + 1
    text = f"Number {place} of {len(verdict.ranking)}: {rounded(ranked.figures.throughput)} infer/s"
    text += f" at {ranked.figures.load}"
    gain = verdict.conclusion.gains.get(ranked.name) if verdict.conclusion else None
    if gain is not None and gain.rounds > 1 and not ranked.run.variant.is_default:
        text += f", {gain} against the default"
    if not ranked.satisfies:
        miss = describe_misses(ranked.figures, limits_of(run.started.goals, verdict.model))
        text += f"; it misses the constraints: {miss}" if miss else "; it misses the constraints"
    return text + "."


def _tiles(ranked: RankedVariant, *, gpus: bool) -> Iterator[Tile]:
    yield from metric_tile("perf_throughput", "Throughput", ranked)
    yield from metric_tile("perf_latency_avg", "Mean latency", ranked)
    yield from metric_tile("perf_latency_p99", "p99 latency", ranked)
    yield from memory_tiles(ranked, None, gpus=gpus)


def _facts(ranked: RankedVariant, run: Run, places: Places) -> tuple[Fact, ...]:
    configuration = ranked.run.configuration
    facts = {
        "Instances": configuration.instance_group,
        "Greatest batch": str(configuration.max_batch_size or "no batching"),
        "Dynamic batching": "on" if configuration.dynamic_batching else "off",
        "File": paths_of(configuration, places.repository),
        "GPU": run.started.provenance.host.get("GPU", ""),
        "Measured": run.started.provenance.started,
        "Members": ", ".join(member.variant.name for member in configuration.members),
    }
    return tuple(Fact(label=label, value=value) for label, value in facts.items() if value)
