"""The option that puts on load as MLPerf's load generator does, and what belongs to it."""

from dataclasses import dataclass, replace
from typing import Literal

from tpx.errors import UsageError
from tpx.options import given, one_of, option, refuse
from tpx.perf.levels import MULTI_STREAM, OFFLINE, SINGLE_STREAM, LevelRange
from tpx.perf.settings import LevelSettings

_scenario = one_of(
    "--scenario",
    ("single-stream", "multi-stream", "server", "offline"),
    "Unsupported type provided: '{}'. Choices are 'single-stream', 'multi-stream', 'server' or 'offline'.",
)
PERCENTILES = {"single-stream": 90.0, "multi-stream": 99.0, "server": 99.0}
"""What each is judged by; offline is judged by its throughput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSpec:
    """A scenario, and how long it lasts at least."""

    scenario: Literal["", "single-stream", "multi-stream", "server", "offline"] = option(
        "",
        "single-stream: one query at a time; multi-stream: several requests a query; server: Poisson "
        "arrivals at --request-rate-range; offline: all requests at once",
        parse=_scenario,
    )
    min_duration: float = option(
        10.0, "seconds that a scenario lasts at least (offline: as long as it takes)"
    )
    min_query_count: int = option(100, "queries that a scenario has at least")
    samples_per_query: int = option(8, "requests of one query of the multi-stream scenario")
    offline_samples: int = option(1024, "requests of the one query of the offline scenario")

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range, or one of a scenario that is not the run's."""
        for flag, value in (
            ("--min-duration", self.min_duration),
            ("--min-query-count", self.min_query_count),
            ("--samples-per-query", self.samples_per_query),
            ("--offline-samples", self.offline_samples),
        ):
            if not 0 < value < float("inf"):
                refuse(flag, "The value must be > 0.")
        timed = ("single-stream", "multi-stream", "server")
        owners = {"samples_per_query": ("multi-stream",), "offline_samples": ("offline",)}
        for name in given(self):
            scenarios = owners.get(name, timed)
            if name != "scenario" and self.scenario not in scenarios:
                raise UsageError(f"--{name.replace('_', '-')} is of --scenario {', '.join(scenarios)}")

    @property
    def levels(self) -> LevelRange | None:
        """The level of a scenario that has one of its own."""
        if self.scenario == "single-stream":
            return LevelRange(mode=SINGLE_STREAM.name, start=1)
        if self.scenario == "multi-stream":
            return LevelRange(mode=MULTI_STREAM.name, start=self.samples_per_query)
        if self.scenario == "offline":
            return LevelRange(mode=OFFLINE.name, start=self.offline_samples)
        return None

    def rules(self, settings: LevelSettings) -> LevelSettings:
        """The rules of a level as the scenario has them: one window, over when both minima are reached."""
        if not self.scenario:
            return settings
        if self.scenario == "offline":
            return replace(settings, request_count=self.offline_samples, scenario=self.scenario)
        load = settings.load
        if self.scenario == "server":
            load = replace(load, pace=replace(load.pace, request_distribution="poisson"))
        return replace(
            settings,
            mode="count_windows",
            window_requests=self.min_query_count,
            count_window_floor_ms=round(self.min_duration * 1000),
            max_windows=1,
            one_window=True,
            scenario=self.scenario,
            percentile=settings.percentile or PERCENTILES[self.scenario],
            load=load,
        )
