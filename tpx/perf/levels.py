"""Kinds of load, their levels and syntax, and the options of a load that hold at every level."""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from tpx.errors import UsageError
from tpx.options import check_range, flag_of, option, refuse
from tpx.perf.loops import Poll
from tpx.processors import usable_processors

Distribution = Literal["constant", "poisson", "gamma", "burst"]
LatePolicy = Literal["send", "skip"]

Item = TypeVar("Item")

MAX_WORKERS = 256
LATE_NS = 1_000_000
"""Delay beyond which a request counts as late, the same as in perf_analyzer."""


def parse_workers(text: str) -> int:
    """Parse a number of processes, or `auto`, which is 0."""
    if text.lower() == "auto":
        return 0
    if not text.isdecimal() or not 0 < int(text) <= MAX_WORKERS:
        refuse("--workers", f"The value must be 'auto' or a number from 1 to {MAX_WORKERS}.")
    return int(text)


POLLING_PROCESSORS = 2
"""Processors that polling needs: the client fills one, and everything else here needs another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceSpec:
    """How load is sent at every level: arrivals, connections, sequences, processes.

    `gamma_shape` is that of the gamma distribution: 1 is Poisson, above 1 is more even, below 1 is
    burstier. The gaps' coefficient of variation is 1/sqrt(shape).
    """

    request_distribution: Distribution = option(
        "constant",
        "distribution of the intervals between requests of a rate",
        refusal="Unsupported type provided: '{}'. Choices are 'constant', 'poisson', 'gamma' or 'burst'.",
    )
    gamma_shape: float = option(
        1.0, "shape of gamma arrivals: 1 = poisson, above 1 more even, below 1 more clustered"
    )
    burst_size: int = option(1, "requests per burst")
    on_late: LatePolicy = option(
        "send",
        "what happens to a request that is more than a millisecond late because no connection was free",
        refusal="Unsupported type provided: '{}'. Choices are 'send' or 'skip'.",
    )
    max_connections: int = option(
        1024, "maximum requests in flight at a rate; further ones wait for a response"
    )
    num_of_sequences: int = option(4, "concurrent sequences at a rate, for sequence models")
    serial_sequences: bool = option(
        False,
        "one request of a sequence in flight at a time; always so, since they could overtake each other",
    )
    workers: int = option(
        0,
        "worker processes that send requests; auto = more than one if one core is not enough",
        metavar="N|auto",
        parse=parse_workers,
        default_text="auto",
    )
    cluster: int = option(
        0,
        "nodes of the Ray cluster at RAY_ADDRESS that share the load, with one worker process each",
        metavar="N",
        minimum=0,
    )
    max_threads: int = option(0, "maximum worker processes of --workers auto (perf_analyzer: threads)")
    poll: Poll = option(
        "sleep",
        "how the client waits for responses: sleep, or busy, which polls on a dedicated core, so that "
        "the latency of 1 to 4 requests in flight contains no client wake-up",
        refusal="Unsupported type provided: '{}'. Choices are 'sleep' or 'busy'.",
    )

    def __post_init__(self) -> None:
        check_range(self, "gamma_shape", "burst_size", "max_connections", "num_of_sequences", above=0)
        if self.max_threads < 0:
            refuse("--max-threads", "The value must be > 0.")
        if self.gamma_shape != 1 and self.request_distribution != "gamma":
            raise UsageError("--gamma-shape requires --request-distribution gamma")
        if self.poll == "busy" and usable_processors() < POLLING_PROCESSORS:
            raise UsageError(
                "--poll busy needs a dedicated processor, and this process may use "
                f"{usable_processors():g} (taskset, or the container's limit): the server would wait for it"
            )
        if self.burst_size != 1 and self.request_distribution != "burst":
            raise UsageError("--burst-size requires --request-distribution burst")


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


@dataclass(frozen=True, slots=True)
class Share:
    """One of `of` workers that share a load; number 0 of 1 is all of it."""

    number: int = 0
    of: int = 1

    def part(self, total: int) -> int:
        """Return this worker's part of `total` equal items; the first workers take the remainder."""
        return total // self.of + (self.number < total % self.of)

    def of_all(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield this worker's items: every `of`-th."""
        return islice(items, self.number, None, self.of) if self.of > 1 else items

    def part_in_turn(self, total: int, senders: int = 0) -> int:
        """Return this worker's part of `total` requests that `senders` send in turn.

        The senders are split among the workers, too; 0 means one per worker.
        """
        senders = senders or self.of
        return total // senders * self.part(senders) + self.part(total % senders)

    def part_by(self, total: int, senders: int) -> int:
        """Return this worker's part of `total` requests if each of `senders` sends equally many."""
        # differences of cumulative shares, so that the parts add up to `whole`
        before = sum(Share(i, self.of).part(senders) for i in range(self.number))
        return total * (before + self.part(senders)) // senders - total * before // senders


ALL = Share()


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
    opener="closed:open_requests",
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
    opener="closed:open_sessions",
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


def level_seed(seed: int, level: Level) -> np.random.SeedSequence:
    """Return the seed of a level in a run with this `seed`."""
    # not hash(), which differs from process to process: all workers need the same seed
    return np.random.SeedSequence([seed, zlib.crc32(repr((level.mode, float(level.value))).encode())])


def level_number(seed: int, level: Level) -> int:
    """Return the seed of a level as an integer below 2**53, which every JSON reader keeps exact."""
    return int(level_seed(seed, level).generate_state(1, np.uint64)[0]) >> 11


def parse_concurrency(text: str) -> LevelRange:
    """Parse `start:end:step` with empty parts for defaults, `start:end:xFACTOR`, or a list `1,2,8`."""
    return _parse_range(text, CONCURRENCY)


def parse_rates(text: str) -> LevelRange:
    """Parse a range of requests per second, which need not be whole; same syntax."""
    return _parse_range(text, REQUEST_RATE)


def _parse_range(text: str, kind: LoadKind) -> LevelRange:
    flag = kind.flag

    def read(part: str) -> float:
        try:
            value = int(part) if kind.whole else float(part)
        except ValueError:
            refuse(flag, f"Invalid value provided: {text}")
        if not value < float("inf"):
            refuse(flag, f"Invalid value provided: {text}")
        return value

    if "," in text:
        return LevelRange(mode=kind.name, listed=tuple(read(part) for part in text.split(",")))
    parts = text.split(":")
    if len(parts) > 3:
        refuse(flag, "The value does not match <start:end:step>.")
    start, end, step = [*parts, "", ""][:3]
    factor = 0.0
    if step.startswith("x"):
        try:
            factor = float(step[1:])
        except ValueError:
            refuse(flag, f"Invalid value provided: {text}")
        step = ""
    return LevelRange(
        mode=kind.name,
        start=read(start or "1"),
        end=read(end) if end else None,
        step=read(step or "1"),
        factor=factor,
    )


def parse_periodic(text: str) -> PeriodicRange:
    """Parse `start:end[:step]` of a growing concurrency."""
    flag = PERIODIC_CONCURRENCY.flag
    parts = text.split(":")
    if len(parts) > 3:
        refuse(flag, "The value does not match <start:end:step>.")
    if len(parts) < 2 or not parts[0] or not parts[1]:
        refuse(flag, "Both <start> and <end> values must be provided.")
    try:
        start, end, step = (int(part) for part in [*parts, "1"][:3])
    except ValueError:
        refuse(flag, f"Invalid value provided: {text}")
    if step <= 0:
        refuse(flag, "The <step> value must be > 0.")
    if start <= 0:
        refuse(flag, "The <start> value must be > 0.")
    if start > end:
        refuse(flag, "The <start> must be <= <end>.")
    if (end - start) % step:
        refuse(flag, "The <step> value must be a factor of the range size (<end> - <start>).")
    return PeriodicRange(start=start, end=end, step=step)


def parse_intervals(text: str) -> Intervals:
    """Read a file with one interval in microseconds per line; empty lines are skipped."""
    flag = CUSTOM_INTERVALS.flag
    path = Path(text)
    try:
        lines = path.read_text("utf-8").split()
    except (OSError, UnicodeDecodeError):
        refuse(flag, "The value must be a valid file path")
    if not lines:
        refuse(flag, f"file '{text}' is empty")
    gaps = []
    for line in lines:
        try:
            gaps.append(round(float(line) * 1000))
        except (ValueError, OverflowError):
            refuse(flag, f"file '{text}': '{line}' is not a number of microseconds")
    if min(gaps) < 0 or sum(gaps) == 0:
        refuse(flag, f"file '{text}': intervals must be >= 0 and one of them > 0")
    return Intervals(path=path, gaps_ns=tuple(gaps))


def parse_models(text: str) -> tuple[ModelShare, ...]:
    """Parse `a:3,b:1`; the default weight is 1."""
    flag = "--models"
    shares = []
    for part in text.split(","):
        name, colon, weight = part.strip().rpartition(":")
        try:
            share = ModelShare(name, float(weight)) if colon else ModelShare(weight)
        except ValueError:
            refuse(flag, f"The weight of '{part}' is not a number.")
        if not share.name or not 0 < share.weight < float("inf"):
            refuse(flag, f"The value '{part}' does not match <name:weight> with a weight > 0.")
        shares.append(share)
    if len({share.name for share in shares}) < len(shares):
        refuse(flag, "A model is named twice.")
    return tuple(shares)
