"""Going from level to level."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

from tpx.errors import WireError
from tpx.perf.results import LevelResult, Verdict
from tpx.perf.settings import Level, LevelRange, LevelSettings

Measure = Callable[[Level, LevelSettings], Awaitable[LevelResult]]


@dataclass(frozen=True, slots=True)
class Levels:
    """What was measured, and what kept the next level from being measured."""

    results: tuple[LevelResult, ...]
    error: str = ""


async def sweep(levels: LevelRange, settings: LevelSettings, measure: Measure, stop: asyncio.Event) -> Levels:
    """Measure every level in order.

    Ends early with a level over the latency limit (except in a list, whose order says nothing), one where
    every request failed or the error budget was spent, or an interrupt. An unstable level does not end it,
    as it does in perf_analyzer.
    """
    results: list[LevelResult] = []
    for value in _values(levels):
        if stop.is_set():
            break
        try:
            result = await measure(Level(levels.mode, value), settings)
        except WireError as exc:
            if not results:
                raise
            return Levels(tuple(results), str(exc))
        results.append(result)
        settings = replace(settings, max_errors=settings.max_errors.after(result.failed))
        over = result.verdict is Verdict.OVER_LIMIT and not levels.listed
        if over or result.verdict is Verdict.ERRORS:
            break
    return Levels(tuple(results))


def _values(levels: LevelRange) -> Iterator[float]:
    if levels.listed:
        yield from levels.listed
        return
    value: float | None = levels.start
    while value is not None:
        yield value
        value = levels.after(value)
