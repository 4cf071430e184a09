"""Measuring one load level: window after window, until the ledger says that it is enough."""

import asyncio
import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter_ns

from tpx.perf.inputs.conversations import Conversation
from tpx.perf.inputs.feed import Feed
from tpx.perf.ledger import Ending, LevelLedger
from tpx.perf.levels import Level
from tpx.perf.loads.base import Load
from tpx.perf.loads.endings import unfinished
from tpx.perf.loads.figures import open_loop_figures
from tpx.perf.loads.sessions import session_figures
from tpx.perf.looks import Looks
from tpx.perf.members import Stretch
from tpx.perf.pulse import Pulse
from tpx.perf.recording import LevelRecords
from tpx.perf.results import LevelResult, Sessions
from tpx.perf.scenarios import validity
from tpx.perf.self_check import LoopProbe
from tpx.perf.server_statistics import Snapshot, Statistics
from tpx.perf.settings import LevelSettings
from tpx.perf.streaming import streaming_figures
from tpx.perf.windows import Mark, ended_sequences, full_at, mark

TICK_S = 0.1
COUNT_TICK_S = 0.01
DRAIN_S = 60.0
INTERRUPTED_DRAIN_S = 2.0
ABORTED_DRAIN_S = 0.25
"""Also whoever wants to end at once waits so long: requests that are given up may stay in the server."""
LONGEST_WINDOW = 10
"""So many times its length a window by confidence intervals may wait for its samples."""


