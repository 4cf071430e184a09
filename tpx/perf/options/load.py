"""Target and load options: the model and its server, levels, and requests per level."""

from dataclasses import replace
from typing import Literal

from tpx.errors import UsageError
from tpx.options import Options, check_range, option, refuse
from tpx.perf.levels import (
    CUSTOM_INTERVALS,
    FIXED_SCHEDULE,
    PERIODIC_CONCURRENCY,
    SESSION_CONCURRENCY,
    Intervals,
    LevelRange,
    ModelShare,
    PeriodicRange,
)
from tpx.perf.options.ranges import (
    parse_concurrency,
    parse_intervals,
    parse_models,
    parse_periodic,
    parse_rates,
)
from tpx.perf.settings import Header, parse_header

LONGEST_TIMEOUT_S = 1e9


class TargetSpec(Options):
    """Options for the model, the server, and how to reach it."""

    model: str = option(
        "",
        "model to send requests to",
        "-m",
        "--profile-models",
        metavar="NAME",
        common=True,
        completes="served models",
    )
    models: tuple[ModelShare, ...] | None = option(
        None,
        "send to several models instead of -m, each request to one of them by weight",
        metavar="A:3,B:1",
        parse=parse_models,
    )
    model_version: str = option("", "model version (default: chosen by the server's version policy)", "-x")
    url: str = option(
        "",
        "host:port of the server (default localhost:8000, for gRPC localhost:8001); https://host:port for "
        "TLS",
        "-u",
        common=True,
    )
    protocol: Literal["http", "grpc"] = option(
        "http", "http or grpc", "-i", refusal="The value should be either HTTP or gRPC.", common=True
    )
    header: tuple[Header, ...] = option(
        (),
        "HTTP header or gRPC metadata for every request (repeatable)",
        "-H",
        metavar="NAME:VALUE",
        parse=parse_header,
        mask=lambda text: str(parse_header(text)),
    )
    timeout: float = option(0.0, "seconds until a request fails; 0 = never", metavar="SECONDS")

    def __post_init__(self) -> None:
        if self.models and (self.model or self.model_version):
            raise UsageError("--models names the models: leave out -m and -x")
        if not 0 <= self.timeout <= LONGEST_TIMEOUT_S:
            refuse("--timeout", "The value must be >= 0 seconds, and no more than 1e9.")


ONE_REQUEST = LevelRange(given=False)


class LoadSpec(Options):
    """Options for the levels to measure, and the number of requests at each."""

    concurrency_range: LevelRange = option(
        ONE_REQUEST,
        "requests in flight: a range, a list 1,2,8, or geometric 1:64:x2; an END of 0 continues until the "
        "latency threshold is reached",
        metavar="START:END:STEP",
        parse=parse_concurrency,
        common=True,
    )
    request_rate_range: LevelRange | None = option(
        None,
        "open loop: requests per second, sent regardless of earlier responses; ranges and lists as for "
        "concurrency, also fractions",
        metavar="START:END:STEP",
        parse=parse_rates,
        common=True,
    )
    request_intervals: Intervals | None = option(
        None,
        "file with one interval in microseconds per line, repeated as long as needed",
        metavar="FILE",
        parse=parse_intervals,
    )
    fixed_schedule: bool = option(False, "send each step of the input data once, at its timestamp")
    periodic_concurrency_range: PeriodicRange | None = option(
        None,
        "raise concurrency from START to END within one measurement, over gRPC streams",
        metavar="START:END:STEP",
        parse=parse_periodic,
    )
    request_period: int = option(
        10, "responses of each of the newest requests before concurrency rises again"
    )
    session_concurrency: int | None = option(
        None,
        "concurrent conversations (--service-kind openai): steps of the input data with the same "
        "session_id, each sent with the earlier answers",
        metavar="N",
    )
    binary_search: bool = option(False, "bisect the range for the highest load below the latency threshold")
    request_count: int | None = option(None, "send exactly this many requests per level", common=True)
    warmup_request_count: int = option(0, "unmeasured requests before each level")
    warmup_seconds: float = option(0.0, "seconds of load before each level is measured", metavar="SECONDS")

    def __post_init__(self) -> None:
        check_range(self, "warmup_request_count", "warmup_seconds", least=0)
        check_range(self, "request_count", above=0)
        check_range(self, "request_period", above=0, end="")
        if self.session_concurrency is not None and self.session_concurrency <= 0:
            refuse("--session-concurrency", "Session concurrency must be > 0.")
        if self.fixed_schedule and self.request_count:
            raise UsageError("Cannot specify `--request-count` when using `--fixed-schedule`.")
        levels = self.levels
        if levels.kind.ranged and 0 < (self.request_count or 0) < (levels.highest or levels.start):
            raise UsageError(f"--request-count can not be less than {levels.kind.text}")
        if self.binary_search:
            if not levels.kind.ranged:
                raise UsageError(f"--binary-search needs a range, and {levels.mode} is a single level")
            if levels.listed or levels.factor:
                raise UsageError(f"--binary-search needs a range <start:end:step>, not {levels}")
            if not levels.end:
                raise UsageError("The end of the range can not be 0 (or 0.0) for binary search mode.")

    @property
    def rivals(self) -> str:
        """The first two kinds of load, if several were requested; otherwise empty."""
        names = [levels.kind.rival for levels in self._list_requested()]
        return " and ".join(names[:2]) if len(names) > 1 else ""

    @property
    def levels(self) -> LevelRange:
        """Levels to measure, of any kind."""
        levels = [*self._list_requested(), self.concurrency_range][0]
        return replace(levels, binary=True) if self.binary_search and levels.kind.ranged else levels

    def _list_requested(self) -> list[LevelRange]:
        """Return every kind of load that was requested; more than one is an error."""
        requested = [self.concurrency_range] if self.concurrency_range.given else []
        if self.request_rate_range is not None:
            requested.append(self.request_rate_range)
        periodic = self.periodic_concurrency_range
        singles = {
            CUSTOM_INTERVALS: self.request_intervals.rate if self.request_intervals else None,
            PERIODIC_CONCURRENCY: None if periodic is None else periodic.end,
            SESSION_CONCURRENCY: self.session_concurrency,
            FIXED_SCHEDULE: 0 if self.fixed_schedule else None,
        }
        return requested + [
            LevelRange(mode=kind.name, start=value) for kind, value in singles.items() if value is not None
        ]
