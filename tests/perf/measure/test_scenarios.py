"""MLPerf's scenarios as loads: what each sends, and when it is over."""

import asyncio
from typing import Any

import pytest

from tests.perf.servers import Behaviour, http_server
from tpx.cli.perf import main
from tpx.errors import UsageError
from tpx.options import from_argv
from tpx.perf.options import SessionSpec
from tpx.perf.results import LevelResult, Verdict
from tpx.perf.run import event_loop, run

QUICK = ("--min-duration", "0.2", "--min-query-count", "10")


def measured(behaviour: Behaviour, *words: str) -> LevelResult:
    with http_server(behaviour) as url:
        config = from_argv(SessionSpec, ["-u", url, "-m", "net", *words])
        with asyncio.Runner(loop_factory=event_loop) as runner:
            (level,) = runner.run(run(config)).levels
            return level


def test_single_stream_has_one_query_in_flight_until_both_minima_are_reached() -> None:
    level = measured(Behaviour(delay_s=lambda _: 0.005), "--scenario", "single-stream", *QUICK)
    assert (level.verdict, level.stable, level.level.mode) == (Verdict.OK, True, "single_stream")
    assert level.percentile == 90
    assert level.duration_ns >= 200_000_000
    assert level.requests >= 10
    assert level.in_flight <= 1.01


def test_a_scenario_goes_on_for_its_queries_where_they_take_longer_than_its_duration() -> None:
    words = ("--min-duration", "0.01", "--min-query-count", "15")
    level = measured(Behaviour(delay_s=lambda _: 0.01), "--scenario", "single-stream", *words)
    assert level.requests == 15
    assert level.duration_ns >= 140_000_000


def test_multi_stream_counts_queries_and_the_samples_of_them() -> None:
    behaviour = Behaviour(delay_s=lambda n: 0.005 if n % 4 else 0.02)
    level = measured(behaviour, "--scenario", "multi-stream", "--samples-per-query", "4", *QUICK)
    assert (level.level.mode, level.level.value, level.percentile) == ("multi_stream", 4, 99)
    assert level.latency is not None
    assert level.latency.min_ns >= 19_000_000
    assert level.throughput_infer_per_s == pytest.approx(4 * level.requests * 1e9 / level.duration_ns)


def test_the_server_scenario_is_poisson_arrivals_at_its_rate() -> None:
    words = ("--scenario", "server", "--request-rate-range", "200", *QUICK)
    level = measured(Behaviour(), *words)
    assert (level.level.mode, level.percentile) == ("request_rate", 99)
    assert level.open_loop is not None
    assert level.requests >= 10


