"""How load is put on, whatever its level: arrivals, their seed, what late requests become, connections, and
each worker's share of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

Distribution = Literal["constant", "poisson", "gamma", "burst"]
LatePolicy = Literal["send", "skip"]

Item = TypeVar("Item")

LATE_NS = 1_000_000
"""A request sent later than this after its time is delayed; perf_analyzer tolerates as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How requests of a rate are spread over time.

    `shape` is the gamma distribution's: 1 is Poisson, above 1 more even, below 1 in bursts; the gaps'
    coefficient of variation is 1/sqrt(shape). `burst` requests come at a time for `burst`.
    """

    distribution: Distribution = "constant"
    shape: float = 1.0
    burst: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """The gaps of `--request-intervals FILE` in ns, repeated for as long as load is wanted."""

    path: Path
    gaps_ns: tuple[int, ...]

    def __str__(self) -> str:
        return str(self.path)

    @property
    def rate(self) -> float:
        """Requests per second over a whole turn."""
        return len(self.gaps_ns) * 1e9 / sum(self.gaps_ns)


@dataclass(frozen=True, slots=True)
class ModelShare:
    """One of several models that are measured at once, and its weight among their requests."""

    name: str
    weight: float = 1.0

    def __str__(self) -> str:
        return f"{self.name}:{self.weight:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicRange:
    """Concurrency that grows while it is measured: from `start` to `end` by `step`, one step whenever every
    request of the newest ones has had `period` responses."""

    start: int
    end: int
    step: int = 1
    period: int = 10

    def __str__(self) -> str:
        return f"{self.start}:{self.end}:{self.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What a load is made by beside its level."""

    arrivals: Arrivals = field(default_factory=Arrivals)
    intervals: Intervals | None = None
    periodic: PeriodicRange | None = None
    seed: int = 0
    late: LatePolicy = "send"
    max_connections: int = 1024
    """An open loop opens further connections up to so many while none is free."""
    sequences: int = 0
    """How many sequences an open loop keeps open; 0 where requests belong to none."""
    serial: bool = False
    """Whether a request of a sequence waits for the answer to the one before it."""
    workers: int = 1
    """Processes that send; 0 is as many as the load needs, but no more than `most_workers`, 0 for any."""
    most_workers: int = 0
    samples_per_query: int = 8
    """Requests of one query of the MultiStream scenario."""


@dataclass(frozen=True, slots=True)
class Share:
    """One of `of` workers among which a load is dealt out; number 0 of 1 is all of it."""

    number: int = 0
    of: int = 1

    def part(self, whole: int) -> int:
        """This one's of `whole` equal things: the first ones get what is over."""
        return whole // self.of + (self.number < whole % self.of)

    def of_all(self, items: Iterator[Item]) -> Iterator[Item]:
        """This one's items, every `of`-th."""
        return islice(items, self.number, None, self.of) if self.of > 1 else items

    def part_in_turn(self, whole: int, things: int = 0) -> int:
        """This one's of `whole` requests of which `things`, dealt out like this too, have one after the
        other; 0 where each of the sharers is one."""
        things = things or self.of
        return whole // things * self.part(things) + self.part(whole % things)

    def picks(self, first: int, count: int, things: int = 0) -> npt.NDArray[np.bool_]:
        """Which of `count` such requests, numbered from `first`, are this one's."""
        turns = np.arange(first, first + count) % (things or self.of)
        return np.asarray(turns % self.of == self.number)

    def part_by(self, whole: int, things: int) -> int:
        """This one's of `whole` requests where each of `things`, dealt out like this too, sends as many."""
        before = sum(Share(i, self.of).part(things) for i in range(self.number))
        return whole * (before + self.part(things)) // things - whole * before // things


ALL = Share()
