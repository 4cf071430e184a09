"""Values that a user sets and several layers read: levels, shapes, headers, the error budget, the rules of
a level."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn

from tpx.errors import UsageError
from tpx.perf.loops import Poll
from tpx.perf.objectives import Objective
from tpx.perf.plan import LoadPlan
from tpx.perf.statistics.intervals import SAFE_CONFIDENCE

SECRET_WORDS = ("auth", "cookie", "key", "password", "secret", "token")
"""What the names of headers have in them that carry credentials."""
HIDDEN = "***"
LEAST_RATE, GREATEST_RATE = 1e-6, 1e9
"""Requests per second whose times a schedule of nanoseconds can tell apart and hold."""
FEWEST_SAMPLES = 30
"""A window that goes into a confidence interval has at least so many requests."""


def refuse(flag: str, reason: str) -> NoReturn:
    """Raise perf_analyzer's message for a bad value."""
    raise UsageError(f"Failed to parse {flag}. {reason}")


def one_of(flag: str, choices: tuple[str, ...], message: str) -> Callable[[str], str]:
    """Reads one of some words, in any case; the message for all others has a place for the word."""

    def parse(text: str) -> str:
        if text.lower() not in choices:
            refuse(flag, message.format(text))
        return text.lower()

    return parse


LoadMode = Literal[
    "concurrency",
    "request_rate",
    "custom_intervals",
    "fixed_schedule",
    "periodic_concurrency",
    "session_concurrency",
    "single_stream",
    "multi_stream",
    "offline",
]
"""What is held at a level: requests in flight, requests per second, a schedule, conversations at a time, or a
scenario of MLPerf."""

OPEN_LOOP: frozenset[LoadMode] = frozenset({"request_rate", "custom_intervals", "fixed_schedule", "offline"})
"""The modes in which requests have a time of their own, whatever becomes of those before them."""


@dataclass(frozen=True, slots=True)
class Level:
    """One load: how much of what; requests in flight are whole, requests per second may not be."""

    mode: LoadMode
    value: float

    @property
    def open_loop(self) -> bool:
        return self.mode in OPEN_LOOP

    def __str__(self) -> str:
        return f"{self.mode} {self.value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRange:
    """The loads to measure, in order: start to end by `step`, by `factor`, or as a list.

    `end` None is one level; 0 goes on from level to level until the latency limit is met. `binary` halves
    the range until it is no wider than `step`, towards the highest load under the latency limit.
    """

    mode: LoadMode = "concurrency"
    start: float = 1
    end: float | None = None
    step: float = 1
    factor: float = 0.0
    listed: tuple[float, ...] = ()
    binary: bool = False
    given: bool = field(default=True, compare=False)
    """Whether the user said so; only one kind of load can be given."""

    def __post_init__(self) -> None:
        if self.mode in ("concurrency", "request_rate") and not min(self.listed or (self.start,)) > 0:
            if self.mode == "request_rate":
                refuse(self.flag, "The start of the search range must be > 0.")
            raise UsageError("The start of the search range must be > 0")
        if self.mode == "request_rate" and not (
            min(self.listed or (self.start,)) >= LEAST_RATE and (self.highest or 0) <= GREATEST_RATE
        ):
            refuse(
                self.flag, "The rates must be from 1e-6 (one request in 11 days) to 1e9 (one a nanosecond)."
            )
        if not self.step > 0 or (self.factor and not self.factor > 1):
            refuse(self.flag, "The <step> must be > 0, or a factor > 1 such as x2.")
        if self.end is not None and not (self.end == 0 or self.end >= self.start):
            refuse(self.flag, "The <start> must be <= <end>.")

    def __str__(self) -> str:
        if self.listed:
            return ",".join(f"{value:g}" for value in self.listed)
        step = f"x{self.factor:g}" if self.factor else f"{self.step:g}"
        return f"{self.start:g}" if self.end is None else f"{self.start:g}:{self.end:g}:{step}"

    def searched(self) -> "LevelRange":
        """The same range, to be halved."""
        return replace(self, binary=True)

    @property
    def flag(self) -> str:
        flags: dict[LoadMode, str] = {
            "request_rate": "--request-rate-range",
            "custom_intervals": "--request-intervals",
            "fixed_schedule": "--fixed-schedule",
            "periodic_concurrency": "--periodic-concurrency-range",
            "session_concurrency": "--session-concurrency",
        }
        return flags.get(self.mode, "--concurrency-range")

    @property
    def whole(self) -> bool:
        """Whether there is nothing between two neighbouring integers."""
        return self.mode != "request_rate"

    @property
    def unbounded(self) -> bool:
        return self.end == 0

    @property
    def highest(self) -> float | None:
        """The greatest level; None where there is no end."""
        if self.listed:
            return max(self.listed)
        return None if self.unbounded else max(self.start, self.end or 0)

    def after(self, level: float) -> float | None:
        """The level that follows `level` in a linear or geometric range; None past the end."""
        following = level * self.factor if self.factor else level + self.step
        following = max(level + 1, int(following)) if self.whole else round(following, 9)
        return following if self.unbounded or following <= (self.end or 0) else None


@dataclass(frozen=True, slots=True)
class Shape:
    """One `--shape NAME:D,D`: dimensions of an input without the batch dimension."""

    name: str
    dims: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}:{','.join(map(str, self.dims))}"


@dataclass(frozen=True, slots=True)
class Header:
    """One `-H NAME:VALUE`; the value is sent as it was written, and told to nobody who should not know it."""

    name: str
    value: str

    @property
    def secret(self) -> bool:
        """Whether it lets somebody in."""
        return any(word in self.name.lower() for word in SECRET_WORDS)

    def __str__(self) -> str:
        return f"{self.name}:{HIDDEN if self.secret else self.value}"


