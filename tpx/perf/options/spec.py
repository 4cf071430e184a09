"""The options of one run of `tpx perf`: its groups, and the rules for their combinations."""

from collections.abc import Iterator
from dataclasses import replace

from tpx.errors import UsageError
from tpx.options import Options, fields_of, flag_of, given, group
from tpx.perf.clients.endpoint import DEFAULT_PORTS, SERVICES, Address, Endpoint, ServiceSpec, parse_address
from tpx.perf.clients.model import ModelKey
from tpx.perf.clients.tls import TlsSpec
from tpx.perf.clients.transport import DIRECT, ClientName, ClientRoute, choose_route
from tpx.perf.clients.wire import WireSpec
from tpx.perf.inputs.base import InputSpec, SequenceSpec
from tpx.perf.inputs.prompts import PromptSpec
from tpx.perf.levels import CONCURRENCY, FIXED_SCHEDULE, SESSION_CONCURRENCY, LevelRange
from tpx.perf.metrics_page import MetricsAddress
from tpx.perf.options.load import LoadSpec, TargetSpec
from tpx.perf.options.measuring import (
    DEFAULT_INTERVAL_MS,
    DEFAULT_TRIALS,
    AnswerSpec,
    ComparingSpec,
    Strictness,
    WindowSpec,
)
from tpx.perf.options.output import OutputSpec, ScrapeSpec
from tpx.perf.pace import PaceSpec
from tpx.perf.settings import LevelSettings


class SessionSpec(Options):
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
    prompts: PromptSpec = group(PromptSpec, "Prompts of language models")
    pace: PaceSpec = group(PaceSpec, "Arrivals and workers")
    sequences: SequenceSpec = group(SequenceSpec, "Sequences")
    metrics: ScrapeSpec = group(ScrapeSpec, "Server metrics")
    wire: WireSpec = group(WireSpec, "Transport")
    service: ServiceSpec = group(ServiceSpec, "Service")
    tls: TlsSpec = group(TlsSpec, "TLS")

    def __post_init__(self) -> None:
        # in order: the message of the first rule that is broken is the one that the user sees
        for rules in (_iter_transport_rules, _iter_load_rules, _iter_comparison_rules, _iter_search_rules):
            for broken, message in rules(self):
                if broken:
                    raise UsageError(message)
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
        if self.load.session_concurrency is not None and self.prompts.input_tokens is None:
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

    @property
    def in_process(self) -> bool:
        """True if the engine is in this process: nothing is sent over a network."""
        return self.service.service_kind == "inprocess"

    @property
    def route(self) -> ClientRoute:
        """The transport to the server. Raises UsageError for a proxy that cannot be used."""
        if self.in_process:
            return DIRECT
        address, wire, grpc = self.parsed_address, self.wire, self.target.protocol == "grpc"
        return choose_route(
            address.host,
            address.port,
            "grpc" if grpc else "https" if address.secure else "http",
            client=wire.client,
            proxy=wire.proxy,
            http2=wire.http2,
        )

    @property
    def client(self) -> str:
        """The client that sends the requests, for reports: tpx, or a library with its version."""
        return self.route.client(self.target.protocol)

    def endpoint(self, model: ModelKey) -> Endpoint:
        """Return a model's endpoint. Raises UsageError for an invalid URL, or TLS options without effect."""
        address = self.parsed_address
        in_process = self.in_process
        return Endpoint(
            host=address.host,
            port=address.port,
            model=model,
            headers=self.target.header,
            tls=None if in_process else self.tls.settings(self.target.protocol, secure=address.secure),
            wire=self.wire,
            service=self.service,
            sessions=self.load.session_concurrency is not None,
            library=self.route.library,
            at_once=self.pace.poll == "busy",
        )

    def metrics_endpoint(self, place: MetricsAddress) -> Endpoint:
        """Return the endpoint of a metrics page, reached through a proxy wherever the server would be."""
        client: ClientName | None = "tpx" if self.wire.client == "tpx" else None
        route = choose_route(place.host, place.port, "http", client=client, proxy=self.wire.proxy)
        return Endpoint(host=place.host, port=place.port, model=ModelKey(""), library=route.library)

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
            warmup_s=self.load.warmup_seconds,
            timeout_s=self.target.timeout,
            max_errors=windows.max_errors,
            rule=answers.rule,
            objectives=answers.slo,
            goodput=answers.goodput,
            safety=answers.slo_confidence,
            pace=self.pace,
            intervals=self.load.request_intervals,
            periodic=None if periodic is None else replace(periodic, period=self.load.request_period),
            seed=self.inputs.seed,
            sequences=self.pace.num_of_sequences,
        )


