"""The recommendation: what to change in `config.pbtxt`, by which command, and what it brings."""

import difflib
import shlex
from pathlib import Path

from tpx.analyzer.objectives import METRICS, RankedVariant
from tpx.analyzer.reports.verdict import Finding, Verdict
from tpx.analyzer.results.measurement import Configuration, Measurement
from tpx.analyzer.results.run import Run, VariantRun
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

_NO_VALUE = "\u2013"


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
        blocks.append(Group(title="What it brings", blocks=(_comparison(default, best, gpus=gpus),)))
    section = Section(
        title="What to change", lead=f"{lead}The complete file is `{path}`.", blocks=tuple(blocks)
    )
    return [section]


_COMPARED = (
    ("perf_throughput", "Throughput, infer/s", 1),
    ("perf_latency_avg", "Average latency, ms", 2),
    ("perf_latency_p99", "p99 latency, ms", 2),
    ("cpu_used_ram", "Server memory, MB", 0),
    ("gpu_used_memory", "GPU memory, MB", 0),
)


def _comparison(default: RankedVariant, best: RankedVariant, *, gpus: bool) -> Grid:
    """Return the figures of both at their best load, then at the default's, where more load is no excuse."""
    before, after = default.figures, best.figures
    rows = [("Each at its best load", str(before.load), str(after.load), "")]
    rows += _metric_rows(before, after, gpus=gpus)
    if before.load != after.load:
        # both as the search saw them: what was repeated must not be held against what was measured once
        ours, theirs = _same_load(best, before), _same_load(default, before)
        if ours is not None and theirs is not None:
            rows.append(("At the same load, once", str(before.load), str(before.load), ""))
            rows += _metric_rows(theirs, ours, gpus=gpus)
    return Grid(
        caption="",
        columns=(
            Column(header=""),
            *(Column(header=text, numeric=True) for text in ("Default", best.name, "Change")),
        ),
        rows=tuple(
            Row(
                cells=(Cell(text=label), *(Cell(text=text, numeric=True) for text in figures)),
                emphasis="" if figures[2] else "group",
            )
            for label, *figures in rows
        ),
    )


def _same_load(ranked: RankedVariant, other: Measurement) -> Measurement | None:
    """What the search measured of this configuration under the load of another measurement."""
    return next((m for m in ranked.run.measurements if m.load == other.load), None)


def _metric_rows(before: Measurement, after: Measurement, *, gpus: bool) -> list[tuple[str, str, str, str]]:
    rows = []
    for tag, label, digits in _COMPARED:
        old, new = METRICS[tag].value(before), METRICS[tag].value(after)
        if old is None or new is None or (tag.startswith("gpu_") and not gpus):
            continue
        change = percent(new / old - 1) if old else _NO_VALUE
        rows.append((label, f"{old:,.{digits}f}", f"{new:,.{digits}f}", change))
    return rows


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
