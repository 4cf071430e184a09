"""The options of one run of `tpx perf`: its groups, and the properties that depend on several of them."""

from dataclasses import dataclass, replace

from tpx.errors import UsageError
from tpx.options import group
from tpx.perf.clients.endpoint import DEFAULT_PORTS, Address, Endpoint, ServiceSpec, parse_address
from tpx.perf.clients.model import ModelKey
from tpx.perf.clients.wire import WireSpec
from tpx.perf.inputs.base import InputSpec, SequenceSpec
from tpx.perf.levels import LevelRange, PaceSpec
from tpx.perf.options.load import LoadSpec, ScenarioSpec
from tpx.perf.options.measuring import (
    DEFAULT_INTERVAL_MS,
    DEFAULT_TRIALS,
    AnswerSpec,
    ComparingSpec,
    CourseSpec,
    WindowSpec,
)
from tpx.perf.options.output import OutputSpec, ScrapeSpec
from tpx.perf.options.rules import RULES
from tpx.perf.options.target import TargetSpec, TlsSpec
from tpx.perf.settings import LevelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """One run of `tpx perf`, with perf_analyzer's spellings and messages; groups are in the order of
    the help.

    Raises UsageError if values are out of range or cannot be combined.
    """

    target: TargetSpec = group(TargetSpec, "Target")
    load: LoadSpec = group(LoadSpec, "Load")
    windows: WindowSpec = group(WindowSpec, "Measurement")
    answers: AnswerSpec = group(AnswerSpec, "Answers")
    comparing: ComparingSpec = group(ComparingSpec, "Answers")
    output: OutputSpec = group(OutputSpec, "Output")
    inputs: InputSpec = group(InputSpec, "Input data")
    pace: PaceSpec = group(PaceSpec, "Pace")
    course: CourseSpec = group(CourseSpec, "Warm-up and cool-down")
    sequences: SequenceSpec = group(SequenceSpec, "Sequences")
    metrics: ScrapeSpec = group(ScrapeSpec, "Server metrics")
    mlperf: ScenarioSpec = group(ScenarioSpec, "MLPerf scenarios")
    wire: WireSpec = group(WireSpec, "Wire")
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
        if self.mlperf.levels is not None:
            return self.mlperf.levels
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
        """Return the endpoint of a model. Raises UsageError for an invalid URL, or TLS options that do
        not apply.
        """
        address = self.parsed_address
        here = self.service.service_kind == "inprocess"
        return Endpoint(
            host=address.host,
            port=address.port,
            model=model,
            headers=self.target.header,
            tls=None if here else self.tls.settings(self.target.protocol, secure=address.secure),
            wire=self.wire,
            service=self.service,
            sessions=self.load.session_concurrency is not None,
            at_once=self.pace.poll == "busy",
        )

    @property
    def level_settings(self) -> LevelSettings:
        """Rules by which this run measures each of its levels."""
        windows, answers, periodic = self.windows, self.answers, self.load.periodic_concurrency_range
        settings = LevelSettings(
            mode=windows.measurement_mode,
            interval_ms=windows.measurement_interval or DEFAULT_INTERVAL_MS[answers.rule],
            window_requests=windows.measurement_request_count,
            stability=windows.stability_percentage / 100 if answers.ci_width is None else answers.ci_width,
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
        return self.mlperf.rules(settings)
