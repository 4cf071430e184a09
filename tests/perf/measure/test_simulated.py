"""Queues with known answers, measured by the real windows, rules and intervals: these hold the truth."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.perf.simulated import (
    Truth,
    closed_loop,
    constant,
    exponential,
    md1_open,
    measured,
    mm1_closed,
    mmc_open,
    open_loop,
)
from tpx.perf.levels import Level
from tpx.perf.records import Rows
from tpx.perf.settings import LevelSettings

CI = LevelSettings(rule="ci", interval_ms=1000, max_windows=20)
RUNS = 100
SECONDS = 21

Make = Callable[[np.random.Generator], Rows]


def coverage(make: Make, level: Level, truth: Truth, settings: LevelSettings) -> dict[str, int]:
    """In how many of a hundred runs each figure's interval held the truth."""
    held: dict[str, int] = {}
    for seed in range(RUNS):
        estimates = measured(make(np.random.default_rng(seed)), level, settings).estimates
        assert estimates is not None
        held["throughput"] = held.get("throughput", 0) + estimates.throughput.holds(truth.throughput)
        for latency in estimates.latency:
            percentile = latency.percentile
            value = truth.mean_s if percentile is None else truth.quantile_s(percentile)
            name = "mean" if percentile is None else f"p{percentile:g}"
            held[name] = held.get(name, 0) + latency.interval.holds(value * 1e9)
    return held


def assert_as_stated(counts: Sequence[int]) -> None:
    """94 of 100, over all systems; a single system may be a little below by chance."""
    assert sum(counts) >= 0.94 * RUNS * len(counts)
    assert min(counts) >= 0.9 * RUNS


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_truth_lies_within_the_stated_intervals_at_least_94_times_in_100() -> None:
    systems: list[tuple[Make, Level, Truth]] = [
        (
            lambda rng: closed_loop(rng, exponential(0.001), concurrency=4, servers=1, seconds=SECONDS),
            Level("concurrency", 4),
            mm1_closed(4, 0.001),
        ),
        (
            lambda rng: closed_loop(rng, exponential(0.002), concurrency=16, servers=1, seconds=SECONDS),
            Level("concurrency", 16),
            mm1_closed(16, 0.002),
        ),
        (
            lambda rng: open_loop(rng, constant(0.001), rate=600, servers=1, seconds=SECONDS),
            Level("request_rate", 600),
            md1_open(600, 0.001),
        ),
        (
            lambda rng: open_loop(rng, exponential(0.004), rate=300, servers=3, seconds=SECONDS),
            Level("request_rate", 300),
            mmc_open(300, 0.004, 3),
        ),
    ]
    held = [coverage(*system, CI) for system in systems]
    for name in ("throughput", "mean", "p50", "p90", "p95", "p99"):
        assert_as_stated([counts[name] for counts in held])


@pytest.mark.slow
def test_perf_analyzers_rule_has_intervals_that_hold_the_truth_too() -> None:
    counts = coverage(
        lambda rng: closed_loop(rng, exponential(0.001), concurrency=8, servers=1, seconds=13),
        Level("concurrency", 8),
        mm1_closed(8, 0.001),
        LevelSettings(interval_ms=1000),
    )
    assert min(counts.values()) >= 90
    assert sum(counts[n] for n in ("throughput", "mean", "p50", "p90", "p99")) >= 0.94 * 5 * RUNS


def test_a_steady_closed_loop_takes_a_few_seconds_and_not_eighteen() -> None:
    rows = closed_loop(
        np.random.default_rng(1), exponential(0.001), concurrency=4, servers=1, seconds=SECONDS
    )
    result = measured(rows, Level("concurrency", 4), CI)
    assert result.stable
    assert 3 <= result.duration_ns / 1e9 <= 6
    assert result.estimates is not None
    assert result.estimates.throughput.within(CI.stability / 2)
    latency = result.estimates.at(None)
    assert latency is not None
    assert latency.interval.within(CI.stability / 2)


def test_a_cold_start_is_dropped_and_counted() -> None:
    rng = np.random.default_rng(2)
    cold = closed_loop(rng, exponential(0.005), concurrency=4, servers=1, seconds=2)
    warm = closed_loop(rng, exponential(0.001), concurrency=4, servers=1, seconds=SECONDS)
    cold = cold[cold["end_ns"] < 2_000_000_000]
    for name in ("start_ns", "intended_ns", "sent_ns", "first_byte_ns", "end_ns"):
        warm[name] += cold["end_ns"][-1]
    result = measured(np.concatenate((cold, warm)), Level("concurrency", 4), CI)
    assert (result.stable, result.warmup_windows) == (True, 2)
    assert result.throughput_infer_per_s == pytest.approx(1000, rel=0.05)
    assert result.kept_windows == len(result.windows) - 2


def test_too_few_requests_for_p99_say_so() -> None:
    rows = closed_loop(np.random.default_rng(3), exponential(0.02), concurrency=1, servers=1, seconds=SECONDS)
    result = measured(rows, Level("concurrency", 1), LevelSettings(interval_ms=1000))
    assert result.estimates is not None
    p99 = result.estimates.at(99.0)
    assert p99 is not None
    assert p99.interval.high is None
    assert p99.note == "n too small for p99 (need >= 459)"


def test_littles_law_holds_for_a_closed_loop() -> None:
    rows = closed_loop(
        np.random.default_rng(4), exponential(0.001), concurrency=32, servers=2, seconds=SECONDS
    )
    result = measured(rows, Level("concurrency", 32), CI)
    assert result.in_flight == pytest.approx(32, rel=0.02)
    assert result.warnings == ()
    doubtful = measured(rows, Level("concurrency", 40), CI)
    assert "20% off the concurrency of 40 (Little's law)" in doubtful.warnings[0]
