"""The data types of a search: a variant under a load is a trial, which ends as a measurement or a failure."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

LoadKind = Literal["concurrency", "request_rate"]
Models = tuple[str, ...]
"""The models of one search: a single one, or several that are measured together."""


def group_name(models: Models) -> str:
    """Return the name of a search's models in tables and messages: `a`, or `a,b`."""
    return ",".join(models)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """A load that is sustained: requests in flight, or requests per second, each of `batch_size`."""

    value: int
    kind: LoadKind = "concurrency"
    batch_size: int = 1
    members: tuple["LoadPoint", ...] = ()
    """Load of each of several models measured together; `value` is then their sum."""

    def scaled(self, value: int) -> "LoadPoint":
        """Return the load with another value; several models keep their shares of it."""
        if not self.members:
            return replace(self, value=value)
        members = tuple(m.scaled(max(1, round(m.value * value / self.value))) for m in self.members)
        return replace(self, value=sum(m.value for m in members), members=members)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Client batch size of each model."""
        return tuple(load.batch_size for load in self.members or (self,))

    def __str__(self) -> str:
        if self.members:
            return " + ".join(map(str, self.members))
        text = f"{self.kind.replace('_', ' ')} {self.value}"
        return text if self.batch_size == 1 else f"{text}, batch {self.batch_size}"


def together(loads: Sequence[LoadPoint]) -> LoadPoint:
    """Return the load of several models measured together, with their least batch size; or a single load."""
    if len(loads) == 1:
        return loads[0]
    return LoadPoint(
        kind=loads[0].kind,
        value=sum(load.value for load in loads),
        batch_size=min(load.batch_size for load in loads),
        members=tuple(loads),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model configuration as a change to the model's own; without a change it is the default."""

    models: Models
    name: str
    delta: dict[str, Any] = field(default_factory=dict)
    """JSON of the ModelConfig fields that differ, merged into the default; null removes a field."""
    members: tuple["Variant", ...] = ()
    """Variants of an ensemble's steps, or of models measured together."""

    @property
    def model(self) -> str:
        """The model's name, or that of the group."""
        return group_name(self.models)

    @property
    def is_group(self) -> bool:
        """True if it stands for several models, and has no configuration of its own."""
        return len(self.models) > 1

    @property
    def is_default(self) -> bool:
        return not self.delta and all(member.is_default for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The complete configuration of a variant: its config.pbtxt and the figures that tables show."""

    variant: Variant
    text: str
    """config.pbtxt without `name`, so that it is valid under the model's name and under the variant's."""
    instance_group: str
    """Instances by kind: `5:CPU`, or `4:GPU + 1:CPU`."""
    instances: int
    max_batch_size: int
    dynamic_batching: bool
    decoupled: bool = False
    """True if a request may have several responses, or none."""
    members: tuple["Configuration", ...] = ()
    """Configurations of the variant's members, in the same order."""

    @property
    def files(self) -> tuple["Configuration", ...]:
        """Configurations with a config.pbtxt: its own, unless it stands for several models, and members'."""
        return self.members if self.variant.is_group else (self, *self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One measurement to make."""

    variant: Variant
    load: LoadPoint
    round: int = 0
    """0 during the search; the final rounds are numbered from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Times of requests, or between responses, seen by the client over the measurement; None if unknown."""

    min_ns: int | None = None
    max_ns: int | None = None
    avg_ns: int | None = None
    p25_ns: int | None = None
    p50_ns: int | None = None
    p75_ns: int | None = None
    p90_ns: int | None = None
    p95_ns: int | None = None
    p99_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFigures:
    """Figures of requests with several responses: tokens of a language model, or a decoupled model's."""

    first: Latency
    """Time from the request to its first response."""
    between: Latency | None
    """Time between two responses of a request; None if no request had two."""
    throughput: float
    """Tokens per second as counted by the service, or responses per second if it counts none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBreakdown:
    """Mean time of a request in each stage of the server, and in the client's stages if known."""

    queue_ns: int | None = None
    compute_input_ns: int | None = None
    compute_infer_ns: int | None = None
    compute_output_ns: int | None = None
    client_send_recv_ns: int | None = None
    client_response_wait_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Peak memory of the server and its children during a measurement."""

    rss_bytes: int
    uss_bytes: int | None = None
    """Memory not shared with any process (USS); None if the system does not report it."""
    host_available_bytes: int | None = None
    pss_bytes: int | None = None
    """Memory with shared pages divided among their processes (PSS); None if the system does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One GPU during a measurement: peak memory, mean utilization and mean power."""

    uuid: str
    used_bytes: int
    total_bytes: int
    utilization_percent: float | None = None
    power_w: float | None = None
    server_bytes: int | None = None
    """Peak GPU memory of the server's processes; None if the driver does not attribute it."""
    source: Literal["nvml", "metrics"] = "nvml"
    """Source of the figures: the driver of this machine, or the server's metrics page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyUse:
    """Energy that the machine used during a measurement, including the load generator; None if unknown."""

    duration_ns: int
    gpu_j: float | None = None
    """Energy of all GPUs, from their energy counters or integrated from their power."""
    cpu_j: float | None = None
    """Energy of the processor packages, from RAPL."""

    @property
    def watts(self) -> float | None:
        """Mean power of the known parts."""
        known = [joules for joules in (self.gpu_j, self.cpu_j) if joules is not None]
        return sum(known) * 1e9 / self.duration_ns if known and self.duration_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The 95% confidence interval of a figure; `high` is None if unknown."""

    low: float
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """Other activity of the machine during a measurement."""

    load_average: float
    """Load average of the last minute, over all processors."""
    cores: int
    steal_percent: float
    """Share of processor time taken by other guests of the same host."""
    other_percent: float
    """Share of processor time used by neither the server nor the load generator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFigures:
    """The figures of one window of a measurement."""

    throughput: float
    latency: Latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The result of one trial."""

    variant: str
    load: LoadPoint
    throughput: float
    """Inferences per second: requests per second times the batch size."""
    latency: Latency = field(default_factory=Latency)
    breakdown: LatencyBreakdown = field(default_factory=LatencyBreakdown)
    stable: bool = True
    note: str = ""
    """The load generator's comment on the quality of the measurement, for display."""
    requests: int = 0
    duration_ns: int = 0
    """Duration of the trial, including warm-up and unstable windows."""
    memory: MemoryUse | None = None
    gpus: tuple[GpuUse, ...] = ()
    answers: ResponseFigures | None = None
    """Figures for requests with several responses, else None."""
    cpu_percent: float | None = None
    """Processor time of the server's processes, in percent of one processor."""
    energy: EnergyUse | None = None
    round: int = 0
    """Number of the final round, from 1; 0 during the search."""
    cost_ns: int = 0
    """Duration of the trial including its preparation: starting a server, loading the model."""
    members: tuple["Measurement", ...] = ()
    """One per model measured together; `throughput` is then their sum, latencies are their mean."""
    host: HostUse | None = None
    throughput_range: Range | None = None
    """Interval from the batches of this measurement; None if there were too few."""
    p99_range: Range | None = None
    """Interval in ns."""
    windows: tuple[WindowFigures, ...] = ()
    """Windows of a final round, which tell how much they scatter; none of the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailure:
    """A trial that could not be measured, with the reason."""

    variant: str
    load: LoadPoint
    round: int = 0
    reason: str
    log_tail: tuple[str, ...] = ()
    """Last lines of the server's log, if there is one."""
    duration_ns: int = 0
    cost_ns: int = 0


Outcome = Measurement | TrialFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOnly:
    """The server without models: memory and power that belong to no model."""

    memory: MemoryUse | None = None
    gpus: tuple[GpuUse, ...] = ()
    energy: EnergyUse | None = None
    """Energy of the idle machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A step that the search took or skipped, with the reason; these form the report's search trace."""

    variant: str
    text: str
