"""Two runs of the same server do not differ; a slower one is found."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.perf.noise import noisy_rows
from tests.perf.simulated import measured
from tpx.errors import UsageError
from tpx.perf.compare import (
    Comparison,
    Difference,
    SavedLevel,
    compare,
    difference_json,
    read_levels,
    settled,
)
from tpx.perf.levels import Level
from tpx.perf.options.measuring import Strictness
from tpx.perf.settings import LevelSettings
from tpx.perf.statistics.summaries import cut

RULES = LevelSettings(rule="ci", interval_ms=1000, max_windows=8)
LEVEL = Level("concurrency", 4)


def run_of(seed: tuple[int, ...], slower: float = 1.0, levels: int = 1) -> dict[str, SavedLevel]:
    found = {}
    for i in range(levels):
        rows = noisy_rows(np.random.default_rng((*seed, i)), 9, slower=slower)
        estimates = measured(rows, LEVEL, RULES).estimates
        assert estimates is not None
        found[f"concurrency {i + 1}"] = SavedLevel(batches=estimates.batches)
    return found


@pytest.mark.slow
def regressed(found: Comparison) -> bool:
    return any(d.finding == "worse" for d in found.differences)


@pytest.mark.slow
def test_the_same_server_twice_shows_no_difference_95_times_in_100() -> None:
    different = sum(
        any(d.finding != "same" for d in compare(run_of((1, n)), run_of((2, n)), Strictness()).differences)
        for n in range(100)
    )
    assert different <= 5


@pytest.mark.slow
def test_a_server_that_is_a_fifth_slower_is_found() -> None:
    found = [compare(run_of((3, n)), run_of((4, n), slower=1.2), Strictness()) for n in range(10)]
    assert sum(regressed(c) for c in found) >= 9
    assert all(d.finding != "better" for c in found for d in c.differences)
    faster = compare(run_of((4, 1), slower=1.2), run_of((3, 1)), Strictness())
    assert {d.finding for d in faster.differences} >= {"better"}


def test_differences_too_small_to_matter_are_none() -> None:
    found = compare(run_of((3, 1)), run_of((4, 1), slower=1.2), Strictness(min_effect=0.3))
    assert not regressed(found)


def difference(low: float, high: float, p_value: float, after: float = 110.0) -> Difference:
    return Difference(
        load="concurrency 1", figure="p99", before=100.0, after=after, low=low, high=high, p_value=p_value
    )


@pytest.mark.parametrize(
    ("found", "finding"),
    [
        (difference(0.05, 0.15, 0.01), "worse"),
        (difference(-0.15, -0.05, 0.01, after=90.0), "better"),
        (difference(0.05, 0.15, 0.06), "same"),
        (difference(-0.01, 0.15, 0.01), "same"),
        (difference(0.001, 0.02, 0.01, after=101.0), "same"),
    ],
)
def test_a_difference_counts_when_it_is_sure_and_large(found: Difference, finding: str) -> None:
    assert settled([found], Strictness())[0].finding == finding


def test_loads_of_one_run_only_are_named() -> None:
    before, after = run_of((5,), levels=2), run_of((6,), slower=1.3, levels=3)
    del before["concurrency 1"]
    comparison = compare(before, after, Strictness())
    assert comparison.only_after == ("concurrency 1", "concurrency 3")
    assert comparison.left_out == ("only in the second run: concurrency 1, concurrency 3",)
    first = difference_json(comparison.differences)[0]
    assert json.loads(json.dumps(first))["finding"] == "worse"


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "b.json is not a result of tpx perf --json (schema 1)"),
        ({"schema": 2, "levels": []}, "b.json is not a result of tpx perf --json (schema 1)"),
        ({"schema": 1, "levels": []}, "b.json has no level with successful requests"),
        ({"schema": 1, "levels": [{"mode": "concurrency", "value": 1}]}, "b.json: a level lacks its batches"),
    ],
)
def test_a_file_that_is_something_else_is_refused(document: Any, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_levels(document, "b.json")
    assert caught.value.message.startswith(reason)


def test_hardly_any_requests_are_not_compared_and_that_is_said() -> None:
    full = run_of((5, 1))
    few = cut(np.array([10**9, 2 * 10**9]), np.array([10**6, 10**6]), np.ones(2, bool), (0, 3 * 10**9))
    comparison = compare({"concurrency 1": SavedLevel(batches=few)}, full, Strictness())
    assert (comparison.differences, comparison.too_few) == ((), ("concurrency 1",))
    assert comparison.left_out == ("fewer than 10 requests in one of the runs: concurrency 1",)


def test_a_load_that_was_measured_several_times_is_compared_as_often() -> None:
    batches = {
        "start_ns": 0,
        "end_ns": 10**9,
        "requests": "5 5",
        "failed": "0 0",
        "latency_sum_ns": "5000 5000",
        "bins": "640",
        "histogram": ["5", "5"],
    }
    level = {"mode": "concurrency", "value": 4, "batches": batches}
    run = read_levels({"schema": 1, "levels": [level, level | {"value": 8}, level, level]}, "a.json")
    assert list(run) == ["concurrency 4", "concurrency 4 (2)", "concurrency 4 (3)", "concurrency 8"]
    found = compare(run, run, Strictness())
    assert len(found.differences) == 3 * len(run)


def test_a_comparison_shows_the_figures_that_the_reports_of_the_runs_show() -> None:
    batches = {
        "start_ns": 0,
        "end_ns": 10**9,
        "requests": "100 120",
        "failed": "0 0",
        "latency_sum_ns": "5000 5000",
        "bins": "640",
        "histogram": ["100", "120"],
    }
    level = {
        "mode": "concurrency",
        "value": 4,
        "batch_size": 8,
        "batches": batches,
        "throughput": {"value": 1760.0},
        "latency_us": {"p50": 1.5, "p99": 2.5},
    }
    run = read_levels({"schema": 1, "levels": [level | {"value": 8}, level]}, "a.json")
    assert list(run) == ["concurrency 4", "concurrency 8"]
    found = compare(run, run, Strictness()).differences[:3]
    assert [(d.figure, d.before, d.after) for d in found] == [
        ("throughput", 1760.0, 1760.0),
        ("p50", 1500.0, 1500.0),
        ("p99", 2500.0, 2500.0),
    ]
    alone = compare(
        {"a": replace(run["concurrency 4"], figures={})}, {"a": run["concurrency 4"]}, Strictness()
    )
    assert alone.differences[0].before == 1760.0
