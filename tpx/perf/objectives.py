"""Objectives that a user sets for a level (`p99<20ms`), and the tests of whether requests meet them.

Percentiles and error rates use the bound of early stopping in MLPerf's loadgen: an objective is met if
so few requests exceeded the limit that a server violating it would hardly ever look as good.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NoReturn

import numpy as np
import numpy.typing as npt

from tpx.errors import UsageError
from tpx.perf.statistics.intervals import Interval, binomial_at_most
from tpx.protocol.tensors import Array
from tpx.report.digits import duration, latency, rounded

Quantity = Literal["percentile", "mean", "min", "max", "throughput", "error_rate", "goodput", "each"]
STREAM_FIGURES = {
    "ttft": "time to first token",
    "ttst": "time from the first token to the second",
    "ttfo": "time to the first token that is not reasoning",
    "itl": "inter-token latency",
}
"""Times of streamed responses that may be bounded; `measure/streams.py` defines them."""

_FORM = re.compile(
    r"\s*([a-z_]+[0-9.]*)\s*(<=|>=|<|>)\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-zµ%/]*)\s*", re.IGNORECASE
)
_NANOSECONDS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "usec": 1e3, "ms": 1e6, "msec": 1e6, "s": 1e9, "sec": 1e9}
_RATES = {"": 1.0, "/s": 1.0, "infer/sec": 1.0, "infer/s": 1.0}
_SHARES = {"": 1.0, "%": 0.01}
_WORDS: dict[str, Quantity] = {
    "mean": "mean",
    "avg": "mean",
    "min": "min",
    "max": "max",
    "throughput": "throughput",
    "error_rate": "error_rate",
    "errors": "error_rate",
    "goodput": "goodput",
}
_MOST_REQUESTS = 10**9
_GROWTH = 1.05
"""Precision of the number of further requests: the next one that is tried is larger by this factor."""


class Compliance(Enum):
    """The result of testing figures against a bound: an objective, or a constraint of a search."""

    MET = "met"
    VIOLATED = "violated"
    UNDECIDED = "borderline"
    """Undecided: too few requests, or too near the bound."""


def compliance(holds: Callable[[float], bool], low: float, high: float | None) -> Compliance:
    """Return whether a bound holds at both ends of an interval, whose upper end is unknown if None."""
    ends = {holds(low), holds(math.inf if high is None else high)}
    return (
        Compliance.UNDECIDED if len(ends) > 1 else Compliance.MET if ends == {True} else Compliance.VIOLATED
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One bound on one figure of a level; `each` is a bound on a figure of every request.

    `bound` is in ns for times, in inferences or requests per second for throughput and goodput, and a share
    of 1 for error rates. `percentile` is 0 if the quantity has none. `figure` is one of STREAM_FIGURES, or
    empty for the latency of requests.
    """

    text: str
    quantity: Quantity
    percentile: float = 0.0
    below: bool = True
    """True if figures must lie below the bound, else above."""
    inclusive: bool = False
    bound: float
    figure: str = ""

    @property
    def is_latency(self) -> bool:
        return self.quantity in ("percentile", "mean", "min", "max", "each")

    def holds(self, value: float) -> bool:
        """Return True if a figure, taken as exact, satisfies the bound."""
        if value == self.bound:
            return self.inclusive
        return (value < self.bound) is self.below

    def outside(self, latencies_ns: Array) -> npt.NDArray[np.bool_]:
        """Return a mask of the latencies that violate the bound."""
        if self.inclusive:
            return np.greater(latencies_ns, self.bound) if self.below else np.less(latencies_ns, self.bound)
        holds = np.less(latencies_ns, self.bound) if self.below else np.greater(latencies_ns, self.bound)
        return np.logical_not(holds)

    def show(self, value: float) -> str:
        """Format a figure of this quantity for the user."""
        if self.is_latency:
            return latency(value)
        if self.quantity == "error_rate":
            return f"{rounded(value * 100)}%"
        return f"{rounded(value)} {'requests/s' if self.quantity == 'goodput' else 'infer/s'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The result of testing a level against an objective: its figure and the outcome."""

    objective: Objective
    outcome: Compliance
    value: float
    reason: str
    """Explanation for the user: what was counted, and what is missing."""
    more_requests: int = 0
    """Number of further requests of the same kind that would show it is met; 0 if none would."""

    @property
    def met(self) -> bool:
        return self.outcome is Compliance.MET


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Parse `p99<20ms,ttft_p95<200ms,error_rate<0.1%`: bounds on figures of a level, which must all hold."""
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        _refuse(text, "it is empty")
    return tuple(_parse_objective(part) for part in parts)


def parse_bounds(text: str) -> tuple[Objective, ...]:
    """Parse `ttft<200ms,itl<40ms`: bounds on figures of every request."""
    bounds = []
    for part in filter(str.strip, text.split(",")):
        match = _FORM.fullmatch(part)
        name = match[1].lower() if match else ""
        if match is None or name not in ("latency", *STREAM_FIGURES):
            known = ", ".join(("latency", *STREAM_FIGURES))
            _refuse(part, f"expected FIGURE < TIME, of a request's {known}", "--goodput")
        bounds.append(_compare(part, match, "each", figure="" if name == "latency" else name))
    if not bounds:
        _refuse(text, "it is empty", "--goodput")
    return tuple(bounds)


def _refuse(text: str, reason: str, flag: str = "--slo") -> NoReturn:
    raise UsageError(f"{flag} '{text.strip()}': {reason}")


def _parse_objective(text: str) -> Objective:
    match = _FORM.fullmatch(text)
    if match is None:
        _refuse(text, "expected FIGURE < VALUE such as p99<20ms, throughput>=500 or error_rate<0.1%")
    name = match[1].lower()
    figure, _, statistic = name.partition("_")
    if figure in STREAM_FIGURES:
        if not statistic or _WORDS.get(statistic) in ("throughput", "error_rate", "goodput"):
            _refuse(text, f"of which requests? {figure}_p99, {figure}_mean, {figure}_max, ...")
        name = statistic
    else:
        figure = ""
    percentile = 0.0
    quantity = _WORDS.get(name, "percentile")
    if name == "median":
        percentile = 50.0
    elif re.fullmatch(r"p[0-9]+(\.[0-9]+)?", name):
        percentile = float(name[1:])
        if not 0 < percentile < 100:
            _refuse(text, f"a percentile must be between 0 and 100, not {name[1:]}")
    elif name not in _WORDS:
        known = ", ".join((*_WORDS, *(f"{each}_p99" for each in STREAM_FIGURES)))
        _refuse(text, f"unknown figure '{name}' (known: p50, p99.9, ..., median, {known})")
    return _compare(text, match, quantity, percentile, figure)


def _compare(
    text: str, match: re.Match[str], quantity: Quantity, percentile: float = 0.0, figure: str = ""
) -> Objective:
    """Return the bound that the sign, the number and the unit of a match express. Raises UsageError."""
    name, sign, number, unit = match[1].lower(), match[2], match[3], match[4]
    try:
        value = float(number)
    except ValueError:
        _refuse(text, f"'{number}' is not a number")
    units = {"throughput": _RATES, "goodput": _RATES, "error_rate": _SHARES}.get(quantity, _NANOSECONDS)
    factor = units.get(unit.lower())
    if factor is None:
        known = ", ".join(u for u in units if u)
        _refuse(
            text,
            f"'{unit}' is not a unit of {name} (known: {known})" if unit else f"a unit is missing ({known})",
        )
    return Objective(
        text=f"{name}{sign}{number}{unit}",
        quantity=quantity,
        percentile=percentile,
        below=sign[0] == "<",
        inclusive=sign.endswith("="),
        bound=value * factor,
        figure=figure,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Count of requests that violate a bound; `effect` of them tell as much as one independent request."""

    violations: int
    requests: int
    allowed: float
    """Share of requests that may violate the bound."""
    effect: float = 1.0
    duration_ns: float = 0.0
    """Time in which these requests were made; 0 if unknown."""


