"""Options of a load that hold at every level: arrivals, late requests, connections, shares of workers."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from tpx.errors import UsageError
from tpx.options import check_range, one_of, option, refuse
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
_distribution = one_of(
    "--request-distribution",
    ("constant", "poisson", "gamma", "burst"),
    "Unsupported type provided: '{}'. Choices are 'constant', 'poisson', 'gamma' or 'burst'.",
)
_late = one_of(
    "--on-late", ("send", "skip"), "Unsupported type provided: '{}'. Choices are 'send' or 'skip'."
)
_poll = one_of("--poll", ("sleep", "busy"), "Unsupported type provided: '{}'. Choices are 'sleep' or 'busy'.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceSpec:
    """How load is sent at every level: arrivals, connections, sequences, processes.

    `gamma_shape` is that of the gamma distribution: 1 is Poisson, above 1 is more even, below 1 is
    burstier. The gaps' coefficient of variation is 1/sqrt(shape).
    """

    request_distribution: Distribution = option(
        "constant", "distribution of the intervals between requests of a rate", parse=_distribution
    )
    gamma_shape: float = option(
        1.0, "shape of gamma arrivals: 1 = poisson, above 1 more even, below 1 more clustered"
    )
    burst_size: int = option(1, "requests per burst")
    on_late: LatePolicy = option(
        "send",
        "what happens to a request that is more than a millisecond late because no connection was free",
        parse=_late,
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
        "how the client waits for responses: sleep, or busy, which polls on a core of its own, so that "
        "the latency of 1 to 4 requests in flight contains no client wake-up",
        parse=_poll,
    )
    self_test: bool = option(
        False, "measure how fast this machine can send, against a server that does nothing, and exit"
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value that is out of range or belongs to other arrivals."""
        check_range(self, "gamma_shape", "burst_size", "max_connections", "num_of_sequences", above=0)
        if self.max_threads < 0:
            refuse("--max-threads", "The value must be > 0.")
        if self.gamma_shape != 1 and self.request_distribution != "gamma":
            raise UsageError("--gamma-shape requires --request-distribution gamma")
        if self.poll == "busy" and usable_processors() < POLLING_PROCESSORS:
            raise UsageError(
                "--poll busy needs a processor of its own, and this process may use "
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

    def part(self, whole: int) -> int:
        """Return this worker's part of `whole` equal items; the first workers take the remainder."""
        return whole // self.of + (self.number < whole % self.of)

    def of_all(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield this worker's items: every `of`-th."""
        return islice(items, self.number, None, self.of) if self.of > 1 else items

    def part_in_turn(self, whole: int, things: int = 0) -> int:
        """Return this worker's part of `whole` requests that `things` send in turn.

        The things are split among the workers, too; 0 means one per worker.
        """
        things = things or self.of
        return whole // things * self.part(things) + self.part(whole % things)

    def picks(self, first: int, count: int, things: int = 0) -> npt.NDArray[np.bool_]:
        """Return a mask of this worker's among `count` requests, numbered from `first`, that `things`
        send in turn.
        """
        turns = np.arange(first, first + count) % (things or self.of)
        return np.asarray(turns % self.of == self.number)

    def part_by(self, whole: int, things: int) -> int:
        """Return this worker's part of `whole` requests if each of `things`, split the same way, sends
        equally many.
        """
        # differences of cumulative shares, so that the parts add up to `whole`
        before = sum(Share(i, self.of).part(things) for i in range(self.number))
        return whole * (before + self.part(things)) // things - whole * before // things


ALL = Share()
