"""The options that say how a level is measured, and when it is over."""

from dataclasses import dataclass
from typing import Literal

from tpx.options import option
from tpx.perf.settings import ErrorBudget, one_of, parse_budget, refuse

_MEASURE = "Measurement"

ANY_NUMBER = ErrorBudget()
DEFAULT_INTERVAL_MS = {"pa": 5000, "ci": 1000}
DEFAULT_TRIALS = {"pa": 10, "ci": 60}
"""By the rule that ends a level."""

_mode = one_of(
    "--measurement-mode",
    ("time_windows", "count_windows"),
    "Unsupported type provided: '{}'. The available options are 'time_windows' or 'count_windows'.",
)


@dataclass(frozen=True, kw_only=True)
class MeasurementOptions:
    """Windows, stability, limits."""

    measurement_mode: Literal["time_windows", "count_windows"] = option(
        "time_windows", "what ends a window: time, or a number of requests", section=_MEASURE, parse=_mode
    )
    measurement_interval: int | None = option(
        None,
        "milliseconds of a window; like perf_analyzer's it lasts 1.2 times this "
        "(default 5000; with --stability ci 1000, and just that)",
        "-p",
        section=_MEASURE,
    )
    measurement_request_count: int = option(
        50, "samples that a window has at least in count_windows mode", section=_MEASURE
    )
    stability_percentage: float = option(
        10.0, "spread of three windows that counts as stable, in percent", "-s", section=_MEASURE
    )
    max_trials: int | None = option(
        None, "windows that a level has at most (default 10; with --stability ci 60)", "-r", section=_MEASURE
    )
    latency_threshold: int = option(
        0, "latency limit in milliseconds that ends the search; 0: none", "-l", section=_MEASURE
    )
    percentile: float = option(
        -1.0, "percentile that stands for latency instead of the mean; -1: the mean", section=_MEASURE
    )
    max_errors: ErrorBudget = option(
        ANY_NUMBER,
        "failed requests that end the run: a count, or a share such as 1%; any number without it",
        section=_MEASURE,
        metavar="N|P%",
        parse=parse_budget,
    )

    def check_measurement(self) -> None:
        """Raise UsageError for a value out of range."""
        if self.measurement_interval is not None and self.measurement_interval <= 0:
            refuse("--measurement-interval (-p)", "The value must be > 0 msec.")
        if self.measurement_request_count <= 0:
            refuse("--measurement-request-count", "The value must be > 0.")
        if not self.stability_percentage >= 0:
            refuse("--stability-percentage (-s)", "The value must be >= 0.0.")
        if self.max_trials is not None and self.max_trials <= 0:
            refuse("--max-trials (-r)", "The value must be > 0.")
        if self.latency_threshold < 0:
            refuse("--latency-threshold (-l)", "The value must be >= 0 msecs.")
        if self.percentile != -1 and not 0 < self.percentile < 100:
            refuse("--percentile", "The value must be -1 for not reporting or in range (0, 100).")