def assess_count(objective: Objective, value: float, counted: Counted, confidence: float) -> Assessment:
    """Assess a percentile or an error rate by the binomial distribution.

    MET if a server violating the bound would show so few violations with a probability of at most 1 -
    `confidence`; VIOLATED the other way round.
    """
    doubt = 1 - confidence
    trials, wrong = counted.requests / counted.effect, counted.violations / counted.effect
    allowed = f"{counted.allowed * 100:.4g}% allowed"
    said = f"{counted.violations:,} of {counted.requests:,} requests outside, {allowed}"
    if counted.effect > 1.05:
        said += f"; slow requests come in groups, so these tell as much as {trials:,.0f} unrelated ones"
    if counted.requests and binomial_at_most(trials, counted.allowed, wrong) <= doubt:
        return Assessment(objective=objective, outcome=Compliance.MET, value=value, reason=said)
    if counted.requests and 1 - binomial_at_most(trials, counted.allowed, wrong - 1) <= doubt:
        return Assessment(objective=objective, outcome=Compliance.VIOLATED, value=value, reason=said)
    needed = _count_needed_requests(counted, doubt)
    hint = f"; {_describe_need(needed, counted)} would decide" if needed else "; too near the bound to tell"
    return Assessment(
        objective=objective,
        outcome=Compliance.UNDECIDED,
        value=value,
        reason=said + hint,
        more_requests=needed,
    )


def _describe_need(needed: int, counted: Counted) -> str:
    """Return `about 40 s more`; without a known duration, `about 2,800 more requests`."""
    if not counted.duration_ns or not counted.requests:
        return f"about {needed:,} more requests"
    return f"about {duration(max(1e9, needed / counted.requests * counted.duration_ns))} more"


def _count_needed_requests(counted: Counted, doubt: float) -> int:
    """Return how many further requests would show it, at the present share of violations; 0 if none would."""
    share = counted.violations / max(counted.requests, 1)
    if share >= counted.allowed:
        return 0
    present, effect = max(counted.requests, 1), counted.effect

    def decides(step: int) -> bool:
        trials = present * _GROWTH**step / effect
        return binomial_at_most(trials, counted.allowed, share * trials) <= doubt

    steps = range(math.ceil(math.log(_MOST_REQUESTS / present, _GROWTH)))
    total = math.ceil(present * _GROWTH ** bisect_left(steps, True, key=decides))
    return max(total - counted.requests, 1)


def assess_interval(objective: Objective, interval: Interval) -> Assessment:
    """Assess a mean or a throughput: it is settled if its confidence interval excludes the bound."""
    low, high = interval.low, math.inf if interval.high is None else interval.high
    # a bound of zero, or none, says nothing
    said = f"at least {objective.show(low)}" if low > 0 else "too few requests to bound it"
    if math.isfinite(high):
        said = f"between {objective.show(low)} and {objective.show(high)}"
        said = said if low > 0 else f"at most {objective.show(high)}"
    outcome = compliance(objective.holds, low, high)
    if outcome is Compliance.UNDECIDED:
        said += "; too near the bound to tell"
    return Assessment(objective=objective, outcome=outcome, value=interval.value, reason=said)


def assess_exact(objective: Objective, value: float) -> Assessment:
    """Assess a minimum or maximum, which holds for the observed requests only."""
    outcome = Compliance.MET if objective.holds(value) else Compliance.VIOLATED
    return Assessment(objective=objective, outcome=outcome, value=value, reason="of the requests seen")
