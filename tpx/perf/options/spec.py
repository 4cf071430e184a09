"""The options of one run of `tpx perf`: its groups, and the rules for their combinations."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tpx.errors import UsageError
from tpx.options import fields_of, flag_of, given, group
from tpx.perf.clients.endpoint import DEFAULT_PORTS, SERVICES, Address, Endpoint, ServiceSpec, parse_address
from tpx.perf.clients.model import ModelKey
from tpx.perf.clients.tls import TlsSpec
from tpx.perf.clients.wire import WireSpec
from tpx.perf.inputs.base import InputSpec, SequenceSpec
from tpx.perf.levels import LevelRange, PaceSpec
from tpx.perf.options.load import LoadSpec, TargetSpec
from tpx.perf.options.measuring import (
    DEFAULT_INTERVAL_MS,
    DEFAULT_TRIALS,
    AnswerSpec,
    ComparingSpec,
    CourseSpec,
    Strictness,
    WindowSpec,
)
from tpx.perf.options.output import OutputSpec, ScrapeSpec
from tpx.perf.settings import LevelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """One run of `tpx perf`; groups are in the order of the help.

    Raises UsageError, with perf_analyzer's messages, if values are out of range or cannot be combined.
    """

    target: TargetSpec = group(TargetSpec, "Target")
    load: LoadSpec = group(LoadSpec, "Load")
    windows: WindowSpec = group(WindowSpec, "Measurement")
    answers: AnswerSpec = group(AnswerSpec, "Objectives and comparisons")
    comparing: ComparingSpec = group(ComparingSpec, "Objectives and comparisons")
    strictness: Strictness = group(Strictness, "Objectives and comparisons")
    output: OutputSpec = group(OutputSpec, "Output")
    inputs: InputSpec = group(InputSpec, "Input data")
    pace: PaceSpec = group(PaceSpec, "Arrivals and workers")
    course: CourseSpec = group(CourseSpec, "Warm-up and cool-down")
    sequences: SequenceSpec = group(SequenceSpec, "Sequences")
    metrics: ScrapeSpec = group(ScrapeSpec, "Server metrics")
    wire: WireSpec = group(WireSpec, "Transport")
    service: ServiceSpec = group(ServiceSpec, "Service")
    tls: TlsSpec = group(TlsSpec, "TLS")

    def __post_init__(self) -> None:
        for rule in RULES:
            if rule.broken(self):
                raise UsageError(rule.message.format(self))
        # raises for an invalid URL or TLS options
        self.endpoint(ModelKey(""))

    @property
    def levels(self) -> LevelRange:
        """Levels to measure; with --slo and no range, from 1 upward while the objectives are met."""
        levels = self.load.levels
        return LevelRange(start=1, end=0) if self.answers.slo and not levels.given else levels

    @property
    def needs_files(self) -> str:
        """The option that takes its whole load from the data's files; empty if none does."""
        if self.load.session_concurrency is not None:
            return "--session-concurrency"
        return "--fixed-schedule" if self.load.fixed_schedule else ""

    @property
    def address(self) -> str:
        """Server's host:port; the default for the service and protocol if no URL was given."""
        kind = self.service.service_kind
        if kind == "inprocess":
            return "in this process"
        return self.target.url or f"localhost:{DEFAULT_PORTS[kind][self.target.protocol]}"

    @property
    def parsed_address(self) -> Address:
        """Parsed address of the server. Raises UsageError if the URL is invalid."""
        if self.service.service_kind == "inprocess":
            return Address("localhost", 0)
        return parse_address(self.address, self.target.protocol, self.service.service_kind)

    def endpoint(self, model: ModelKey) -> Endpoint:
        """Return a model's endpoint. Raises UsageError for an invalid URL, or TLS options without effect."""
        address = self.parsed_address
        in_process = self.service.service_kind == "inprocess"
        return Endpoint(
            host=address.host,
            port=address.port,
            model=model,
            headers=self.target.header,
            tls=None if in_process else self.tls.settings(self.target.protocol, secure=address.secure),
            wire=self.wire,
            service=self.service,
            sessions=self.load.session_concurrency is not None,
            at_once=self.pace.poll == "busy",
        )

    @property
    def level_settings(self) -> LevelSettings:
        """Rules by which this run measures each of its levels."""
        windows, answers, periodic = self.windows, self.answers, self.load.periodic_concurrency_range
        return LevelSettings(
            mode=windows.measurement_mode,
            interval_ms=windows.measurement_interval or DEFAULT_INTERVAL_MS[answers.rule],
            window_requests=windows.measurement_request_count,
            stability=windows.stability_percentage / 100,
            max_windows=windows.max_trials or DEFAULT_TRIALS[answers.rule],
            latency_limit_ms=windows.latency_threshold,
            percentile=None if windows.percentile == -1 else windows.percentile,
            request_count=self.load.request_count or 0,
            warmup_requests=self.load.warmup_request_count,
            warmup_s=self.course.warmup_seconds,
            timeout_s=self.target.timeout,
            max_errors=windows.max_errors,
            rule=answers.rule,
            objectives=answers.slo,
            safety=answers.slo_confidence,
            pace=self.pace,
            intervals=self.load.request_intervals,
            periodic=None if periodic is None else replace(periodic, period=self.load.request_period),
            seed=self.inputs.seed,
            sequences=self.pace.num_of_sequences,
        )


