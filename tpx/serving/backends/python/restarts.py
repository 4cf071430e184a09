"""When to restart a process that has died."""

from collections import deque

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 5.0
_MOST = 6
_WITHIN_NS = 60 * 10**9


class Restarts:
    """Restart policy: at once the first time, then with growing delays, and not at all after several deaths
    within a minute.
    """

    def __init__(self) -> None:
        self._deaths: deque[int] = deque(maxlen=_MOST)
        self.given_up = False

    def pardon(self) -> float:
        """Discount the last death, which was a failure to start for lack of memory or descriptors; return the
        delay in seconds.
        """
        self._deaths.pop()
        return _LONGEST_DELAY_S

    def died(self, now_ns: int) -> float | None:
        """Return the delay before the next start in seconds; None if it is not restarted."""
        self._deaths.append(now_ns)
        recent = sum(now_ns - at <= _WITHIN_NS for at in self._deaths)
        if recent >= _MOST:
            self.given_up = True
            return None
        return float(min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 4 ** (recent - 1)))
