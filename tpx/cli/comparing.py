"""Shared by the comparing commands: what counts as a difference, and how differences are reported."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpx.cli.commands import Exit
from tpx.cli.messages import terminal_width
from tpx.errors import UsageError
from tpx.options import Options, group, option
from tpx.perf.options.measuring import Strictness

if TYPE_CHECKING:
    from tpx.perf.options.output import OutputSpec
    from tpx.perf.report.comparison import Compared


class ComparisonSpec(Options):
    """Options for which differences count, and the files to write."""

    strictness: Strictness = group(Strictness)
    json: Path | None = option(None, "write the differences as JSON", metavar="FILE")
    junit: Path | None = option(
        None, "write a JUnit test case for every figure of every load", metavar="FILE"
    )
    markdown: Path | None = option(None, "write a Markdown table for CI", metavar="FILE")


_BASELINE: tuple[Path, ...] = option(
    (),
    "runs before the change, three or more for a verdict: --baseline RUN RUN RUN",
    section="Runs",
    metavar="RUN",
    several=True,
)


def check_sides(command: str, runs: tuple[Path, ...], baseline: tuple[Path, ...]) -> None:
    """Raise UsageError unless there are runs before and after."""
    if not baseline and len(runs) != 2:
        raise UsageError(f"{command} takes two runs, or some after --baseline RUN RUN RUN; got {len(runs)}")
    if not runs:
        raise UsageError(
            f"{command}: no run to compare with --baseline: give it before --baseline, or after `--`"
        )
    given = sides(runs, baseline)
    if again := next((path for side in given for path in side if side.count(path) > 1), None):
        raise UsageError(f"{command}: {again} is given twice, and a run is evidence once")


def sides(runs: tuple[Path, ...], baseline: tuple[Path, ...]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the runs before and after."""
    return (baseline, runs) if baseline else (runs[:1], runs[1:])


def named_runs(paths: Sequence[Path]) -> str:
    """Return `a.json`, or `3 runs (a.json, b.json, c.json)`."""
    names = ", ".join(map(str, paths))
    return names if len(paths) == 1 else f"{len(paths)} runs ({names})"


class PerfCompareConfig(Options):
    """The runs to compare, and what counts as a difference."""

    comparison: ComparisonSpec = group(ComparisonSpec)
    runs: tuple[Path, ...] = option(
        (),
        "files of tpx perf --json: before and after, or those after the baseline",
        section="Runs",
        metavar="RUN.json",
        positional=True,
    )
    baseline: tuple[Path, ...] = _BASELINE

    def __post_init__(self) -> None:
        check_sides("tpx perf compare", self.runs, self.baseline)


class AnalyzeCompareConfig(Options):
    """The runs to compare, and what counts as a difference."""

    comparison: ComparisonSpec = group(ComparisonSpec)
    runs: tuple[Path, ...] = option(
        (),
        "before and after, or those after the baseline: each an export path, its results, or a run.jsonl",
        section="Runs",
        metavar="RUN",
        positional=True,
    )
    baseline: tuple[Path, ...] = _BASELINE
    all: bool = option(False, "also show what did not change")

    def __post_init__(self) -> None:
        check_sides("tpx analyze compare", self.runs, self.baseline)


def report_comparison(
    compared: "Compared",
    files: "ComparisonSpec | OutputSpec",
    document: Mapping[str, object],
    *,
    everything: bool = True,
) -> Exit:
    """Print a comparison, write its files (`document` is its JSON), and return the exit code."""
    from tpx.cli.perf_terminal import tell  # late: help needs only the options
    from tpx.perf.report.comparison import comparison_document, comparison_junit
    from tpx.report import text
    from tpx.report.ci import to_markdown
    from tpx.report.files import file_output, json_text, write_each

    tell(text.render(comparison_document(compared, everything=everything), terminal_width()))
    write_each(
        [
            file_output("JSON", files.json, lambda: json_text(document)),
            file_output("JUnit", files.junit, lambda: comparison_junit(compared)),
            file_output("Markdown", files.markdown, lambda: to_markdown(comparison_document(compared))),
        ]
    )
    if compared.outcome == "undecided":
        return Exit.INCONCLUSIVE if compared.strictness.undecided == "fail" else Exit.OK
    return Exit.REGRESSION if compared.outcome == "worse" else Exit.OK
