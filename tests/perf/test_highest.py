"""The search finds the highest load that meets the objectives, with few levels."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from tests.perf.conftest import make_level
from tests.perf.simulated import closed_loop, constant, exponential, md1_open, measured, mm1_closed, open_loop
from tpx.perf.levels import Level, LevelRange
from tpx.perf.objectives import Assessment, Compliance, parse_objectives
from tpx.perf.results import LevelResult, Verdict
from tpx.perf.run import bearable, plan_highest, sweep
from tpx.perf.settings import LevelSettings


def tried(levels: LevelRange, limit: float) -> list[float]:
    """The values measured on a server that carries up to `limit`."""
    course = plan_highest(levels)
    values = [next(course)]
    while True:
        try:
            values.append(course.send(values[-1] <= limit))
        except StopIteration:
            return values


@pytest.mark.parametrize(
    ("levels", "limit", "values"),
    [
        (LevelRange(start=1, end=64), 0, [1]),
        (LevelRange(start=1, end=64), 1, [1, 2]),
        (LevelRange(start=1, end=64), 64, [1, 2, 4, 8, 16, 32, 64]),
        (LevelRange(start=1, end=64), 21, [1, 2, 4, 8, 16, 32, 24, 20, 22, 21]),
        (LevelRange(start=1, end=0), 5, [1, 2, 4, 8, 6, 5]),
        (LevelRange(start=10, end=50, step=20), 1000, [10, 30, 50]),
        (LevelRange(start=1, end=64, factor=2), 8, [1, 2, 8, 64, 16]),
        (LevelRange(listed=(16, 1, 4, 4)), 4, [1, 4, 16]),
        (LevelRange(start=7), 9, [7]),
        (LevelRange(mode="request_rate", start=100, end=101, step=0.25), 100.5, [100, 100.25, 100.75, 100.5]),
    ],
)
def test_steps_double_and_then_halve(levels: LevelRange, limit: float, values: list[float]) -> None:
    assert tried(levels, limit) == values


def searched(levels: LevelRange, expression: str, seed: int, service_s: float) -> LevelResult | None:
    settings = LevelSettings(
        rule="ci", interval_ms=1000, max_windows=60, objectives=parse_objectives(expression)
    )

    async def measure(level: Level, settings: LevelSettings) -> LevelResult:
        rng = np.random.default_rng((seed, int(level.value)))
        if level.mode == "request_rate":
            rows = open_loop(rng, constant(service_s), rate=level.value, servers=1, seconds=61)
        else:
            rows = closed_loop(
                rng, exponential(service_s), concurrency=int(level.value), servers=1, seconds=61
            )
        return measured(rows, level, settings)

    found = asyncio.run(sweep(levels, settings, measure, asyncio.Event()))
    return next((r for r in found.results if r.level == found.answer), None)


@pytest.mark.slow
@pytest.mark.parametrize(("interval_ms", "counted"), [(1000, False), (5000, True)])
def test_a_binary_search_answers_no_rate_above_the_knee_of_an_m_d_1_queue(
    interval_ms: int, *, counted: bool
) -> None:
    """Its mean crosses 15 ms at 160 requests per second; a counted level has one window."""
    settings = LevelSettings(interval_ms=interval_ms, latency_limit_ms=15, request_count=int(counted))
    levels = LevelRange(mode="request_rate", start=100, end=200, step=5, binary=True)

    async def answer(seed: int) -> float:
        async def measure(level: Level, settings: LevelSettings) -> LevelResult:
            rng = np.random.default_rng((seed, int(level.value)))
            rows = open_loop(rng, constant(0.005), rate=level.value, servers=1, seconds=60)
            return measured(rows, level, settings)

        found = await sweep(levels, settings, measure, asyncio.Event())
        assert found.answer is not None
        return found.answer.value

    answers = [asyncio.run(answer(seed)) for seed in range(6)]
    assert max(answers) <= 165
    assert 125 <= np.median(answers) <= 160


@pytest.mark.parametrize("seed", [0, 1])
def test_a_level_in_doubt_of_a_binary_search_is_measured_longer(seed: int) -> None:
    """The mean of an M/M/1 queue crosses 15 ms between 150 and 160 requests per second; in windows of a
    second 130, 140 and 150 are in doubt, and the search ended at 120."""
    settings = LevelSettings(interval_ms=1000, latency_limit_ms=15)
    levels = LevelRange(mode="request_rate", start=40, end=200, step=10, binary=True)
    windows: dict[float, list[int]] = {}

    async def measure(level: Level, settings: LevelSettings) -> LevelResult:
        rng = np.random.default_rng([seed, int(level.value * 10)])
        seconds = settings.max_windows * settings.window_ns / 1e9 + 5
        rows = open_loop(rng, exponential(0.0045), rate=level.value, servers=1, seconds=seconds)
        windows.setdefault(level.value, []).append(settings.max_windows)
        return measured(rows, level, settings)

    found = asyncio.run(sweep(levels, settings, measure, asyncio.Event()))
    assert found.answer == Level("request_rate", 150)
    assert windows[140] == windows[150] == [10, 40]
    assert windows[200] == [10]  # overloaded: measuring longer would settle nothing
    assert [r.level.value for r in found.results] == [40, 200, 120, 160, 140, 150]


@pytest.mark.slow
def test_the_knee_of_an_m_d_1_queue_is_found_within_a_step() -> None:
    """Its p99 crosses 6 ms at a load that Erlang's formula knows."""
    step, bound_s = 40.0, 0.006
    levels = LevelRange(mode="request_rate", start=400, end=980, step=step)
    rates = [400 + step * i for i in range(11)]
    knee = max(rate for rate in rates if md1_open(rate, 0.001).quantile_s(99) < bound_s)
    assert knee < rates[-1]
    for seed in range(5):
        answer = searched(levels, "p99<6ms", seed, 0.001)
        assert answer is not None
        assert abs(answer.level.value - knee) <= step


