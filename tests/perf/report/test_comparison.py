"""Comparisons for the page of a CI job and for CI servers."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tpx.errors import MeasurementError
from tpx.perf.compare import Difference
from tpx.perf.options.measuring import Strictness
from tpx.perf.report.comparison import (
    Against,
    Compared,
    comparison_document,
    comparison_junit,
    write_comparison,
)
from tpx.report import text
from tpx.report.ci import to_markdown

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
    left_out = (f"only in the second run: {', '.join(only_after)}",) if only_after else ()
    return Compared(
        pairs=(Against(title="<new> against old_one", differences=differences, left_out=left_out),),
        strictness=Strictness(),
        interrupted=interrupted,
    )


def test_markdown_has_the_finding_first_and_a_row_for_every_figure() -> None:
    document = comparison_document(compared(SAME, SLOWER, only_after=("concurrency 8",)))
    lines = to_markdown(document).splitlines()
    assert lines[0] == "### \u274c 1 worse, 0 better, the rest the same (2 figures compared)."
    assert lines[2] == "**&lt;new&gt; against old\\_one**"
    assert (
        "| concurrency 4 | throughput | 100 infer/s | 101 infer/s | +1.0% | -10.0% to +12.0% | 0.800 | same |"
        in lines
    )
    assert (
        "| concurrency 4 | p99 | 2.00 ms | 3.00 ms | +50.0% | +40.0% to +60.0% | 0.001 | \u274c worse |"
    ) in lines
    assert "- Only in the second run: concurrency 8" in lines
    assert lines[-1] == "<sub>alpha 0.05, differences above 2%, intervals of 95%</sub>"


def test_markdown_of_nothing_new_says_so_and_that_it_was_interrupted() -> None:
    told = to_markdown(comparison_document(compared(SAME, interrupted=True)))
    assert told.startswith("### \u2705 No significant difference (1 figures compared, interrupted).\n")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_comparison_fits_the_terminal(width: int) -> None:
    lines = text.render(comparison_document(compared(SAME, SLOWER)), width).splitlines()
    assert max(map(len, lines)) <= width
    assert "<new> against old_one:" in lines
    assert any(line.endswith("worse") for line in lines)


def test_junit_fails_what_became_worse_alone() -> None:
    suite = ElementTree.fromstring(comparison_junit(compared(SAME, SLOWER)))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    same, slower = suite.findall("testcase")
    assert (same.get("classname"), same.get("name")) == ("<new> against old_one", "concurrency 4 throughput")
    assert same.find("failure") is None
    failure = slower.find("failure")
    assert failure is not None
    assert failure.get("message") == ("p99 is worse: 2.00 ms -> 3.00 ms, +50.0% [+40.0% to +60.0%], p=0.001")


def test_a_full_disk_costs_the_file_that_is_on_it_alone(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"^cannot write /dev/full: No space left on device$"):
        write_comparison(compared(SAME), {}, json=Path("/dev/full"), junit=None, markdown=tmp_path / "ab.md")
    assert "No significant difference" in (tmp_path / "ab.md").read_text("utf-8")
