"""From level to level."""

import asyncio
from dataclasses import replace

import pytest

from tests.perf.conftest import make_level
from tpx.errors import WireError
from tpx.perf.levels import Level, LevelRange
from tpx.perf.objectives import parse_objectives
from tpx.perf.options.ranges import parse_concurrency, parse_rates
from tpx.perf.results import LevelResult, Verdict
from tpx.perf.run import Levels, sweep
from tpx.perf.settings import ErrorBudget, LevelSettings


class Ladder:
    """Gives every level the verdict that the test wants."""

    def __init__(self, verdicts: dict[float, Verdict] | None = None, failed: int = 0) -> None:
        self.verdicts = verdicts or {}
        self.failed = failed
        self.seen: list[float] = []
        self.limit = float("inf")
        self.budgets: list[ErrorBudget] = []
        self.stop = asyncio.Event()
        self.interrupt_at = 0
        self.gone_at = 0

    async def measure(self, level: Level, settings: LevelSettings) -> LevelResult:
        value = level.value
        self.seen.append(value)
        self.budgets.append(settings.max_errors)
        if value == self.gone_at:
            raise WireError("cannot connect")
        if value == self.interrupt_at:
            self.stop.set()
        usual = Verdict.OVER_LIMIT if value > self.limit else Verdict.OK
        return make_level(level=level, verdict=self.verdicts.get(value, usual), failed=self.failed)

    def climb(self, levels: LevelRange, settings: LevelSettings | None = None) -> list[LevelResult]:
        return list(self.all(levels, settings).results)

    def all(self, levels: LevelRange, settings: LevelSettings | None = None) -> Levels:
        return asyncio.run(sweep(levels, settings or LevelSettings(), self.measure, self.stop))


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("4", [4]),
        ("1:4", [1, 2, 3, 4]),
        ("2:9:3", [2, 5, 8]),
        ("4:4", [4]),
        ("1:64:x2", [1, 2, 4, 8, 16, 32, 64]),
        ("1:6:x1.5", [1, 2, 3, 4, 6]),
        ("8,1,8", [8, 1, 8]),
    ],
)
def test_a_range_is_measured_level_by_level(text: str, levels: list[int]) -> None:
    ladder = Ladder()
    results = ladder.climb(parse_concurrency(text))
    assert ladder.seen == levels == [r.level.value for r in results]


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("12.5", [12.5]),
        ("0.1:0.4:0.1", [0.1, 0.2, 0.3, 0.4]),
        ("100:1000:x2", [100, 200, 400, 800]),
        ("1:2:x1.25", [1, 1.25, 1.5625, 1.953125]),
        ("1e3,50", [1000, 50]),
    ],
)
def test_rates_need_not_be_whole(text: str, levels: list[float]) -> None:
    ladder = Ladder()
    results = ladder.climb(parse_rates(text))
    assert ladder.seen == levels
    assert {r.level.mode for r in results} == {"request_rate"}


def halved(text: str, limit: float, rates: bool = False) -> tuple[Ladder, Levels]:
    ladder = Ladder()
    ladder.limit = limit
    levels = (parse_rates if rates else parse_concurrency)(text)
    return ladder, ladder.all(replace(levels, binary=True))


def test_a_binary_search_ends_with_the_highest_level_under_the_limit() -> None:
    ladder, levels = halved("1:16", 11)
    assert ladder.seen == [1, 16, 8, 12, 10, 11]
    assert levels.answer == Level("concurrency", 11)


def test_a_binary_search_is_no_finer_than_its_step() -> None:
    ladder, levels = halved("100:1000:50", 430.0, rates=True)
    assert ladder.seen == [100, 1000, 550, 325, 437.5, 381.25, 409.375]
    assert levels.answer == Level("request_rate", 409.375)


def test_a_binary_search_whose_start_is_over_the_limit_has_no_answer() -> None:
    ladder, levels = halved("4:16", 3)
    assert (ladder.seen, levels.answer) == ([4], None)


def test_a_binary_search_whose_end_is_under_the_limit_ends_there() -> None:
    ladder, levels = halved("4:16", 99)
    assert (ladder.seen, levels.answer) == ([4, 16], Level("concurrency", 16))


def test_an_unstable_level_under_the_limit_sends_a_binary_search_upwards() -> None:
    ladder = Ladder({8: Verdict.UNSTABLE, 16: Verdict.OVER_LIMIT})
    ladder.all(LevelRange(start=1, end=16, step=4, binary=True))
    assert ladder.seen == [1, 16, 8, 12]