Rules = Iterator[tuple[object, str]]
"""Combinations that are not allowed: true if the options have one, and the message for the user."""


def _iter_transport_rules(spec: SessionSpec) -> Rules:
    target, load, wire, kind = spec.target, spec.load, spec.wire, spec.service.service_kind
    yield (
        not (target.model or target.models or spec.service.grpc_method),
        "Failed to parse -m (model name). The value must be specified.",
    )
    yield (
        kind != "inprocess" and target.protocol not in SERVICES[kind],
        f"--service-kind {kind} is reached with -i {spec.service.protocols}",
    )
    yield (
        load.session_concurrency is not None and kind != "openai",
        "Session concurrency mode is only supported with OpenAI service kind.",
    )
    yield (
        kind == "dynamic_grpc" and not spec.inputs.input_data,
        "--service-kind dynamic_grpc: give the messages of its calls with --input-data",
    )
    # perf_analyzer checks the kind of service first
    yield load.rivals, f"Cannot use both {load.rivals} inference load modes."
    streams = target.protocol == "grpc" and wire.streaming
    yield (
        wire.streaming and not streams and kind not in ("inprocess", "openai"),
        "Streaming is only allowed with gRPC protocol and Triton C API.",
    )
    yield (
        wire.stream_per_request and not (streams and kind == "triton"),
        "--stream-per-request requires --streaming over gRPC (-i grpc)",
    )
    yield (
        wire.compression and (target.protocol != "grpc" or kind == "inprocess"),
        "Using compression algorithm is only allowed with gRPC protocol.",
    )
    for flag, chosen in (("--client", wire.client), ("--proxy", wire.proxy), ("--http2", wire.http2)):
        yield chosen and spec.in_process, f"{flag}: an engine in this process is reached without a network"
    yield wire.http2 and target.protocol != "http", "--http2 is for -i http: gRPC is HTTP/2 anyway"
    yield (
        "json" in (wire.input_tensor_format, wire.output_tensor_format)
        and not (target.protocol == "http" and kind == "triton"),
        "--input-tensor-format and --output-tensor-format json are only allowed with HTTP protocol",
    )
    yield (
        wire.request_parameter and kind not in ("triton", "inprocess"),
        f"--request-parameter: the requests of --service-kind {kind} have no parameters",
    )
    yield (
        wire.trace_settings and kind != "triton",
        f"--trace-level and its like: --service-kind {kind} has no trace settings",
    )


def _iter_load_rules(spec: SessionSpec) -> Rules:
    needs, inputs = spec.needs_files, spec.inputs
    yield (
        needs and not inputs.input_data,
        f"When using `{needs}`, you must provide a dataset using `--input-data`.",
    )
    yield (
        needs and inputs.no_file,
        f"'{inputs.no_file}' is not a file. When using `{needs}`, all paths passed to --input-data must be "
        "files.",
    )
    prompts = spec.prompts
    flag = "--output-tokens" if prompts.input_tokens is None else "--input-tokens"
    yield (
        prompts.wanted and spec.service.service_kind != "openai",
        f"{flag} requires --service-kind openai and its --endpoint, or --endpoint-type chat",
    )
    yield (
        prompts.wanted and inputs.files,
        f"{flag}: bodies in --input-data have lengths of their own",
    )
    sessions = spec.load.session_concurrency
    yield (
        "turns" in given(prompts) and sessions is None,
        "--turns requires --session-concurrency, the number of users",
    )
    yield (
        prompts.input_tokens is not None and prompts.conversations < (sessions or 0),
        f"--session-concurrency {sessions}: --prompts {prompts.prompts} of --turns {prompts.turns} make "
        f"{prompts.conversations} conversations",
    )
    yield (
        prompts.input_tokens is not None and inputs.string_data is not None,
        "--input-tokens and --string-data both make the prompt",
    )
    yield (
        prompts.wanted and prompts.input_tokens is None and inputs.string_data is None,
        "--output-tokens: give the prompt by --input-tokens or --string-data",
    )
    for name in ("max_connections", "on_late"):
        yield (
            name in given(spec.pace) and not spec.levels.kind.open_loop,
            f"{flag_of(name)} requires an open-loop load, such as --request-rate-range",
        )
    kind = spec.levels.kind
    for flag, set_, kinds in (
        ("--ramp-seconds", spec.pace.ramp_seconds, (CONCURRENCY,)),
        ("--think-time", spec.pace.think_time, (CONCURRENCY, SESSION_CONCURRENCY)),
        ("--speed", spec.pace.speed != 1, (FIXED_SCHEDULE,)),
    ):
        yield set_ and kind not in kinds, f"{flag} requires {' or '.join(each.flag for each in kinds)}"
    yield (
        spec.metrics.collect_metrics and spec.service.service_kind != "triton",
        "Server-side metric collection is only supported with Triton client backend.",
    )


