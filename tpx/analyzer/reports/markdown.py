"""A run for the page of a CI job: the verdict in a sentence, the best configurations, a line that shows how
throughput grew."""

from collections.abc import Sequence

from tpx.analyzer.limits import limits_of
from tpx.analyzer.objectives import METRICS, RankedVariant, gain_percent
from tpx.analyzer.reports.columns import signed_percent
from tpx.analyzer.reports.manner import Manner
from tpx.analyzer.reports.verdict import Finding, Verdict, caution, judge
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.run import ModelRun, Run
from tpx.perf.report.markdown import sparkline

MOST_ROWS = 10
_SIGNS = {
    Finding.BETTER: "\u2705",
    Finding.DEFAULT: "\u2705",
    Finding.DEFAULT_FAILS: "\u2705",
    Finding.INCONCLUSIVE: "\u26a0\ufe0f",
    Finding.NONE_SATISFIES: "\u274c",
    Finding.NOTHING: "\u274c",
}


def markdown_text(run: Run, link: str = "", manner: Manner | None = None) -> str:
    """The document; `link` leads to the whole report."""
    manner = manner or Manner.of(run)
    lines: list[str] = []
    for model in run.models:
        lines += _model(model, run, gpus=manner.shows_gpus(run, model.model))
    if run.outcome != "complete":
        lines += ["> The run did not come to its end: the space was not searched completely.", ""]
    host = run.started.provenance.host
    where = ", ".join(host[key] for key in ("Host", "Processor", "GPU") if host.get(key))
    report = f" \u00b7 [report]({link})" if link else ""
    lines.append(f"<sub>{_escaped(where)} \u00b7 {run.started.provenance.started}{report}</sub>")
    return "\n".join(lines) + "\n"


def _model(model: ModelRun, run: Run, *, gpus: bool) -> list[str]:
    verdict = judge(model, run.started.goals)
    sentence = "".join(
        f"`{part}`" if i % 2 else _escaped(part, keep_ends=True)
        for i, part in enumerate(verdict.sentence.split("`"))
    )
    lines = [f"### {_SIGNS[verdict.finding]} {_escaped(model.model)}: {sentence}", ""]
    for text in (verdict.detail, caution(verdict, model, run.started.tolerance_percent)):
        lines += [_escaped(text), ""] if text else []
    if verdict.ranking:
        constrained = bool(limits_of(run.started.goals, model.model))
        lines += [*_table(verdict, run.started.goals, constrained=constrained, gpus=gpus), ""]
        lines += [_curve(verdict.best or verdict.ranking[0]), ""]
    failures = list(dict.fromkeys(f"{f.variant} at {f.load}: {f.reason}" for f in model.failures))
    lines += [f"- {_escaped(text)}" for text in failures[:MOST_ROWS]]
    return [*lines, ""] if failures else lines


def _table(verdict: Verdict, goals: Goals, *, constrained: bool, gpus: bool) -> list[str]:
    wanted = [tag for tag in _TAGS if gpus or not tag.startswith("gpu_")]
    tags = [tag for tag in wanted if any(METRICS[tag].value(r.figures) is not None for r in verdict.ranking)]
    head = ["Configuration", "Instances", "Load", "vs default", *(_TAGS[tag] for tag in tags)]
    head += ["Satisfies"] if constrained else []
    align = ["---", "---", "---", *("---:" for _ in range(len(tags) + 1))] + (["---"] if constrained else [])
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(align) + "|"]
    for ranked in _rows(verdict):
        figures = ranked.figures
        values = [METRICS[tag].value(figures) for tag in tags]
        cells = [f"`{ranked.name}`", ranked.run.configuration.instance_group, str(figures.load)]
        cells += [
            _gain(ranked, verdict, goals.of(verdict.model)),
            *("" if v is None else f"{v:,.1f}" for v in values),
        ]
        cells += [("yes" if ranked.satisfies else "no")] if constrained else []
        lines.append("| " + " | ".join(cells) + " |")
    left = len(verdict.ranking) - len(_rows(verdict))
    return [*lines, "", f"{left} more in the report."] if left else lines


_TAGS = {
    "perf_throughput": "infer/s",
    "perf_latency_avg": "avg ms",
    "perf_latency_p99": "p99 ms",
    "cpu_used_ram": "RAM MB",
    "gpu_used_memory": "GPU MB",
}


def _rows(verdict: Verdict) -> Sequence[RankedVariant]:
    """The best ones, and the default as the last where it is not among them."""
    shown = list(verdict.ranking[:MOST_ROWS])
    if verdict.default is not None and verdict.default not in shown:
        shown[-1] = verdict.default
    return shown


def _gain(ranked: RankedVariant, verdict: Verdict, goals: Goals) -> str:
    default = verdict.default
    if default is None or ranked is default:
        return ""
    percent = gain_percent(ranked.figures, default.figures, goals)
    if percent is None:
        return ""
    text = signed_percent(percent)
    gain = verdict.conclusion.gains.get(ranked.name) if verdict.conclusion else None
    if gain is None or gain.rounds < 2:
        return text
    return f"{text} [{gain.low * 100:.0f}, {gain.high * 100:.0f}]"


def _curve(ranked: RankedVariant) -> str:
    ordered = sorted(ranked.ordered, key=lambda m: (m.load.batch_size, m.load.value))
    through = sparkline([m.throughput for m in ordered])
    tails = sparkline([m.latency.p99_ns for m in ordered if m.latency.p99_ns is not None])
    p99 = f" \u00b7 p99 `{tails}`" if tails else ""
    return f"`{ranked.name}` from {ordered[0].load} to {ordered[-1].load}: throughput `{through}`{p99}"


def _escaped(text: str, *, keep_ends: bool = False) -> str:
    """A server's words are no markup; ends stay where more text follows."""
    for sign in "\\`*_|[]":
        text = text.replace(sign, f"\\{sign}")
    text = text.replace("<", "&lt;").replace(">", "&gt;")
    joined = " ".join(text.split())
    if not keep_ends:
        return joined
    return f"{' ' * text.startswith(' ')}{joined}{' ' * (text.endswith(' ') and bool(joined))}"
