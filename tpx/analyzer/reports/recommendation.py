"""The verdict at the top of a model's report, and the recommended change of `config.pbtxt`."""

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tpx.analyzer.metrics import METRICS, shown
from tpx.analyzer.objectives import RankedVariant, describe_limits
from tpx.analyzer.reports.view import ModelView
from tpx.analyzer.results.measurement import Configuration
from tpx.analyzer.results.run import VariantRun
from tpx.analyzer.verdict import Finding, describe_interval, equal_loads
from tpx.perf.objectives import Compliance
from tpx.report.digits import change
from tpx.report.document import (
    Block,
    Cell,
    CodeBlock,
    CodeLine,
    Column,
    DataTable,
    Details,
    Group,
    Note,
    Section,
    Statement,
    TableRow,
    Tile,
    code,
)
from tpx.report.table import NO_VALUE

_CONSTRAINTS = {
    Compliance.MET: ("met", "good"),
    Compliance.UNDECIDED: ("borderline", ""),
    Compliance.VIOLATED: ("missed", "bad"),
}


def verdict_card(view: ModelView) -> Statement:
    """Return badge, sentence and figures of one model's verdict."""
    verdict = view.verdict
    return Statement(
        badge=verdict.badge,
        tone=verdict.tone,
        sentence=verdict.sentence + ".",
        detail=verdict.detail,
        caution=verdict.caution,
        tiles=tuple(_iter_tiles(view)),
    )


FIGURES = {
    "perf_throughput": "Throughput",
    "perf_latency_avg": "Mean latency",
    "perf_latency_p99": "p99 latency",
    "cpu_used_ram": "Server memory",
    "gpu_used_memory": "GPU memory",
}
"""Metrics that tell configurations apart, with their labels."""


def metric_tiles(
    view: ModelView, tags: Iterable[str], ranked: RankedVariant, other: RankedVariant | None = None
) -> Iterator[Tile]:
    """Yield tiles of these `FIGURES`, with the default's as notes; none of what was not measured."""
    good = view.verdict.finding is Finding.BETTER and other is not None
    for tag in tags:
        metric, value = METRICS[tag], view.value(tag, ranked)
        if value is None:
            continue
        figure, _, unit = shown(metric, value).partition(" ")
        default = None if other is None else view.value(tag, other)
        note = "" if default is None else f"default {shown(metric, default).removesuffix(' infer/s')}"
        tone = "good" if good and tag == "perf_throughput" else ""
        yield Tile(label=FIGURES[tag], figure=figure, unit=unit, note=note, tone=tone)


def _iter_tiles(view: ModelView) -> Iterator[Tile]:
    verdict = view.verdict
    best = verdict.best
    if best is None:
        return
    other = verdict.default if verdict.default is not best else None
    yield from metric_tiles(view, ["perf_throughput"], best, other)
    if verdict.gain_percent is not None and other is not None:
        gain = verdict.gain
        note = "over the default, measured once" if gain is None else describe_interval(gain)
        figure = change(verdict.gain_percent / 100)
        unit = "%" if figure.endswith("%") else ""
        yield Tile(label="Gain", figure=figure.removesuffix("%"), unit=unit, note=note)
    yield from metric_tiles(view, ["perf_latency_p99"], best, other)
    load, configuration = best.figures.load, best.run.configuration
    yield Tile(
        label=load.kind.replace("_", " ").capitalize(),
        figure="+".join(f"{member.value:,}" for member in load.members) or f"{load.value:,}",
        unit="in flight" if load.kind == "concurrency" else "per s",
        note=f"default at {other.figures.load.value}" if other else "",
    )
    group = configuration.instance_group
    count, _, kind = group.partition(":")
    several = " + " in group or ";" in group
    batching = "no batching"
    if configuration.max_batch_size:
        dynamic = "dynamic batching" if configuration.dynamic_batching else "no dynamic batching"
        batching = f"max batch {configuration.max_batch_size}, {dynamic}"
    figure = str(configuration.instances) if several else count
    yield Tile(label="Instances", figure=figure, unit=group if several else kind, note=batching)
    asked = view.verdict.limits
    if asked:
        word, tone = _CONSTRAINTS[verdict.compliance]
        limits = describe_limits(asked)
        yield Tile(label="Constraints", figure=word, unit="", note=limits, tone=tone)
    yield from metric_tiles(view, ["cpu_used_ram", "gpu_used_memory"], best, other)