def test_offline_sends_all_its_samples_and_says_how_many_a_second() -> None:
    behaviour = Behaviour()
    words = ("--scenario", "offline", "--offline-samples", "100", "--max-connections", "8")
    level = measured(behaviour, *words)
    assert (behaviour.infers, level.requests, level.level.mode) == (100, 100, "offline")
    assert level.throughput_infer_per_s == pytest.approx(100e9 / level.duration_ns)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--scenario other", "Unsupported type provided: 'other'"),
        ("--scenario server", "needs its target rate"),
        ("--scenario server --request-rate-range 5 --request-distribution gamma", "Poisson arrivals"),
        ("--scenario offline --request-count 5", "leave out --request-count"),
        ("--scenario offline --request-rate-range 5", "leave out --request-rate-range"),
        ("--scenario single-stream --concurrency-range 5", "leave out --concurrency-range"),
        ("--min-duration 0", "Failed to parse --min-duration. The value must be > 0."),
        ("--min-duration 3", "--min-duration requires --scenario single-stream, multi-stream, server"),
        ("--scenario offline --min-query-count 3", "--min-query-count requires --scenario single-stream"),
        ("--samples-per-query 3", "--samples-per-query requires --scenario multi-stream"),
        ("--scenario single-stream --offline-samples 3", "--offline-samples requires --scenario offline"),
        ("--min-query-count 0", "Failed to parse --min-query-count. The value must be > 0."),
        ("--samples-per-query 0", "Failed to parse --samples-per-query. The value must be > 0."),
        ("--offline-samples -1", "Failed to parse --offline-samples. The value must be > 0."),
    ],
)
def test_what_does_not_belong_to_a_scenario_is_refused(words: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_argv(SessionSpec, ["-m", "net", *words.split()])
    assert text in caught.value.message


def test_scenarios_have_the_duration_and_count_of_mlperf() -> None:
    settings: Any = from_argv(SessionSpec, ["-m", "net", "--scenario", "single-stream"]).level_settings
    assert (settings.count_window_floor_ms, settings.window_requests, settings.max_windows) == (
        10_000,
        100,
        1,
    )


def conditions(level: LevelResult) -> dict[str, bool]:
    assert level.validity is not None
    return {condition.name: condition.kept for condition in level.validity.conditions}


def advice(level: LevelResult) -> str:
    assert level.validity is not None
    return " ".join(condition.advice for condition in level.validity.conditions)


def test_a_scenario_that_kept_its_rules_is_valid_with_a_safe_percentile() -> None:
    words = ("--scenario", "single-stream", "--min-duration", "0.1", "--min-query-count", "60")
    level = measured(Behaviour(delay_s=lambda _: 0.001), *words)
    assert level.validity is not None
    assert level.validity.valid
    assert set(conditions(level)) == {
        "no query failed",
        "minimum duration",
        "minimum queries",
        "early stopping",
    }
    assert level.latency is not None
    assert level.validity.estimate_ns is not None
    assert level.latency.at(90.0) <= level.validity.estimate_ns <= level.latency.max_ns


def test_a_percentile_of_too_few_queries_is_invalid_and_says_how_many_are_missing() -> None:
    level = measured(Behaviour(), "--scenario", "multi-stream", "--samples-per-query", "2", *QUICK)
    assert not conditions(level)["early stopping"]
    assert f"p99 needs at least {459 - level.requests} more queries" in advice(level)


def test_a_server_has_to_answer_under_the_limit() -> None:
    words = ("--scenario", "server", "--request-rate-range", "400", *QUICK, "-l")
    behaviour = Behaviour(delay_s=lambda n: 0.03 if n % 4 == 0 else 0.001)
    late = measured(behaviour, *words, "20")
    assert not conditions(late)["p99 under 20 ms"]
    assert "a lower load" in advice(late)
    few = measured(Behaviour(), *words, "900")
    assert not conditions(few)["p99 under 900 ms"]
    assert "too few to tell" in advice(few)


def test_a_failed_query_is_never_valid() -> None:
    behaviour = Behaviour(status=lambda n: 500 if n == 7 else 0)
    level = measured(behaviour, "--scenario", "offline", "--offline-samples", "20")
    assert conditions(level) == {"no query failed": False, "minimum samples": True}
    assert advice(level) == "1 of 20 did "


def test_what_is_no_scenario_has_no_rules_of_one() -> None:
    assert measured(Behaviour(), "--request-count", "3").validity is None


def test_an_invalid_level_is_told_and_ends_with_4(capsys: pytest.CaptureFixture[str]) -> None:
    with http_server(Behaviour()) as url:
        words = ["-m", "net", "-u", url, "--scenario", "multi-stream", "--samples-per-query", "2", *QUICK]
        assert main(words) == 4
        out = capsys.readouterr().out
        assert (
            "  MLPerf scenario: multi-stream\n  Samples of a query: 2\n  Minimum duration: 0.2 sec\n" in out
        )
        assert "MLPerf multi-stream, samples a query 2: INVALID\n" in out
        assert "  early stopping: NO (p99 needs at least " in out
        words = ["-m", "net", "-u", url, "--scenario", "offline", "--offline-samples", "20"]
        assert main(words) == 0
    assert "MLPerf offline, samples 20: VALID\n" in capsys.readouterr().out
