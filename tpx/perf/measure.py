"""Measuring one load level: windows until three agree, by perf_analyzer's rules."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns

import numpy as np

from tpx.perf.latency import rank
from tpx.perf.load.base import Load
from tpx.perf.load.concurrency import ConcurrencyLoad
from tpx.perf.observer import SILENT, Observer, Progress
from tpx.perf.records import Rows, succeeded
from tpx.perf.results import ErrorCount, LevelResult, Window
from tpx.perf.server_statistics import ServerStatistics
from tpx.perf.settings import Level, LevelSettings
from tpx.perf.stability import STABILITY_WINDOWS
from tpx.perf.target import Target
from tpx.perf.verdict import is_done, judge
from tpx.perf.windows import (
    Mark,
    WindowRules,
    busy_between,
    client_times,
    full_at,
    index_after,
    mark,
    rows_between,
    window_between,
)

TICK_S = 0.1
COUNT_TICK_S = 0.01
DRAIN_S = 60.0
INTERRUPTED_DRAIN_S = 2.0
HOPELESS_FAILURES = 50
"""So many failures without one success end a level before its window is over."""


async def measure_level(
    target: Target,
    level: Level,
    settings: LevelSettings,
    *,
    observer: Observer = SILENT,
    stop: asyncio.Event | None = None,
) -> LevelResult:
    """Measure one level; connections of an earlier level are used again.

    When `stop` is set the window ends at once, and the result says that it was interrupted.
    """
    stop = stop or asyncio.Event()
    observer.level_started(level)
    lanes = await target.client.open(int(level.value))
    with _quiet_memory():
        if settings.warmup_requests:
            warmup = ConcurrencyLoad(target.client, lanes, target.feed, settings.timeout_s)
            await _warm_up(warmup, settings, stop)
        load = ConcurrencyLoad(target.client, lanes, target.feed, settings.timeout_s)
        measurement = LevelMeasurement(load, target.statistics, settings, level, target.batch_size)
        result = await measurement.run(observer, stop)
    for notice in target.statistics.take_notices():
        observer.notice(notice)
    observer.level_finished(result)
    return result


@contextmanager
def _quiet_memory() -> Iterator[None]:
    """No garbage collection while a level is measured; nothing in the hot path makes cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def _warm_up(load: Load, settings: LevelSettings, stop: asyncio.Event) -> None:
    try:
        load.start(settings.warmup_requests)
        done = asyncio.ensure_future(load.finished())
        while not (done.done() or stop.is_set() or _is_hopeless(load)):
            await asyncio.wait([done], timeout=TICK_S)
        done.cancel()
    finally:
        await load.stop(_patience_s(settings, stop))


def _is_hopeless(load: Load) -> bool:
    """Whether many requests have failed and not one succeeded."""
    return load.failed >= HOPELESS_FAILURES and load.failed == len(load.records)


def _patience_s(settings: LevelSettings, stop: asyncio.Event) -> float:
    return INTERRUPTED_DRAIN_S if stop.is_set() else (settings.timeout_s or DRAIN_S)


