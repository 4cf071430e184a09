"""Decides where a batch is computed: on the event loop, or by an instance in its own thread.

The loop computes what is *short*, which costs it less than two thread switches (20 us of CPU per inference
instead of 50), and *lone* requests of up to ten times that, which delay no other request. Wall time does
not tell apart a slow execution, one that waits without using the CPU, and one that was preempted. What the
loop's thread waited for a core is subtracted from long executions where the system tells it. A model that
still seems to have become slow is on probation in its instances' threads, whose CPU time tells, until it is
rehabilitated; one that froze the loop for other clients is barred for a time.
"""

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_NONE = -1
"""No rows, not even empty ones."""

_MAX_RELUCTANCE = 16
"""Executions over the limit add up to this, short ones take away from it, and the loop computes below half:
at first after 9 short executions. A model near the limit (35 to 120 us for 600 KB) that left the loop at each
execution slightly over it had 0.75 to 0.82 of the throughput.
"""
_FETCHED_BYTES_PER_US = 5000
"""Bytes of a request that a core fetches from another's cache in a microsecond. The limit for short
executions grows by the time for a row, to at most twice as much: 600 KB took 92 us on the loop and 147 us of
CPU in a thread, and with four clients the loop had 1.27 times the throughput at 0.65 of the CPU.
"""
_PREEMPTED = 4
"""An execution on the loop longer than this multiple of the limit may have been preempted. When such ones
were counted like slightly long ones, each moved the next nine of a short model to its thread, and samples
under load fell into two groups.
"""
_LONGEST_PROBATION = 1024
"""Executions in threads: a model that waits for 5 ms without the CPU then holds up the loop for 5 ms in about
1000 executions.
"""
_REHABILITATED = 64
"""Short executions on the loop that halve the next probation, so that preemptions of a short model, as rare
as that, cost one hand-over each and do not add up. Chosen by simulation, like the following.
"""
_LONE = 10
"""Limit for a lone request, as a multiple of the limit for short executions: two thread switches (30 us) are
still 3 % of the time of the longest, 1 ms.
"""
_LONE_IN_A_ROW = 16
"""Number of consecutive lone requests after which the loop computes them, and of executions on the loop after
which an instance computes one to look for other clients: 6 % of the requests pay for the thread.
"""
_MOST_LONE_IN_A_ROW = 1024
"""The number doubles with each lone request that took too long on the loop, and shrinks by a quarter with
every 16 that did not. When these undid one step only, requests of 600 KB stayed in the thread on a busy
machine, at twice the CPU.
"""
_FREEZE_NS = 20_000_000
"""Duration of an execution on the event loop that other clients notice."""
_BAR_FACTOR = 100
"""Time off the event loop after such an execution, as a multiple of its duration: models whose values
seldom decide how long they take (one value of a loop's condition froze health checks for 1.4 s) freeze it for
at most a hundredth of the time.
"""
_MAX_BAR_NS = 3600 * 1_000_000_000


