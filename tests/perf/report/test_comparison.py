"""Comparisons for the page of a CI job and for CI servers."""

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tpx.errors import MeasurementError
from tpx.perf.answers.compare import Comparison, Difference, Strictness
from tpx.perf.report.comparison import Against, Compared, comparison_junit, comparison_markdown
from tpx.perf.report.files import write_comparison

SLOWER = Difference(
    load="concurrency 4",
    figure="p99",
    before=2_000_000.0,
    after=3_000_000.0,
    low=0.4,
    high=0.6,
    p_value=0.001,
    finding="worse",
)
SAME = Difference(
    load="concurrency 4", figure="throughput", before=100.0, after=101.0, low=-0.1, high=0.12, p_value=0.8
)


def compared(
    *differences: Difference, only_after: tuple[str, ...] = (), interrupted: bool = False
) -> Compared:
    comparison = Comparison(differences=differences, only_after=only_after)
    return Compared(
        pairs=(Against(before="old_one", after="<new>", comparison=comparison),),
        strictness=Strictness(),
        interrupted=interrupted,
    )


def test_markdown_has_the_finding_first_and_a_row_for_every_figure() -> None:
    lines = comparison_markdown(compared(SAME, SLOWER, only_after=("concurrency 8",))).splitlines()
    assert lines[0] == "### \u274c 1 worse, 0 better"
    assert lines[2] == "**&lt;new&gt;** against old\\_one"
    assert (
        "| concurrency 4 | throughput | 100 req/s | 101 req/s | +1.0% | -10.0% to +12.0% | 0.800 |  |"
        in lines
    )
    assert (
        "| concurrency 4 | p99 | 2000.0 usec | 3000.0 usec | +50.0% | +40.0% to +60.0% | 0.001 | "
        "\u274c worse |"
    ) in lines
    assert "Only in the second run: concurrency 8" in lines
    assert lines[-1] == "<sub>alpha 0.05, differences above 2%, intervals of 95%</sub>"


def test_markdown_of_nothing_new_says_so_and_that_it_was_interrupted() -> None:
    assert comparison_markdown(compared(SAME, interrupted=True)).startswith(
        "### \u2705 no significant difference, interrupted\n"
    )


def test_junit_fails_what_became_worse_alone() -> None:
    suite = ElementTree.fromstring(comparison_junit(compared(SAME, SLOWER)))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    same, slower = suite.findall("testcase")
    assert (same.get("classname"), same.get("name")) == ("<new> against old_one", "concurrency 4 throughput")
    assert same.find("failure") is None
    failure = slower.find("failure")
    assert failure is not None
    assert failure.get("message") == (
        "p99 is worse: 2000.0 usec -> 3000.0 usec, +50.0% [+40.0%, +60.0%], p=0.001"
    )


@dataclass(frozen=True)
class Files:
    """Implements ComparisonFiles."""

    json: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None


def test_a_full_disk_costs_the_file_that_is_on_it_alone(tmp_path: Path) -> None:
    files = Files(json=Path("/dev/full"), markdown=tmp_path / "ab.md")
    with pytest.raises(MeasurementError, match=r"^cannot write /dev/full: No space left on device$"):
        write_comparison(files, compared(SAME), {})
    assert "no significant difference" in (tmp_path / "ab.md").read_text("utf-8")
