"""How a process waits for the server: it looks again and again for a moment before it sleeps.

A process that sleeps costs whoever wakes it and itself more than the execution of a short model does. Looking
pays where the next request comes soon, and where nobody else needs the processor: the kernel counts how often
others were given it. One that looks would else use up what it is due, and wait for its turn when it has work.
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
"""Giving up the processor takes longer than this where somebody else has used it."""
_REST_NS = 5_000_000
"""How long nobody looks after others have needed the processor."""
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


class Waiting:
    """Waits at a descriptor for bytes."""

    def __init__(self, descriptor: int) -> None:
        self._poll: Any = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._most_ns = 0
        self._worth = 0
        self._preempted = 0
        self._rests_until_ns = 0

    def spin_for(self, most_ns: int) -> None:
        """Before it sleeps, look for as long as this; 0 is not at all."""
        self._most_ns = most_ns

    def here(self) -> bool:
        """Return whether bytes have come."""
        return bool(self._poll.poll(0))

    @property
    def awake(self) -> bool:
        """The last waits were so short that the next one begins with looking."""
        return self._worth > 0

    def until_readable(self) -> None:
        """Wait; whoever reads then may still have to sleep."""
        most_ns = self._most_ns
        if not most_ns:
            return
        poll = self._poll.poll
        if poll(0):
            return
        began_ns = _clock()
        if self.awake and self._may_look(began_ns) and self._looked(began_ns, began_ns + most_ns):
            return
        poll()
        if _clock() - began_ns > most_ns:
            self._worth = max(0, self._worth - _FAILED)
        elif self._worth < _MOST_WORTH:
            self._worth += 1

    def _may_look(self, now_ns: int) -> bool:
        """Return whether no other process has needed the processor for a while."""
        if now_ns < self._rests_until_ns:
            return False
        preempted = resource.getrusage(_THREAD).ru_nivcsw
        if preempted != self._preempted:
            self._preempted = preempted
            self._rests_until_ns = now_ns + _REST_NS
            return False
        return True

    def _looked(self, now_ns: int, end_ns: int) -> bool:
        """Return whether bytes have come meanwhile."""
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
