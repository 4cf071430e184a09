"""Due times of an open loop (pure, seeded, without a clock), and precise timers.

A schedule is a non-decreasing series of offsets in ns from the start of the load, yielded in blocks.
Timers of uvloop and asyncio have a resolution of 1 ms; a Linux timerfd fires tens of microseconds late.
Waking early and yielding to the loop until the due time, while it reads responses, reduces that to a few.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from tpx.perf.inputs.feed import ALL, Share
from tpx.perf.levels import Level, level_seed
from tpx.perf.settings import LevelSettings
from tpx.processors import usable_processors

Offsets = npt.NDArray[np.int64]

BLOCK = 4096
NEVER = 1 << 62


def offsets(level: Level, settings: LevelSettings, share: Share = ALL) -> Iterator[Offsets]:
    """Yield the endless schedule of a rate or of intervals; all workers' shares make up the whole.

    Each worker computes the whole schedule and takes every `share.of`-th time, or those of its sequences
    if these take turns, so that requests and times do not depend on the number of workers.
    """
    pace = settings.pace
    if settings.intervals is not None:
        blocks = repeated(settings.intervals.gaps_ns)
    elif pace.request_distribution == "constant":
        blocks = evenly(level.value)
    elif pace.request_distribution == "burst":
        blocks = in_bursts(level.value, pace.burst_size)
    else:
        shape = 1.0 if pace.request_distribution == "poisson" else pace.gamma_shape
        blocks = at_random(level.value, shape, level_seed(settings.seed, level))
    first = 0
    for block in blocks:
        turns = np.arange(first, first + len(block)) % (settings.sequences or share.of)
        yield block[turns % share.of == share.number]
        first += len(block)


def evenly(rate: float) -> Iterator[Offsets]:
    """Yield evenly spaced times, the first one gap after the start; rounding errors do not add up."""
    return _compute_blocks(lambda numbers: (numbers + 1) * (1e9 / rate))


def in_bursts(rate: float, size: int) -> Iterator[Offsets]:
    """Yield times in groups of `size`, the first group at the start."""
    return _compute_blocks(lambda numbers: numbers // size * (size * 1e9 / rate))


def _compute_blocks(at: Callable[[Offsets], npt.NDArray[np.floating[Any]]]) -> Iterator[Offsets]:
    first = 0
    while True:
        yield np.rint(at(np.arange(first, first + BLOCK))).astype(np.int64)
        first += BLOCK


def at_random(rate: float, shape: float, seed: np.random.SeedSequence) -> Iterator[Offsets]:
    """Yield times with gamma-distributed gaps of mean 1/rate; shape 1 is a Poisson process."""
    rng = np.random.default_rng(seed)
    last = 0.0
    while True:
        times = last + np.cumsum(rng.standard_gamma(shape, BLOCK)) * (1e9 / (rate * shape))
        last = float(times[-1])
        yield np.rint(times).astype(np.int64)


def repeated(gaps_ns: tuple[int, ...]) -> Iterator[Offsets]:
    """Repeat the gaps exactly and endlessly; the first request is due one gap after the start."""
    turns = max(1, BLOCK // len(gaps_ns))
    one = np.cumsum(np.asarray(gaps_ns, np.int64))
    block = (one + np.arange(turns, dtype=np.int64)[:, None] * one[-1]).ravel()
    last = 0
    while True:
        yield last + block
        last += int(block[-1])


def listed(times_ns: Offsets, share: Share = ALL) -> Iterator[Offsets]:
    """Yield a fixed schedule once; `times_ns` may be unordered."""
    yield np.sort(times_ns, kind="stable")[share.number :: share.of]


class Timetable:
    """Iterates over a schedule's blocks as clock times; `due_ns` is the next time, or NEVER."""

    __slots__ = ("_at", "_left", "_origin_ns", "_schedule", "_times", "due_ns")

    def __init__(self, schedule: Iterator[Offsets]) -> None:
        self._schedule = schedule
        self._times: list[int] = []
        self._at = 0
        self._left = 0
        self._origin_ns = 0
        self.due_ns = NEVER

    @property
    def over(self) -> bool:
        """True when nothing more is due."""
        return self._left <= 0 and self.due_ns == NEVER

    def begin(self, count: int | None, origin_ns: int) -> None:
        """Go to the first time. At most `count` times follow; they count from `origin_ns`."""
        self._left = NEVER if count is None else count
        self._origin_ns = origin_ns
        self._refill()

    def end(self) -> None:
        """Drop the remaining times."""
        self._left = 0
        self.due_ns = NEVER

    def advance(self) -> None:
        """Advance to the next time."""
        self._left -= 1
        self._at = at = self._at + 1
        if self._left <= 0:
            self.due_ns = NEVER
        elif at < len(self._times):
            self.due_ns = self._times[at]
        else:
            self._refill()

    def skip(self, before_ns: int) -> int:
        """Advance to the first time at or after `before_ns`; return how many were skipped."""
        skipped = 0
        while self.due_ns < before_ns:
            skipped += 1
            self.advance()
        return skipped

    def _refill(self) -> None:
        """Load the schedule's next block."""
        self._at = 0
        self.due_ns = NEVER
        while self._left > 0:
            block = next(self._schedule, None)
            if block is None:
                self._left = 0
            elif len(block):
                self._times = (block + self._origin_ns).tolist()
                self.due_ns = self._times[0]
                return


