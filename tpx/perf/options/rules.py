"""Rules between groups of options: combinations that are not allowed, and their messages."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpx.options import fields_of, flag_of, given
from tpx.perf.clients.endpoint import SERVICES
from tpx.perf.levels import REQUEST_RATE
from tpx.perf.options.measuring import AnswerSpec, WindowSpec
from tpx.perf.options.output import OutputSpec, ScrapeSpec
from tpx.perf.options.target import TargetSpec

if TYPE_CHECKING:
    from tpx.perf.options.spec import SessionSpec


@dataclass(frozen=True, slots=True)
class OptionRule:
    """A combination that is not allowed, and its message, which is formatted with the spec as `{0}`."""

    broken: "Callable[[SessionSpec], object]"
    message: str


def _json(spec: "SessionSpec") -> bool:
    return "json" in (spec.wire.input_tensor_format, spec.wire.output_tensor_format)


def _periodic(spec: "SessionSpec") -> bool:
    return spec.load.periodic_concurrency_range is not None


def _streams(spec: "SessionSpec") -> bool:
    return spec.target.protocol == "grpc" and spec.wire.streaming


def _kind(spec: "SessionSpec", *kinds: str) -> bool:
    return spec.service.service_kind in kinds


def _of_open_loops(name: str) -> OptionRule:
    flag = flag_of(name)
    return OptionRule(
        lambda s: name in given(s.pace) and not s.levels.kind.open_loop,
        f"{flag} requires an open-loop load, such as --request-rate-range",
    )


def _of_one_server() -> Iterator[OptionRule]:
    """Yield a rule for each option of a single server, or of windows, that --ab does not support."""
    alone = (
        "applies to levels of one server: a comparison is reported as text and by --json, --junit, --markdown"
    )
    blocks = "has no say: a block is a window of --measurement-interval, or --request-count requests"
    unfit = dict.fromkeys(("knee", "explain", "collect_metrics", "latency_threshold", "percentile"), alone)
    unfit |= dict.fromkeys(("csv", "profile_export_file", "jsonl", "hdr_log", "html", "pdf"), alone)
    unfit |= dict.fromkeys(("stability", "ci_width", "require_stable", "stop_on_unstable"), blocks)
    unfit |= dict.fromkeys(("stability_percentage", "max_trials"), blocks)
    unfit |= {
        "url": "names a server, and --ab has those that are measured",
        "dry_run": "looks at one server: give it with -u instead of --ab",
    }
    groups = (TargetSpec, WindowSpec, AnswerSpec, OutputSpec, ScrapeSpec)
    for field in (field for group in groups for field in fields_of(group) if field.name in unfit):
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
        lambda s: not _kind(s, "inprocess") and s.target.protocol not in SERVICES[s.service.service_kind],
        "--service-kind {0.service.service_kind} is reached with -i {0.service.protocols}",
    ),
    OptionRule(
        lambda s: s.load.session_concurrency is not None and not _kind(s, "openai"),
        "Session concurrency mode is only supported with OpenAI service kind.",
    ),
    OptionRule(
        lambda s: s.load.rivals,  # perf_analyzer checks the kind of service first
        "Cannot use both {0.load.rivals} inference load modes.",
    ),
    OptionRule(
        lambda s: s.wire.streaming and not _streams(s) and not _kind(s, "inprocess", "openai"),
        "Streaming is only allowed with gRPC protocol and Triton C API.",
    ),
    OptionRule(
        lambda s: s.wire.stream_per_request and not (_streams(s) and _kind(s, "triton")),
        "--stream-per-request requires --streaming over gRPC (-i grpc)",
    ),
    OptionRule(
        lambda s: s.wire.compression and (s.target.protocol != "grpc" or _kind(s, "inprocess")),
        "Using compression algorithm is only allowed with gRPC protocol.",
    ),
    OptionRule(
        lambda s: _json(s) and not (s.target.protocol == "http" and _kind(s, "triton")),
        "--input-tensor-format and --output-tensor-format json are only allowed with HTTP protocol",
    ),
    OptionRule(
        lambda s: s.wire.request_parameter and not _kind(s, "triton", "inprocess"),
        "--request-parameter: the requests of --service-kind {0.service.service_kind} have no parameters",
    ),
    OptionRule(
        lambda s: s.wire.trace_settings and not _kind(s, "triton"),
        "--trace-level and its like: --service-kind {0.service.service_kind} has no trace settings",
    ),
    OptionRule(
        lambda s: s.mlperf.levels is not None and s.load.levels.given,
        "--scenario {0.mlperf.scenario} is a load of its own: leave out {0.load.levels.kind.flag}",
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
    _of_open_loops("max_connections"),
    _of_open_loops("on_late"),
    OptionRule(
        lambda s: s.metrics.collect_metrics and not _kind(s, "triton"),
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
    *_of_one_server(),
    OptionRule(
        lambda s: _periodic(s) and not _streams(s),
        "The --periodic-concurrency-range option requires bi-directional gRPC streaming.",
    ),
    OptionRule(
        lambda s: _periodic(s) and s.wire.stream_per_request,
        "--periodic-concurrency-range needs streams that carry several requests: leave out "
        "--stream-per-request",
    ),
    OptionRule(
        lambda s: _periodic(s) and s.output.profile_export_file is None,
        "Must provide --profile-export-file when using the --periodic-concurrency-range option.",
    ),
    OptionRule(
        lambda s: s.course.warmup_seconds and s.load.warmup_request_count,
        "--warmup-seconds and --warmup-request-count can not both end the warm-up",
    ),
    OptionRule(
        lambda s: s.course.warmup_seconds and s.levels.kind.once,
        "--warmup-seconds needs a load that goes on: {0.levels.kind.text} is sent once",
    ),
    OptionRule(
        lambda s: s.mlperf.scenario and s.load.request_count,
        "--scenario says itself how many requests are sent: leave out --request-count",
    ),
    OptionRule(
        lambda s: s.mlperf.scenario == "server" and s.load.levels.kind is not REQUEST_RATE,
        "--scenario server needs its target rate: --request-rate-range",
    ),
    OptionRule(
        lambda s: (
            s.mlperf.scenario == "server" and s.pace.request_distribution not in ("constant", "poisson")
        ),
        "--scenario server has Poisson arrivals: leave out --request-distribution",
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
