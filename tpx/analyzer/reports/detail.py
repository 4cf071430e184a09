"""The report of a single configuration as a `Document`."""

from pathlib import Path

from tpx.analyzer.objectives import RankedVariant, describe_misses
from tpx.analyzer.options.measuring import reports_in
from tpx.analyzer.reports.charts import DETAILED, breakdown, draw_plots, load_chart
from tpx.analyzer.reports.grids import loads_grid, repetitions_grid
from tpx.analyzer.reports.page import failure_blocks, plot_section
from tpx.analyzer.reports.recommendation import FIGURES, config_diff, metric_tiles, paths_of, whole_text
from tpx.analyzer.reports.view import ModelView, ReportView
from tpx.analyzer.verdict import Finding, describe_interval, plural
from tpx.errors import UsageError
from tpx.options import nearest
from tpx.report.digits import change, duration, rounded
from tpx.report.document import (
    Document,
    Group,
    Section,
    Statement,
    Tone,
    bullets,
    code,
    fact_groups,
    section,
)


def detailed_names(view: ReportView) -> tuple[str, ...]:
    """Return the configurations with their own page: each model's best ones and its default."""
    return tuple(ranked.name for model in view.models for ranked in model.in_detail)


def detail_path(export_path: Path, name: str) -> Path:
    """Return the path of a configuration's page, the same as Model Analyzer's."""
    return reports_in(export_path) / "detailed" / name / "detailed_report.html"


def _build_statement(ranked: RankedVariant, view: ModelView) -> Statement:
    verdict = view.verdict
    badge: tuple[str, Tone] = ("Measured", "neutral")
    if ranked.name == view.verdict.recommended:
        sure = verdict.finding is not Finding.UNDECIDED
        badge = ("Recommended", "good") if sure else ("Undecided", "warn")
    elif not ranked.satisfies:
        badge = "Misses the constraints", "bad"
    elif ranked.name in view.verdict.alike:
        badge = "Not told apart from the recommended", "neutral"
    elif ranked.run.variant.is_default:
        badge = "The default", "neutral"
    place = [r.name for r in verdict.ranking].index(ranked.name) + 1
    text = f"Number {place} of {len(verdict.ranking)}: {rounded(ranked.figures.throughput)} infer/s"
    text += f" at {ranked.figures.load}"
    gain = verdict.conclusion.gains.get(ranked.name) if verdict.conclusion else None
    if gain is not None and not ranked.run.variant.is_default:
        text += f", {change(gain.value)} ({describe_interval(gain)}) against the default"
    if not ranked.satisfies:
        miss = describe_misses(ranked.figures, view.verdict.limits)
        text += f"; it misses the constraints: {miss}" if miss else "; it misses the constraints"
    tiles = tuple(metric_tiles(view, FIGURES, ranked))
    return Statement(badge=badge[0], tone=badge[1], sentence=text + ".", tiles=tiles)


def _build_configuration(ranked: RankedVariant, view: ModelView) -> Section:
    report, default, configuration = view.report, view.verdict.default, ranked.run.configuration
    provenance = report.run.started.provenance
    facts = {
        "Instances": configuration.instance_group,
        "Max batch": str(configuration.max_batch_size or "no batching"),
        "Dynamic batching": "on" if configuration.dynamic_batching else "off",
        "File": paths_of(configuration, report.repository),
        "GPU": provenance.host.get("GPU", ""),
        "Measured": provenance.started,
        "Members": ", ".join(member.variant.name for member in configuration.members),
    }
    groups = [*fact_groups({"Facts": {label: value for label, value in facts.items() if value}})]
    if default is not None and default is not ranked:
        groups.append(Group(title="Against the default", blocks=(config_diff(default.run, ranked.run),)))
    text = code(whole_text(configuration), label="config.pbtxt")
    groups.append(Group(title="`config.pbtxt`", blocks=(text,)))
    return Section(
        title="The configuration", blocks=(code(view.apply_command(ranked.name), command=True), *groups)
    )


def build_detail(report: ReportView, name: str) -> Document:
    """Return the report of a measured configuration. Raises UsageError if the run has none of this name."""
    every = [(view, ranked) for view in report.models for ranked in view.verdict.ranking]
    known = {ranked.name: (view, ranked) for view, ranked in reversed(every)}
    if name not in known:
        raise UsageError(f"the run has not measured '{name}'{nearest(name, [r.name for _, r in every])}")
    view, ranked = known[name]
    default = view.verdict.default
    compared = (ranked,) if default is None or default is ranked else (ranked, default)
    chart = load_chart(compared, (), view.verdict.goals)
    load = "" if chart is None else chart.label_name
    plots = draw_plots(
        DETAILED[report.mode] if report.plots is None else report.plots, (ranked,), gpus=view.gpus
    )
    reasons = [d.text for d in view.verdict.run.decisions if d.variant == name]
    sections = (
        Section(blocks=(_build_statement(ranked, view),)),
        *section(
            "Throughput and latency",
            chart,
            lead=f"Under growing load; the numbers beside the points are the {load}. "
            "Better is up and to the left.",
        ),
        *section(
            "Where the time goes",
            breakdown([(str(m.load), m) for m in ranked.by_load]),
            lead="The mean latency under each load, in parts that add up to it.",
        ),
        *(each for plot in plots for each in plot_section(plot)),
        *section("Loads", loads_grid("loads", view, ranked)),
        *section("Final rounds", repetitions_grid("repetitions", view, ranked)),
        *section("Why the search ended here", bullets(reasons)),
        *section("Failed trials", *failure_blocks(ranked.run.failures)),
        _build_configuration(ranked, view),
    )
    return Document(
        product="analyze",
        title=name,
        subtitle=f"{view.verdict.model} \u00b7 {plural(len(ranked.ordered), 'load')} measured \u00b7 "
        f"{duration(sum(m.duration_ns for m in ranked.ordered))} under load",
        sections=sections,
        parent=report.parent,
    )