@dataclass(frozen=True, slots=True)
class OptionRule:
    """A combination that is not allowed, and its message, which is formatted with the spec as `{0}`."""

    broken: Callable[[SessionSpec], object]
    message: str


def _is_periodic(spec: SessionSpec) -> bool:
    return spec.load.periodic_concurrency_range is not None


def _is_streaming(spec: SessionSpec) -> bool:
    return spec.target.protocol == "grpc" and spec.wire.streaming


def _has_service_kind(spec: SessionSpec, *kinds: str) -> bool:
    return spec.service.service_kind in kinds


def _iter_comparison_rules() -> Iterator[OptionRule]:
    """Yield a rule for each option of a single server, or of windows, that --ab does not support."""
    alone = (
        "applies to levels of one server: a comparison is reported as text and by --json, --junit, --markdown"
    )
    blocks = "has no say: a block is a window of --measurement-interval, or --request-count requests"
    unfit = dict.fromkeys(["collect_metrics", "latency_threshold", "percentile"], alone)
    unfit |= dict.fromkeys(["csv", "profile_export_file", "jsonl", "html", "pdf"], alone)
    names = "stability require_stable stop_on_unstable stability_percentage max_trials"
    unfit |= dict.fromkeys(names.split(), blocks)
    unfit |= {
        "url": "names a server, and --ab has those that are measured",
        "dry_run": "looks at one server: give it with -u instead of --ab",
    }
    owners = (TargetSpec, WindowSpec, AnswerSpec, OutputSpec, ScrapeSpec)
    for field in (field for owner in owners for field in fields_of(owner) if field.name in unfit):
        yield OptionRule(
            lambda s, name=field.name: s.comparing.ab and name in given(s),  # type: ignore[misc]
            f"--ab: {field.spellings[-1]} {unfit[field.name]}",
        )


