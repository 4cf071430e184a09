"""Options of a load that hold at every level: arrivals, connections, sequences, and worker processes."""

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tpx.errors import UsageError
from tpx.options import Options, check_range, option, refuse
from tpx.perf.loops import Poll
from tpx.processors import usable_processors

if TYPE_CHECKING:
    import numpy as np

Distribution = Literal["constant", "poisson", "gamma", "burst"]
LatePolicy = Literal["send", "skip"]

MAX_WORKERS = 256


def parse_workers(text: str) -> int:
    """Parse a number of processes, or `auto`, which is 0."""
    if text.lower() == "auto":
        return 0
    if not text.isdecimal() or not 0 < int(text) <= MAX_WORKERS:
        refuse("--workers", f"The value must be 'auto' or a number from 1 to {MAX_WORKERS}.")
    return int(text)


@dataclass(frozen=True, slots=True)
class ThinkTime:
    """Seconds for which a user waits before the next request: normally distributed, and at least 0."""

    mean_s: float
    deviation_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.mean_s:g}" + (f",sd={self.deviation_s:g}" if self.deviation_s else "")

    def draw_s(self, rng: "np.random.Generator") -> float:
        return max(0.0, rng.normal(self.mean_s, self.deviation_s))


def parse_spread(text: str) -> tuple[float, float]:
    """Parse the mean and the standard deviation of `MEAN` or `MEAN,sd=DEVIATION`. Raises ValueError."""
    mean, comma, rest = text.replace(" ", "").partition(",")
    name, _, deviation = rest.partition("=")
    found = float(mean), float(deviation) if comma else 0.0
    if (comma and name != "sd") or not (abs(found[0]) < 1e9 and 0 <= found[1] < 1e9):
        raise ValueError(text)
    return found


def parse_think_time(text: str) -> ThinkTime:
    """Parse `2` or `2,sd=0.5`."""
    with suppress(ValueError):
        found = ThinkTime(*parse_spread(text))
        if found.mean_s > 0:
            return found
    raise ValueError("expected seconds above 0 such as 2 or 2,sd=0.5")


def parse_speed(text: str) -> float:
    """Parse `2` or `2x`."""
    with suppress(ValueError):
        speed = float(text.removesuffix("x"))
        if 1e-6 <= speed <= 1e6:
            return speed
    raise ValueError("expected a factor above 0 such as 2 or 0.5x")


POLLING_PROCESSORS = 2
"""Processors that polling needs: the client fills one, and everything else here needs another."""


class PaceSpec(Options):
    """How load is sent at every level.

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
    ramp_seconds: float = option(
        0.0,
        "seconds over which the requests in flight of a level begin, one by one, before it is measured",
        metavar="SECONDS",
        minimum=0,
    )
    think_time: ThinkTime | None = option(
        None,
        "seconds for which each user, one per request in flight or conversation, waits between a response "
        "and the next request, with a standard deviation if given",
        metavar="SECONDS[,sd=SECONDS]",
        parse=parse_think_time,
    )
    speed: float = option(
        1.0, "replay a --fixed-schedule so much faster: 2x, or 0.5x", metavar="FACTOR", parse=parse_speed
    )
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
