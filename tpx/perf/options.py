"""What `tpx perf` can be told: the options of perf_analyzer that tpx knows so far, with its spellings and
messages."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tpx.errors import UsageError
from tpx.options import Option
from tpx.perf.clients.endpoint import DEFAULT_PORTS
from tpx.perf.settings import (
    ErrorBudget,
    Header,
    LevelRange,
    LevelSettings,
    Shape,
    parse_budget,
    parse_header,
    parse_levels,
    parse_shape,
    refuse,
)

_TARGET = "Target"
_LOAD = "Load"
_MEASURE = "Measurement"
_DATA = "Input data"
_OUTPUT = "Output"


def _one_of(flag: str, choices: tuple[str, ...], message: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            refuse(flag, message.format(text))
        return text.lower()

    return parse


_protocol = _one_of("-i (protocol)", ("http", "grpc"), "The value should be either HTTP or gRPC.")
_mode = _one_of(
    "--measurement-mode",
    ("time_windows", "count_windows"),
    "Unsupported type provided: '{}'. The available options are 'time_windows' or 'count_windows'.",
)
_data = _one_of(
    "--input-data",
    ("zero", "random"),
    "Unsupported type provided: '{}'. The available options are 'zero' or 'random'.",
)


ONE_REQUEST = LevelRange()
ANY_NUMBER = ErrorBudget()


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfConfig:
    """One run of `tpx perf`; raises UsageError where values are out of range or do not go together."""

    model: Annotated[str, Option("model to send requests to", ("-m",), _TARGET, "NAME")] = ""
    model_version: Annotated[
        str, Option("its version; the server's policy decides when not given", ("-x",), _TARGET)
    ] = ""
    url: Annotated[
        str, Option("host:port of the server (localhost:8000, for grpc localhost:8001)", ("-u",), _TARGET)
    ] = ""
    protocol: Annotated[
        Literal["http", "grpc"], Option("http or grpc", ("-i",), _TARGET, parse=_protocol)
    ] = "http"
    header: Annotated[
        tuple[Header, ...],
        Option(
            "header, or gRPC metadata, of every request (repeatable)",
            ("-H",),
            _TARGET,
            "NAME:VALUE",
            parse=parse_header,
        ),
    ] = ()
    timeout: Annotated[
        float, Option("seconds after which a request has failed; 0: never", (), _TARGET, "SECONDS")
    ] = 0.0

    concurrency_range: Annotated[
        LevelRange,
        Option(
            "requests kept in flight: a range, a list 1,2,8, or geometric 1:64:x2; "
            "an end of 0 goes on until the latency threshold is met",
            (),
            _LOAD,
            "START:END:STEP",
            parse=parse_levels,
        ),
    ] = ONE_REQUEST
    batch_size: Annotated[int, Option("inferences in one request", ("-b",), _LOAD)] = 1
    request_count: Annotated[int, Option("send exactly this many requests a level; 0: off", (), _LOAD)] = 0
    warmup_request_count: Annotated[
        int, Option("requests sent before each level and not measured", (), _LOAD)
    ] = 0

    measurement_mode: Annotated[
        Literal["time_windows", "count_windows"],
        Option("what ends a window: time, or a number of requests", (), _MEASURE, parse=_mode),
    ] = "time_windows"
    measurement_interval: Annotated[
        int,
        Option("milliseconds of a window; like perf_analyzer's it lasts 1.2 times this", ("-p",), _MEASURE),
    ] = 5000
    measurement_request_count: Annotated[
        int, Option("samples that a window has at least in count_windows mode", (), _MEASURE)
    ] = 50
    stability_percentage: Annotated[
        float, Option("spread of three windows that counts as stable, in percent", ("-s",), _MEASURE)
    ] = 10.0
    max_trials: Annotated[int, Option("windows that a level has at most", ("-r",), _MEASURE)] = 10
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

    shape: Annotated[
        tuple[Shape, ...],
        Option(
            "shape of an input with dynamic dimensions, without the batch dimension (repeatable)",
            (),
            _DATA,
            "NAME:D,D",
            parse=parse_shape,
        ),
    ] = ()
    input_data: Annotated[
        Literal["zero", "random"],
        Option(
            "what the inputs hold: zero or random; BYTES are random strings in both", (), _DATA, parse=_data
        ),
    ] = "random"
    string_length: Annotated[int, Option("length of the random strings of BYTES inputs", (), _DATA)] = 128
    string_data: Annotated[str | None, Option("the string in every BYTES element", (), _DATA)] = None
    seed: Annotated[int, Option("seed of the random inputs", (), _DATA)] = 0

    verbose: Annotated[
        bool, Option("show every window, and send and receive times apart", ("-v",), _OUTPUT)
    ] = False
    csv: Annotated[Path | None, Option("write perf_analyzer's CSV", ("-f",), _OUTPUT, "FILE")] = None
    verbose_csv: Annotated[bool, Option("further columns in the CSV", (), _OUTPUT)] = False
    json: Annotated[Path | None, Option("write every level as JSON", (), _OUTPUT, "FILE")] = None

    def __post_init__(self) -> None:
        self._check_target()
        self._check_measurement()
        self._check_counts()

    def _check_target(self) -> None:
        if not self.model:
            refuse("-m (model name)", "The value must be specified.")
        if self.batch_size <= 0:
            refuse("-b (batch size)", "The value must be > 0.")
        if not self.timeout >= 0:
            refuse("--timeout", "The value must be >= 0 seconds.")
        if self.string_length <= 0:
            refuse("--string-length", "The value must be > 0")
        if self.seed < 0:
            refuse("--seed", "The value must be >= 0.")

    def _check_measurement(self) -> None:
        if self.measurement_interval <= 0:
            refuse("--measurement-interval (-p)", "The value must be > 0 msec.")
        if not self.stability_percentage >= 0:
            refuse("--stability-percentage (-s)", "The value must be >= 0.0.")
        if self.max_trials <= 0:
            refuse("--max-trials (-r)", "The value must be > 0.")
        if self.latency_threshold < 0:
            refuse("--latency-threshold (-l)", "The value must be >= 0 msecs.")
        if self.percentile != -1 and not 0 < self.percentile < 100:
            refuse("--percentile", "The value must be -1 for not reporting or in range (0, 100).")

    def _check_counts(self) -> None:
        if self.measurement_request_count <= 0:
            refuse("--measurement-request-count", "The value must be > 0.")
        if self.warmup_request_count < 0:
            refuse("--warmup-request-count", "The value must be >= 0.")
        if self.request_count < 0:
            refuse("--request-count", "The value must be > 0.")
        levels = self.concurrency_range
        if levels.unbounded and self.latency_threshold == 0:
            raise UsageError(
                "The end of the search range and the latency limit can not be both 0 (or 0.0) simultaneously"
            )
        if 0 < self.request_count < (levels.highest or levels.start):
            raise UsageError("--request-count can not be less than concurrency")

    @property
    def address(self) -> str:
        """host:port of the server, the protocol's default where no URL was given."""
        return self.url or f"localhost:{DEFAULT_PORTS[self.protocol]}"

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
