"""How load is put on, whatever its level: arrivals, their seed, what late requests become, connections."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Distribution = Literal["constant", "poisson", "gamma", "burst"]
LatePolicy = Literal["send", "skip"]

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
