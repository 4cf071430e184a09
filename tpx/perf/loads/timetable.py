"""When the requests of an open loop are due: a schedule's blocks in turn, as times of the clock."""

from collections.abc import Iterator

from tpx.perf.loads.schedules import Offsets

NEVER = 1 << 62


class Timetable:
    """The next request is due at `due_ns`, NEVER where there is none."""

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
        """Whether nothing is due any more."""
        return self._left <= 0 and self.due_ns == NEVER

    def begin(self, count: int | None, origin_ns: int) -> None:
        """Go to the first time; at most `count` of them, which count from `origin_ns`."""
        self._left = NEVER if count is None else count
        self._origin_ns = origin_ns
        self._refill()

    def end(self) -> None:
        """Leave out what is left."""
        self._left = 0
        self.due_ns = NEVER

    def advance(self) -> None:
        """Go on to the next time."""
        self._left -= 1
        self._at = at = self._at + 1
        if self._left <= 0:
            self.due_ns = NEVER
        elif at < len(self._times):
            self.due_ns = self._times[at]
        else:
            self._refill()

    def skip(self, before_ns: int) -> int:
        """Go on to the first time that is not before `before_ns`; returns how many were left out."""
        skipped = 0
        while self.due_ns < before_ns:
            skipped += 1
            self.advance()
        return skipped

    def _refill(self) -> None:
        """Take the schedule's next block."""
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