def _iter_comparison_rules(spec: SessionSpec) -> Rules:
    """Yield the rules of --ab and --ab-client: they support no option of a single run, or of windows."""
    comparing, flag = spec.comparing, spec.comparing.flag
    ab, what = bool(flag), "clients" if comparing.ab_client else "servers"
    yield (
        comparing.ab and comparing.ab_client,
        "--ab compares servers, --ab-client the clients: give one of them",
    )
    yield (
        comparing.ab_client and (spec.wire.client or spec.in_process),
        "--ab-client measures by both clients, over a network: leave out --client and inprocess",
    )
    yield (
        comparing.ab_client and (spec.route.library is not None),
        "--ab-client: tpx's own client has neither HTTP/2 nor proxies, and one applies",
    )
    yield ab and spec.answers.slo, f"{flag} compares {what} at given loads; it does not search for --slo"
    yield (
        ab and (spec.levels.unbounded or spec.levels.binary),
        f"{flag} compares {what} at given loads: give the range an end, and no --binary-search",
    )
    alone = (
        "applies to levels of one server: a comparison is reported as text and by --json, --junit, --markdown"
    )
    blocks = "has no say: a block is a window of --measurement-interval, or --request-count requests"
    unfit = dict.fromkeys(["collect_metrics", "latency_threshold", "percentile"], alone)
    unfit |= dict.fromkeys(["csv", "profile_export_file", "jsonl", "html", "pdf"], alone)
    names = "stability require_stable stop_on_unstable stability_percentage max_trials"
    unfit |= dict.fromkeys(names.split(), blocks)
    unfit["dry_run"] = f"looks at one run: leave out {flag}"
    if comparing.ab:
        unfit["url"] = "names a server, and --ab has those that are measured"
        unfit["dry_run"] = "looks at one server: give it with -u instead of --ab"
    chosen = given(spec)
    for field in fields_of(SessionSpec):
        if field.name in unfit:
            yield ab and field.name in chosen, f"{flag}: {field.spellings[-1]} {unfit[field.name]}"
    for name in ("ab_blocks", "alpha", "min_effect", "undecided"):
        yield (
            name in chosen and not ab,
            f"{flag_of(name)} requires --ab URL1 URL2, --ab-client or `tpx perf compare`",
        )


def _iter_search_rules(spec: SessionSpec) -> Rules:
    load, levels, slo = spec.load, spec.levels, spec.answers.slo
    periodic, limit = load.periodic_concurrency_range is not None, spec.windows.latency_threshold
    yield (
        periodic and not (spec.target.protocol == "grpc" and spec.wire.streaming),
        "The --periodic-concurrency-range option requires bi-directional gRPC streaming.",
    )
    yield (
        periodic and spec.wire.stream_per_request,
        "--periodic-concurrency-range needs streams that carry several requests: leave out "
        "--stream-per-request",
    )
    yield (
        periodic and spec.output.profile_export_file is None,
        "Must provide --profile-export-file when using the --periodic-concurrency-range option.",
    )
    yield (
        load.warmup_seconds and load.warmup_request_count,
        "--warmup-seconds and --warmup-request-count can not both end the warm-up",
    )
    yield (
        load.warmup_seconds and levels.kind.once,
        f"--warmup-seconds needs a continuous load: {levels.kind.text} is sent once",
    )
    streamed = [each.text for each in (*slo, *spec.answers.goodput) if each.figure]
    yield (
        streamed and not spec.wire.streaming,
        f"{', '.join(streamed)}: times of streamed responses need --streaming",
    )
    yield (
        any(each.quantity == "goodput" for each in slo) and not spec.answers.goodput,
        "--slo goodput: say which requests are good, such as --goodput 'ttft<200ms,itl<40ms'",
    )
    yield slo and load.binary_search, "--slo searches the range by itself: leave out --binary-search"
    yield (
        load.binary_search and not limit,
        "The --latency-threshold cannot be 0 for binary search mode.",
    )
    yield (
        levels.unbounded and not (limit or slo),
        "The end of the search range and the latency limit can not be both 0 (or 0.0) simultaneously",
    )