class LevelMeasurement:
    """One level, once: runs the load, cuts it into windows, and judges them."""

    def __init__(
        self,
        load: Load,
        statistics: ServerStatistics,
        settings: LevelSettings,
        level: Level,
        batch_size: int,
    ) -> None:
        self._load = load
        self._statistics = statistics
        self._settings = settings
        self._level = level
        self._rules = WindowRules(
            batch_size=batch_size, percentile=settings.percentile, clamped=settings.request_count > 0
        )
        self._marks: list[Mark] = []
        self._looked_ns = 0
        self._looked_index = 0

    async def run(self, observer: Observer, stop: asyncio.Event) -> LevelResult:
        """Measure until the level is stable, hopeless, interrupted, or has had all its windows."""
        server = await self._statistics.read()
        start_ns = self._looked_ns = perf_counter_ns()
        self._marks.append(mark(start_ns, 0, server))
        windows = []
        try:
            self._load.start(self._settings.request_count or None)
            while True:
                end_ns = await self._window_end(observer, stop)
                await self._close_window(end_ns)
                windows.append(self._window(self._marks[-2], self._marks[-1]))
                if is_done(windows, self._settings) or self._ends_early(stop) or self._over_budget():
                    break
        except asyncio.CancelledError:
            await self._load.stop(0)
            raise
        await self._load.stop(_patience_s(self._settings, stop))
        return self._result(windows, interrupted=stop.is_set())

    def _window(self, first: Mark, last: Mark) -> Window:
        return window_between(self._load.records, first, last, self._rules)

    async def _close_window(self, end_ns: int) -> None:
        index = index_after(self._load.records, self._marks[-1].index, end_ns)
        self._marks.append(mark(end_ns, index, await self._statistics.read()))

    async def _window_end(self, observer: Observer, stop: asyncio.Event) -> int:
        """Wait for the window to be over; returns when it was."""
        settings, begun = self._settings, self._marks[-1]
        if settings.request_count:
            return await self._all_answered(observer, stop)
        if settings.mode == "time_windows":
            end_ns = begun.time_ns + settings.window_ns
            return await self._until(end_ns, observer, stop)
        floor_ns = begun.time_ns + settings.count_window_floor_ms * 1_000_000
        await self._until(floor_ns, observer, stop)
        while not self._ends_early(stop):
            rows = self._load.records.since(begun.index)
            end_at_ns = full_at(rows, settings.window_requests, floor_ns)
            if end_at_ns is not None:
                return end_at_ns
            await self._until(perf_counter_ns() + int(COUNT_TICK_S * 1e9), observer, stop)
        return perf_counter_ns()

    async def _until(self, end_ns: int, observer: Observer, stop: asyncio.Event) -> int:
        """Sleep until `end_ns`, or until the level has to end; returns when that was."""
        while (left_ns := end_ns - perf_counter_ns()) > 0:
            if self._ends_early(stop):
                return perf_counter_ns()
            await asyncio.sleep(min(left_ns / 1e9, TICK_S))
            self._look(observer)
        return end_ns

    async def _all_answered(self, observer: Observer, stop: asyncio.Event) -> int:
        done = asyncio.ensure_future(self._load.finished())
        while not (done.done() or self._ends_early(stop)):
            await asyncio.wait([done], timeout=TICK_S)
            self._look(observer)
        done.cancel()
        return perf_counter_ns()

    def _ends_early(self, stop: asyncio.Event) -> bool:
        return stop.is_set() or _is_hopeless(self._load) or self._over_count()

    def _over_count(self) -> bool:
        allowed = self._settings.max_errors.count
        return allowed is not None and self._load.failed > allowed

    def _over_budget(self) -> bool:
        return self._settings.max_errors.exceeded(failed=self._load.failed, sent=len(self._load.records))

    def _look(self, observer: Observer) -> None:
        """Tell the observer how it goes, as often as it wants to know."""
        now_ns = perf_counter_ns()
        elapsed_ns = now_ns - self._looked_ns
        if not observer.progress_interval_s or elapsed_ns < observer.progress_interval_s * 1e9:
            return
        good = succeeded(self._load.records.since(self._looked_index))
        self._looked_ns, self._looked_index = now_ns, len(self._load.records)
        observer.progress(
            Progress(
                level=self._level,
                window=len(self._marks),
                max_windows=self._settings.max_windows,
                throughput_infer_per_s=len(good) * self._rules.batch_size * 1e9 / elapsed_ns,
                p99_ns=_p99(good),
                failed=self._load.failed,
            )
        )

    def _result(self, windows: list[Window], *, interrupted: bool) -> LevelResult:
        records, marks = self._load.records, self._marks
        first, last = marks[max(0, len(marks) - 1 - STABILITY_WINDOWS)], marks[-1]
        merged = self._window(first, last)
        errors = self._errors()
        over_budget = self._over_budget()
        judgement = judge(self._level, windows, merged, errors, self._settings, over_budget=over_budget)
        return LevelResult(
            level=self._level,
            batch_size=self._rules.batch_size,
            verdict=judgement.verdict,
            stable=judgement.stable,
            interrupted=interrupted,
            over_budget=over_budget,
            reason=judgement.reason,
            percentile=self._settings.percentile,
            windows=tuple(windows),
            requests=merged.requests,
            duration_ns=merged.duration_ns,
            throughput_infer_per_s=merged.throughput_infer_per_s,
            latency=merged.latency,
            client=client_times(rows_between(records, first, last)),
            client_busy=busy_between(first, last),
            server=self._statistics.between(first.server, last.server),
            failed=sum(e.count for e in errors),
            errors=errors,
        )

    def _errors(self) -> tuple[ErrorCount, ...]:
        """The kinds of failure in all windows, the most frequent first."""
        rows = rows_between(self._load.records, self._marks[0], self._marks[-1])
        statuses, counts = np.unique(rows["status"], return_counts=True)
        failures = self._load.failures()
        kinds = [
            ErrorCount(code=failures[s].code, count=int(n), message=failures[s].message)
            for s, n in zip(statuses.tolist(), counts, strict=True)
            if s in failures
        ]
        return tuple(sorted(kinds, key=lambda e: -e.count))


def _p99(rows: Rows) -> int | None:
    if not len(rows):
        return None
    return int(np.sort(rows["end_ns"] - rows["start_ns"])[rank(99, len(rows))])
