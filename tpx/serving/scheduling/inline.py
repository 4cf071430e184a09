"""Decides where a batch is computed: on the event loop, or by an instance in its own thread."""

import time
from collections.abc import Callable

_NONE = -1
"""No rows, not even empty ones."""
_MAX_RELUCTANCE = 16
_PREEMPTED = 4
"""An execution on the loop longer than this multiple of the limit may have been preempted."""
_LONGEST_PROBATION = 1024
_REHABILITATED = 64


_FREEZE_NS = 20_000_000
"""Duration of an execution on the event loop that other clients notice."""
_BAR_FACTOR = 100
"""Time off the event loop after such an execution, as a multiple of its duration: models whose values
seldom decide how long they take freeze it for at most a hundredth of the time.
"""
_MAX_BAR_NS = 3600 * 1_000_000_000


class Freezes:
    """Keeps a model off the event loop for some time after an execution that froze it.

    No analysis of a model finds every input that takes long. The time doubles if the model freezes the
    loop again before it was there for as long as it was off it.
    """

    __slots__ = ("_clock", "_term_ns", "_until_ns", "barred")

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
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

    def look(self) -> None:
        """Let the model back on the loop when its time is over."""
        if self.barred and self._clock() >= self._until_ns:
            self.barred = False


class InlinePolicy:
    """Decides from the cost of past executions whether the event loop computes the next batch itself.

    A model whose executions hardly exceed two thread switches is computed on the loop. Each execution
    over the limit raises the policy's reluctance to do so; each one below lowers it slowly.

    An execution on the loop that far exceeds the limit is either slow or was preempted, which wall time
    cannot distinguish. The model is then on probation: instances compute it, measured by the CPU time
    of their thread, until enough executions were short. Probation starts at one execution, so that
    preemption under load does not move a short model to its threads. It doubles with every further
    failure that follows soon, so that a model that waits without using the CPU blocks the loop ever
    more rarely. An execution that other clients notice bars the model for a time, too (`Freezes`).

    A request with larger rows than any short one so far is first measured in a thread.
    """

    __slots__ = (
        "_below_ns", "_freezes", "_left", "_probation", "_reluctance", "_short_row_size", "_since_failure",
        "row_size", "usual_ns",
    )  # fmt: skip

    def __init__(self, below_ns: int, freezes: Freezes) -> None:
        """Create the policy; `below_ns` is the limit, 0 computes nothing on the loop."""
        self._below_ns = below_ns
        self._freezes = freezes
        self._reluctance = _MAX_RELUCTANCE
        self._left = 0
        """Short executions in threads left until probation ends."""
        self._probation = 1
        """Length of the next probation in executions."""
        self._since_failure = 0
        """Short executions on the loop since the last failure."""
        self._short_row_size = _NONE
        self.row_size = _NONE
        """Maximum row size in bytes that is currently computed on the loop."""
        self.usual_ns = 0
        """Executions on the loop below this duration need not be reported."""

    @property
    def open(self) -> bool:
        """Return whether short batches are computed on the loop."""
        return not self._left and self._reluctance < _MAX_RELUCTANCE // 2 and not self._freezes.barred

    def is_long(self, row_size: int) -> bool:
        """Return whether rows of this many bytes may take longer than those measured as short."""
        return row_size > self._short_row_size

    def measured_here(self, cost_ns: int, row_size: int) -> None:
        """Record an execution on the event loop, by wall time."""
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
            self._short_row_size = min(self._short_row_size, row_size - 1)
        self._update_row_size()

    def measured_in_thread(self, cost_ns: int, row_size: int) -> None:
        """Record an execution by an instance, by CPU time of its thread; 0 if unknown."""
        if not (self._below_ns and cost_ns):
            return
        self._freezes.look()
        if cost_ns < self._below_ns:
            if self._left:
                self._left -= 1
            if self._reluctance:
                self._reluctance -= 1
            self._short_row_size = max(self._short_row_size, row_size)
        elif not self.open or row_size <= self._short_row_size:
            self._record_exceeded(cost_ns, row_size)
        self._update_row_size()

    def _update_row_size(self) -> None:
        self.row_size = self._short_row_size if self.open else _NONE
        self.usual_ns = self._below_ns if not self._reluctance and self._probation == 1 else 0

    def _record_exceeded(self, cost_ns: int, row_size: int) -> None:
        if self._reluctance:  # the first one after short executions may be an accident
            self._short_row_size = min(self._short_row_size, row_size - 1)
        self._reluctance = min(_MAX_RELUCTANCE, self._reluctance + 2 * (cost_ns // self._below_ns))


_LONE_IN_A_ROW = 16
"""Number of consecutive lone requests after which the loop computes them, and of executions on the loop
after which an instance computes one.
"""
_MOST_LONE_IN_A_ROW = 1024


class Arrivals:
    """Counts the requests to all models of a server."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class LonePolicy:
    """Decides whether the event loop computes a lone request itself although it is not short.

    While the loop computes, it cannot see new requests. Whether requests are alone is therefore
    observed while instances compute them: no other request to any model may arrive meanwhile. After
    several such requests in a row the loop computes them, but an instance still computes one in
    several, so that additional clients are noticed. Under load other requests nearly always arrive, so
    instances compute.
    """

    __slots__ = (
        "_arrivals", "_below_ns", "_freezes", "_handed_over_at", "_in_a_row", "_left_here", "_needed",
        "_row_size", "row_size",
    )  # fmt: skip
    usual_ns = 0

    def __init__(self, below_ns: int, arrivals: Arrivals, freezes: Freezes) -> None:
        """Create the policy; `below_ns` is the limit, 0 computes nothing on the loop."""
        self._below_ns = below_ns
        self._arrivals = arrivals
        self._freezes = freezes
        self._handed_over_at = 0
        self._in_a_row = 0
        self._needed = _LONE_IN_A_ROW
        self._left_here = 0
        """Executions on the loop until an instance computes one."""
        self._row_size = _NONE
        """Maximum row size that took less than the limit."""
        self.row_size = _NONE
        """Maximum row size in bytes that is currently computed on the loop."""

    def handed_over(self) -> None:
        """Note that an instance starts computing while all others are idle."""
        self._handed_over_at = self._arrivals.count

    def measured_in_thread(self, cost_ns: int, row_size: int, *, alone: bool) -> None:
        """Record an execution by an instance, by the CPU time of its thread; 0 if unknown.

        `alone` is True if it had a single request and the instances held nothing else when it ended.
        """
        if not (self._below_ns and cost_ns):
            return
        if not alone or self._arrivals.count != self._handed_over_at:
            self._in_a_row = 0
        elif cost_ns < self._below_ns:
            self._in_a_row = min(self._needed, self._in_a_row + 1)
            self._row_size = max(self._row_size, row_size)
        else:
            self._row_size = min(self._row_size, row_size - 1)
        self._left_here = _LONE_IN_A_ROW if self._in_a_row == self._needed else 0
        self._update_row_size()

    def measured_here(self, cost_ns: int, row_size: int) -> None:
        """Record an execution on the event loop, by wall time."""
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
            self._row_size = min(self._row_size, row_size - 1)
        self._update_row_size()

    def _update_row_size(self) -> None:
        self.row_size = self._row_size if self._left_here and not self._freezes.barred else _NONE