def test_the_knee_of_a_closed_loop_is_found_within_a_step() -> None:
    limit = max(c for c in range(1, 33) if mm1_closed(c, 0.001).quantile_s(99) < 0.020)
    answer = searched(LevelRange(start=1, end=32), "p99<20ms,error_rate<1%", 3, 0.001)
    assert answer is not None
    assert answer.level.value in (limit - 1, limit)
    assert answer.meets_slo


def test_no_level_is_the_answer_where_none_meets_it() -> None:
    assert searched(LevelRange(start=1, end=8), "p99<1ms", 3, 0.001) is None


UNDECIDED = Assessment(
    objective=parse_objectives("p99<1ms")[0], outcome=Compliance.UNDECIDED, value=0.0, reason="few"
)


def is_answer(result: LevelResult) -> bool:
    """Whether a search that measures this level alone is content with it."""

    async def measure(*_: object) -> LevelResult:
        return result

    settings = LevelSettings(objectives=parse_objectives("p99<1ms"))
    found = asyncio.run(sweep(LevelRange(start=1), settings, measure, asyncio.Event()))
    return found.answer == result.level


def test_what_is_undecided_failed_or_fell_behind_is_no_answer() -> None:
    good = make_level()
    assert is_answer(good)
    assert is_answer(replace(good, verdict=Verdict.UNSTABLE))
    assert not is_answer(replace(good, slo=(UNDECIDED,)))
    assert not is_answer(replace(good, verdict=Verdict.OVER_LIMIT))
    assert not is_answer(replace(good, interrupted=True))
    behind = replace(good, level=Level("request_rate", 1000.0), throughput_infer_per_s=940.0)
    assert behind.falls_behind
    assert not is_answer(behind)
    assert not replace(behind, throughput_infer_per_s=960.0).falls_behind


def test_a_throughput_that_is_wanted_may_still_come_with_more_load() -> None:
    answer = searched(LevelRange(start=1, end=16), "p99<20ms,throughput>950", 5, 0.001)
    assert answer is not None
    few = Assessment(
        objective=parse_objectives("throughput>500")[0], outcome=Compliance.VIOLATED, value=100.0, reason=""
    )
    level = replace(make_level(), slo=(few,))
    assert bearable(level)
    assert not is_answer(level)