class Arrivals:
    """Counts the requests to all models of a server."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class InlinePolicy:
    """Decides for a model, from the cost of past executions, what the event loop computes itself."""

    __slots__ = (
        "_below_ns", "_freezes", "_lone", "_model", "_short", "_waited", "_waited_ns", "lone_row_size",
        "row_size", "usual_ns",
    )  # fmt: skip

    def __init__(
        self,
        below_ns: int,
        arrivals: Arrivals,
        clock: Callable[[], int] = time.perf_counter_ns,
        waited: Callable[[], int] = lambda: 0,
        model: str = "",
    ) -> None:
        """`below_ns` limits short executions, 0 computes nothing on the loop; `arrivals` counts the requests
        to all models before they reach the policy. `waited` returns how long the loop's thread has waited
        for a core since it began, in ns; always 0 if unknown. `model` names the model in the log.
        """
        self._model = model
        self._below_ns = below_ns
        self._waited = waited
        self._waited_ns: int | None = None
        """Its result at the first execution on the loop, then at the last long one; None before."""
        self._freezes = freezes = _Freezes(clock)
        self._short = _Short(below_ns, freezes)
        self._lone = _Lone(_LONE * below_ns, arrivals, freezes)
        self.row_size = self.lone_row_size = _NONE
        """Maximum bytes of a row that the loop currently computes: of any batch, and of a lone request."""
        self.usual_ns = 0
        """Executions on the loop of rows up to `row_size` below this duration need not be reported."""

    @property
    def open(self) -> bool:
        """Return whether short batches are computed on the loop."""
        return self._short.open and not self._freezes.barred

    def is_long(self, row_size: int) -> bool:
        """Return whether rows of this many bytes may take longer than those measured as short."""
        return row_size > self._short.most_row_size

    def handed_over(self) -> None:
        """Note that an instance starts computing while all others are idle."""
        self._lone.handed_over()

    def measured_here(self, cost_ns: int, row_size: int) -> None:
        """Record an execution on the event loop, by wall time."""
        if self._waited_ns is None or cost_ns >= _PREEMPTED * self._below_ns:
            cost_ns = max(1, cost_ns - self._wait_for_core_ns())
        if row_size <= self.row_size:
            cost_ns = self._cost_beyond_fetch(cost_ns, row_size)
            if cost_ns < self.usual_ns:
                return  # as usual for large rows
            self._short.measured_here(cost_ns, row_size)
        else:
            self._lone.measured_here(cost_ns, row_size)
        self._update()

    def measured_in_thread(self, cost_ns: int, row_size: int, *, alone: bool) -> None:
        """Record an execution by an instance, by the CPU time of its thread; 0 if unknown.

        `alone` is True if it had a single request and the instances held nothing else when it ended.
        """
        if cost_ns and self._below_ns:
            self._freezes.expire()
            self._short.measured_in_thread(self._cost_beyond_fetch(cost_ns, row_size), row_size)
            self._lone.measured_in_thread(cost_ns, row_size, alone=alone)
            self._update()

    def _cost_beyond_fetch(self, cost_ns: int, row_size: int) -> int:
        """Return an execution's cost less what the limit grows by for a row of this size."""
        return max(1, cost_ns - min(row_size // _FETCHED_BYTES_PER_US * 1000, self._below_ns))

    def _wait_for_core_ns(self) -> int:
        """Return how long the loop's thread waited for a core since the last long execution, and so at least
        what it waited in this one. Where the two differ much, on a busy machine, long executions are
        frequent.
        """
        before_ns, now_ns = self._waited_ns, self._waited()
        if before_ns is not None and now_ns < before_ns:  # unknown this time: no descriptor was free
            return 0
        self._waited_ns = now_ns
        return 0 if before_ns is None else now_ns - before_ns

    def _update(self) -> None:
        short, lone, barred = self._short, self._lone, self._freezes.barred
        before = self.row_size
        self.row_size = short.most_row_size if short.open and not barred else _NONE
        if (before < 0) is not (self.row_size < 0):
            place = "on the event loop, because they are short" if before < 0 else "by its instances"
            log.debug("requests to '%s' are computed %s%s", self._model, place, " for a time" * barred)
        self.lone_row_size = lone.most_row_size if lone.open and not barred else _NONE
        self.usual_ns = short.usual_ns


class _Freezes:
    """Keeps a model off the event loop for some time after an execution that froze it.

    No analysis of a model finds every input that takes long. The time doubles if the model freezes the
    loop again before it was there for as long as it was off it.
    """

    __slots__ = ("_clock", "_term_ns", "_until_ns", "barred")

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._term_ns = 0
        self._until_ns = 0
        self.barred = False
        """True while the model must not be computed on the loop."""

    def record(self, cost_ns: int) -> None:
        """Record an execution on the loop, by wall time."""
        if cost_ns < _FREEZE_NS:
            return
        now_ns = self._clock()
        soon = now_ns - self._until_ns < self._term_ns
        self._term_ns = min(_MAX_BAR_NS, max(2 * self._term_ns if soon else 0, _BAR_FACTOR * cost_ns))
        self._until_ns = now_ns + self._term_ns
        self.barred = True

    def expire(self) -> None:
        """Let the model back on the loop when its time is over."""
        if self.barred and self._clock() >= self._until_ns:
            self.barred = False


class _Short:
    """Batches of a model whose executions hardly exceed two thread switches.

    Each execution over the limit raises the reluctance to compute on the loop; each one below lowers it
    slowly.

    An execution on the loop that far exceeds the limit is either slow or was preempted. The model is then on
    probation: instances compute it until enough executions were short. Probation starts at one execution, so
    that preemption under load does not move a short model to its threads. It doubles with every further
    failure that follows soon, so that a model that waits without using the CPU blocks the loop ever more
    rarely.

    A request with larger rows than any short one so far is first measured in a thread.
    """

    __slots__ = (
        "_below_ns", "_freezes", "_left", "_probation", "_reluctance", "_since_failure", "most_row_size",
    )  # fmt: skip

    def __init__(self, below_ns: int, freezes: _Freezes) -> None:
        self._below_ns = below_ns
        self._freezes = freezes
        self._reluctance = _MAX_RELUCTANCE
        self._left = 0
        """Short executions in threads left until probation ends."""
        self._probation = 1
        """Length of the next probation in executions."""
        self._since_failure = 0
        """Short executions on the loop since the last failure."""
        self.most_row_size = _NONE
        """Maximum row size of an execution that was short."""

    @property
    def open(self) -> bool:
        return not self._left and self._reluctance < _MAX_RELUCTANCE // 2

    @property
    def usual_ns(self) -> int:
        """Executions on the loop below this duration change nothing."""
        return self._below_ns if not self._reluctance and self._probation == 1 else 0

    def measured_here(self, cost_ns: int, row_size: int) -> None:
        if cost_ns < self._below_ns:
            if self._reluctance:
                self._reluctance -= 1
            self._since_failure += 1
            if self._since_failure == _REHABILITATED:
                self._since_failure = 0
                self._probation = max(1, self._probation >> 1)
        elif cost_ns < _PREEMPTED * self._below_ns:
            self._record_exceeded(cost_ns, row_size)
        else:
            # far too long: slow or preempted, so threads, which measure CPU time, decide
            self._freezes.record(cost_ns)
            self._since_failure = 0
            self._left = self._probation
            self._probation = min(_LONGEST_PROBATION, 2 * self._probation)
            self.most_row_size = min(self.most_row_size, row_size - 1)

    def measured_in_thread(self, cost_ns: int, row_size: int) -> None:
        if cost_ns < self._below_ns:
            if self._left:
                self._left -= 1
            if self._reluctance:
                self._reluctance -= 1
            self.most_row_size = max(self.most_row_size, row_size)
        elif not self.open or row_size <= self.most_row_size:
            self._record_exceeded(cost_ns, row_size)

    def _record_exceeded(self, cost_ns: int, row_size: int) -> None:
        if self._reluctance:  # the first one after short executions may be an accident
            self.most_row_size = min(self.most_row_size, row_size - 1)
        self._reluctance = min(_MAX_RELUCTANCE, self._reluctance + 2 * (cost_ns // self._below_ns))


class _Lone:
    """Lone requests, which the event loop may compute although they are not short.

    While the loop computes, it cannot see new requests. Whether requests are alone is therefore
    observed while instances compute them: no other request to any model may arrive meanwhile. After
    several such requests in a row the loop computes them, but an instance still computes one in
    several, so that additional clients are noticed. Under load other requests nearly always arrive, so
    instances compute.
    """

    __slots__ = (
        "_arrivals", "_below_ns", "_freezes", "_handed_over_at", "_in_a_row", "_left_here", "_needed",
        "most_row_size",
    )  # fmt: skip

    def __init__(self, below_ns: int, arrivals: Arrivals, freezes: _Freezes) -> None:
        self._below_ns = below_ns
        self._arrivals = arrivals
        self._freezes = freezes
        self._handed_over_at = 0
        self._in_a_row = 0
        self._needed = _LONE_IN_A_ROW
        self._left_here = 0
        """Executions on the loop until an instance computes one."""
        self.most_row_size = _NONE
        """Maximum row size that took less than the limit."""

    @property
    def open(self) -> bool:
        return self._left_here > 0

    def handed_over(self) -> None:
        self._handed_over_at = self._arrivals.count

    def measured_in_thread(self, cost_ns: int, row_size: int, *, alone: bool) -> None:
        if not alone or self._arrivals.count != self._handed_over_at:
            self._in_a_row = 0
        elif cost_ns < self._below_ns:
            self._in_a_row = min(self._needed, self._in_a_row + 1)
            self.most_row_size = max(self.most_row_size, row_size)
        else:
            self.most_row_size = min(self.most_row_size, row_size - 1)
        self._left_here = _LONE_IN_A_ROW if self._in_a_row == self._needed else 0

    def measured_here(self, cost_ns: int, row_size: int) -> None:
        if cost_ns < self._below_ns:
            self._left_here -= 1
            if not self._left_here:
                self._needed = max(_LONE_IN_A_ROW, self._needed - self._needed // 4)
                self._in_a_row = self._needed
        else:
            # it waits without using the CPU, or was preempted: rare failures do not add up
            self._freezes.record(cost_ns)
            self._left_here = self._in_a_row = 0
            self._needed = min(_MOST_LONE_IN_A_ROW, 2 * self._needed)
            self.most_row_size = min(self.most_row_size, row_size - 1)
