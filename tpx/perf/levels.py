"""Kinds of load, and their levels: one, a range, a growing concurrency, a file of intervals."""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tpx.errors import UsageError
from tpx.options import flag_of, refuse

LATE_NS = 1_000_000
"""Delay beyond which a request counts as late, the same as in perf_analyzer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """The gaps of `--request-intervals FILE` in ns, repeated while the load lasts."""

    path: Path
    gaps_ns: tuple[int, ...]

    def __str__(self) -> str:
        return str(self.path)

    @property
    def rate(self) -> float:
        """Requests per second over one pass of the file."""
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
    """Concurrency that grows from `start` to `end` while it is measured.

    The next `step` is sent once each request of the latest step has had `period` responses.
    """

    start: int
    end: int
    step: int = 1
    period: int = 10

    def __str__(self) -> str:
        return f"{self.start}:{self.end}:{self.step}"


LEAST_RATE, GREATEST_RATE = 1e-6, 1e9
"""Range of request rates, per second, that a schedule in nanoseconds can represent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadKind:
    """One way to put load on a server, with everything that differs between kinds.

    In perf_analyzer's reports each kind counts as a concurrency or as a request rate.
    """

    name: str
    """Name in files, such as `request_rate`."""
    opener: str
    """`module:function` in `tpx.perf.loads` that opens a level's load; imported on first use."""
    option: str
    """Option field that selects it."""
    called: str = ""
    """Text before a level's value in the summary, if not the name."""
    title: str = "{label}: {value:g}"
    """Line above a level's figures."""
    column: str = "Request Rate"
    """First column of the CSV file."""
    whole: bool = True
    """True if levels are integers."""
    ranged: bool = False
    """True if several levels can be measured in one run."""
    open_loop: bool = False
    """True if requests are due at times that do not depend on earlier responses."""
    once: bool = False
    """True if the load ends by itself once everything is sent."""
    undivided: str = ""
    """Reason why one process must send everything; empty if worker processes may share the load."""
    per_worker: int = 20_000
    """Amount of load that one process can send with ease."""

    @property
    def text(self) -> str:
        """The name with spaces."""
        return self.name.replace("_", " ")

    @property
    def label(self) -> str:
        return self.called or self.text.capitalize()

    @property
    def rival(self) -> str:
        """perf_analyzer's name of the kind in its error about two kinds of load."""
        return self.text.title().replace(" ", "")

    @property
    def flag(self) -> str:
        return flag_of(self.option)


CONCURRENCY = LoadKind(
    name="concurrency",
    opener="users:open_requests",
    option="concurrency_range",
    title="Request concurrency: {value:g}",
    column="Concurrency",
    ranged=True,
    per_worker=128,
)
REQUEST_RATE = LoadKind(
    name="request_rate",
    opener="rate:open_rate",
    option="request_rate_range",
    called="Request Rate",
    title="Request Rate: {value:g} inference requests per seconds",
    whole=False,
    ranged=True,
    open_loop=True,
)
CUSTOM_INTERVALS = LoadKind(
    name="custom_intervals",
    opener="rate:open_rate",
    option="request_intervals",
    called="Request Rate",
    title="",
    open_loop=True,
)
PERIODIC_CONCURRENCY = LoadKind(
    name="periodic_concurrency",
    opener="closed:open_periodic",
    option="periodic_concurrency_range",
    once=True,
    undivided="a periodic concurrency grows by the answers to all of its requests, which one process sees",
)
SESSION_CONCURRENCY = LoadKind(
    name="session_concurrency",
    opener="users:open_sessions",
    option="session_concurrency",
    column="Session Concurrency",
    once=True,
    undivided="one process begins the next conversation when one ends",
)
FIXED_SCHEDULE = LoadKind(
    name="fixed_schedule",
    opener="rate:open_rate",
    option="fixed_schedule",
    title="",
    open_loop=True,
    once=True,
)
KINDS = {
    kind.name: kind
    for kind in (
        CONCURRENCY,
        REQUEST_RATE,
        CUSTOM_INTERVALS,
        PERIODIC_CONCURRENCY,
        SESSION_CONCURRENCY,
        FIXED_SCHEDULE,
    )
}
"""Every kind of load by name."""


@dataclass(frozen=True, slots=True)
class Level:
    """One load: a kind and its value. Requests in flight are whole; requests per second need not be."""

    mode: str
    value: float

    @property
    def kind(self) -> LoadKind:
        return KINDS[self.mode]

    def __str__(self) -> str:
        return f"{self.mode} {self.value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRange:
    """The loads to measure, in order: start to end by `step`, by `factor`, or as a list.

    An `end` of None is one level; 0 is a range without end, which stops at the latency limit. `binary`
    bisects the range until it is no wider than `step`, for the highest load under the latency limit.
    """

    mode: str = CONCURRENCY.name
    start: float = 1
    end: float | None = None
    step: float = 1
    factor: float = 0.0
    listed: tuple[float, ...] = ()
    binary: bool = False
    given: bool = field(default=True, compare=False)
    """True if the user set it; only one kind of load can be set."""

    def __post_init__(self) -> None:
        lowest = min(self.listed or (self.start,))
        if self.kind is CONCURRENCY and not lowest > 0:
            raise UsageError("The start of the search range must be > 0")
        if self.kind is REQUEST_RATE and not lowest > 0:
            refuse(self.kind.flag, "The start of the search range must be > 0.")
        if self.kind is REQUEST_RATE and (lowest < LEAST_RATE or (self.highest or 0) > GREATEST_RATE):
            reason = "The rates must be from 1e-6 (one request in 11 days) to 1e9 (one a nanosecond)."
            refuse(self.kind.flag, reason)
        if not self.step > 0 or (self.factor and not self.factor > 1):
            refuse(self.kind.flag, "The <step> must be > 0, or a factor > 1 such as x2.")
        if self.end is not None and not (self.end == 0 or self.end >= self.start):
            refuse(self.kind.flag, "The <start> must be <= <end>.")

    def __str__(self) -> str:
        if self.listed:
            return ",".join(f"{value:g}" for value in self.listed)
        step = f"x{self.factor:g}" if self.factor else f"{self.step:g}"
        return f"{self.start:g}" if self.end is None else f"{self.start:g}:{self.end:g}:{step}"

    @property
    def kind(self) -> LoadKind:
        return KINDS[self.mode]

    @property
    def unbounded(self) -> bool:
        return self.end == 0

    @property
    def highest(self) -> float | None:
        """Highest level; None if the range has no end."""
        if self.listed:
            return max(self.listed)
        return None if self.unbounded else max(self.start, self.end or 0)

    def values(self) -> Iterator[float]:
        """Yield the levels in order, endlessly if the range has no end."""
        if self.listed:
            yield from self.listed
            return
        value, end = self.start, math.inf if self.unbounded else self.end or 0
        yield value
        while True:
            following = value * self.factor if self.factor else value + self.step
            value = max(value + 1, int(following)) if self.kind.whole else round(following, 9)
            if value > end:
                return
            yield value


def level_seed(seed: int, level: Level) -> "np.random.SeedSequence":
    """Return the seed of a level in a run with this `seed`."""
    # not hash(), which differs from process to process: all workers need the same seed
    return np.random.SeedSequence([seed, zlib.crc32(repr((level.mode, float(level.value))).encode())])


def level_number(seed: int, level: Level) -> int:
    """Return the seed of a level as an integer below 2**53, which every JSON reader keeps exact."""
    return int(level_seed(seed, level).generate_state(1, np.uint64)[0]) >> 11
