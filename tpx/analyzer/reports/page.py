"""The report of a run as a `Document`."""

import hashlib
import shlex
from collections.abc import Sequence

import msgspec

from tpx.analyzer.objectives import RankedVariant, failure_percent, score
from tpx.analyzer.reports.charts import (
    SUMMARY,
    breakdown,
    draw_plots,
    load_chart,
    pareto_chart,
    short_name,
)
from tpx.analyzer.reports.grids import (
    configurations_grid,
    measurements_grid,
    repetitions_grid,
    top_grid,
    users_grid,
)
from tpx.analyzer.reports.json import embedded_text
from tpx.analyzer.reports.recommendation import recommend, verdict_card
from tpx.analyzer.reports.view import ModelView, ReportView, TableLine
from tpx.analyzer.results.journal import ModelFailed
from tpx.analyzer.results.measurement import TrialFailure, group_name
from tpx.analyzer.results.run import ModelRun, Run, VariantRun
from tpx.analyzer.verdict import plural
from tpx.report.chart import Chart
from tpx.report.digits import duration, in_unit, rounded
from tpx.report.document import (
    Block,
    DataTable,
    Details,
    Document,
    Note,
    Section,
    code,
    provenance,
    section,
)
from tpx.report.table import TableField, quantity, table, text

_PREPARED = {"loaded": "loaded on the running server", "started": "a server was started for it"}
_REPEATED = " Points with a marker and an interval are means of the final rounds, which the verdict is about."
_ONCE = " Faint ones were measured once, by the search."
_PARETO = (
    "On the line, more throughput costs latency. The area of a point is the memory it held, where that is "
    "known."
)
_USERS = (
    "No other configuration and load gives a user, and all users together, more tokens per second: the first "
    "row serves the most, the last one the fastest."
)
_MEASURED_ONCE = (
    " Any point above the line was measured once, by the search, and not again in the final rounds."
)
_ROUNDS = "The best configurations and the default, or each load of the only one, measured again in turns."
_METHOD = (
    "Throughput counts inferences. The latency is the client's own, from sending a request to its last byte. "
    "A measurement ends with the first window whose throughput is known well enough, or with the last of "
    "--max-trials. Where there were final rounds, a configuration's figures are the means of its rounds, "
    "and \u00b1 is half the width of their 95 % confidence interval. Memory is "
    "the greatest value seen under load; energy is that of the whole machine."
)


def build(view: ReportView, *, data: bool = True) -> Document:
    """Return the report of a run; `data` embeds all figures as JSON."""
    run, started = view.run, view.run.started
    configurations = sum(len(m.measured) for m in run.models)
    measurements = sum(m.measurement_count for m in run.models)
    notice = ""
    if run.outcome != "complete":
        how = "was interrupted" if run.outcome == "interrupted" else "did not come to its end"
        why = f" ({run.reason})" if run.reason else ""
        notice = (
            f"This run {how}{why}: the figures below are valid, but the space was not searched to its end."
        )
    sections = _build_top_section(view)
    for index, model in enumerate(view.models):
        sections += _build_model_sections(model, f"model-{index}")
    return Document(
        product="analyze",
        title=f"Model analysis: {', '.join(map(group_name, started.models))}",
        subtitle=(
            f"{started.provenance.started.replace('T', ' ').replace('+00:00', ' UTC')} \u00b7 "
            f"{started.provenance.host.get('Host', 'unknown host')} \u00b7 "
            f"{plural(measurements, 'measurement')}, {plural(configurations, 'configuration')}, "
            f"{duration(run.elapsed_ns)}"
        ),
        notice=notice,
        sections=(*sections, _build_provenance(run)),
        data=embedded_text(view) if data else "",
        file_name="tpx-analyze-" + "-".join(map(group_name, started.models))[:60],
        parent=view.parent,
    )


def _build_provenance(run: Run) -> Section:
    settings = {}
    for name, value in run.started.settings.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        settings[name] = text.lower() if isinstance(value, bool) else text
    found = run.started.provenance
    facts = {
        "Machine": found.host,
        "Versions": found.versions,
        "Options": settings,
        "Hashes": hashes(run),
    }
    return provenance(shlex.join(found.command), facts, _METHOD)


def hashes(run: Run) -> dict[str, str]:
    """Return hashes that show whether two reports have the same options and the same models."""
    started = run.started
    settings = {"settings": started.settings, "goals": msgspec.to_builtins(started.goals)}
    text = msgspec.json.encode(settings, order="deterministic")
    seed = started.settings.get("seed", 0)
    facts = {"Seed": str(seed), "Options": hashlib.sha256(text).hexdigest()[:16]}
    for model in run.models:
        if model.default is not None:
            texts = "".join(each.text for each in model.default.configuration.files)
            digest = hashlib.sha256(texts.encode()).hexdigest()
            facts[f"{model.model}: config.pbtxt"] = digest[:16]
        if model.fingerprint:
            facts[f"{model.model}: files"] = model.fingerprint[:16]
    return facts


