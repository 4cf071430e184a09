"""The options of the load: its levels, and how it is put on at each of them."""

from dataclasses import dataclass
from typing import Literal

from tpx.errors import UsageError
from tpx.options import option
from tpx.perf.levels import (
    CUSTOM_INTERVALS,
    FIXED_SCHEDULE,
    PERIODIC_CONCURRENCY,
    SESSION_CONCURRENCY,
    LevelRange,
    parse_concurrency,
    parse_intervals,
    parse_periodic,
    parse_rates,
    parse_workers,
)
from tpx.perf.loops import Poll
from tpx.perf.plan import Arrivals, Intervals, PeriodicRange
from tpx.perf.settings import one_of, refuse
from tpx.processors import usable_processors

ONE_REQUEST = LevelRange(given=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """Levels, and how many requests at each."""

    concurrency_range: LevelRange = option(
        ONE_REQUEST,
        "requests kept in flight: a range, a list 1,2,8, or geometric 1:64:x2; "
        "an end of 0 goes on until the latency threshold is met",
        metavar="START:END:STEP",
        parse=parse_concurrency,
    )
    request_rate_range: LevelRange | None = option(
        None,
        "requests per second, whatever becomes of those before: ranges and lists as for concurrency, "
        "and fractions",
        metavar="START:END:STEP",
        parse=parse_rates,
    )
    request_intervals: Intervals | None = option(
        None,
        "file with one interval of microseconds a line, repeated for as long as it takes",
        metavar="FILE",
        parse=parse_intervals,
    )
    fixed_schedule: bool = option(False, "send each step of the input data once, at its own timestamp")
    periodic_concurrency_range: PeriodicRange | None = option(
        None,
        "concurrency that grows from START to END within one measurement, over gRPC streams",
        metavar="START:END:STEP",
        parse=parse_periodic,
    )
    request_period: int = option(
        10, "responses of each of the newest requests before concurrency grows again"
    )
    session_concurrency: int | None = option(
        None,
        "conversations at a time, of --service-kind openai: the steps of the input data with one "
        "session_id, each sent with the answers before it",
        metavar="N",
    )
    binary_search: bool = option(
        False, "halve the range to find the highest load under the latency threshold"
    )
    request_count: int | None = option(None, "send exactly this many requests per level")
    warmup_request_count: int = option(0, "requests sent before each level and not measured")

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range, or loads that do not go together."""
        if self.warmup_request_count < 0:
            refuse("--warmup-request-count", "The value must be >= 0.")
        if self.request_count is not None and self.request_count <= 0:
            refuse("--request-count", "The value must be > 0.")
        if self.request_period <= 0:
            refuse("--request-period", "The value must be > 0")
        if self.session_concurrency is not None and self.session_concurrency <= 0:
            refuse("--session-concurrency", "Session concurrency must be > 0.")
        if self.fixed_schedule and self.request_count:
            raise UsageError("Cannot specify `--request-count` when using `--fixed-schedule`.")
        levels = self.levels
        if levels.kind.ranged and 0 < (self.request_count or 0) < (levels.highest or levels.start):
            raise UsageError(f"--request-count can not be less than {levels.kind.text}")
        if self.binary_search:
            self._check_search(levels)

    @property
    def rivals(self) -> str:
        """The first two kinds of load, where several were asked for."""
        names = [levels.kind.rival for levels in self._asked()]
        return " and ".join(names[:2]) if len(names) > 1 else ""

    @property
    def levels(self) -> LevelRange:
        """What is measured, of whatever kind."""
        asked = self._asked()
        return asked[0] if asked else self._with_search(self.concurrency_range)

    def _check_search(self, levels: LevelRange) -> None:
        if not levels.kind.ranged:
            raise UsageError(f"--binary-search needs a range, and {levels.mode} is a single level")
        if levels.listed or levels.factor:
            raise UsageError(f"--binary-search needs a range <start:end:step>, not {levels}")
        if not levels.end:
            raise UsageError("The end of the range can not be 0 (or 0.0) for binary search mode.")

    def _with_search(self, levels: LevelRange) -> LevelRange:
        return levels.searched() if self.binary_search else levels

    def _asked(self) -> list[LevelRange]:
        """What was asked for, of every kind of load; more than one is refused."""
        asked: list[LevelRange] = []
        if self.concurrency_range.given:
            asked.append(self._with_search(self.concurrency_range))
        if self.request_rate_range is not None:
            asked.append(self._with_search(self.request_rate_range))
        if self.request_intervals is not None:
            asked.append(LevelRange(mode=CUSTOM_INTERVALS.name, start=self.request_intervals.rate))
        if self.periodic_concurrency_range is not None:
            last = self.periodic_concurrency_range.end
            asked.append(LevelRange(mode=PERIODIC_CONCURRENCY.name, start=last))
        if self.session_concurrency is not None:
            asked.append(LevelRange(mode=SESSION_CONCURRENCY.name, start=self.session_concurrency))
        if self.fixed_schedule:
            asked.append(LevelRange(mode=FIXED_SCHEDULE.name, start=0))
        return asked


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceSpec:
    """Arrivals, connections, sequences, processes."""

    request_distribution: Literal["constant", "poisson", "gamma", "burst"] = option(
        "constant", "how the requests of a rate are spread over time", parse=_distribution
    )
    gamma_shape: float = option(
        1.0, "of gamma arrivals: 1 is poisson, more is more even, less comes in clusters"
    )
    burst_size: int = option(1, "of burst arrivals: how many come at a time")
    on_late: Literal["send", "skip"] = option(
        "send",
        "what becomes of a request that is more than a millisecond late, because no connection was free",
        parse=_late,
    )
    max_connections: int = option(
        1024, "requests that a rate may have in flight; further ones wait for an answer"
    )
    num_of_sequences: int = option(4, "sequences that a rate keeps open, for models that take sequences")
    serial_sequences: bool = option(
        False,
        "never two requests of a sequence in flight; they never are, as they would overtake each other",
    )
    workers: int = option(
        0,
        "processes that send the requests; auto: more than one where a processor is not enough",
        metavar="N|auto",
        parse=parse_workers,
        default_text="auto",
    )
    max_threads: int = option(0, "how many processes --workers auto may take; perf_analyzer's threads")
    poll: Poll = option(
        "sleep",
        "how the client waits for answers: sleep, or busy, which polls on a processor of its own, so "
        "that the latency of 1 to 4 requests in flight has no wake-up of the client in it",
        parse=_poll,
    )
    self_test: bool = option(
        False,
        "measure what this machine can send, against a server that does nothing, and end",
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range, or one of other arrivals."""
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
        if self.poll == "busy" and usable_processors() < POLLING_PROCESSORS:
            raise UsageError(
                "--poll busy needs a processor of its own, and this process may use "
                f"{usable_processors():g} (taskset, or the container's limit): the server would wait for it"
            )
        if self.burst_size != 1 and self.request_distribution != "burst":
            raise UsageError("--burst-size is of --request-distribution burst")
        if self.max_threads < 0:
            refuse("--max-threads", "The value must be > 0.")

    @property
    def arrivals(self) -> Arrivals:
        """How the requests of a rate are spread over time."""
        return Arrivals(distribution=self.request_distribution, shape=self.gamma_shape, burst=self.burst_size)