@contextmanager
def quiet_memory() -> Iterator[None]:
    """No garbage collection while a level is measured; nothing in the hot path makes cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def warm_up(load: Load, settings: LevelSettings, stop: asyncio.Event, looks: Looks) -> None:
    """Send the requests that precede a level, which nothing counts."""
    pulse = Pulse(load)
    try:
        load.start(settings.warmup_requests or None)
        done = asyncio.ensure_future(load.finished())
        end_ns = perf_counter_ns() + settings.warmup_s * 1e9 if settings.warmup_s else math.inf
        while not (done.done() or stop.is_set() or pulse.lost or perf_counter_ns() >= end_ns):
            await asyncio.wait([done], timeout=min(TICK_S, (end_ns - perf_counter_ns()) / 1e9))
            looks.look(window=0)
        await _ended(done)
    finally:
        await load.stop(_patience_s(settings, stop))


async def _ended(done: asyncio.Future[None]) -> None:
    """Wait no longer. Raises what kept it from being done."""
    if done.done():
        await done
    done.cancel()


def _patience_s(settings: LevelSettings, stop: asyncio.Event) -> float:
    return INTERRUPTED_DRAIN_S if stop.is_set() else (settings.timeout_s or DRAIN_S)


class LevelMeasurement:
    """One level, once: runs the load, and tells the ledger when a window is over."""

    def __init__(
        self,
        load: Load,
        statistics: Statistics,
        settings: LevelSettings,
        level: Level,
        batch_size: int,
    ) -> None:
        self._load = load
        self._pulse = Pulse(load)
        self._statistics = statistics
        self._settings = settings
        self._level = level
        batch_size *= level.requests_of_row
        self._batch_size = batch_size
        self._ledger = LevelLedger(load.records, settings, level, batch_size)
        self._probe = LoopProbe()

    async def run(self, looks: Looks, stop: asyncio.Event) -> LevelResult:
        """Measure until the level is stable, hopeless, interrupted, or has had all its windows."""
        server = await self._statistics.read()
        start_ns = perf_counter_ns()
        ledger = self._ledger
        ledger.begin(self._mark(start_ns, 0, server))
        self._probe.start()
        try:
            self._load.start(self._settings.request_count or None)
            while True:
                end_ns = await self._window_end(looks, stop)
                await self._load.settled(end_ns)
                index = ledger.index_at(end_ns)
                border = self._mark(end_ns, index, await self._statistics.read())
                with self._probe.resting():
                    ledger.close(border)
                    done = ledger.done
                if done or self._ends_early(stop) or self._over_budget():
                    break
        except asyncio.CancelledError:
            await self._load.stop(ABORTED_DRAIN_S)
            raise
        finally:
            self._probe.stop()
        await self._load.stop(_patience_s(self._settings, stop))
        ending = Ending(
            failures=self._load.failures(),
            failed=self._load.failed,
            interrupted=stop.is_set(),
            lost=self._pulse.lost,
            loop_lag_p99_ns=self._probe.p99_ns(*ledger.kept_span_ns()),
        )
        result = ledger.result(self._statistics.between, ending)
        if len(self._load.records.arrivals):
            span = ledger.kept_index()
            result = replace(
                result, streaming=streaming_figures(self._load.records, span, result.duration_ns)
            )
        if self._settings.scenario:
            judged = validity(self._settings, ledger.kept_rows(), result.duration_ns)
            result = replace(result, validity=judged)
        if not self._level.kind.open_loop:
            return result
        return replace(
            result, open_loop=open_loop_figures(ledger.kept_rows(), result.duration_ns, self._load)
        )

    @property
    def span_ns(self) -> tuple[int, int]:
        """The time that the figures are of."""
        return self._ledger.kept_span_ns()

    def ended_sequences(self, feed: Feed) -> int:
        """How many ended in the time that the figures are of."""
        cut_short = unfinished(feed, self._load)
        return ended_sequences(self._load.records, self._ledger.kept_index(), cut_short)

    def sessions(self, conversations: Sequence[Conversation]) -> Sessions:
        """What became of them."""
        return session_figures(self._ledger.kept_rows(), conversations)

    def records(self) -> LevelRecords:
        """The requests of all windows."""
        return self._ledger.records(self._load.failures())

    def stretch(self, result: LevelResult) -> Stretch:
        """What the figures of the result were made of."""
        before, after = self._ledger.kept_readings()
        return Stretch(
            rows=self._ledger.kept_rows(),
            duration_ns=result.duration_ns,
            batch_size=self._batch_size,
            before=before,
            after=after,
        )

    def _mark(self, time_ns: int, index: int, server: Snapshot | None) -> Mark:
        return mark(time_ns, index, server, self._load.processor_ns)

    async def _window_end(self, looks: Looks, stop: asyncio.Event) -> int:
        """Wait for the window to be over; returns when it was."""
        settings, begun = self._settings, self._ledger.last_mark
        if settings.request_count:
            return await self._all_answered(looks, stop)
        counting = settings.mode == "count_windows"
        floor_ns = begun.time_ns + (
            settings.count_window_floor_ms * 1_000_000 if counting else settings.window_ns
        )
        await self._until(floor_ns, looks, stop)
        if not settings.window_samples:
            return min(perf_counter_ns(), floor_ns)
        last_ns = None if counting else begun.time_ns + LONGEST_WINDOW * settings.window_ns
        while not self._ends_early(stop):
            rows = self._load.records.since(begun.index)
            end_at_ns = full_at(rows, settings.window_samples, floor_ns)
            if end_at_ns is not None:
                return end_at_ns
            if last_ns is not None and perf_counter_ns() > last_ns:
                return last_ns
            await self._until(perf_counter_ns() + int(COUNT_TICK_S * 1e9), looks, stop)
        return perf_counter_ns()

    async def _until(self, end_ns: int, looks: Looks, stop: asyncio.Event) -> None:
        """Sleep until `end_ns`, or until the level has to end."""
        while (left_ns := end_ns - perf_counter_ns()) > 0 and not self._ends_early(stop):
            await asyncio.sleep(min(left_ns / 1e9, TICK_S))
            await self._load.settled(self._ledger.last_mark.time_ns)
            self._look(looks)

    async def _all_answered(self, looks: Looks, stop: asyncio.Event) -> int:
        done = asyncio.ensure_future(self._load.finished())
        while not (done.done() or self._ends_early(stop)):
            await asyncio.wait([done], timeout=TICK_S)
            self._look(looks)
        await _ended(done)
        return perf_counter_ns()

    def _look(self, looks: Looks) -> None:
        ledger = self._ledger
        looks.look(len(ledger.windows) + 1, lambda: ledger.last_server(self._statistics.between))

    def _ends_early(self, stop: asyncio.Event) -> bool:
        return stop.is_set() or bool(self._pulse.lost) or self._over_count()

    def _over_count(self) -> bool:
        allowed = self._settings.max_errors.count
        return allowed is not None and self._load.failed > allowed

    def _over_budget(self) -> bool:
        return self._settings.max_errors.exceeded(failed=self._load.failed, sent=len(self._load.records))