def recommend(view: ModelView) -> list[Section]:
    """Return the section that recommends another configuration; empty if the default should stay."""
    report, verdict = view.report, view.verdict
    best, default = verdict.best, verdict.default
    if best is None or not view.remedy:
        return []
    path = paths_of(best.run.configuration, report.repository)
    lead = f"`{best.name}` against `{default.name}`. " if default else ""
    blocks: list[Block] = [code(view.remedy, command=True)]
    if default is not None:
        full_config = code(whole_text(best.run.configuration), label="config.pbtxt")
        lines = (
            config_diff(default.run, best.run),
            Details(summary="The whole `config.pbtxt`", blocks=(full_config,)),
        )
        blocks.append(Group(title="Change to `config.pbtxt`", blocks=lines))
        brings: list[Block] = [_build_comparison(view, default, best)]
        equal = equal_loads(best, default, view.verdict.goals)
        if equal:
            once = f"Under equal load, as the search measured both once: {equal}."
            brings.append(Note(text=once, style="small"))
        blocks.append(Group(title="What it brings", blocks=tuple(brings)))
    section = Section(
        title="What to change", lead=f"{lead}The complete file is `{path}`.", blocks=tuple(blocks)
    )
    return [section]


def _build_comparison(view: ModelView, default: RankedVariant, best: RankedVariant) -> DataTable:
    """Return the figures of both, each at its own best load."""
    rows = [("Load", str(default.figures.load), str(best.figures.load), "")]
    for tag, label in FIGURES.items():
        metric, old, new = METRICS[tag], view.value(tag, default), view.value(tag, best)
        if old is not None and new is not None:
            by = change(new / old - 1) if old else NO_VALUE
            rows.append((label, shown(metric, old), shown(metric, new), by))
    return DataTable(
        caption="",
        columns=(
            Column(header=""),
            *(Column(header=text, numeric=True) for text in ("Default", best.name, "Change")),
        ),
        rows=tuple(
            TableRow(cells=(Cell(text=label), *(Cell(text=text, numeric=True) for text in cells)))
            for label, *cells in rows
        ),
    )


def paths_of(configuration: Configuration, repository: Path) -> str:
    """Return the paths of a configuration's files; models measured together have one directory each."""
    return ", ".join(str(repository / each.variant.name / "config.pbtxt") for each in configuration.files)


def config_diff(default: VariantRun, best: VariantRun) -> CodeBlock:
    """Return a unified diff per file; a configuration of several models has several files."""
    kinds = {"+": "add", "-": "remove", "@": "hunk"}
    shown: list[CodeLine] = []
    for old, new in zip(default.configuration.files, best.configuration.files, strict=False):
        was, becomes = (f"{each.variant.name}/config.pbtxt" for each in (old, new))
        lines = difflib.unified_diff(old.text.splitlines(), new.text.splitlines(), was, becomes, lineterm="")
        for number, line in enumerate(lines):
            change = "hunk" if number < 2 else kinds.get(line[:1], "same")
            shown.append(CodeLine(change=change, text=line))
    return CodeBlock(lines=tuple(shown), label="Difference of config.pbtxt")


def whole_text(configuration: Configuration) -> str:
    """Return the config.pbtxt; if there are several files, each below its path."""
    files = configuration.files
    if len(files) == 1:
        return files[0].text
    return "\n".join(f"# {each.variant.name}/config.pbtxt\n{each.text}" for each in files)
