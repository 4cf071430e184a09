"""When a process that has died is started again."""

from collections import deque

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 5.0
_MOST = 6
_WITHIN_NS = 60 * 10**9


class Restarts:
    """At once the first time, later and later when it goes on dying, and after some deaths in a minute not at
    all."""

    def __init__(self) -> None:
        self._deaths: deque[int] = deque(maxlen=_MOST)
        self.given_up = False

    def pardon(self) -> float:
        """The last death was none: there was no memory or no descriptor to start it with. How many seconds to
        wait for others to give some back."""
        self._deaths.pop()
        return _LONGEST_DELAY_S

    def died(self, now_ns: int) -> float | None:
        """How many seconds to wait before the next start; None: it is not started again."""
        self._deaths.append(now_ns)
        recent = sum(now_ns - at <= _WITHIN_NS for at in self._deaths)
        if recent >= _MOST:
            self.given_up = True
            return None
        return float(min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 4 ** (recent - 1)))
