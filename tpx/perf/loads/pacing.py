"""Timers that are more precise than the event loop's own.

The timers of uvloop and of asyncio's epoll loop have a resolution of 1 ms. A Linux timerfd wakes the
loop tens of microseconds late. Waking slightly early and yielding to the loop until the time has come
reduces that to a few microseconds, and the loop keeps reading responses meanwhile.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

from tpx.processors import usable_processors

SPIN_NS = 80_000
"""How early a timer wakes the loop: the usual delay of a wake-up."""
SPIN_SHARE = 8
"""At most one part in SPIN_SHARE of a wait is spent spinning, so that it never saturates a processor."""
NO_TIMER_NS = 10_000
"""Waits shorter than this cost less without a timer."""
LOOP_TIMER_GRID_NS = 1_500_000

_TFD_NONBLOCK, _TFD_CLOEXEC = 0o4000, 0o2000000
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class Alarm(Protocol):
    """Calls back once, at or after a time of time.perf_counter_ns."""

    def set(self, due_ns: int) -> None:
        """Call back at `due_ns`, replacing any earlier setting."""

    def close(self) -> None:
        """Cancel the callback."""


def alarm(callback: Callable[[], None], spin_ns: int | None = None) -> Alarm:
    """Return the most precise alarm available. It spins only if another processor is left for other work."""
    if spin_ns is None:
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
        self._spinning = self._loop.call_soon(self._go)

    def cancel(self) -> None:
        if self._spinning is not None:
            self._spinning.cancel()
            self._spinning = None

    def _go(self) -> None:
        if perf_counter_ns() >= self._due_ns:
            self._spinning = None
            self._callback()
        else:
            self._spinning = self._loop.call_soon(self._go)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class TimerfdAlarm:
    """Implements Alarm with a Linux timerfd that the event loop watches; times are absolute."""

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
        loop.add_reader(self._descriptor, self._expired)

    def set(self, due_ns: int) -> None:
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

    def _expired(self) -> None:
        self._armed = False
        if perf_counter_ns() < self._due_ns:
            self._approach.begin(self._due_ns)
        else:
            self._callback()
        # nothing reads the descriptor: setting the timer is what clears its readiness
        if not self._armed and self._descriptor >= 0:
            self._arm(0)


class LoopAlarm:
    """Implements Alarm with the event loop's timer, set early by its resolution."""

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
            self._timer = None
