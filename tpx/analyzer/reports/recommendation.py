"""The recommendation: what to change in `config.pbtxt`, by which command, and what it brings."""

import difflib
import shlex
from pathlib import Path

from tpx.analyzer.objectives import METRICS, RankedVariant
from tpx.analyzer.reports.columns import signed_percent
from tpx.analyzer.reports.verdict import Finding, Verdict
from tpx.analyzer.reports.view import DiffLine, Recommendation
from tpx.analyzer.results.measurement import Configuration, Measurement
from tpx.analyzer.results.run import Run, VariantRun

_NO_VALUE = "\u2013"


def recommend(
    verdict: Verdict, run: Run, repository: Path, export_path: Path, *, gpus: bool
) -> Recommendation | None:
    """None where the default is to stay; `repository` has the variants, `export_path` the run, `gpus` whether
    figures of GPUs are compared."""
    best, default = verdict.best, verdict.default
    if best is None or not best.satisfies or best is default or best.run.variant.is_default:
        return None
    words = ["tpx", "analyze", "apply", best.name, "--export-path", str(export_path)]
    if len(run.started.models) > 1:
        words += ["--model", verdict.model]
    return Recommendation(
        name=best.name,
        against=default.name if default else "",
        columns=("", "Default", best.name, "Change") if default else (),
        rows=_comparison(default, best, gpus=gpus) if default else (),
        diff=config_diff(default.run, best.run) if default else (),
        config_text=whole_text(best.run.configuration),
        path=paths_of(best.run.configuration, repository),
        command=shlex.join(words),
        certain=verdict.finding is not Finding.INCONCLUSIVE,
    )


_COMPARED = (
    ("perf_throughput", "Throughput, infer/s", 1),
    ("perf_latency_avg", "Average latency, ms", 2),
    ("perf_latency_p99", "p99 latency, ms", 2),
    ("cpu_used_ram", "Server memory, MB", 0),
    ("gpu_used_memory", "GPU memory, MB", 0),
)


def _comparison(default: RankedVariant, best: RankedVariant, *, gpus: bool) -> tuple[tuple[str, ...], ...]:
    """Both at their best load, then both at the default's, so that nobody takes more load for more speed."""
    before, after = default.figures, best.figures
    rows = [("Each at its best load", str(before.load), str(after.load), "")]
    rows += _metric_rows(before, after, gpus=gpus)
    if before.load != after.load:
        # both as the search saw them: what was repeated must not be held against what was measured once
        ours, theirs = _same_load(best, before), _same_load(default, before)
        if ours is not None and theirs is not None:
            rows.append(("At the same load, once", str(before.load), str(before.load), ""))
            rows += _metric_rows(theirs, ours, gpus=gpus)
    return tuple(rows)


def _same_load(ranked: RankedVariant, other: Measurement) -> Measurement | None:
    """What the search measured of this configuration under the load of another measurement."""
    return next((m for m in ranked.ordered if m.load == other.load), None)


def _metric_rows(before: Measurement, after: Measurement, *, gpus: bool) -> list[tuple[str, str, str, str]]:
    rows = []
    for tag, label, digits in _COMPARED:
        old, new = METRICS[tag].value(before), METRICS[tag].value(after)
        if old is None or new is None or (tag.startswith("gpu_") and not gpus):
            continue
        change = signed_percent((new / old - 1) * 100) if old else _NO_VALUE
        rows.append((label, f"{old:,.{digits}f}", f"{new:,.{digits}f}", change))
    return rows


def paths_of(configuration: Configuration, repository: Path) -> str:
    """Where its files lie; models together have a directory each, and none in common."""
    return ", ".join(str(repository / each.variant.name / "config.pbtxt") for each in configuration.files)


def config_diff(default: VariantRun, best: VariantRun) -> tuple[DiffLine, ...]:
    """Unified, file by file; a configuration of several models has several files."""
    pairs = zip(default.configuration.files, best.configuration.files, strict=False)
    return tuple(line for old, new in pairs for line in _diff(old, new))


def _diff(old: Configuration, new: Configuration) -> list[DiffLine]:
    lines = difflib.unified_diff(
        old.text.splitlines(),
        new.text.splitlines(),
        f"{old.variant.name}/config.pbtxt",
        f"{new.variant.name}/config.pbtxt",
        lineterm="",
    )
    kinds = {"+": "add", "-": "remove", "@": "hunk"}
    return [
        DiffLine(kind="hunk" if number < 2 else kinds.get(line[:1], "same"), text=line)
        for number, line in enumerate(lines)
    ]


def whole_text(configuration: Configuration) -> str:
    """Its config.pbtxt; of several files each under its path."""
    files = configuration.files
    if len(files) == 1:
        return files[0].text
    return "\n".join(f"# {each.variant.name}/config.pbtxt\n{each.text}" for each in files)