# in order: the message of the first rule that is broken is the one that the user sees
RULES: tuple[OptionRule, ...] = (
    OptionRule(
        lambda s: not (s.pace.self_test or s.target.model or s.target.models),
        "Failed to parse -m (model name). The value must be specified.",
    ),
    OptionRule(
        lambda s: (
            not _has_service_kind(s, "inprocess")
            and s.target.protocol not in SERVICES[s.service.service_kind]
        ),
        "--service-kind {0.service.service_kind} is reached with -i {0.service.protocols}",
    ),
    OptionRule(
        lambda s: s.load.session_concurrency is not None and not _has_service_kind(s, "openai"),
        "Session concurrency mode is only supported with OpenAI service kind.",
    ),
    OptionRule(
        lambda s: s.load.rivals,  # perf_analyzer checks the kind of service first
        "Cannot use both {0.load.rivals} inference load modes.",
    ),
    OptionRule(
        lambda s: (
            s.wire.streaming and not _is_streaming(s) and not _has_service_kind(s, "inprocess", "openai")
        ),
        "Streaming is only allowed with gRPC protocol and Triton C API.",
    ),
    OptionRule(
        lambda s: s.wire.stream_per_request and not (_is_streaming(s) and _has_service_kind(s, "triton")),
        "--stream-per-request requires --streaming over gRPC (-i grpc)",
    ),
    OptionRule(
        lambda s: s.wire.compression and (s.target.protocol != "grpc" or _has_service_kind(s, "inprocess")),
        "Using compression algorithm is only allowed with gRPC protocol.",
    ),
    OptionRule(
        lambda s: (
            "json" in (s.wire.input_tensor_format, s.wire.output_tensor_format)
            and not (s.target.protocol == "http" and _has_service_kind(s, "triton"))
        ),
        "--input-tensor-format and --output-tensor-format json are only allowed with HTTP protocol",
    ),
    OptionRule(
        lambda s: s.wire.request_parameter and not _has_service_kind(s, "triton", "inprocess"),
        "--request-parameter: the requests of --service-kind {0.service.service_kind} have no parameters",
    ),
    OptionRule(
        lambda s: s.wire.trace_settings and not _has_service_kind(s, "triton"),
        "--trace-level and its like: --service-kind {0.service.service_kind} has no trace settings",
    ),
    OptionRule(
        lambda s: s.needs_files and not s.inputs.input_data,
        "When using `{0.needs_files}`, you must provide a dataset using `--input-data`.",
    ),
    OptionRule(
        lambda s: s.needs_files and s.inputs.no_file,
        "'{0.inputs.no_file}' is not a file. When using `{0.needs_files}`, all paths passed to --input-data "
        "must be files.",
    ),
    *(
        OptionRule(
            lambda s, name=name: name in given(s.pace) and not s.levels.kind.open_loop,  # type: ignore[misc]
            f"{flag_of(name)} requires an open-loop load, such as --request-rate-range",
        )
        for name in ("max_connections", "on_late")
    ),
    OptionRule(
        lambda s: s.metrics.collect_metrics and not _has_service_kind(s, "triton"),
        "Server-side metric collection is only supported with Triton client backend.",
    ),
    OptionRule(
        lambda s: s.comparing.ab and s.answers.slo,
        "--ab compares servers at given loads; it does not search for --slo",
    ),
    OptionRule(
        lambda s: s.comparing.ab and (s.levels.unbounded or s.levels.binary),
        "--ab compares servers at given loads: give the range an end, and no --binary-search",
    ),
    *_iter_comparison_rules(),
    *(
        OptionRule(
            lambda s, name=name: name in {**given(s.comparing), **given(s.strictness)} and not s.comparing.ab,  # type: ignore[misc]
            f"{flag_of(name)} requires --ab URL1 URL2 or `tpx perf compare`",
        )
        for name in ("ab_blocks", "alpha", "min_effect")
    ),
    OptionRule(
        lambda s: _is_periodic(s) and not _is_streaming(s),
        "The --periodic-concurrency-range option requires bi-directional gRPC streaming.",
    ),
    OptionRule(
        lambda s: _is_periodic(s) and s.wire.stream_per_request,
        "--periodic-concurrency-range needs streams that carry several requests: leave out "
        "--stream-per-request",
    ),
    OptionRule(
        lambda s: _is_periodic(s) and s.output.profile_export_file is None,
        "Must provide --profile-export-file when using the --periodic-concurrency-range option.",
    ),
    OptionRule(
        lambda s: s.course.warmup_seconds and s.load.warmup_request_count,
        "--warmup-seconds and --warmup-request-count can not both end the warm-up",
    ),
    OptionRule(
        lambda s: s.course.warmup_seconds and s.levels.kind.once,
        "--warmup-seconds needs a continuous load: {0.levels.kind.text} is sent once",
    ),
    OptionRule(
        lambda s: s.answers.slo and s.load.binary_search,
        "--slo searches the range by itself: leave out --binary-search",
    ),
    OptionRule(
        lambda s: s.load.binary_search and not s.windows.latency_threshold,
        "The --latency-threshold cannot be 0 for binary search mode.",
    ),
    OptionRule(
        lambda s: s.levels.unbounded and not (s.windows.latency_threshold or s.answers.slo),
        "The end of the search range and the latency limit can not be both 0 (or 0.0) simultaneously",
    ),
)
