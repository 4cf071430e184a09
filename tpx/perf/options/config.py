"""All that `tpx perf` can be told: the groups of options as one, and the rules between them."""

from dataclasses import dataclass

from tpx.errors import UsageError
from tpx.perf.options.data import DataOptions
from tpx.perf.options.load import LoadOptions
from tpx.perf.options.measurement import MeasurementOptions
from tpx.perf.options.output import OutputOptions
from tpx.perf.options.target import TargetOptions
from tpx.perf.settings import LevelSettings


@dataclass(frozen=True, kw_only=True)
class PerfConfig(OutputOptions, DataOptions, MeasurementOptions, LoadOptions, TargetOptions):
    """One run of `tpx perf`, with perf_analyzer's spellings and messages; raises UsageError where values are
    out of range or do not go together.

    The last base is the first group of the help.
    """

    def __post_init__(self) -> None:
        self.check_target()
        self.check_load()
        self.check_measurement()
        self.check_data()
        if self.concurrency_range.unbounded and self.latency_threshold == 0:
            raise UsageError(
                "The end of the search range and the latency limit can not be both 0 (or 0.0) simultaneously"
            )

    @property
    def level_settings(self) -> LevelSettings:
        """The rules by which this run measures each of its levels."""
        return LevelSettings(
            mode=self.measurement_mode,
            interval_ms=self.measurement_interval,
            window_requests=self.measurement_request_count,
            stability=self.stability_percentage / 100,
            max_windows=self.max_trials,
            latency_limit_ms=self.latency_threshold,
            percentile=None if self.percentile == -1 else self.percentile,
            request_count=self.request_count,
            warmup_requests=self.warmup_request_count,
            timeout_s=self.timeout,
            max_errors=self.max_errors,
        )
