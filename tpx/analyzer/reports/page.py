"""A run turned into the view model of its report page."""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tpx.analyzer.limits import limits_of
from tpx.analyzer.objectives import RankedVariant, failure_percent, score
from tpx.analyzer.reports.card import verdict_card
from tpx.analyzer.reports.chart import draw
from tpx.analyzer.reports.charts import drift_chart, front_of, pareto_chart
from tpx.analyzer.reports.columns import TableContext
from tpx.analyzer.reports.grids import (
    configurations_grid,
    in_detail,
    measurements_grid,
    repetitions_grid,
    top_grid,
)
from tpx.analyzer.reports.heat import heat_map
from tpx.analyzer.reports.json import embedded_text
from tpx.analyzer.reports.latency_parts import breakdown_of_configurations
from tpx.analyzer.reports.manner import Manner
from tpx.analyzer.reports.plots import SUMMARY, draw_plots
from tpx.analyzer.reports.recommendation import recommend
from tpx.analyzer.reports.verdict import Verdict, judge, plural
from tpx.analyzer.reports.view import FailureCard, ModelPage, Page, TraceStep
from tpx.analyzer.results.costs import Prices
from tpx.analyzer.results.journal import Prepared
from tpx.analyzer.results.run import ModelRun, Run, VariantRun
from tpx.report.view import Fact, Grid

_NO_VALUE = "\u2013"
MOST_MEASUREMENTS = 600
"""In tables and charts of single ones, of all models together; a model's own page has as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things lie that the page names."""

    repository: Path
    """The output repository, with a directory for each variant."""
    export_path: Path = Path()
    """What `tpx analyze apply` finds the run by."""
    hrefs: Mapping[str, str] = field(default_factory=dict)
    """Pages of single configurations, from this page on."""
    parent: str = ""
    """The page above this one, from this one on; empty for the report of the run."""


def build(run: Run, places: Places, manner: Manner | None = None, *, data: bool = True) -> Page:
    """The report of a run, shown as it says itself unless another manner is given; `data` embeds the figures
    for whoever wants to compute with them."""
    manner = manner or Manner.of(run)
    started = run.started
    names = ", ".join(started.models)
    configurations = sum(len(m.measured) for m in run.models)
    measurements = sum(m.measurement_count for m in run.models)
    verdicts = [judge(model, started.goals) for model in run.models]
    return Page(
        title=f"Model analysis: {names}",
        subtitle=(
            f"{started.provenance.started.replace('T', ' ').replace('+00:00', ' UTC')} \u00b7 "
            f"{started.provenance.host.get('Host', 'unknown host')} \u00b7 "
            f"{plural(measurements, 'measurement')}, {plural(configurations, 'configuration')}, "
            f"{duration(run.elapsed_ns)}"
        ),
        notice=_notice(run),
        models=tuple(
            _model_page(model, verdict, run, places, manner, index)
            for index, (model, verdict) in enumerate(zip(run.models, verdicts, strict=True))
        ),
        top=_top(run, verdicts, places, manner),
        command=shlex.join(started.provenance.command),
        host=_facts(started.provenance.host),
        versions=_facts(started.provenance.versions),
        settings=tuple(Fact(label=name, value=_as_text(value)) for name, value in started.settings.items()),
        hashes=hashes(run),
        data=embedded_text(run, verdicts) if data else "",
        file_name="tpx-analyze-" + "-".join(started.models)[:60],
        parent=places.parent,
    )


