"""The recommendation: what to change in `config.pbtxt`, by which command, and what it brings."""

import difflib
import shlex
from pathlib import Path

from tpx.analyzer.limits import shown
from tpx.analyzer.objectives import METRICS, RankedVariant
from tpx.analyzer.results.measurement import Configuration
from tpx.analyzer.results.run import Run, VariantRun
from tpx.analyzer.verdict import Finding, Verdict, equal_loads
from tpx.report.digits import percent
from tpx.report.document import (
    Block,
    Cell,
    Code,
    CodeLine,
    Column,
    Details,
    Grid,
    Group,
    Note,
    Row,
    Section,
    code,
)
from tpx.report.table import NO_VALUE


def recommend(
    verdict: Verdict, run: Run, repository: Path, export_path: Path, *, gpus: bool
) -> list[Section]:
    """Return the section that recommends another configuration, or nothing where the default is to stay.

    `repository` holds the variants, `export_path` the run; `gpus` compares figures of GPUs, too.
    """
    best, default = verdict.best, verdict.default
    if best is None or not best.satisfies or best is default or best.run.variant.is_default:
        return []
    words = ["tpx", "analyze", "apply", best.name, "--export-path", str(export_path)]
    if len(run.started.models) > 1:
        words += ["--model", verdict.model]
    path = paths_of(best.run.configuration, repository)
    lead = f"`{best.name}` against `{default.name}`. " if default else ""
    blocks: list[Block] = [code(shlex.join(words), command=True)]
    if verdict.finding is Finding.INCONCLUSIVE:
        blocks.insert(0, Note(text="It is not certain to be better: measure again before you apply it."))
    if default is not None:
        whole = code(whole_text(best.run.configuration), label="config.pbtxt")
        change = (
            config_diff(default.run, best.run),
            Details(summary="The whole `config.pbtxt`", blocks=(whole,)),
        )
        blocks.append(Group(title="Change to `config.pbtxt`", blocks=change))
        brings: list[Block] = [_comparison(default, best, gpus=gpus)]
        equal = equal_loads(best, default, run.started.goals.of(verdict.model))
        if equal:
            once = f"Under equal load, as the search measured both once: {', '.join(map(str, equal))}."
            brings.append(Note(text=once, style="small"))
        blocks.append(Group(title="What it brings", blocks=tuple(brings)))
    section = Section(
        title="What to change", lead=f"{lead}The complete file is `{path}`.", blocks=tuple(blocks)
    )
    return [section]


_COMPARED = (
    ("perf_throughput", "Throughput"),
    ("perf_latency_avg", "Average latency"),
    ("perf_latency_p99", "p99 latency"),
    ("cpu_used_ram", "Server memory"),
    ("gpu_used_memory", "GPU memory"),
)


def _comparison(default: RankedVariant, best: RankedVariant, *, gpus: bool) -> Grid:
    """Return the figures of both, each at its own best load."""
    rows = [("Load", str(default.figures.load), str(best.figures.load), "")]
    for tag, label in _COMPARED[: None if gpus else -1]:
        metric = METRICS[tag]
        old, new = metric.value(default.figures), metric.value(best.figures)
        if old is not None and new is not None:
            change = percent(new / old - 1) if old else NO_VALUE
            rows.append((label, shown(metric, old), shown(metric, new), change))
    return Grid(
        caption="",
        columns=(
            Column(header=""),
            *(Column(header=text, numeric=True) for text in ("Default", best.name, "Change")),
        ),
        rows=tuple(
            Row(cells=(Cell(text=label), *(Cell(text=text, numeric=True) for text in cells)))
            for label, *cells in rows
        ),
    )


def paths_of(configuration: Configuration, repository: Path) -> str:
    """Where its files lie; models together have a directory each, and none in common."""
    return ", ".join(str(repository / each.variant.name / "config.pbtxt") for each in configuration.files)


def config_diff(default: VariantRun, best: VariantRun) -> Code:
    """Return a unified diff, file by file; a configuration of several models has several files."""
    pairs = zip(default.configuration.files, best.configuration.files, strict=False)
    lines = tuple(line for old, new in pairs for line in _diff(old, new))
    return Code(lines=lines, label="Difference of config.pbtxt")


def _diff(old: Configuration, new: Configuration) -> list[CodeLine]:
    lines = difflib.unified_diff(
        old.text.splitlines(),
        new.text.splitlines(),
        f"{old.variant.name}/config.pbtxt",
        f"{new.variant.name}/config.pbtxt",
        lineterm="",
    )
    kinds = {"+": "add", "-": "remove", "@": "hunk"}
    return [
        CodeLine(change="hunk" if number < 2 else kinds.get(line[:1], "same"), text=line)
        for number, line in enumerate(lines)
    ]


def whole_text(configuration: Configuration) -> str:
    """Its config.pbtxt; of several files each under its path."""
    files = configuration.files
    if len(files) == 1:
        return files[0].text
    return "\n".join(f"# {each.variant.name}/config.pbtxt\n{each.text}" for each in files)
