"""Measures one load level, window by window.

It ends when the ledger has enough, the server is gone, or the run is to end.
"""

import asyncio
import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns

import numpy as np

from tpx.perf.clients.model import Snapshot
from tpx.perf.loads.base import Load
from tpx.perf.measure.ledger import Ending, LevelLedger, MeasuredLevel, WindowBorder, full_at, p99
from tpx.perf.observer import ProgressMeter
from tpx.perf.records import SUCCESS
from tpx.perf.results import ServerBreakdown
from tpx.perf.server_statistics import ServerStatistics
from tpx.perf.settings import LevelSettings

TICK_S = 0.1
COUNT_TICK_S = 0.01
DRAIN_S = 60.0
INTERRUPTED_DRAIN_S = 2.0
ABORTED_DRAIN_S = 0.25
"""A cancelled run waits, too: the server may go on working on abandoned requests."""
LONGEST_WINDOW = 10
"""With confidence intervals, a window may last up to this multiple of its length to get its samples."""
HOPELESS_FAILURES = 50
"""Number of failures without any success that ends a level before its window is over."""
LOST_FAILURES = 10
LOST_NS = 10_000_000_000
"""Consecutive failures, and their minimum duration, that end a level after earlier successes."""
PROBE_S = 0.01
TIMER_GRID_NS = 1_000_000
"""Resolution of event loop timers; lateness below it means nothing."""


@contextmanager
def quiet_memory() -> Iterator[None]:
    """Disable garbage collection while a level is measured; the hot path creates no cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def warm_up(load: Load, settings: LevelSettings, stop: asyncio.Event, meter: ProgressMeter) -> None:
    """Send the warm-up requests of a level, which are not counted."""
    liveness = Liveness(load)
    try:
        load.start(settings.warmup_requests or None)
        done = asyncio.ensure_future(load.finished())
        end_ns = perf_counter_ns() + settings.warmup_s * 1e9 if settings.warmup_s else math.inf
        while not (done.done() or stop.is_set() or liveness.lost or perf_counter_ns() >= end_ns):
            await asyncio.wait([done], timeout=min(TICK_S, (end_ns - perf_counter_ns()) / 1e9))
            meter.report(window=0)
        await _stop_waiting(done)
    finally:
        await load.stop(_choose_patience_s(settings, stop))


async def _stop_waiting(done: asyncio.Future[None]) -> None:
    """Stop waiting for `done`. Raises its exception if it failed."""
    if done.done():
        await done
    done.cancel()


def _choose_patience_s(settings: LevelSettings, stop: asyncio.Event) -> float:
    return INTERRUPTED_DRAIN_S if stop.is_set() else (settings.timeout_s or DRAIN_S)


class LevelMeasurement:
    """Measures one level once: runs the load and closes windows in the ledger."""

    def __init__(
        self,
        load: Load,
        statistics: ServerStatistics,
        ledger: LevelLedger,
        meter: ProgressMeter,
        stop: asyncio.Event,
    ) -> None:
        self._load = load
        self._liveness = Liveness(load)
        self._statistics = statistics
        self._settings = ledger.settings
        self._ledger = ledger
        self._meter = meter
        self._stop = stop
        self._probe = LoopProbe()

    async def run(self) -> MeasuredLevel:
        """Measure until the level is stable, hopeless, interrupted, or has had all its windows."""
        server = await self._statistics.read()
        ledger, load, stop, budget = self._ledger, self._load, self._stop, self._settings.max_errors
        ledger.begin(self._build_border(perf_counter_ns(), 0, server))
        self._probe.start()
        try:
            load.start(self._settings.request_count or None)
            await self._skip_ramp()
            while True:
                end_ns = await self._wait_for_window_end()
                await load.settled(end_ns)  # worker processes report their rows with a delay
                index = ledger.index_at(end_ns)
                border = self._build_border(end_ns, index, await self._statistics.read())
                with self._probe.resting():
                    # statistics over many rows take milliseconds, which the probe would report as lag
                    ledger.close(border)
                    done = ledger.done
                over_budget = budget.exceeded(failed=load.failed, sent=len(load.records))
                if done or self._ends_early() or over_budget:
                    break
        except asyncio.CancelledError:
            await load.stop(ABORTED_DRAIN_S)
            raise
        finally:
            self._probe.stop()
        await load.stop(_choose_patience_s(self._settings, stop))
        ending = Ending(
            failures=load.failures(),
            failed=load.failed,
            interrupted=stop.is_set(),
            lost=self._liveness.lost,
            loop_lag_p99_ns=self._probe.p99_ns(ledger.first_kept.time_ns, ledger.borders[-1].time_ns),
        )
        return ledger.measured(self._statistics.between, ending)

    async def _skip_ramp(self) -> None:
        """Begin the first window when all requests in flight have begun, unless every request counts."""
        ramp_ns = int(self._settings.pace.ramp_seconds * 1e9)
        if ramp_ns and not self._settings.request_count:
            end_ns = perf_counter_ns() + ramp_ns
            await self._sleep_until(end_ns)
            await self._load.settled(end_ns)
            index = self._ledger.index_at(end_ns)
            self._ledger.begin(self._build_border(end_ns, index, await self._statistics.read()))

    def _build_border(self, time_ns: int, index: int, server: Snapshot | None) -> WindowBorder:
        cpu_ns = self._load.processor_ns
        return WindowBorder(
            time_ns=time_ns, index=index, server=server, cpu_ns=cpu_ns, read_ns=perf_counter_ns()
        )

    async def _wait_for_window_end(self) -> int:
        """Wait for the end of the window; return its time."""
        settings, begun = self._settings, self._ledger.borders[-1]
        if settings.request_count:
            done = asyncio.ensure_future(self._load.finished())
            while not (done.done() or self._ends_early()):
                await asyncio.wait([done], timeout=TICK_S)
                self._report_progress()
            await _stop_waiting(done)
            return perf_counter_ns()
        counting = settings.mode == "count_windows"
        floor_ns = begun.time_ns + (
            settings.count_window_floor_ms * 1_000_000 if counting else settings.window_ns
        )
        await self._sleep_until(floor_ns)
        if not settings.window_samples:
            return min(perf_counter_ns(), floor_ns)  # earlier if the level has to end
        last_ns = None if counting else begun.time_ns + LONGEST_WINDOW * settings.window_ns
        while not self._ends_early():
            rows = self._load.records.since(begun.index)
            end_at_ns = full_at(rows, settings.window_samples, floor_ns)
            if end_at_ns is not None:
                return end_at_ns
            if last_ns is not None and perf_counter_ns() > last_ns:
                return last_ns
            await self._sleep_until(perf_counter_ns() + int(COUNT_TICK_S * 1e9))
        return perf_counter_ns()

    async def _sleep_until(self, end_ns: int) -> None:
        """Sleep until `end_ns`, or until the level has to end."""
        while (left_ns := end_ns - perf_counter_ns()) > 0 and not self._ends_early():
            await asyncio.sleep(min(left_ns / 1e9, TICK_S))
            await self._load.settled(self._ledger.borders[-1].time_ns)
            self._report_progress()

    def _report_progress(self) -> None:
        def server() -> ServerBreakdown | None:
            """Return the server's statistics for the last closed window."""
            closed = self._ledger.borders[-2:]
            return self._statistics.between(closed[0].server, closed[-1].server) if len(closed) > 1 else None

        self._meter.report(len(self._ledger.windows) + 1, server)

    def _ends_early(self) -> bool:
        allowed = self._settings.max_errors.count
        too_many = allowed is not None and self._load.failed > allowed
        return self._stop.is_set() or bool(self._liveness.lost) or too_many