def without_secrets(argv: Sequence[str], headers: Sequence[Header]) -> list[str]:
    """The words of a command line for files that are passed on: without the values of secret headers."""
    words = list(argv)
    for header in headers:
        if header.secret:
            written = re.compile(re.escape(header.name) + r"\s*:" + re.escape(header.value))
            words = [written.sub(f"{header.name}:{HIDDEN}", word) for word in words]
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBudget:
    """How many failed requests are accepted: a count over the run, or a share of a level's; neither is
    any."""

    count: int | None = None
    percent: float | None = None

    def exceeded(self, *, failed: int, sent: int) -> bool:
        """Whether a level in which `failed` of `sent` requests failed has to end."""
        if self.count is not None:
            return failed > self.count
        return self.percent is not None and failed * 100 > self.percent * sent

    def after(self, failed: int) -> "ErrorBudget":
        """What a level leaves of it for those that follow."""
        return self if self.count is None else ErrorBudget(count=max(0, self.count - failed))

    def __str__(self) -> str:
        if self.percent is not None:
            return f"{self.percent:g}%"
        return "" if self.count is None else str(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSettings:
    """The rules by which one level is measured.

    A time window lasts 1.2 times `interval_ms`, as perf_analyzer's do, so that results compare; by
    confidence intervals it lasts `interval_ms`, or longer where that is too short for a few samples. A count
    window lasts until it has `window_requests` samples and `count_window_floor_ms` have passed
    (perf_analyzer looks once a second), and ends with the request that fulfilled both. `request_count`
    above zero is one window of exactly that many requests.
    """

    mode: Literal["time_windows", "count_windows"] = "time_windows"
    interval_ms: int = 5000
    window_requests: int = 50
    count_window_floor_ms: int = 1000
    stability: float = 0.1
    max_windows: int = 10
    with_engine: bool = False
    """The engine is in this process: that it is busy does not say that the client is."""
    poll: Poll = "sleep"
    """How the client waits for answers."""
    asynchronous: bool = False
    """As with perf_analyzer's asynchronous calls, a level is stable at last if its throughput alone is."""
    one_window: bool = False
    """Whether the first window is the level, as in a scenario of MLPerf."""
    scenario: str = ""
    """Of MLPerf, whose rules a level has to keep to be valid."""
    latency_limit_ms: int = 0
    percentile: float | None = None
    request_count: int = 0
    warmup_requests: int = 0
    warmup_s: float = 0.0
    timeout_s: float = 0.0
    max_errors: ErrorBudget = field(default_factory=ErrorBudget)
    rule: Literal["pa", "ci"] = "pa"
    """What ends a level: perf_analyzer's spread of three windows, or confidence intervals that are narrow
    enough."""
    objectives: tuple[Objective, ...] = ()
    """What is asked of a level; while requests do not settle it, the level goes on."""
    safety: float = SAFE_CONFIDENCE
    """The confidence with which an objective is called met, or broken."""
    load: LoadPlan = field(default_factory=LoadPlan)

    @property
    def latency_limit(self) -> Objective | None:
        """The latency limit as an objective; None where there is none. A latency at the limit is over it."""
        if not self.latency_limit_ms:
            return None
        text = f"-l {self.latency_limit_ms}"
        bound = self.latency_limit_ms * 1e6
        if self.percentile is None:
            return Objective(text=text, quantity="mean", bound=bound)
        return Objective(text=text, quantity="percentile", percentile=self.percentile, bound=bound)

    @property
    def window_ns(self) -> int:
        return self.interval_ms * (1_200_000 if self.rule == "pa" else 1_000_000)

    @property
    def window_samples(self) -> int:
        """Requests without which a window is not over; 0 where only time counts."""
        if self.mode == "count_windows":
            return self.window_requests
        return FEWEST_SAMPLES if self.rule == "ci" else 0


def _integer(text: str, flag: str, whole: str) -> int:
    try:
        return int(text)
    except ValueError:
        refuse(flag, f"Invalid value provided: {whole}")


def parse_shape(text: str) -> Shape:
    """`name:d,d`, split at the last colon as perf_analyzer does."""
    name, _, dims = text.rpartition(":")
    if not name:
        refuse("--shape", "There must be a colon after input name.")
    sizes = tuple(_integer(part, "--shape", text) for part in dims.split(","))
    if min(sizes) <= 0:
        refuse("--shape", "The dimensions of input tensor must be > 0.")
    return Shape(name, sizes)


FRAMING_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "content-type",
        "expect",
        "inference-header-content-length",
        "te",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that say how a request is to be read, which only its sender knows."""


def parse_header(text: str) -> Header:
    """`name:value`, split at the first colon."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        refuse("-H", f"The value '{text}' does not match <name:value>.")
    if any(c in text for c in "\r\n\0"):
        refuse("-H", f"The value {text!r} contains a line break.")
    if name.strip().lower() in FRAMING_HEADERS:
        refuse("-H", f"The header '{name.strip()}' is set by tpx perf itself.")
    return Header(name.strip(), value)


def parse_budget(text: str) -> ErrorBudget:
    """`N` failed requests in the run, or `P%` of a level's requests."""
    number = text.removesuffix("%")
    try:
        budget = ErrorBudget(count=int(number)) if number == text else ErrorBudget(percent=float(number))
    except ValueError:
        refuse("--max-errors", f"The value '{text}' is neither a count nor a percentage such as 1%.")
    if number.startswith("-") or not (budget.percent is None or math.isfinite(budget.percent)):
        refuse("--max-errors", "The value must be >= 0.")
    return budget