def duration(elapsed_ns: int) -> str:
    """`42 s`, `3 min 05 s`, `2 h 07 min`."""
    minutes, seconds = divmod(round(elapsed_ns / 1e9), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def hashes(run: Run) -> tuple[Fact, ...]:
    """What two reports of the same question have in common: of the options, and of each model measured."""
    started = run.started
    settings = {"settings": started.settings, "goals": msgspec.to_builtins(started.goals)}
    text = msgspec.json.encode(settings, order="deterministic")
    seed = started.settings.get("seed", 0)
    facts = [
        Fact(label="Seed", value=str(seed)),
        Fact(label="Options", value=hashlib.sha256(text).hexdigest()[:16]),
    ]
    for model in run.models:
        if model.default is not None:
            texts = "".join(each.text for each in model.default.configuration.files)
            digest = hashlib.sha256(texts.encode()).hexdigest()
            facts.append(Fact(label=f"{model.model}: config.pbtxt", value=digest[:16]))
        if model.fingerprint:
            facts.append(Fact(label=f"{model.model}: files", value=model.fingerprint[:16]))
    return tuple(facts)


def table_context(verdict: Verdict, run: Run, hrefs: Mapping[str, str], manner: Manner) -> TableContext:
    """What the tables of one model need to know."""
    conclusion = verdict.conclusion
    best = verdict.best
    return TableContext(
        shown=run.started.top,
        default=verdict.default,
        goals=run.started.goals.of(verdict.model),
        most_measurements=MOST_MEASUREMENTS // max(1, len(run.models)),
        constrained=bool(limits_of(run.started.goals, verdict.model)),
        prices=Prices.of(run),
        recommended=best.name if best is not None and best.satisfies else "",
        tied=conclusion.tied if conclusion else (),
        gains=conclusion.gains if conclusion else {},
        hrefs=hrefs,
        on_front=frozenset(spot.ranked.name for spot in front_of(verdict.ranking)),
        gpus=manner.shows_gpus(run, verdict.model),
    )


def _notice(run: Run) -> str:
    if run.outcome == "complete":
        return ""
    how = "was interrupted" if run.outcome == "interrupted" else "did not come to its end"
    why = f" ({run.reason})" if run.reason else ""
    return f"This run {how}{why}: the figures below are valid, but the space was not searched to its end."


def _model_page(
    model: ModelRun, verdict: Verdict, run: Run, places: Places, manner: Manner, index: int
) -> ModelPage:
    goals, top = run.started.goals.of(model.model), run.started.top
    shown = in_detail(verdict.ranking, top)
    others = [ranked for ranked in verdict.ranking if ranked not in shown]
    ranking = verdict.ranking
    context = table_context(verdict, run, places.hrefs, manner)
    return ModelPage(
        key=f"model-{index}",
        model=model.model,
        verdict=verdict_card(model, verdict, run, gpus=context.gpus),
        recommendation=recommend(verdict, run, places.repository, places.export_path, gpus=context.gpus),
        chart=draw(f"chart-{index}", shown, others, goals),
        plots=draw_plots(f"plot-{index}", SUMMARY[manner.mode], shown, gpus=context.gpus),
        pareto=pareto_chart(f"pareto-{index}", ranking, gpus=context.gpus, most=context.most_measurements),
        heat=heat_map(f"heat-{index}", ranking),
        breakdown=breakdown_of_configurations(f"breakdown-{index}", shown),
        drift=drift_chart(f"drift-{index}", ranking),
        configurations=configurations_grid(ranking, context) if ranking else None,
        measurements=measurements_grid(ranking, context) if ranking else None,
        repetitions=repetitions_grid(ranking, context),
        failures=_failures(model),
        trace=tuple(_trace_step(variant, model) for variant in model.variants),
    )


def _top(run: Run, verdicts: Sequence[Verdict], places: Places, manner: Manner) -> Grid | None:
    """The best of all models together, as many as the run was asked for."""
    count = int(run.started.settings.get("num_top_model_configs", 0))
    if not count or len(verdicts) < 2:
        return None
    found: list[tuple[str, RankedVariant]] = [(v.model, r) for v in verdicts for r in v.ranking]
    goals = run.started.goals
    found.sort(
        key=lambda pair: (
            not pair[1].satisfies,
            failure_percent(pair[1].figures, goals) if not pair[1].satisfies else 0.0,
            -score(pair[1].figures, goals),
        )
    )
    contexts = {v.model: table_context(v, run, places.hrefs, manner) for v in verdicts}
    return top_grid(found[:count], contexts) if found else None


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
    name = variant.variant.name
    prepared = [_preparation(p) for p in model.preparations if p.variant == name and p.how != "found"]
    return TraceStep(
        name=name,
        tried=f"{_span([load.value for load in loads])} ({len(loads)} measured{failed})",
        best=_NO_VALUE if best is None else f"{best:,.1f} infer/s",
        notes=(*prepared[:1], *(d.text for d in model.decisions if d.variant == name)),
    )


def _preparation(prepared: Prepared) -> str:
    how = {"loaded": "loaded on the running server", "started": "a server was started for it"}
    text = how.get(prepared.how, "the server was started again for it")
    why = f": {prepared.why}" if prepared.why else ""
    return f"{text}{why} ({prepared.duration_ns / 1e9:.1f} s)"


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