def _build_model_sections(view: ModelView, key: str) -> list[Section]:
    ranking, shown = view.verdict.ranking, view.in_detail
    others = [ranked for ranked in ranking if ranked not in shown]
    chart = load_chart(shown, others, view.verdict.goals)
    repetitions = repetitions_grid(f"{key}-repetitions", view)
    lead = (
        "Each line is one configuration under growing load; the numbers beside the points are the "
        f"{chart.label_name if chart else ''}. Better is up and to the left."
    )
    lead += _REPEATED if repetitions is not None else ""
    dots = [dot for line in (chart.lines if chart else ()) for dot in line.dots]
    lead += _ONCE if any(dot.context for dot in dots) else ""
    several = len(view.report.run.models) > 1
    pareto = pareto_chart(ranking, gpus=view.gpus, most=view.most_measurements)
    run, plots = view.verdict.run, draw_plots(SUMMARY[view.report.mode], shown, gpus=view.gpus)
    return [
        Section(
            title=view.verdict.model if several else "",
            chapter=key if several else "",
            blocks=(verdict_card(view),),
        ),
        *recommend(view),
        *section("Throughput and latency", chart, lead=lead),
        *(each for plot in plots for each in plot_section(plot)),
        *section("Configurations", configurations_grid(f"{key}-configurations", view)),
        *section(
            "Trade-offs", pareto, lead=_PARETO + (_MEASURED_ONCE if any(r.settled for r in ranking) else "")
        ),
        *section("Tokens for one user and for all", users_grid(f"{key}-users", view), lead=_USERS),
        *section(
            "Where the time goes",
            breakdown([(f"{short_name(r.name)}, {r.figures.load.value:g}", r.figures) for r in shown]),
            lead="The mean latency of each configuration at its best load (the number behind its name), in "
            "parts that add up to it.",
        ),
        *section("The final rounds", repetitions, lead=_ROUNDS),
        *section("Failed trials", *failure_blocks(run.failures, run.unavailable)),
        *section("How the search went", _build_trace_table(run, ranking)),
        *section("All measurements", measurements_grid(f"{key}-measurements", view)),
    ]


def plot_section(plot: Chart) -> list[Section]:
    """Return the section of a plot; if its lines are flat, with a sentence instead."""
    if not plot.is_flat:
        return section(plot.title, plot)
    heights = [dot.y for line in plot.lines for dot in line.dots]
    name, _, unit = plot.y.title.removesuffix(")").partition(" (")
    value = in_unit((min(heights) + max(heights)) / 2, unit)
    return section(plot.title, Note(text=f"{name} is {value} throughout, so there is no chart."))


def _build_top_section(view: ReportView) -> list[Section]:
    """Return the best configurations of all models together, limited by num_top_model_configs."""
    started = view.run.started
    count = int(view.settings.get("num_top_model_configs", 0))
    if not count or len(view.models) < 2:
        return []
    lines = [
        TableLine(view=m, ranked=r, measurement=r.figures) for m in view.models for r in m.verdict.ranking
    ]
    lines.sort(
        key=lambda line: (
            not line.ranked.satisfies,
            failure_percent(line.measurement, started.goals) if not line.ranked.satisfies else 0.0,
            -score(line.measurement, started.goals),
        )
    )
    return section("The best of all models", top_grid("top", lines[:count]))


def failure_blocks(failures: Sequence[TrialFailure], unavailable: ModelFailed | None = None) -> list[Block]:
    """Return failures with the last lines of the server's log; or the one that made a model unavailable."""
    told = [(f"`{f.variant}` at {f.load}", f.reason, f.log_tail) for f in failures]
    if unavailable:
        where = f"`{unavailable.model}` before the first measurement"
        told = [(where, unavailable.reason, unavailable.log_tail)]
    blocks: list[Block] = []
    for where, reason, log_tail in told:
        blocks.append(Note(text=f"{where}: {reason}", style="failure"))
        if log_tail:
            log = code("\n".join(log_tail))
            blocks.append(Details(summary="The last lines of the server's log", blocks=(log,), printed=True))
    return blocks


def _build_trace_table(model: ModelRun, ranking: Sequence[RankedVariant]) -> DataTable | None:
    best = {ranked.name: ranked.figures.throughput for ranked in ranking}
    fields: list[TableField[VariantRun]] = [
        text("Configuration", lambda variant: variant.variant.name),
        text("Load", _describe_sweep),
        quantity("Best", lambda v: best.get(v.variant.name), written=lambda n: f"{rounded(n)} infer/s"),
        text("Why it ended", lambda variant: "\n".join(_list_notes(variant, model)), wraps=True),
    ]
    return table("", "The search, configuration by configuration", fields, model.variants)


def _describe_sweep(variant: VariantRun) -> str:
    """Return `1 to 16 (5 measured, 1 failed)`."""
    values = sorted(m.load.value for m in variant.measurements)
    span = " to ".join(map(str, dict.fromkeys((values[0], values[-1])))) if values else "no load"
    failed = f", {len(variant.failures)} failed" if variant.failures else ""
    return f"{span} ({len(values)} measured{failed})"


def _list_notes(variant: VariantRun, model: ModelRun) -> list[str]:
    """Return what the search decided about a configuration, and how it was loaded."""
    name = variant.variant.name
    notes = [d.text for d in model.decisions if d.variant == name]
    prepared = next((p for p in model.preparations if p.variant == name and p.how != "found"), None)
    if prepared is not None:
        how = _PREPARED.get(prepared.how, "the server was started again for it")
        why = f": {prepared.why}" if prepared.why else ""
        notes.append(f"{how}{why} ({prepared.duration_ns / 1e9:.1f} s)")
    notes += {p.answers: None for p in model.preparations if p.variant == name and p.answers}
    return notes
