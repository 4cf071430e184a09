"""One run of the command line: opens a session, measures levels along a range or in search of the
highest sustainable load, and returns the report.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice

from tpx.errors import MeasurementError, WireError
from tpx.perf.levels import Level, LevelRange
from tpx.perf.observer import SILENT, Observer
from tpx.perf.options import SessionSpec
from tpx.perf.report.model import Report
from tpx.perf.results import LevelResult, Verdict
from tpx.perf.session import Session
from tpx.perf.settings import LevelSettings

MOST_STEPS, MOST_DOUBLINGS = 1 << 16, 64
"""Limits on linear and geometric steps, after which the search of a range without end gives up."""
OVERLOADED = 2
"""Ratio of a level's latency to the limit above which it is not measured longer."""
LONGER = 4
"""Factor by which a borderline level of a binary search is measured longer."""

Measure = Callable[[Level, LevelSettings], Awaitable[LevelResult]]
LevelPlan = Generator[float, bool, None]
"""Yields the next value to measure; is sent True if more load may be tried."""


@dataclass(frozen=True, slots=True)
class Levels:
    """The measured levels, and the error that prevented the next one."""

    results: tuple[LevelResult, ...]
    error: str = ""
    answer: Level | None = None
    """Result of a search: the highest level that met the limits or objectives; None if none did."""


async def run(
    spec: SessionSpec, *, observer: Observer = SILENT, stop: asyncio.Event | None = None, in_process: str = ""
) -> Report:
    """Measure all levels and report them. Setting `stop` ends the run with the levels measured so far."""
    stop = stop or asyncio.Event()
    started, started_s = datetime.now(UTC), time.monotonic()
    async with Session(spec, observer=observer, stop=stop, in_process=in_process) as session:
        levels = await sweep(
            spec.levels,
            session.settings,
            session.measure,
            stop,
            stop_on_unstable=spec.answers.stop_on_unstable,
        )
        finished = started + timedelta(seconds=time.monotonic() - started_s)  # a clock may be set meanwhile
    return Report(
        config=spec,
        server=session.connected.server,
        model=session.connected.model,
        levels=levels.results,
        error="; ".join(filter(None, (levels.error, *session.problems))),
        answer=levels.answer,
        started=started.isoformat(timespec="milliseconds"),
        finished=finished.isoformat(timespec="milliseconds"),
        interrupted=stop.is_set(),
        offset_ns=session.offset_ns,
    )


async def sweep(
    levels: LevelRange,
    settings: LevelSettings,
    measure: Measure,
    stop: asyncio.Event,
    *,
    stop_on_unstable: bool = False,
) -> Levels:
    """Measure level after level along the range, or search for the highest load.

    With objectives, the highest load that meets them is searched; with a `binary` range, the highest
    under the latency limit.

    Ends early at an interrupt, or with a level where every request failed or the error budget was
    spent. Unlike in perf_analyzer, an unstable level does not end the sweep unless `stop_on_unstable`
    is set.
    """
    results: list[LevelResult] = []
    steps, meets = _ascend_levels(levels), within_limits
    if settings.objectives:
        steps, meets = plan_highest(levels), bearable
    elif levels.binary:
        steps, meets = _bisect_levels(levels), surely_within_limits
    searching = levels.binary or bool(settings.objectives)
    value = next(steps, None)
    error = ""
    while value is not None and not stop.is_set():
        try:
            result = await measure(Level(levels.mode, value), settings)
            settings = replace(settings, max_errors=settings.max_errors.after(result.failed))
            if levels.binary and _is_in_doubt(result, settings) and not stop.is_set():
                # each doubtful level that counts as too high ends a bisection further below the limit
                result = await measure(Level(levels.mode, value), _lengthen(settings))
                settings = replace(settings, max_errors=settings.max_errors.after(result.failed))
        except (WireError, MeasurementError) as exc:
            if not results:
                raise
            error = str(exc)
            break
        results.append(result)
        if result.verdict is Verdict.ERRORS and not searching:
            break
        if stop_on_unstable and result.verdict is Verdict.UNSTABLE:
            break
        try:
            value = steps.send(meets(result))
        except StopIteration:
            break
    fit = [r.level for r in results if meets(r) and r.meets_slo and not r.interrupted]
    answer = max(fit, key=lambda level: level.value, default=None)
    return Levels(tuple(results), error, answer if searching else None)


def within_limits(result: LevelResult) -> bool:
    """Return True if more load may be tried; an unstable or borderline level does not end a range."""
    return result.verdict not in (Verdict.OVER_LIMIT, Verdict.ERRORS)


def surely_within_limits(result: LevelResult) -> bool:
    """Return True if the latency of a level is shown to be under the limit."""
    return within_limits(result) and result.verdict is not Verdict.BORDERLINE


def _is_in_doubt(result: LevelResult, settings: LevelSettings) -> bool:
    """Return True if a longer measurement may settle on which side of the limit a level lies.

    An overloaded server's latency grows on and on, so that its interval never ends; it is no doubt.
    """
    if result.verdict is not Verdict.BORDERLINE or result.latency is None:
        return False
    return result.latency.at(result.percentile) < OVERLOADED * settings.latency_limit_ms * 1e6


def _lengthen(settings: LevelSettings) -> LevelSettings:
    """Return the settings of a level that has to settle on which side of the limit it lies."""
    return replace(
        settings,
        max_windows=settings.max_windows * LONGER,
        request_count=settings.request_count * LONGER,
    )


def bearable(result: LevelResult) -> bool:
    """Return True if a search for objectives may try more load.

    Nothing may be violated that more load can only make worse. A minimum throughput may still be
    reached.
    """
    if result.interrupted or not surely_within_limits(result):
        return False
    grows = [a for a in result.slo if a.objective.quantity == "throughput" and not a.objective.below]
    return all(a.met for a in result.slo if a not in grows) and not result.falls_behind


def _ascend_levels(levels: LevelRange) -> LevelPlan:
    """Yield a range until a level violates the limits, or all of a list, whose order has no meaning."""
    for value in levels.values():
        meets = yield value
        if not meets and not levels.listed:
            return


def _bisect_levels(levels: LevelRange) -> LevelPlan:
    """Search like perf_analyzer: both ends, then bisect while the gap is wider than a step."""
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


def plan_highest(levels: LevelRange) -> LevelPlan:
    """Search with few levels, assuming that more load never helps.

    Steps along the range double while loads are bearable, so that no load far beyond the server's
    capacity is tried; then the gap between the last good and the first bad level is bisected.
    """
    ordered = iter(sorted(set(levels.listed))) if levels.listed else levels.values()
    values = islice(ordered, MOST_DOUBLINGS if levels.factor else MOST_STEPS)
    known = [next(values)]
    if not (yield known[0]):
        return
    good, step = 0, 1
    while True:
        known.extend(islice(values, good + step + 1 - len(known)))
        tried = min(good + step, len(known) - 1)
        if tried == good:
            return
        if not (yield known[tried]):
            break
        good, step = tried, step * 2
    bad = tried
    while bad - good > 1:
        middle = (good + bad) // 2
        if (yield known[middle]):
            good = middle
        else:
            bad = middle
