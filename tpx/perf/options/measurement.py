"""The options that say how a level is measured, and when it is over."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tpx.options import Option
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

    measurement_mode: Annotated[
        Literal["time_windows", "count_windows"],
        Option("what ends a window: time, or a number of requests", (), _MEASURE, parse=_mode),
    ] = "time_windows"
    measurement_interval: Annotated[
        int | None,
        Option(
            "milliseconds of a window; like perf_analyzer's it lasts 1.2 times this "
            "(default 5000; with --stability ci 1000, and just that)",
            ("-p",),
            _MEASURE,
        ),
    ] = None
    measurement_request_count: Annotated[
        int, Option("samples that a window has at least in count_windows mode", (), _MEASURE)
    ] = 50
    stability_percentage: Annotated[
        float, Option("spread of three windows that counts as stable, in percent", ("-s",), _MEASURE)
    ] = 10.0
    max_trials: Annotated[
        int | None,
        Option("windows that a level has at most (default 10; with --stability ci 60)", ("-r",), _MEASURE),
    ] = None
    latency_threshold: Annotated[
        int, Option("latency limit in milliseconds that ends the search; 0: none", ("-l",), _MEASURE)
    ] = 0
    percentile: Annotated[
        float,
        Option("percentile that stands for latency instead of the mean; -1: the mean", (), _MEASURE),
    ] = -1.0
    max_errors: Annotated[
        ErrorBudget,
        Option(
            "failed requests that end the run: a count, or a share such as 1%; any number without it",
            (),
            _MEASURE,
            "N|P%",
            parse=parse_budget,
        ),
    ] = ANY_NUMBER

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
