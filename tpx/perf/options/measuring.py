"""Measurement options: windows, objectives, and comparisons."""

import math
from typing import Literal

from tpx.errors import UsageError
from tpx.options import Options, check_range, given, option, refuse
from tpx.perf.objectives import Objective, parse_bounds, parse_objectives
from tpx.perf.settings import ErrorBudget, parse_budget

ANY_NUMBER = ErrorBudget()
DEFAULT_INTERVAL_MS = {"pa": 5000, "ci": 1000}
DEFAULT_TRIALS = {"pa": 10, "ci": 60}
"""Defaults by stability rule."""


class WindowSpec(Options):
    """Options for windows, stability, and limits."""

    measurement_mode: Literal["time_windows", "count_windows"] = option(
        "time_windows",
        "what ends a window: time, or a number of requests",
        refusal="Unsupported type provided: '{}'. The available options are 'time_windows' or "
        "'count_windows'.",
    )
    measurement_interval: int | None = option(
        None,
        "window length in milliseconds; as in perf_analyzer a window takes 1.2 times this (default 5000; "
        "with --stability ci 1000, without the factor)",
        "-p",
        common=True,
    )
    measurement_request_count: int = option(50, "minimum samples per window in count_windows mode")
    stability_percentage: float = option(
        10.0, "maximum deviation in percent over three windows for a level to be stable", "-s", common=True
    )
    max_trials: int | None = option(
        None, "maximum windows per level (default 10; with --stability ci 60)", "-r"
    )
    latency_threshold: int = option(0, "latency limit in milliseconds that ends the search; 0 = none", "-l")
    percentile: float = option(
        -1.0, "use this latency percentile instead of the mean; -1 = the mean", common=True
    )
    max_errors: ErrorBudget = option(
        ANY_NUMBER,
        "failed requests that end the run: a count, or a share such as 1% (default: unlimited)",
        metavar="N|P%",
        parse=parse_budget,
    )

    def __post_init__(self) -> None:
        check_range(self, "measurement_interval", above=0, end=" msec.")
        check_range(self, "measurement_request_count", "max_trials", above=0)
        check_range(self, "stability_percentage", least=0.0)
        check_range(self, "latency_threshold", least=0, end=" msecs.")
        if self.percentile != -1 and not 0 < self.percentile < 100:
            refuse("--percentile", "The value must be -1 for not reporting or in range (0, 100).")


def parse_share(text: str) -> float:
    """Parse `2%` or `0.02`; shares of 1 and above need the percent sign, as a bare 2 often means 2%."""
    number = text.removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        raise ValueError("expected a share such as 2% or 0.02") from None
    if number != text:
        return value / 100
    if value >= 1:
        raise ValueError(f"write {value:g}% or {value * 100:g}%")
    return value


class AnswerSpec(Options):
    """Options for stability and objectives."""

    stability: Literal["pa", "ci"] | None = option(
        None,
        "when a level is stable: pa, perf_analyzer's rule over three windows; or ci, when the 95% "
        "confidence intervals of throughput and latency are within half of --stability-percentage on "
        "either side (default pa; with --slo ci)",
        metavar="pa|ci",
        refusal="Unsupported type provided: '{}'. The available options are 'pa' or 'ci'; a spread in "
        "percent is --stability-percentage (-s).",
    )
    require_stable: bool = option(False, "exit with 2 if any level is unstable")
    allow_partial: bool = option(False, "do not exit with 130 after Ctrl-C: use what was measured")
    stop_on_unstable: bool = option(False, "stop after the first unstable level, as perf_analyzer does")
    slo: tuple[Objective, ...] = option(
        (),
        "find the highest load that certainly meets this objective, such as 'p99<20ms,error_rate<0.1%' "
        "(repeatable); the search starts at 1 without a range; exit with 4 if no load does",
        metavar="FIGURE<VALUE",
        parse=parse_objectives,
        common=True,
    )
    goodput: tuple[Objective, ...] = option(
        (),
        "count the requests that meet every one of these bounds, such as 'ttft<200ms,itl<40ms' (latency, "
        "ttft, ttst, ttfo, itl), as goodput",
        metavar="FIGURE<VALUE",
        parse=parse_bounds,
    )
    slo_confidence: float = option(0.99, "confidence required to call an objective met or violated")

    def __post_init__(self) -> None:
        if not 0.5 < self.slo_confidence < 1:
            refuse("--slo-confidence", "The value must be in range (0.5, 1).")
        if "slo_confidence" in given(self) and not self.slo:
            raise UsageError("--slo-confidence requires --slo")

    @property
    def rule(self) -> Literal["pa", "ci"]:
        """The stability rule that applies, given or default."""
        return self.stability or ("ci" if self.slo else "pa")


class Strictness(Options):
    """Options for which differences count: the significance level, the margin, and undecided ones."""

    alpha: float = option(
        0.05, "significance level: probability of reporting a difference that does not exist"
    )
    min_effect: float = option(
        0.05,
        "margin: a figure whose difference is certainly smaller counts as the same",
        metavar="P%",
        parse=parse_share,
    )
    undecided: Literal["pass", "fail"] = option(
        "fail", "exit code if a figure is neither certainly different nor the same: 7, or 0 with pass"
    )

    def __post_init__(self) -> None:
        """Raise UsageError if no difference could count, or if chance alone would."""
        if not 0 < self.alpha < 0.5:
            refuse("--alpha", "The value must be in range (0, 0.5).")
        if not 0 <= self.min_effect < math.inf:
            refuse("--min-effect", "The value must be >= 0%.")


class ComparingSpec(Options):
    """Options for comparing servers, or clients, in alternating blocks."""

    ab: tuple[str, ...] = option(
        (),
        "compare servers, measured alternately in blocks: --ab URL1 URL2 ... (the first is the baseline)",
        metavar="URL",
        common=True,
        several=True,
    )
    ab_client: bool = option(
        False,
        "compare the clients on one server, measured alternately in blocks: tpx's own is the baseline for "
        "httpx or grpcio",
    )
    ab_blocks: int = option(12, "blocks per server with --ab, per client with --ab-client")

    def __post_init__(self) -> None:
        if self.ab_blocks < 4:
            refuse("--ab-blocks", "The value must be >= 4: fewer blocks cannot show a difference.")
        if len(self.ab) == 1 or len(set(self.ab)) > 26:
            raise UsageError("--ab compares from two to 26 servers: --ab URL1 URL2")

    @property
    def flag(self) -> str:
        """The option that asks for a comparison; empty without one."""
        return "--ab" if self.ab else "--ab-client" if self.ab_client else ""
