"""What takes durations."""

from typing import Protocol


class Distribution(Protocol):
    """Durations as they come. Used on the event loop only."""

    count: int
    total_ns: int

    def observe(self, ns: int, count: int, now_ns: int) -> None:
        """`count` requests took `ns` each."""
