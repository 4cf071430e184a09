"""The processes of a server seen from outside while it serves, and what must not grow."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psutil

MEGABYTE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The sums over processes at one moment."""

    at_s: float
    rss_bytes: int
    descriptors: int
    threads: int

    @classmethod
    def at(cls, processes: Iterable[psutil.Process], at_s: float) -> "Look":
        """These processes now, which the caller's clock calls `at_s`. Raises psutil.Error if one is gone."""
        looks = [(each.memory_info().rss, each.num_fds(), each.num_threads()) for each in processes]
        rss_bytes, descriptors, threads = map(sum, zip(*looks, strict=True))
        return cls(at_s=at_s, rss_bytes=rss_bytes, descriptors=descriptors, threads=threads)


def growth_per_minute(looks: Sequence[Look]) -> float:
    """Bytes of memory a minute: the slope of the straight line nearest to the looks (least squares)."""
    middle_s = sum(look.at_s for look in looks) / len(looks)
    middle_bytes = sum(look.rss_bytes for look in looks) / len(looks)
    spread = sum((look.at_s - middle_s) ** 2 for look in looks)
    if not spread:
        return 0.0
    return 60 * sum((look.at_s - middle_s) * (look.rss_bytes - middle_bytes) for look in looks) / spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What may grow, and how much."""

    memory_per_minute: float
    descriptors: int = 2
    threads: int = 2

    def broken(self, working: Sequence[Look], before: Look, after: Look) -> list[str]:
        """What grew too much: memory while the process worked, the rest between two quiet moments."""
        problems = []
        growth = growth_per_minute(working)
        if growth > self.memory_per_minute:
            problems.append(
                f"memory grew by {growth / MEGABYTE:.2f} MB/min, more than "
                f"{self.memory_per_minute / MEGABYTE:.2f}"
            )
        for name, allowed in (("descriptors", self.descriptors), ("threads", self.threads)):
            then, now = getattr(before, name), getattr(after, name)
            if abs(now - then) > allowed:
                problems.append(f"{name} went from {then} to {now}, more than {allowed} apart")
        return problems
