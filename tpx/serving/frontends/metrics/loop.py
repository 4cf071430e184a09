"""The load of the event loop, on which connections, scheduling and short models share one core."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from tpx.processors import usable_processors
from tpx.serving.frontends.metrics.machine import read_cpu_seconds
from tpx.serving.frontends.metrics.text import Family

log = logging.getLogger(__name__)

_FULL = 0.95
_FULL_S = 5.0
"""Seconds with a full loop after which the log says so."""
_SPARE_CORES = 1.5
"""Idle cores that another process needs to be of use; half a core is left to what else runs."""
_MOST_FRONTENDS = 3
"""The engine's core is full from here on (`benchmarks/README.md`, scaling)."""


class CpuTimes(msgspec.Struct, frozen=True):
    """CPU seconds, each since some time in the past."""

    loop_s: float
    process_s: float
    busy_s: float
    """Sum over all processes of the machine."""
    polls: int
    """Times that the loop began to poll for the next request."""


def cpu_times_of(loop: threading.Thread, polls: Callable[[], int]) -> Callable[[], CpuTimes]:
    """Return a function that reads the times; `loop` is the thread of the event loop."""
    assert loop.ident is not None
    clock = time.pthread_getcpuclockid(loop.ident)
    return lambda: CpuTimes(time.clock_gettime(clock), time.process_time(), read_cpu_seconds()[0], polls())


class LoopMetrics:
    """Utilization of the event loop since the last sample, and how many frontends would relieve it.

    The log says once that they would.
    """

    def __init__(
        self,
        times: Callable[[], CpuTimes],
        *,
        advises: bool,
        clock: Callable[[], float] = time.monotonic,
        cores: tuple[float, float] | None = None,
    ) -> None:
        """`advises` is False where there are frontends; `cores` are those that this process may use, and
        those of the machine.
        """
        self._times = times
        self._advises = advises
        self._logged = False
        self._clock = clock
        self._usable, self._cores = cores or (usable_processors(), float(os.cpu_count() or 1))
        self._before, self._before_s = times(), clock()
        self._full_s = 0.0
        self._utilization: float | None = None
        self._advised = 0

    def sample(self) -> Sequence[Family]:
        now, now_s = self._times(), self._clock()
        passed_s = now_s - self._before_s
        if passed_s > 0:
            then, self._before, self._before_s = self._before, now, now_s
            self._utilization = min(1.0, (now.loop_s - then.loop_s) / passed_s)
            if self._advises:
                spare = min(
                    self._usable - (now.process_s - then.process_s) / passed_s,
                    self._cores - (now.busy_s - then.busy_s) / passed_s,
                )
                self._advise(passed_s, spare, polled=now.polls != then.polls)
        return (
            Family(
                name="tpx_event_loop_utilization",
                kind="gauge",
                help="Share of a core that the event loop has used since the last sample, polling included",
                lines=() if self._utilization is None else (("", self._utilization),),
            ),
            Family(
                name="tpx_advised_frontends",
                kind="gauge",
                help="Value of --frontends that would relieve a full event loop by idle cores; 0: none would",
                lines=(("", self._advised),),
            ),
        )

    def _advise(self, passed_s: float, spare: float, *, polled: bool) -> None:
        """Advise frontends if the loop has been full for a while beside idle cores."""
        assert self._utilization is not None
        # a loop that polls has had nothing to do in between
        full = self._utilization >= _FULL and not polled and spare >= _SPARE_CORES
        self._full_s = self._full_s + passed_s if full else 0.0
        self._advised = min(_MOST_FRONTENDS, int(spare)) if self._full_s >= _FULL_S else 0
        if self._advised and not self._logged:
            self._logged = True
            log.warning(
                "the event loop has filled its core for %.0f s while %.0f others were idle: --frontends %d "
                "serves connections in more processes",
                self._full_s,
                spare,
                self._advised,
            )

    def close(self) -> None:
        """Do nothing: the probe holds no resources."""
