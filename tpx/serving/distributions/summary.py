"""A Prometheus summary of durations: count and sum since the start, quantiles of the last minute."""

from collections.abc import Sequence

from tpx.serving.distributions.quantiles import SlidingQuantiles

_TOGETHER = 2048
"""Durations that go into the sketch with one sort."""


class Summary:
    """Keeps durations as they come until there are enough of them for the sketch."""

    __slots__ = ("_quantiles", "_waiting", "count", "total_ns")

    def __init__(self, error: float, now_ns: int) -> None:
        self.count = 0
        self.total_ns = 0
        self._quantiles = SlidingQuantiles(error, now_ns)
        self._waiting: list[int] = []

    def observe(self, ns: int, count: int, now_ns: int) -> None:
        if now_ns >= self._quantiles.ends_ns:
            self._turn(now_ns)
        self.count += count
        self.total_ns += ns * count
        waiting = self._waiting
        if count == 1:
            waiting.append(ns)
        else:
            waiting.extend([ns] * count)
        if len(waiting) >= _TOGETHER:
            self._settle()

    def read_ns(self, shares: Sequence[float], now_ns: int) -> list[int | None]:
        """The quantiles of the last minute, None where there was nothing."""
        if now_ns >= self._quantiles.ends_ns:
            self._turn(now_ns)
        self._settle()
        return self._quantiles.read(shares)

    def _settle(self) -> None:
        if self._waiting:
            self._quantiles.add(self._waiting)
            self._waiting.clear()

    def _turn(self, now_ns: int) -> None:
        self._settle()
        self._quantiles.turn(now_ns)
