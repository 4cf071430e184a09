"""The option that puts on load as MLPerf's load generator does, and what belongs to it."""

from dataclasses import dataclass, replace
from typing import Literal

from tpx.errors import UsageError
from tpx.options import option
from tpx.perf.levels import MULTI_STREAM, OFFLINE, REQUEST_RATE, SINGLE_STREAM, LevelRange
from tpx.perf.settings import LevelSettings, one_of, refuse

_SCENARIO = "MLPerf scenarios"
_scenario = one_of(
    "--scenario",
    ("single-stream", "multi-stream", "server", "offline"),
    "Unsupported type provided: '{}'. Choices are 'single-stream', 'multi-stream', 'server' or 'offline'.",
)
PERCENTILES = {"single-stream": 90.0, "multi-stream": 99.0, "server": 99.0}
"""What each is judged by; offline is judged by its throughput."""


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """A scenario, and how long it lasts at least."""

    scenario: Literal["", "single-stream", "multi-stream", "server", "offline"] = option(
        "",
        "single-stream: one query at a time; multi-stream: several requests a query; server: Poisson "
        "arrivals at --request-rate-range; offline: all requests at once",
        section=_SCENARIO,
        parse=_scenario,
    )
    min_duration: float = option(
        10.0, "seconds that a scenario lasts at least (offline: as long as it takes)", section=_SCENARIO
    )
    min_query_count: int = option(100, "queries that a scenario has at least", section=_SCENARIO)
    samples_per_query: int = option(
        8, "requests of one query of the multi-stream scenario", section=_SCENARIO
    )
    offline_samples: int = option(
        1024, "requests of the one query of the offline scenario", section=_SCENARIO
    )

    def check_scenario(self, levels: LevelRange, request_count: int, distribution: str) -> None:
        """Raise UsageError for a value out of range, or a load that is not the scenario's."""
        for flag, value in (
            ("--min-duration", self.min_duration),
            ("--min-query-count", self.min_query_count),
            ("--samples-per-query", self.samples_per_query),
            ("--offline-samples", self.offline_samples),
        ):
            if not 0 < value < float("inf"):
                refuse(flag, "The value must be > 0.")
        self._check_whose()
        if not self.scenario:
            return
        if request_count:
            raise UsageError("--scenario says itself how many requests are sent: leave out --request-count")
        if self.scenario == "server" and levels.kind is not REQUEST_RATE:
            raise UsageError("--scenario server needs its target rate: --request-rate-range")
        if self.scenario == "server" and distribution not in ("constant", "poisson"):
            raise UsageError("--scenario server has Poisson arrivals: leave out --request-distribution")

    def _check_whose(self) -> None:
        """Raise UsageError for what is said of a scenario that is not the run's."""
        timed = ("single-stream", "multi-stream", "server")
        for flag, differs, scenarios in (
            ("--min-duration", self.min_duration != ScenarioOptions.min_duration, timed),
            ("--min-query-count", self.min_query_count != ScenarioOptions.min_query_count, timed),
            (
                "--samples-per-query",
                self.samples_per_query != ScenarioOptions.samples_per_query,
                ("multi-stream",),
            ),
            ("--offline-samples", self.offline_samples != ScenarioOptions.offline_samples, ("offline",)),
        ):
            if differs and self.scenario not in scenarios:
                raise UsageError(f"{flag} is of --scenario {', '.join(scenarios)}")

    def scenario_levels(self) -> LevelRange | None:
        """The level of a scenario that has one of its own."""
        if self.scenario == "single-stream":
            return LevelRange(mode=SINGLE_STREAM.name, start=1)
        if self.scenario == "multi-stream":
            return LevelRange(mode=MULTI_STREAM.name, start=self.samples_per_query)
        if self.scenario == "offline":
            return LevelRange(mode=OFFLINE.name, start=self.offline_samples)
        return None

    def scenario_rules(self, settings: LevelSettings) -> LevelSettings:
        """The rules of a level as the scenario has them: one window, over when both minima are reached."""
        if not self.scenario:
            return settings
        if self.scenario == "offline":
            return replace(settings, request_count=self.offline_samples, scenario=self.scenario)
        load = settings.load
        if self.scenario == "server":
            load = replace(load, arrivals=replace(load.arrivals, distribution="poisson"))
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
