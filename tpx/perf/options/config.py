"""All that `tpx perf` can be told: the groups of options as one, and the rules between them."""

from dataclasses import dataclass, replace

from tpx.errors import UsageError
from tpx.perf.clients.endpoint import DEFAULT_PORTS, Address, ServiceSettings, WireSettings, parse_address
from tpx.perf.levels import LevelRange
from tpx.perf.options.answers import AnswerOptions
from tpx.perf.options.course import CourseOptions
from tpx.perf.options.data import DataOptions
from tpx.perf.options.load import LoadOptions
from tpx.perf.options.measurement import DEFAULT_INTERVAL_MS, DEFAULT_TRIALS, MeasurementOptions
from tpx.perf.options.metrics import MetricsOptions
from tpx.perf.options.output import OutputOptions
from tpx.perf.options.pace import PaceOptions
from tpx.perf.options.scenario import ScenarioOptions
from tpx.perf.options.security import TlsOptions
from tpx.perf.options.sequences import SequenceOptions
from tpx.perf.options.service import ServiceOptions
from tpx.perf.options.target import TargetOptions
from tpx.perf.options.wire import WireOptions
from tpx.perf.plan import LoadPlan
from tpx.perf.settings import LevelSettings

_OF_COMPARISONS = frozenset({"--json", "--junit", "--markdown"})


