"""Two runs of the same server do not differ; a slower one is found."""

import json
import math
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
    FigureName,
    SavedLevel,
    compare,
    difference_json,
    overall,
    read_levels,
    settled,
)
from tpx.perf.levels import Level
from tpx.perf.options.measuring import Strictness
from tpx.perf.settings import LevelSettings
from tpx.perf.statistics.findings import Contrast, StandardError
from tpx.perf.statistics.summaries import cut

RULES = LevelSettings(rule="ci", interval_ms=1000, max_windows=8)
LEVEL = Level("concurrency", 4)


def run_of(seed: tuple[int, ...], slower: float = 1.0, levels: int = 1) -> dict[str, SavedLevel]:
    found = {}
    for i in range(levels):
        rows = noisy_rows(np.random.default_rng((*seed, i)), 9, slower=slower)
        estimates = measured(rows, LEVEL, RULES).estimates
        assert estimates is not None
        assert estimates.batches is not None
        found[f"concurrency {i + 1}"] = SavedLevel(batches=estimates.batches)
    return found


def side(seed: int, count: int = 3, slower: float = 1.0) -> list[dict[str, SavedLevel]]:
    return [run_of((seed, number), slower) for number in range(count)]


def findings(found: Comparison) -> set[str]:
    return {d.finding for d in found.differences}


@pytest.mark.slow
def test_the_same_server_measured_again_is_never_worse_or_better_by_more_than_chance() -> None:
    wrong = sum(
        bool({"worse", "better"} & findings(compare(side(n), side(1000 + n), Strictness())))
        for n in range(12)
    )
    assert wrong <= 1


def test_a_server_that_is_a_fifth_slower_is_found_by_one_new_run_too() -> None:
    before = side(3)
    assert overall(compare(before, side(4, slower=1.2), Strictness()).differences) == "worse"
    assert overall(compare(before, side(5, 1, slower=1.3), Strictness()).differences) == "worse"
    faster = compare(side(4, slower=1.2), before, Strictness())
    assert "better" in findings(faster)
    assert "worse" not in findings(faster)


@pytest.mark.parametrize("factor", [1.0, 1.37, 5.0])
def test_one_run_on_each_side_is_never_a_verdict(factor: float) -> None:
    """Two runs of one server may differ by as much, and a file compared with itself shows nothing."""
    one, other = run_of((3, 1)), run_of((4, 1), slower=factor)
    for found in (compare([one], [other], Strictness()), compare([one], [one], Strictness())):
        assert findings(found) == {"undecided"}
        assert all((d.low, d.high, d.p_value) == (-1.0, math.inf, 1.0) for d in found.differences)
        # two more runs per side
        assert found.differences[0].more_s == pytest.approx(2 * one["concurrency 1"].seconds, rel=0.5)
    assert compare([one], [other], Strictness()).differences[0].relative == pytest.approx(
        1 / factor - 1, abs=0.15
    )


def test_differences_that_are_certainly_within_the_margin_are_none() -> None:
    found = compare(side(3), side(4, slower=1.1), Strictness(min_effect=0.5))
    assert findings(found) == {"same"}


def difference(change: float, error: float, figure: FigureName = "p99") -> Difference:
    contrast = Contrast(change=change, errors=(StandardError(error, 6),), repeats=4)
    return Difference(load="concurrency 1", figure=figure, before=100.0, contrast=contrast, repeat_s=10.0)


@pytest.mark.parametrize(
    ("found", "finding"),
    [
        (difference(0.2, 0.03), "worse"),
        (difference(-0.2, 0.03), "better"),
        (difference(0.2, 0.03, "throughput"), "better"),
        (difference(0.2, 0.1), "undecided"),
        (difference(0.0, 0.1), "undecided"),
        (difference(0.01, 0.01), "same"),
        (difference(0.01, 0.001), "same"),
    ],
)
def test_a_figure_is_the_same_only_by_evidence(found: Difference, finding: str) -> None:
    (settled_one,) = settled([found], Strictness())
    assert settled_one.finding == finding
    assert (settled_one.more_s > 0) or finding != "undecided"


def test_a_comparison_is_undecided_as_long_as_any_figure_is_unless_one_is_worse() -> None:
    worse, better, same = difference(0.2, 0.03), difference(-0.2, 0.03), difference(0.01, 0.01)
    unsure = difference(0.2, 0.1)
    assert overall([worse, unsure, better]) == "worse"
    assert overall([unsure, better, same]) == "undecided"
    assert overall([better, same]) == "better"
    assert overall([same]) == "same"


def test_loads_of_one_run_only_are_named() -> None:
    before, after = run_of((5,), levels=2), run_of((6,), slower=1.3, levels=3)
    del before["concurrency 1"]
    comparison = compare([before], [after], Strictness())
    assert comparison.only_after == ("concurrency 1", "concurrency 3")
    assert comparison.left_out == ("only after: concurrency 1, concurrency 3",)
    first = json.loads(json.dumps(difference_json(comparison.differences)[0], allow_nan=False))
    assert (first["finding"], first["ci"]) == ("undecided", [-1.0, None])
    assert first["more_s"] > 0


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
    comparison = compare([{"concurrency 1": SavedLevel(batches=few)}], [full], Strictness())
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
    found = compare([run], [run], Strictness())
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
    found = compare([run], [run], Strictness()).differences[:3]
    assert [(d.figure, round(d.before, 6), round(d.after, 6)) for d in found] == [
        ("throughput", 1760.0, 1760.0),
        ("p50", 1500.0, 1500.0),
        ("p99", 2500.0, 2500.0),
    ]
    alone = compare(
        [{"a": replace(run["concurrency 4"], figures={})}], [{"a": run["concurrency 4"]}], Strictness()
    )
    assert alone.differences[0].before == pytest.approx(1760.0)
