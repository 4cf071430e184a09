"""Adaptive waiting for the server: spin for a moment before sleeping.

Sleeping and waking cost more than executing a short model. Spinning pays if the next request arrives
soon and no other process needs the core, which the kernel's count of involuntary context switches
shows. A spinning process would otherwise use up its time slice, and wait for its turn when work
arrives.
"""

from __future__ import annotations

import os
import resource
import select
import time
from collections.abc import Callable
from typing import Any

_clock = time.perf_counter_ns
_yield: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
_MOST_WORTH = 8
_FAILED = 2
_OTHERS_NS = 5_000
"""Yielding takes longer than this if another process used the core."""
_REST_NS = 5_000_000
"""How long to stop spinning after other processes needed the core."""
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


class Waiting:
    """Waits for a descriptor to become readable."""

    def __init__(self, descriptor: int) -> None:
        self._poll: Any = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._most_ns = 0
        self._worth = 0
        self._preempted = 0
        self._rests_until_ns = 0

    def spin_for(self, most_ns: int) -> None:
        """Set how long to spin before sleeping, in ns; 0 = never."""
        self._most_ns = most_ns

    def here(self) -> bool:
        """Return whether data is available."""
        return bool(self._poll.poll(0))

    @property
    def awake(self) -> bool:
        """Return whether the last waits were short enough to spin first."""
        return self._worth > 0

    def until_readable(self) -> None:
        """Spin; the reader may still have to sleep afterwards."""
        most_ns = self._most_ns
        if not most_ns:
            return
        poll = self._poll.poll
        if poll(0):
            return
        began_ns = _clock()
        if self.awake and self._may_spin(began_ns) and self._spin_until(began_ns, began_ns + most_ns):
            return
        poll()
        if _clock() - began_ns > most_ns:
            self._worth = max(0, self._worth - _FAILED)
        elif self._worth < _MOST_WORTH:
            self._worth += 1

    def _may_spin(self, now_ns: int) -> bool:
        """Return whether no other process has needed the core for a while."""
        if now_ns < self._rests_until_ns:
            return False
        preempted = resource.getrusage(_THREAD).ru_nivcsw
        if preempted != self._preempted:
            self._preempted = preempted
            self._rests_until_ns = now_ns + _REST_NS
            return False
        return True

    def _spin_until(self, now_ns: int, end_ns: int) -> bool:
        """Return whether data arrived while spinning."""
        poll = self._poll.poll
        while now_ns < end_ns:
            _yield()
            if poll(0):
                if self._worth < _MOST_WORTH:
                    self._worth += 1
                return True
            before_ns, now_ns = now_ns, _clock()
            if now_ns - before_ns > _OTHERS_NS:
                return False
        return False
