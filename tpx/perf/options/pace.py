"""The options that say how a load is put on, whatever its level."""

from dataclasses import dataclass
from typing import Literal

from tpx.errors import UsageError
from tpx.options import option
from tpx.perf.levels import parse_workers
from tpx.perf.loops import Poll
from tpx.perf.plan import Arrivals
from tpx.perf.settings import one_of, refuse
from tpx.processors import usable_processors

_PACE = "Pace"
POLLING_PROCESSORS = 2
"""A client that polls fills one, and whatever else runs here needs another."""
_distribution = one_of(
    "--request-distribution",
    ("constant", "poisson", "gamma", "burst"),
    "Unsupported type provided: '{}'. Choices are 'constant', 'poisson', 'gamma' or 'burst'.",
)
_late = one_of(
    "--on-late", ("send", "skip"), "Unsupported type provided: '{}'. Choices are 'send' or 'skip'."
)
_poll = one_of("--poll", ("sleep", "busy"), "Unsupported type provided: '{}'. Choices are 'sleep' or 'busy'.")


@dataclass(frozen=True, kw_only=True)
class PaceOptions:
    """Arrivals, connections, sequences, processes."""

    request_distribution: Literal["constant", "poisson", "gamma", "burst"] = option(
        "constant", "how the requests of a rate are spread over time", section=_PACE, parse=_distribution
    )
    gamma_shape: float = option(
        1.0, "of gamma arrivals: 1 is poisson, more is more even, less comes in clusters", section=_PACE
    )
    burst_size: int = option(1, "of burst arrivals: how many come at a time", section=_PACE)
    on_late: Literal["send", "skip"] = option(
        "send",
        "what becomes of a request that is more than a millisecond late, because no connection was free",
        section=_PACE,
        parse=_late,
    )
    max_connections: int = option(
        1024, "requests that a rate may have in flight; further ones wait for an answer", section=_PACE
    )
    num_of_sequences: int = option(
        4, "sequences that a rate keeps open, for models that take sequences", section=_PACE
    )
    serial_sequences: bool = option(
        False,
        "never two requests of a sequence in flight; they never are, as they would overtake each other",
        section=_PACE,
    )
    workers: int = option(
        0,
        "processes that send the requests; auto: more than one where a processor is not enough",
        section=_PACE,
        metavar="N|auto",
        parse=parse_workers,
        default_text="auto",
    )
    max_threads: int = option(
        0, "how many processes --workers auto may take; perf_analyzer's threads", section=_PACE
    )
    poll: Poll = option(
        "sleep",
        "how the client waits for answers: sleep, or busy, which polls on a processor of its own, so "
        "that the latency of 1 to 4 requests in flight has no wake-up of the client in it",
        section=_PACE,
        parse=_poll,
    )
    self_test: bool = option(
        False,
        "measure what this machine can send, against a server that does nothing, and end",
        section=_PACE,
    )

    @property
    def arrivals(self) -> Arrivals:
        """How the requests of a rate are spread over time."""
        return Arrivals(distribution=self.request_distribution, shape=self.gamma_shape, burst=self.burst_size)

    def check_pace(self, *, open_loop: bool) -> None:
        """Raise UsageError for a value out of range, or one that says something of another load."""
        if not 0 < self.gamma_shape < float("inf"):
            refuse("--gamma-shape", "The value must be > 0.")
        if self.gamma_shape != 1 and self.request_distribution != "gamma":
            raise UsageError("--gamma-shape is of --request-distribution gamma")
        for flag, value in (
            ("--burst-size", self.burst_size),
            ("--max-connections", self.max_connections),
            ("--num-of-sequences", self.num_of_sequences),
        ):
            if value <= 0:
                refuse(flag, "The value must be > 0.")
        for flag, differs in (
            ("--max-connections", self.max_connections != PaceOptions.max_connections),
            ("--on-late", self.on_late != PaceOptions.on_late),
        ):
            if differs and not open_loop:
                raise UsageError(f"{flag} is of loads with times of their own, such as --request-rate-range")
        if self.poll == "busy" and usable_processors() < POLLING_PROCESSORS:
            raise UsageError(
                "--poll busy needs a processor of its own, and this process may use "
                f"{usable_processors():g} (taskset, or the container's limit): the server would wait for it"
            )
        if self.burst_size != 1 and self.request_distribution != "burst":
            raise UsageError("--burst-size is of --request-distribution burst")
        if self.max_threads < 0:
            refuse("--max-threads", "The value must be > 0.")
