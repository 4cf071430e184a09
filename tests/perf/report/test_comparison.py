"""Comparisons for the page of a CI job and for CI servers."""

import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tpx.perf.compare import Difference, FigureName
from tpx.perf.options.measuring import Strictness
from tpx.perf.report.comparison import (
    Against,
    Compared,
    comparison_document,
    comparison_junit,
)
from tpx.perf.statistics.findings import Contrast, StandardError
from tpx.report import text
from tpx.report.ci import to_markdown


def difference(figure: FigureName, before: float, after: float, error: float | None) -> Difference:
    """A change with this standard error, of which six seconds more of measuring are another repetition."""
    errors = () if error is None else (StandardError(error, 6),)
    contrast = Contrast(change=math.log(after / before), errors=errors, repeats=1 if error is None else 4)
    return Difference(load="concurrency 4", figure=figure, before=before, contrast=contrast, repeat_s=20.0)


SLOWER = difference("p99", 2_000_000.0, 3_000_000.0, 0.02)
SAME = difference("throughput", 100.0, 101.0, 0.01)
UNSURE = difference("throughput", 100.0, 104.0, 0.05)
SINGLE = difference("p99", 2_000_000.0, 17_400_000.0, None)
WILD = difference("p99", 2_000_000.0, 2_200_000.0, 0.4)


def compared(
    *differences: Difference, only_after: tuple[str, ...] = (), interrupted: bool = False
) -> Compared:
    left_out = (f"only after: {', '.join(only_after)}",) if only_after else ()
    return Compared(
        pairs=(Against(title="<new> against old_one", differences=differences, left_out=left_out),),
        strictness=Strictness(),
        interrupted=interrupted,
    )


def test_markdown_has_the_finding_first_and_a_row_for_every_figure() -> None:
    document = comparison_document(compared(SAME, SLOWER, only_after=("concurrency 8",)))
    lines = to_markdown(document).splitlines()
    assert lines[0] == "### \u274c 1 worse, 1 the same (2 figures compared)."
    assert lines[2] == "**&lt;new&gt; against old\\_one**"
    assert (
        "| concurrency 4 | throughput | 100 infer/s | 101 infer/s | +1.0% | -1.4 to +3.5% | 0.358 | same |"
    ) in lines
    assert (
        "| concurrency 4 | p99 | 2.00 ms | 3.00 ms | +50.0% | 1.4x to 1.6x | 0.000 | \u274c worse |"
    ) in lines
    assert "- Only after: concurrency 8" in lines
    assert lines[-1] == (
        "<sub>alpha 0.05 and intervals of 95%, corrected for the number of figures; "
        "the same: certainly less than 5% apart</sub>"
    )


@pytest.mark.parametrize(
    ("found", "headline", "row"),
    [
        (
            UNSURE,
            "1 undecided",
            "| +4.0% | -8.0 to +17.5% | 0.463 | \u26a0\ufe0f undecided | about 11 min 40 s more per side |",
        ),
        (
            SINGLE,
            "Undecided: one run, or two, do not tell how runs differ; --baseline takes 3 or more",
            "| 8.7x | unknown | 1.000 | \u26a0\ufe0f undecided | about 40 s more per side |",
        ),
        (
            WILD,
            "1 undecided",
            "| +10.0% | too noisy | 0.820 | \u26a0\ufe0f undecided | about 2 h 19 min more per side |",
        ),
    ],
)
def test_what_is_undecided_says_so_and_how_much_longer_it_takes(
    found: Difference, headline: str, row: str
) -> None:
    lines = to_markdown(comparison_document(compared(found))).splitlines()
    assert lines[0] == f"### \u26a0\ufe0f {headline} (1 figures compared)."
    assert any(line.endswith(row) for line in lines), lines


def test_markdown_of_no_difference_says_so_and_that_it_was_interrupted() -> None:
    told = to_markdown(comparison_document(compared(SAME, interrupted=True)))
    assert told.startswith("### \u2705 No difference above 5% (1 figures compared, interrupted).\n")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_comparison_fits_the_terminal(width: int) -> None:
    lines = text.render(comparison_document(compared(SAME, SLOWER)), width).splitlines()
    assert max(map(len, lines)) <= width
    assert "<new> against old_one:" in lines
    assert any("worse" in line for line in lines)


def test_junit_fails_what_is_undecided_unless_that_passes() -> None:
    suite = ElementTree.fromstring(comparison_junit(compared(SAME, UNSURE)))
    (failure,) = suite.iter("failure")
    assert (failure.get("type"), suite.get("failures")) == ("undecided", "1")
    assert (failure.get("message") or "").startswith("throughput is undecided: 100 infer/s -> 104 infer/s")
    passing = replace(compared(SAME, UNSURE), strictness=Strictness(undecided="pass"))
    assert ElementTree.fromstring(comparison_junit(passing)).get("failures") == "0"


def test_what_is_important_decides_unless_something_else_is_worse() -> None:
    def outcome(important: Difference, other: Difference) -> str:
        pairs = (
            Against(title="best", differences=(important,), important=True),
            Against(title="other", differences=(other,)),
        )
        return Compared(pairs=pairs, strictness=Strictness()).outcome

    assert outcome(SAME, UNSURE) == "same"
    assert outcome(SAME, SLOWER) == "worse"
    assert outcome(UNSURE, SAME) == "undecided"


def test_junit_fails_what_became_worse() -> None:
    suite = ElementTree.fromstring(comparison_junit(compared(SAME, SLOWER)))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    same, slower = suite.findall("testcase")
    assert (same.get("classname"), same.get("name")) == ("<new> against old_one", "concurrency 4 throughput")
    assert same.find("failure") is None
    failure = slower.find("failure")
    assert failure is not None
    assert failure.get("message") == ("p99 is worse: 2.00 ms -> 3.00 ms, +50.0% [1.4x to 1.6x], p=0.000")