@dataclass(frozen=True, kw_only=True)
class PerfConfig(
    TlsOptions,
    ServiceOptions,
    WireOptions,
    ScenarioOptions,
    MetricsOptions,
    SequenceOptions,
    CourseOptions,
    PaceOptions,
    DataOptions,
    OutputOptions,
    AnswerOptions,
    MeasurementOptions,
    LoadOptions,
    TargetOptions,
):
    """One run of `tpx perf`, with perf_analyzer's spellings and messages; raises UsageError where values are
    out of range or do not go together.

    The last base is the first group of the help.
    """

    def __post_init__(self) -> None:
        if not self.self_test:
            self.check_target()
        self.check_service(self.protocol)
        if self.session_concurrency is not None and self.service_kind != "openai":
            raise UsageError("Session concurrency mode is only supported with OpenAI service kind.")
        self.check_wire(self.protocol, self.service_kind)
        if self.service_kind != "inprocess":
            self.tls(self.protocol, secure=self.parsed_address.secure)
        self.check_load()
        self.check_measurement()
        self.check_answers()
        self.check_data(needing=self._needs_files)
        self.check_sequences()
        self.check_pace(open_loop=self.levels.kind.open_loop)
        self.check_metrics(self.service_kind)
        self.check_output()
        self._check_ab()
        if self.periodic_concurrency_range is not None and not (self.protocol == "grpc" and self.streaming):
            raise UsageError(
                "The --periodic-concurrency-range option requires bi-directional gRPC streaming."
            )
        if self.periodic_concurrency_range is not None and self.stream_per_request:
            raise UsageError(
                "--periodic-concurrency-range needs streams that carry several requests: leave out "
                "--stream-per-request"
            )
        if self.periodic_concurrency_range is not None and self.profile_export_file is None:
            raise UsageError(
                "Must provide --profile-export-file when using the --periodic-concurrency-range option."
            )
        self.check_course(self.levels, self.warmup_request_count)
        self.check_scenario(super().levels, self.request_count or 0, self.request_distribution)
        if not self.slo:
            self.check_search_limit(self.latency_threshold)
        elif self.binary_search:
            raise UsageError("--slo searches the range by itself: leave out --binary-search")

    def _check_ab(self) -> None:
        """Raise UsageError for what says something of one server, and of windows that blocks do not have."""
        if not self.ab:
            return
        if self.levels.unbounded or self.levels.binary:
            raise UsageError(
                "--ab compares servers at given loads: give the range an end, and no --binary-search"
            )
        alone = (
            "is of one server's levels: a comparison is told in its text and by --json, --junit, --markdown"
        )
        blocks = "has no say: a block is a window of --measurement-interval, or --request-count requests"
        unfit: dict[str, tuple[object, str]] = {
            "-u": (self.url, "names a server, and --ab has those that are measured"),
            "--dry-run": (self.dry_run, "looks at one server: give it with -u instead of --ab"),
            "--knee": (self.knee, alone),
            "--explain": (self.explain, alone),
            "--collect-metrics": (self.collect_metrics, alone),
            "--stability": (self.stability, blocks),
            "--ci-width": (self.ci_width, blocks),
            "--require-stable": (self.require_stable, blocks),
            "--stop-on-unstable": (self.stop_on_unstable, blocks),
            "-s": (self.stability_percentage != PerfConfig.stability_percentage, blocks),
            "-r": (self.max_trials, blocks),
            "-l": (self.latency_threshold, alone),
            "--percentile": (self.percentile != PerfConfig.percentile, alone),
        }
        unfit |= {flag: (True, alone) for flag, _ in self.files if flag not in _OF_COMPARISONS}
        for flag, (given, why) in unfit.items():
            if given:
                raise UsageError(f"--ab: {flag} {why}")

    @property
    def levels(self) -> LevelRange:
        """What is measured; with --slo and no range, from 1 upwards for as long as the objectives are met."""
        levels = super().levels
        own = self.scenario_levels()
        if own is not None:
            if levels.given:
                raise UsageError(
                    f"--scenario {self.scenario} is a load of its own: leave out {levels.kind.flag}"
                )
            return own
        return LevelRange(start=1, end=0) if self.slo and not levels.given else levels

    @property
    def _needs_files(self) -> str:
        """The option that takes its whole load from the data's files; empty where none does."""
        if self.session_concurrency is not None:
            return "--session-concurrency"
        return "--fixed-schedule" if self.fixed_schedule else ""

    @property
    def wire(self) -> WireSettings:
        """How requests are put on the wire; a client that polls leaves no write to the end of a turn."""
        return replace(super().wire, at_once=self.poll == "busy")

    @property
    def service(self) -> ServiceSettings:
        """What the connections are told, also whether requests are turns of conversations."""
        return replace(super().service, sessions=self.session_concurrency is not None)

    @property
    def address(self) -> str:
        """host:port of the server, the default of the service and protocol where no URL was given."""
        if self.service_kind == "inprocess":
            return "in this process"
        return self.url or f"localhost:{DEFAULT_PORTS[self.service_kind][self.protocol]}"

    @property
    def parsed_address(self) -> Address:
        """Where the server is. Raises UsageError where the URL says something else."""
        if self.service_kind == "inprocess":
            return Address("localhost", 0)
        return parse_address(self.address, self.protocol, self.service_kind)

    @property
    def level_settings(self) -> LevelSettings:
        """The rules by which this run measures each of its levels."""
        settings = LevelSettings(
            mode=self.measurement_mode,
            interval_ms=self.measurement_interval or DEFAULT_INTERVAL_MS[self.rule],
            window_requests=self.measurement_request_count,
            stability=self.stability_percentage / 100 if self.ci_width is None else self.ci_width,
            max_windows=self.max_trials or DEFAULT_TRIALS[self.rule],
            latency_limit_ms=self.latency_threshold,
            percentile=None if self.percentile == -1 else self.percentile,
            request_count=self.request_count or 0,
            warmup_requests=self.warmup_request_count,
            warmup_s=self.warmup_seconds,
            timeout_s=self.timeout,
            max_errors=self.max_errors,
            rule=self.rule,
            objectives=self.slo,
            safety=self.slo_confidence,
            poll=self.poll,
            load=self.load_plan,
        )
        return self.scenario_rules(settings)

    @property
    def load_plan(self) -> LoadPlan:
        """How each level's load is put on."""
        periodic = self.periodic_concurrency_range
        return LoadPlan(
            arrivals=self.arrivals,
            intervals=self.request_intervals,
            periodic=None if periodic is None else replace(periodic, period=self.request_period),
            seed=self.seed,
            late=self.on_late,
            max_connections=self.max_connections,
            sequences=self.num_of_sequences,
            serial=self.serial_sequences,
            workers=self.workers,
            most_workers=self.max_threads,
        )
