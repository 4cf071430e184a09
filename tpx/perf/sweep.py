"""Going from level to level, along a range or by halving it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass, replace

from tpx.errors import MeasurementError, WireError
from tpx.perf.levels import Level, LevelRange
from tpx.perf.results import LevelResult, Verdict
from tpx.perf.settings import LevelSettings

Measure = Callable[[Level, LevelSettings], Awaitable[LevelResult]]

Course = Generator[float, bool, None]
"""Yields the value to measure next and is told whether that level met the limits."""


@dataclass(frozen=True, slots=True)
class Levels:
    """What was measured, and what kept the next level from being measured."""

    results: tuple[LevelResult, ...]
    error: str = ""
    answer: Level | None = None
    """Of a search, the highest level that met the limits; None where none did."""


def within_limits(result: LevelResult) -> bool:
    """Whether more load may be tried: an unstable or borderline level under the latency limit does not end a
    range."""
    return result.verdict not in (Verdict.OVER_LIMIT, Verdict.ERRORS)


def surely_within_limits(result: LevelResult) -> bool:
    """Whether a level may be the answer of a search: its latency is shown to be under the limit."""
    return within_limits(result) and result.verdict is not Verdict.BORDERLINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How one level follows another."""

    meets: Callable[[LevelResult], bool] | None = None
    """Whether more load may be tried after a level; None is by the latency limit."""
    search: Callable[[LevelRange], Course] | None = None
    """For the highest level that `meets`; None goes along the range."""
    stop_on_unstable: bool = False
    pause_s: float = 0.0
    """For so long nothing is sent between two levels."""


async def sweep(
    levels: LevelRange,
    settings: LevelSettings,
    measure: Measure,
    stop: asyncio.Event,
    manner: Manner = Manner(),
) -> Levels:
    """Measure level after level, as `course` has them, or a search for the highest that meets the limits.

    Ends early with one where every request failed or the error budget was spent, or an interrupt. An
    unstable level does not end it, as it does in perf_analyzer.
    """
    results: list[LevelResult] = []
    searching = levels.binary or manner.search is not None
    steps = manner.search(levels) if manner.search else course(levels)
    meets = manner.meets or (surely_within_limits if searching else within_limits)
    value = next(steps, None)
    error = ""
    while value is not None and not stop.is_set():
        try:
            result = await measure(Level(levels.mode, value), settings)
        except (WireError, MeasurementError) as exc:
            if not results:
                raise
            error = str(exc)
            break
        results.append(result)
        settings = replace(settings, max_errors=settings.max_errors.after(result.failed))
        if result.verdict is Verdict.ERRORS and not searching:
            break
        if manner.stop_on_unstable and result.verdict is Verdict.UNSTABLE:
            break
        try:
            value = steps.send(meets(result))
        except StopIteration:
            value = None
        if value is not None and manner.pause_s:
            await _pause(manner.pause_s, stop)
    return Levels(tuple(results), error, _answer(results, meets) if searching else None)


async def _pause(seconds: float, stop: asyncio.Event) -> None:
    """Wait, unless the run is to end."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


def _answer(results: list[LevelResult], meets: Callable[[LevelResult], bool]) -> Level | None:
    fit = [r.level for r in results if meets(r) and not r.interrupted]
    return max(fit, key=lambda level: level.value, default=None)


def course(levels: LevelRange) -> Course:
    """The order of the levels: all of a range until one does not meet the limits, all of a list whatever
    they do, because its order says nothing, or by halves."""
    return _halves(levels) if levels.binary else _along(levels)


def _along(levels: LevelRange) -> Course:
    for value in _values(levels):
        meets = yield value
        if not meets and not levels.listed:
            return


def _halves(levels: LevelRange) -> Course:
    """perf_analyzer's search: both ends, then the middle of what is left while that is wider than a step."""
    low, high = levels.start, levels.end or levels.start
    if not (yield low):
        return
    if high == low or (yield high):
        return
    while high - low > levels.step:
        middle = (low + high) // 2 if levels.kind.whole else (low + high) / 2
        if (yield middle):
            low = middle
        else:
            high = middle


def _values(levels: LevelRange) -> Iterator[float]:
    if levels.listed:
        yield from levels.listed
        return
    value: float | None = levels.start
    while value is not None:
        yield value
        value = levels.after(value)
