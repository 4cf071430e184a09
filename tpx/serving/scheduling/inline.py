"""Where a batch is computed: on the event loop, or by an instance of its own thread."""

_MAX_RELUCTANCE = 16
_PREEMPTED = 4
"""Times the limit: an execution on the loop that takes longer may have been preempted."""
_LONGEST_PROBATION = 1024
_REHABILITATED = 64


class InlinePolicy:
    """Decides from what executions have cost whether the event loop computes the next one itself.

    A model whose executions are hardly longer than two thread switches is computed there. The reluctance to
    do so rises with every execution that exceeds the limit and falls slowly with those that do not.

    One that exceeds it by far on the loop may be slow, or the thread was preempted: wall time cannot tell, so
    the model is on probation, and its next executions are measured by the CPU time of an instance's thread.
    Short ones bring it back. Probation is one execution at first, so that preemption under load does not move
    a short model to its threads; it doubles with every such failure that follows soon, so that a model which
    waits without using the CPU holds up the loop ever more rarely.

    A request with larger rows than any that was short shows in a thread what it takes.
    """

    __slots__ = ("_below_ns", "_left", "_probation", "_reluctance", "_short_row_size", "_since_failure")

    def __init__(self, below_ns: int) -> None:
        """`below_ns` is the limit; 0 computes nothing on the loop."""
        self._below_ns = below_ns
        self._reluctance = _MAX_RELUCTANCE
        self._left = 0
        """Short executions in threads that probation still asks for."""
        self._probation = 1
        """Executions that the next failure on the loop costs."""
        self._since_failure = 0
        """Short executions on the loop."""
        self._short_row_size = -1

    @property
    def open(self) -> bool:
        """Short batches are computed on the event loop."""
        return not self._left and self._reluctance < _MAX_RELUCTANCE // 2

    def is_long(self, row_size: int) -> bool:
        """Return whether rows of so many bytes may take longer than those that were short."""
        return row_size > self._short_row_size

    def measured_here(self, cost_ns: int, row_size: int) -> None:
        """Take into account an execution on the event loop, by its wall time."""
        if cost_ns < self._below_ns:
            if self._reluctance:
                self._reluctance -= 1
            self._since_failure += 1
            if self._since_failure == _REHABILITATED:
                self._since_failure = 0
                self._probation = max(1, self._probation >> 1)
        elif cost_ns < _PREEMPTED * self._below_ns:
            self._exceeded(cost_ns, row_size)
        else:
            self._since_failure = 0
            self._left = self._probation
            self._probation = min(_LONGEST_PROBATION, 2 * self._probation)
            self._short_row_size = min(self._short_row_size, row_size - 1)

    def measured_in_thread(self, cost_ns: int, row_size: int) -> None:
        """Take into account an execution by an instance, by the CPU time of its thread; 0 is unknown."""
        if not (self._below_ns and cost_ns):
            return
        if cost_ns < self._below_ns:
            if self._left:
                self._left -= 1
            if self._reluctance:
                self._reluctance -= 1
            self._short_row_size = max(self._short_row_size, row_size)
        elif not self.open or row_size <= self._short_row_size:
            self._exceeded(cost_ns, row_size)

    def _exceeded(self, cost_ns: int, row_size: int) -> None:
        self._reluctance = min(_MAX_RELUCTANCE, self._reluctance + 2 * (cost_ns // self._below_ns))
        self._short_row_size = min(self._short_row_size, row_size - 1)