class Liveness:
    """Detects that the server under load is gone, in which case no count window would ever fill."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._seen = 0
        self._failing = 0
        self._first_ns = self._last_ns = 0
        """Ends of the first and last failure since the last success."""

    @property
    def lost(self) -> str:
        """Reason to stop waiting; empty while requests succeed."""
        rows = self._load.records.since(self._seen)
        self._seen += len(rows)
        successes = np.flatnonzero(rows["status"] == SUCCESS)
        if len(successes):
            self._failing = 0
            rows = rows[int(successes[-1]) + 1 :]
        if len(rows):
            self._first_ns = self._first_ns if self._failing else int(rows["end_ns"][0])
            self._last_ns = int(rows["end_ns"][-1])
            self._failing += len(rows)
        if self._failing == self._seen:
            return f"all {self._failing} requests failed" if self._failing >= HOPELESS_FAILURES else ""
        lasted_ns = self._last_ns - self._first_ns
        if self._failing < LOST_FAILURES or lasted_ns < LOST_NS:
            return ""
        return f"the last {self._failing} requests failed, over {lasted_ns / 1e9:.0f} s"


class LoopProbe:
    """Measures a hundred times a second how late the event loop runs due timers and ready callbacks."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, int]] = []
        self._due_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due_ns = perf_counter_ns() + int(PROBE_S * 1e9)
        self._timer = asyncio.get_running_loop().call_later(PROBE_S, self._handle_timer)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Pause the probe while a window is summed up, which blocks the loop on purpose."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def p99_ns(self, start_ns: int, end_ns: int) -> int:
        """Return the p99 lag between two times, in ns; 0 without probes."""
        lags = [lag for at, lag in self._seen if start_ns <= at <= end_ns]
        return p99(np.asarray(lags, np.int64))

    def _handle_timer(self) -> None:
        def record_delay() -> None:
            now_ns = perf_counter_ns()
            self._seen.append((now_ns, max(late_ns, now_ns - rang_ns)))
            if self._timer is not None:
                self.start()

        rang_ns = perf_counter_ns()
        late_ns = rang_ns - self._due_ns - TIMER_GRID_NS
        asyncio.get_running_loop().call_soon(record_delay)
