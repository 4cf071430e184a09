"""Shared by the comparing commands: what counts as a difference, and how differences are reported."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpx.cli.commands import Exit
from tpx.cli.messages import terminal_width
from tpx.errors import UsageError
from tpx.options import group, option
from tpx.perf.options.measuring import Strictness

if TYPE_CHECKING:
    from tpx.perf.options.output import OutputSpec
    from tpx.perf.report.comparison import Compared


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSpec:
    """Options for which differences count, and the files to write."""

    strictness: Strictness = group(Strictness)
    json: Path | None = option(None, "write the differences as JSON", metavar="FILE")
    junit: Path | None = option(
        None, "write a JUnit test case for every figure of every load", metavar="FILE"
    )
    markdown: Path | None = option(None, "write a Markdown table for CI", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class PerfCompareConfig:
    """Two files of levels, and what counts as a difference."""

    comparison: ComparisonSpec = group(ComparisonSpec)
    runs: tuple[Path, ...] = option(
        (),
        "two files of tpx perf --json: before and after",
        section="Runs",
        metavar="A.json B.json",
        positional=True,
    )

    def __post_init__(self) -> None:
        if len(self.runs) != 2:
            raise UsageError(f"tpx perf compare takes two files, got {len(self.runs)}")


@dataclass(frozen=True, kw_only=True)
class AnalyzeCompareConfig:
    """Two runs, and what counts as a difference."""

    comparison: ComparisonSpec = group(ComparisonSpec)
    runs: tuple[Path, ...] = option(
        (),
        "two runs, before and after: each an export path, its results, or a run.jsonl",
        section="Runs",
        metavar="BEFORE AFTER",
        positional=True,
    )
    all: bool = option(False, "also show what did not change")

    def __post_init__(self) -> None:
        if len(self.runs) != 2:
            raise UsageError(f"tpx analyze compare takes two runs, got {len(self.runs)}")


def report_comparison(
    compared: "Compared",
    files: "ComparisonSpec | OutputSpec",
    document: Mapping[str, object],
    *,
    everything: bool = True,
) -> Exit:
    """Print a comparison, write its files (`document` is its JSON), and return the exit code."""
    from tpx.cli.perf_terminal import tell
    from tpx.perf.report.comparison import (
        comparison_document,
        write_comparison,
    )  # late: help needs only the options
    from tpx.report import text

    width = terminal_width()
    tell(text.render(comparison_document(compared, everything=everything), width))
    write_comparison(compared, document, json=files.json, junit=files.junit, markdown=files.markdown)
    return Exit.REGRESSION if any(d.finding == "worse" for d in compared.differences) else Exit.OK