SPIN_NS = 80_000
"""How early a timer wakes the loop: the usual delay of a wake-up."""
SPIN_SHARE = 8
"""At most one part in SPIN_SHARE of a wait is spent spinning, so that it never saturates a processor."""
NO_TIMER_NS = 10_000
"""Waits shorter than this cost less without a timer."""
LOOP_TIMER_GRID_NS = 1_500_000

_TFD_NONBLOCK, _TFD_CLOEXEC = 0o4000, 0o2000000
_CLOCK_MONOTONIC, _ABSOLUTE = 1, 1


def alarm(callback: Callable[[], None]) -> "Alarm":
    """Return the most precise alarm available. It spins only if another processor is left for other work."""
    spin_ns = SPIN_NS if usable_processors() >= 2 else 0
    loop = asyncio.get_running_loop()
    try:
        return TimerfdAlarm(loop, callback, spin_ns)
    except (AttributeError, OSError):  # no timerfd on this system
        return LoopAlarm(loop, callback)


class _Approach:
    """The last microseconds before a due time, spent in turns of the event loop."""

    __slots__ = ("_callback", "_due_ns", "_loop", "_spinning")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._due_ns = 0
        self._spinning: asyncio.Handle | None = None

    def begin(self, due_ns: int) -> None:
        """Start with the next turn of the loop; never call back immediately."""
        self._due_ns = due_ns
        self._spinning = self._loop.call_soon(self._spin)

    def cancel(self) -> None:
        if self._spinning is not None:
            self._spinning.cancel()

    def _spin(self) -> None:
        if perf_counter_ns() >= self._due_ns:
            self._spinning = None
            self._callback()
        else:
            self._spinning = self._loop.call_soon(self._spin)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class TimerfdAlarm:
    """Calls back once, by a Linux timerfd that the event loop watches."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None], spin_ns: int = SPIN_NS
    ) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._settime: Any = library.timerfd_settime
        self._descriptor = library.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._time = _Itimerspec()
        self._time_pointer = ctypes.byref(self._time)
        self._loop = loop
        self._spin_ns = spin_ns
        self._due_ns = 0
        self._armed = False
        self._callback = callback
        self._approach = _Approach(loop, callback)
        loop.add_reader(self._descriptor, self._handle_expiry)

    def set(self, due_ns: int) -> None:
        """Call back at or after a time of time.perf_counter_ns, replacing any earlier setting."""
        self._due_ns = due_ns
        self._approach.cancel()
        wait_ns = due_ns - perf_counter_ns()
        if wait_ns > NO_TIMER_NS:
            self._arm(due_ns - min(self._spin_ns, wait_ns // SPIN_SHARE))
        else:
            if self._armed:
                self._arm(0)
            self._approach.begin(due_ns)

    def close(self) -> None:
        if self._descriptor >= 0:
            self._approach.cancel()
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _arm(self, at_ns: int) -> None:
        """Set the timer; 0 disarms it. Setting it also clears a pending expiration."""
        self._armed = at_ns > 0
        value = self._time.value
        value.seconds, value.nanoseconds = divmod(at_ns, 1_000_000_000)
        self._settime(self._descriptor, _ABSOLUTE, self._time_pointer, None)

    def _handle_expiry(self) -> None:
        self._armed = False
        if perf_counter_ns() < self._due_ns:
            self._approach.begin(self._due_ns)
        else:
            self._callback()
        # nothing reads the descriptor: setting the timer is what clears its readiness
        if not self._armed and self._descriptor >= 0:
            self._arm(0)


class LoopAlarm:
    """Calls back once, by the event loop's timer, set early by its resolution."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._approach = _Approach(loop, callback)
        self._timer: asyncio.TimerHandle | None = None

    def set(self, due_ns: int) -> None:
        self.close()
        early_s = (due_ns - LOOP_TIMER_GRID_NS - perf_counter_ns()) / 1e9
        self._timer = self._loop.call_later(max(early_s, 0), self._approach.begin, due_ns)

    def close(self) -> None:
        self._approach.cancel()
        if self._timer is not None:
            self._timer.cancel()


Alarm = TimerfdAlarm | LoopAlarm
