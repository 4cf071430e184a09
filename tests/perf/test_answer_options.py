"""The options that ask for answers."""

import pytest

from tests.perf.conftest import make_level
from tests.perf.parsing import message, parse
from tpx.cli.perf import exit_status
from tpx.perf.clients.model import ModelDescription, ServerDescription
from tpx.perf.levels import Level, LevelRange
from tpx.perf.options import SessionSpec
from tpx.perf.report.model import Report
from tpx.perf.results import Verdict


def report(config: SessionSpec, *verdicts: Verdict, answer: Level | None = None) -> Report:
    return Report(
        config=config,
        server=ServerDescription(name="s", version="1", extensions=frozenset()),
        model=ModelDescription(name="net", inputs=()),
        levels=tuple(make_level(n, verdict=v) for n, v in enumerate(verdicts, 1)),
        started="",
        finished="",
        answer=answer,
    )


def test_intervals_have_short_windows_of_exactly_their_length() -> None:
    rules = parse("--stability", "CI").level_settings
    assert (rules.rule, rules.interval_ms, rules.window_ns, rules.max_windows) == ("ci", 1000, 10**9, 60)
    rules = parse("--stability", "ci", "-p", "300", "-r", "7").level_settings
    assert (rules.interval_ms, rules.window_ns, rules.max_windows) == (300, 300_000_000, 7)
    assert parse("--stability", "pa").level_settings.window_ns == 6 * 10**9


def test_objectives_are_settled_by_intervals_unless_told_otherwise() -> None:
    config = parse("--slo", "p99<20ms,error_rate<0.1%", "--slo", "throughput>500")
    assert [o.text for o in config.answers.slo] == ["p99<20ms", "error_rate<0.1%", "throughput>500"]
    assert config.level_settings.rule == "ci"
    assert config.level_settings.objectives == config.answers.slo
    assert parse("--slo", "p99<20ms", "--stability", "pa").level_settings.rule == "pa"


def test_without_a_range_objectives_are_searched_from_one_upwards() -> None:
    assert parse("--slo", "p99<20ms").levels == LevelRange(start=1, end=0)
    assert parse("--slo", "p99<20ms", "--concurrency-range", "1").levels == LevelRange(start=1)
    levels = parse("--slo", "p99<20ms", "--request-rate-range", "100:0:50").levels
    assert (levels.mode, levels.unbounded) == ("request_rate", True)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--min-effect", "x"], "Invalid value provided: x (expected a share such as 2% or 0.02)"),
        (["--min-effect", "3"], "Invalid value provided: 3 (write 3% or 300%)"),
        (["--min-effect", "nan"], "Failed to parse --min-effect. The value must be >= 0%."),
        (["--ab", "a:1"], "--ab compares from two to 26 servers: --ab URL1 URL2"),
        (["--ab", "a:1", "--ab", "b:1", "--slo", "p99<1s"], "--ab compares servers at given loads"),
        (["--slo-confidence", "0.9"], "--slo-confidence requires --slo"),
        (["--ab-blocks", "5"], "--ab-blocks requires --ab URL1 URL2"),
        (["--alpha", "0.1"], "--alpha requires --ab URL1 URL2, --ab-client or `tpx perf compare`"),
        (["--min-effect", "3%"], "--min-effect requires --ab URL1 URL2"),
        (
            ["--slo", "p99<1s", "--binary-search", "--concurrency-range", "1:8"],
            "--slo searches the range by itself: leave out --binary-search",
        ),
    ],
)
def test_bad_values_have_their_message(words: list[str], text: str) -> None:
    assert text in message(*words)


def test_shares_are_percent_or_fractions() -> None:
    servers = ("--ab", "a:1", "--ab", "b:1")
    assert parse(*servers, "--min-effect", "3%").strictness.min_effect == pytest.approx(0.03)
    assert parse(*servers, "--min-effect", "0.05").strictness.min_effect == pytest.approx(0.05)
    assert parse(*servers, "--min-effect", "300%").strictness.min_effect == pytest.approx(3)


OK, UNSTABLE, ERRORS, BOUND = Verdict.OK, Verdict.UNSTABLE, Verdict.ERRORS, Verdict.CLIENT_BOUND
SLO = parse("--slo", "p99<20ms")
ONE = Level("concurrency", 1)


def test_exit_codes_of_stability_and_objectives() -> None:
    plain, strict = parse(), parse("--require-stable")
    assert exit_status(report(plain, OK, UNSTABLE)) == 0
    assert exit_status(report(strict, OK, UNSTABLE)) == 2
    assert exit_status(report(strict, OK, BOUND)) == 0
    assert exit_status(report(SLO, OK, OK)) == 4
    assert exit_status(report(SLO, OK, UNSTABLE, answer=ONE)) == 0
    assert exit_status(report(SLO, OK, ERRORS, answer=ONE)) == 0
    assert exit_status(report(parse("--slo", "p99<20ms", "--require-stable"), UNSTABLE, answer=ONE)) == 2


def test_the_best_level_of_a_search_is_its_answer() -> None:
    best = report(SLO, OK, OK, answer=ONE).best
    assert best is not None
    assert best.level == ONE
    assert report(SLO, OK).best is None
