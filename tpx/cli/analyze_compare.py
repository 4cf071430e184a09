"""`tpx analyze compare A B`: what changed between two runs, and an exit status for continuous integration."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tpx.analyzer.comparison import Comparison, Pair, compare_runs
from tpx.analyzer.results.journal import read_last_run
from tpx.analyzer.results.run import Run
from tpx.cli.analyze_runs import journal_of
from tpx.cli.comparing import ComparisonOptions
from tpx.cli.exits import Exit
from tpx.errors import UsageError
from tpx.options import from_argv, option
from tpx.perf.answers.compare import Strictness, difference_json

NAMES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class CompareConfig(ComparisonOptions):
    """Two runs, and what counts as a difference."""

    runs: tuple[Path, ...] = option(
        (),
        "two runs, before and after: each an export path, its results, or a run.jsonl",
        section="Runs",
        metavar="BEFORE AFTER",
        positional=True,
    )
    all: bool = option(False, "show also what did not change")

    def __post_init__(self) -> None:
        if len(self.runs) != 2:
            raise UsageError(f"tpx analyze compare takes two runs, got {len(self.runs)}")
        self.check_strictness()


def compare(argv: Sequence[str]) -> int:
    """Print what changed; 5 where something became worse, else 0."""
    config = from_argv(CompareConfig, argv)
    before, after = (Run.from_records(read_last_run(journal_of(path))) for path in config.runs)
    found = compare_runs(before, after, config.strictness)
    if not found.pairs:
        raise UsageError(
            f"{config.runs[0]} and {config.runs[1]} have no configuration under the same load in common"
        )
    _show(found, config.strictness, everything=config.all)
    config.write(_document(found))
    return Exit.REGRESSION if found.regressions else Exit.OK


def _show(found: Comparison, strictness: Strictness, *, everything: bool) -> None:
    shown = [p for p in found.pairs if everything or p.recommended or p.difference.finding != "same"]
    console = Console(markup=False, highlight=False, soft_wrap=True)
    rows = [_cells(pair) for pair in shown]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    heading = ""
    for pair, cells in zip(shown, rows, strict=True):
        if _heading(pair) != heading:
            heading = _heading(pair)
            console.print(heading, style="bold")
        figure, *rest = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        style = {"worse": "red", "better": "green"}.get(pair.difference.finding)
        console.print(f"  {figure}  {'  '.join(rest)}".rstrip(), style=style)
    for names, which in ((found.only_before, "first"), (found.only_after, "second")):
        if names:
            more = ", ..." if len(names) > NAMES_SHOWN else ""
            print(f"only in the {which} run: {', '.join(names[:NAMES_SHOWN])}{more}")
    print(_outcome(found, strictness))


def _heading(pair: Pair) -> str:
    """Return what the figures below it are of."""
    name = pair.before if pair.before == pair.after else f"{pair.before} -> {pair.after}"
    recommended = " (recommended)" if pair.recommended else ""
    return f"{name}{recommended}, {pair.difference.load}"


def _outcome(found: Comparison, strictness: Strictness) -> str:
    worse = len(found.regressions)
    better = sum(pair.difference.finding == "better" for pair in found.pairs)
    rule = f"alpha {strictness.alpha:g}, differences above {strictness.min_effect * 100:g}%"
    count = f"{len(found.pairs)} figures compared"
    if not worse and not better:
        return f"No significant difference ({count}, {rule})."
    return f"{worse} worse, {better} better, the rest the same ({count}, {rule})."


def _cells(pair: Pair) -> tuple[str, ...]:
    """Return one figure of both runs: its name, before, after, the change with its interval, the finding."""
    difference = pair.difference
    certain = difference.high != float("inf")
    bounds = f"[{difference.low * 100:+.1f}, {difference.high * 100:+.1f}]" if certain else "[unknown]"
    return (
        difference.figure,
        _value(difference.figure, difference.before),
        f"-> {_value(difference.figure, difference.after)}",
        f"{difference.relative * 100:+.1f}% {bounds}",
        difference.finding,
    )


def _value(figure: str, value: float) -> str:
    return f"{value:.1f} infer/s" if figure == "throughput" else f"{value / 1e6:.2f} ms"


def _document(found: Comparison) -> dict[str, Any]:
    """The differences as JSON has them: a bound that is not known is null."""
    differences: list[dict[str, Any]] = difference_json([pair.difference for pair in found.pairs])
    pairs: list[dict[str, Any]] = [
        {"model": p.model, "configurations": [p.before, p.after], "recommended": p.recommended} | difference
        for p, difference in zip(found.pairs, differences, strict=True)
    ]
    for pair in pairs:
        pair["ci"] = [None if bound == float("inf") else bound for bound in pair["ci"]]
    return {
        "schema": 1,
        "compare": pairs,
        "only_before": found.only_before,
        "only_after": found.only_after,
    }
