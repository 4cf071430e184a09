"""Values that a user sets and several layers read: shapes, headers, the error budget, a level's rules."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tpx.options import refuse
from tpx.perf.levels import Intervals, PeriodicRange
from tpx.perf.objectives import Objective
from tpx.perf.pace import PaceSpec
from tpx.perf.statistics.intervals import SAFE_CONFIDENCE
from tpx.sources import HIDDEN

SECRET_WORDS = ("auth", "cookie", "key", "password", "secret", "token")
"""Parts of names of headers that carry credentials."""
FEWEST_SAMPLES = 30
"""Minimum number of requests in a window that a confidence interval uses."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One `--shape NAME:D,D`: dimensions of an input without the batch dimension."""

    name: str
    dims: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}:{','.join(map(str, self.dims))}"


@dataclass(frozen=True, slots=True)
class Header:
    """One `-H NAME:VALUE`; the value is sent verbatim and hidden in all output if it is a credential."""

    name: str
    value: str

    @property
    def secret(self) -> bool:
        """True if the header is a credential."""
        return any(word in self.name.lower() for word in SECRET_WORDS)

    def __str__(self) -> str:
        return f"{self.name}:{HIDDEN if self.secret else self.value}"


def without_secrets(
    argv: Sequence[str], headers: Sequence[Header], harmless: Mapping[str, str] | None = None
) -> list[str]:
    """Return the command line for files that are shared: with the values of secret headers hidden.

    `harmless` maps other texts with secrets, such as a proxy's URL, to what may be shown.
    """
    words = list(argv)
    for secret, shown in (harmless or {}).items():
        words = [word.replace(secret, shown) for word in words]
    for header in headers:
        if header.secret:
            written = re.compile(re.escape(header.name) + r"\s*:" + re.escape(header.value))
            words = [written.sub(f"{header.name}:{HIDDEN}", word) for word in words]
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBudget:
    """The accepted number of failed requests: a count over the run, a share per level, or unlimited."""

    count: int | None = None
    percent: float | None = None

    def exceeded(self, *, failed: int, sent: int) -> bool:
        """Return True if a level must end in which `failed` of `sent` requests failed."""
        if self.count is not None:
            return failed > self.count
        return self.percent is not None and failed * 100 > self.percent * sent

    def after(self, failed: int) -> "ErrorBudget":
        """Return the budget left for the next levels."""
        return self if self.count is None else ErrorBudget(count=max(0, self.count - failed))

    def __str__(self) -> str:
        if self.percent is not None:
            return f"{self.percent:g}%"
        return "" if self.count is None else str(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSettings:
    """The rules by which one level is measured.

    A time window lasts 1.2 times `interval_ms` like perf_analyzer's, so that results compare; with
    confidence intervals it lasts `interval_ms`, or longer if that gives too few samples. A count window
    lasts until it has `window_requests` samples and `count_window_floor_ms` have passed (perf_analyzer
    checks once a second), and ends with the request that fulfilled both. A `request_count` above zero
    is one window of exactly that many requests.
    """

    mode: Literal["time_windows", "count_windows"] = "time_windows"
    interval_ms: int = 5000
    window_requests: int = 50
    count_window_floor_ms: int = 1000
    stability: float = 0.1
    max_windows: int = 10
    with_engine: bool = False
    """True if the engine is in this process: high CPU use then does not mean that the client is busy."""
    asynchronous: bool = False
    """True if a stable throughput suffices at the last window, as for perf_analyzer's asynchronous calls."""
    fixed_windows: int = 0
    """Number of windows that the level has, whatever they show; 0 if a rule ends it."""
    latency_limit_ms: int = 0
    percentile: float | None = None
    request_count: int = 0
    warmup_requests: int = 0
    warmup_s: float = 0.0
    timeout_s: float = 0.0
    max_errors: ErrorBudget = field(default_factory=ErrorBudget)
    rule: Literal["pa", "ci", "brief"] = "pa"
    """Rule that ends a level: pa is perf_analyzer's spread of three windows, ci narrow confidence
    intervals at two looks in a row, brief a narrow interval of throughput alone.
    """
    objectives: tuple[Objective, ...] = ()
    """Objectives for a level, which continues until they are settled."""
    goodput: tuple[Objective, ...] = ()
    """Bounds that a request must meet to count as good."""
    safety: float = SAFE_CONFIDENCE
    """Confidence at which an objective counts as met or violated."""
    pace: PaceSpec = field(default_factory=PaceSpec)
    intervals: Intervals | None = None
    periodic: PeriodicRange | None = None
    seed: int = 0
    sequences: int = 0
    """Number of sequences that an open loop keeps open; 0 if requests do not belong to sequences."""

    @property
    def streamed(self) -> bool:
        """True if objectives or goodput need the times of streamed responses."""
        return any(each.figure for each in (*self.objectives, *self.goodput))

    @property
    def latency_limit(self) -> Objective | None:
        """The latency limit as an objective, or None. A latency equal to the limit exceeds it."""
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
        """Minimum number of requests in a window; 0 if only time counts."""
        if self.mode == "count_windows":
            return self.window_requests
        return 0 if self.rule == "pa" else FEWEST_SAMPLES


def parse_shape(text: str) -> Shape:
    """Parse `name:d,d`, split at the last colon as perf_analyzer does."""
    name, _, dims = text.rpartition(":")
    if not name:
        refuse("--shape", "There must be a colon after input name.")
    try:
        sizes = tuple(map(int, dims.split(",")))
    except ValueError:
        refuse("--shape", f"Invalid value provided: {text}")
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
"""Headers that determine how a request is framed, which its sender must set."""


def parse_header(text: str) -> Header:
    """Parse `name:value`, split at the first colon."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        refuse("-H", f"The value '{text}' does not match <name:value>.")
    if any(c in text for c in "\r\n\0"):
        refuse("-H", f"The value {text!r} contains a line break.")
    if name.strip().lower() in FRAMING_HEADERS:
        refuse("-H", f"The header '{name.strip()}' is set by tpx perf itself.")
    return Header(name.strip(), value)


def parse_budget(text: str) -> ErrorBudget:
    """Parse `N` failed requests in the run, or `P%` of a level's requests."""
    number = text.removesuffix("%")
    try:
        budget = ErrorBudget(count=int(number)) if number == text else ErrorBudget(percent=float(number))
    except ValueError:
        refuse("--max-errors", f"The value '{text}' is neither a count nor a percentage such as 1%.")
    if number.startswith("-") or not (budget.percent is None or math.isfinite(budget.percent)):
        refuse("--max-errors", "The value must be >= 0.")
    return budget