def test_a_borderline_level_sends_a_binary_search_downwards_and_is_not_its_answer() -> None:
    ladder = Ladder({8: Verdict.BORDERLINE, 16: Verdict.OVER_LIMIT})
    levels = ladder.all(LevelRange(start=1, end=16, step=4, binary=True))
    assert (ladder.seen, levels.answer) == ([1, 16, 8, 4], Level("concurrency", 4))


def test_a_borderline_level_does_not_end_a_range() -> None:
    ladder = Ladder({2: Verdict.BORDERLINE})
    ladder.climb(LevelRange(start=1, end=3))
    assert ladder.seen == [1, 2, 3]


def test_a_level_where_everything_fails_is_too_much_for_a_binary_search() -> None:
    ladder = Ladder({16: Verdict.ERRORS})
    levels = ladder.all(LevelRange(start=1, end=16, step=8, binary=True))
    assert (ladder.seen, levels.answer) == ([1, 16, 8], Level("concurrency", 8))


def test_an_open_range_goes_on_until_the_limit_and_keeps_the_level_over_it() -> None:
    ladder = Ladder({7: Verdict.OVER_LIMIT})
    results = ladder.climb(LevelRange(start=1, end=0, step=2))
    assert ladder.seen == [1, 3, 5, 7]
    assert results[-1].verdict is Verdict.OVER_LIMIT


def test_an_unstable_level_does_not_end_the_sweep() -> None:
    ladder = Ladder({2: Verdict.UNSTABLE})
    ladder.climb(LevelRange(start=1, end=3))
    assert ladder.seen == [1, 2, 3]


def test_a_level_over_the_limit_does_not_end_a_list() -> None:
    ladder = Ladder({8: Verdict.OVER_LIMIT})
    ladder.climb(LevelRange(listed=(8, 1)))
    assert ladder.seen == [8, 1]


def test_a_level_without_success_ends_the_sweep() -> None:
    ladder = Ladder({2: Verdict.ERRORS})
    ladder.climb(LevelRange(start=1, end=3))
    assert ladder.seen == [1, 2]


def test_an_interrupt_ends_the_sweep_behind_the_level_it_met() -> None:
    ladder = Ladder()
    ladder.interrupt_at = 3
    assert [r.level.value for r in ladder.climb(LevelRange(start=1, end=5))] == [1, 2, 3]


def test_failures_of_a_level_are_taken_from_the_budget_of_the_next() -> None:
    ladder = Ladder(failed=3)
    ladder.climb(LevelRange(start=1, end=3), LevelSettings(max_errors=ErrorBudget(count=7)))
    assert [b.count for b in ladder.budgets] == [7, 4, 1]


def test_a_server_that_goes_away_between_levels_leaves_those_that_were_measured() -> None:
    ladder = Ladder()
    ladder.gone_at = 3
    levels = ladder.all(LevelRange(start=1, end=5))
    assert [r.level.value for r in levels.results] == [1, 2]
    assert levels.error == "cannot connect"


def test_a_server_that_was_never_there_is_an_error() -> None:
    ladder = Ladder()
    ladder.gone_at = 1
    with pytest.raises(WireError, match="cannot connect"):
        ladder.climb(LevelRange(start=1, end=5))


@pytest.mark.parametrize("text", ["1:8", "1,2,4,8"])
def test_an_unstable_level_ends_a_sweep_only_where_that_was_asked_for(text: str) -> None:
    ladder = Ladder({2: Verdict.UNSTABLE})
    halted = asyncio.run(
        sweep(
            parse_concurrency(text),
            LevelSettings(),
            ladder.measure,
            ladder.stop,
            stop_on_unstable=True,
        )
    )
    assert [r.level.value for r in halted.results] == [1, 2]
    assert len(Ladder({2: Verdict.UNSTABLE}).climb(parse_concurrency(text))) > 2


def test_a_search_goes_on_below_a_level_that_failed() -> None:
    ladder = Ladder({8: Verdict.ERRORS})
    ladder.limit = 4
    found = asyncio.run(
        sweep(
            parse_concurrency("1:64"),
            LevelSettings(objectives=parse_objectives("p99<1s")),
            ladder.measure,
            ladder.stop,
        )
    )
    assert ladder.seen == [1, 2, 4, 8, 6, 5]
    assert found.answer == Level("concurrency", 4)
