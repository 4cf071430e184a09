"""JUnit and Markdown: verdicts that CI can show, and words that are not ours in them."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.perf.conftest import make_level
from tpx.argv import from_argv
from tpx.perf.clients.model import ModelDescription, ServerDescription
from tpx.perf.objectives import Assessment, Compliance, parse_objectives
from tpx.perf.options import SessionSpec
from tpx.perf.report.files import junit_text, markdown_text, write_files
from tpx.perf.report.model import Report
from tpx.perf.report.page import conclude
from tpx.perf.results import ErrorCount, LevelResult, Verdict
from tpx.report.text import sparkline


def report(*levels: LevelResult, words: tuple[str, ...] = (), **changes: object) -> Report:
    fields = {
        "config": from_argv(SessionSpec, ["-m", "net", *words]),
        "server": ServerDescription(name="triton", version="2.51.0", extensions=frozenset()),
        "model": ModelDescription(name="net", inputs=()),
        "levels": levels,
        "started": "2026-01-01T00:00:00.000+00:00",
        "finished": "2026-01-01T00:00:09.000+00:00",
    }
    return Report(**(fields | changes))  # type: ignore[arg-type]


HOSTILE = ErrorCount(code="HTTP 500", count=3, message='<script>"a|b`\x01\n\x1b[31mno')
UNSTABLE = make_level(2, 9000.0, verdict=Verdict.UNSTABLE, stable=False, reason="it moved")
OVER = make_level(4, 9500.0, verdict=Verdict.OVER_LIMIT, reason="Measured latency went over <5 msec>.")
UNSURE = make_level(
    3,
    9100.0,
    slo=(
        Assessment(
            objective=parse_objectives("p99<1ms")[0], outcome=Compliance.UNDECIDED, value=0.0, reason="few"
        ),
    ),
)
DEAD = make_level(
    8, 0.0, verdict=Verdict.ERRORS, latency=None, client=None, requests=0, failed=3, errors=(HOSTILE,),
    reason=f"all failed: {HOSTILE.message}",
)  # fmt: skip


def suite(made: Report) -> ElementTree.Element:
    return ElementTree.fromstring(junit_text(made))


def test_each_level_is_a_test_case_and_its_verdict_the_outcome() -> None:
    found = suite(report(make_level(1), UNSTABLE, OVER, DEAD))
    assert (found.get("tests"), found.get("failures"), found.get("errors")) == ("4", "2", "1")
    names = [case.get("name") for case in found]
    assert names == [f"concurrency {n}" for n in (1, 2, 4, 8)]
    outcomes = [[part.tag for part in case if part.tag != "system-out"] for case in found]
    assert outcomes == [[], ["failure"], ["failure"], ["error"]]
    assert found[2][0].get("message") == "Measured latency went over <5 msec>."


def test_a_test_case_shows_the_figures_of_the_summary() -> None:
    made = report(make_level(4, 12357.4))
    told = str(suite(made)[0].findtext("system-out"))
    cells = [cell.strip() for cell in markdown_text(made).split("| 4 |")[1].split("|")[:4]]
    assert told.startswith(f"{cells[0]} infer/s, mean {cells[1]}, p50 {cells[2]}, ")


def test_an_interrupted_level_is_skipped() -> None:
    found = suite(report(make_level(interrupted=True)))
    assert found[0][0].tag == "skipped"


def objective(outcome: Compliance) -> LevelResult:
    asked = from_argv(SessionSpec, ["-m", "net", "--slo", "p99<1ms"]).answers.slo[0]
    return make_level(slo=(Assessment(objective=asked, outcome=outcome, value=340_000, reason="2 of 9"),))


def test_with_objectives_only_they_can_fail() -> None:
    over = replace(OVER, slo=objective(Compliance.VIOLATED).slo)
    made = report(objective(Compliance.MET), over, words=("--slo", "p99<1ms"), answer=make_level().level)
    found = suite(made)
    assert (found.get("tests"), found.get("failures")) == ("3", "0")
    broken = suite(report(objective(Compliance.VIOLATED), words=("--slo", "p99<1ms")))
    assert broken.get("failures") == "1"
    assert broken[1].get("name") == "p99<1ms"
    assert "2 of 9" in str(broken[1][0].get("message"))


def test_markdown_has_the_result_a_row_a_level_and_both_curves() -> None:
    text = markdown_text(report(make_level(1, 4478.72), make_level(2, 6000.0), UNSTABLE))
    lines = text.splitlines()
    assert lines[0].endswith("net: 6,000 infer/s at concurrency 2, p50 212 \u00b5s, p99 340 \u00b5s")
    assert "Excluded: concurrency 2 (unstable)." in text
    assert "| Concurrency | infer/s | mean | p50 | p90 | p99 | Failed | Verdict |" in lines
    assert "| 1 | 4,480 | 221 \u00b5s | 212 \u00b5s | 275 \u00b5s | 340 \u00b5s | 0 | \u2705 ok |" in lines
    assert "Throughput `\u2581\u2583\u2588` \u00b7 p99" in text


def test_levels_of_a_search_are_written_in_the_order_of_their_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "job.md"))
    config = from_argv(SessionSpec, ["-m", "net", "--markdown", str(tmp_path / "a.md"), "--step-summary"])
    write_files(report(make_level(8), make_level(1), make_level(4), config=config), [])
    for name in ("a.md", "job.md"):
        rows = [
            line.split()[1]
            for line in (tmp_path / name).read_text("utf-8").splitlines()
            if "\u00b5s |" in line
        ]
        assert rows == ["1", "4", "8"]


def test_the_summary_of_an_slo_search_is_in_the_order_of_loads() -> None:
    levels = (make_level(8), make_level(1), make_level(4))
    asked = report(*levels, words=("--slo", "p99<1ms"))
    assert [r.level.value for r in asked.summarized] == [1, 4, 8]
    assert report(*levels).summarized == levels


def test_a_servers_words_are_no_markup() -> None:
    text = markdown_text(report(DEAD))
    assert "<script>" not in text
    assert '| HTTP 500 | &lt;script&gt;"a\\|b\\`' in text
    assert all(len(line) < 400 for line in text.splitlines())


def test_markdown_of_nothing_says_why() -> None:
    assert "the server has gone" in markdown_text(report(error="the server has gone"))


@pytest.mark.parametrize(
    ("made", "badge", "tone"),
    [
        (report(make_level()), "Measured", "good"),
        (report(make_level(), UNSTABLE), "Measured", "warn"),
        (report(make_level(verdict=Verdict.CLIENT_BOUND)), "Client-bound", "warn"),
        (report(UNSTABLE), "No load met the limits", "warn"),
        (report(OVER), "No load met the limits", "bad"),
        (report(DEAD), "Nothing measured", "bad"),
        (report(make_level(interrupted=True)), "No load met the limits", "bad"),
        (report(make_level(), words=("--slo", "p99<1ms")), "Objectives missed", "bad"),
        (
            report(make_level(), words=("--slo", "p99<1ms"), answer=make_level().level),
            "Objectives met",
            "good",
        ),
        (
            report(make_level(), UNSTABLE, words=("--slo", "p99<1ms"), answer=make_level().level),
            "Objectives met",
            "warn",
        ),
        (
            report(make_level(), UNSURE, words=("--slo", "p99<1ms"), answer=make_level().level),
            "Objectives met",
            "warn",
        ),
    ],
)
def test_the_conclusion_is_about_what_was_asked(made: Report, badge: str, tone: str) -> None:
    found = conclude(made)
    assert (found.badge, found.tone) == (badge, tone)


@pytest.mark.parametrize(
    ("values", "bars"), [((), ""), ((5,), "\u2581"), ((0, 1), "\u2581\u2588"), ((2, 2), "\u2581\u2581")]
)
def test_a_sparkline_goes_from_the_lowest_to_the_highest(values: tuple[float, ...], bars: str) -> None:
    assert sparkline(values) == bars
