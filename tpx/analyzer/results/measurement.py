"""The nouns of a search: a variant under a load is a trial, which ends as a measurement or a failure."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

LoadKind = Literal["concurrency", "request_rate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """Load that the generator keeps up: requests in flight (or requests a second), each of `batch_size`."""

    value: int
    kind: LoadKind = "concurrency"
    batch_size: int = 1
    members: tuple["LoadPoint", ...] = ()
    """Of each of several models that are measured together; `value` is then their sum."""

    def scaled(self, value: int) -> "LoadPoint":
        """The same with another value; of several models each keeps its share of it."""
        if not self.members:
            return replace(self, value=value)
        members = tuple(m.scaled(max(1, round(m.value * value / self.value))) for m in self.members)
        return replace(self, value=sum(m.value for m in members), members=members)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Inferences in a request, of each model."""
        return tuple(load.batch_size for load in self.members or (self,))

    def __str__(self) -> str:
        if self.members:
            return " + ".join(map(str, self.members))
        text = f"{self.kind.replace('_', ' ')} {self.value}"
        return text if self.batch_size == 1 else f"{text}, batch {self.batch_size}"


def together(loads: Sequence[LoadPoint]) -> LoadPoint:
    """The load of several models that are measured together; its batch size is the least of theirs."""
    return LoadPoint(
        kind=loads[0].kind,
        value=sum(load.value for load in loads),
        batch_size=min(load.batch_size for load in loads),
        members=tuple(loads),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model configuration as a change to the model's own; no change is the default."""

    model: str
    name: str
    delta: dict[str, Any] = field(default_factory=dict)
    """JSON of the ModelConfig fields that differ, merged into the default recursively; null takes a field
    out of it."""
    members: tuple["Variant", ...] = ()
    """Variants of other models that belong to it: of an ensemble's steps, or, where `model` names several
    models (`a,b`), of those that are measured together."""

    @property
    def is_default(self) -> bool:
        return not self.delta and all(member.is_default for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A variant worked out: its config.pbtxt and the figures that tables show."""

    variant: Variant
    text: str
    """config.pbtxt without `name`, so that it fits under the model's own name and under the variant's."""
    instance_group: str
    """`5:CPU`, or `4:GPU + 1:CPU`."""
    instances: int
    max_batch_size: int
    dynamic_batching: bool
    members: tuple["Configuration", ...] = ()
    """Of the variant's members, in their order."""

    @property
    def files(self) -> tuple["Configuration", ...]:
        """Return those with a config.pbtxt: its own, unless it is of several models together, and its
        members'."""
        return self.members if "," in self.variant.model else (self, *self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One thing to measure."""

    variant: Variant
    load: LoadPoint
    round: int = 0
    """0 while searching; the final repetitions are numbered by their round, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Durations of requests, or of what lies between responses, as the client saw them over the whole
    measurement; None is not measured."""

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
    """Figures of requests with several responses: tokens of a language model, or whatever a decoupled model
    sends."""

    first: Latency
    """From the request to its first response."""
    between: Latency | None
    """Between two responses of a request; None where none had two."""
    throughput: float
    """Tokens a second, as the service counts them; responses where it counts nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBreakdown:
    """Mean time of a request in each part of the server, and in the client's own parts where known."""

    queue_ns: int | None = None
    compute_input_ns: int | None = None
    compute_infer_ns: int | None = None
    compute_output_ns: int | None = None
    client_send_recv_ns: int | None = None
    client_response_wait_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The most memory that the server and its children held during a measurement."""

    rss_bytes: int
    uss_bytes: int | None = None
    """Memory that nobody shares; None where the system does not say."""
    host_available_bytes: int | None = None
    pss_bytes: int | None = None
    """Memory with what several processes share counted once; None where the system does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One GPU during a measurement: the most memory, the mean utilization and power."""

    uuid: str
    used_bytes: int
    total_bytes: int
    utilization_percent: float | None = None
    power_w: float | None = None
    server_bytes: int | None = None
    """The most that the server's processes held of it; None where the driver does not tell them apart."""
    source: Literal["nvml", "metrics"] = "nvml"
    """Who said so: the driver of this machine, or the server's metrics page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyUse:
    """Energy that the machine used during a measurement, load generator and all; None is not known."""

    duration_ns: int
    gpu_j: float | None = None
    """Of all GPUs: by their energy counters, or their power added up."""
    cpu_j: float | None = None
    """Of the processor packages, by RAPL."""

    @property
    def watts(self) -> float | None:
        """Mean power of what is known."""
        known = [joules for joules in (self.gpu_j, self.cpu_j) if joules is not None]
        return sum(known) * 1e9 / self.duration_ns if known and self.duration_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Where the true value of a figure lies, with 95% confidence; `high` None is not known."""

    low: float
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """Other activity of the machine during a measurement."""

    load_average: float
    """Of the last minute, over all processors."""
    cores: int
    steal_percent: float
    """Of the processors' time, taken by other guests of the same host."""
    other_percent: float
    """Of the processors' time, used by neither the server nor the load generator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Result of one trial."""

    variant: str
    load: LoadPoint
    throughput: float
    """Inferences a second: requests a second times the batch size."""
    latency: Latency = field(default_factory=Latency)
    breakdown: LatencyBreakdown = field(default_factory=LatencyBreakdown)
    stable: bool = True
    note: str = ""
    """What the load generator says about the quality of this measurement, for a person."""
    requests: int = 0
    duration_ns: int = 0
    """Time the trial took, with warm-up and unstable windows."""
    memory: MemoryUse | None = None
    gpus: tuple[GpuUse, ...] = ()
    answers: ResponseFigures | None = None
    """Where requests have several responses."""
    cpu_percent: float | None = None
    """Processor time of the server's processes, in percent of one processor."""
    energy: EnergyUse | None = None
    round: int = 0
    """Of the final repetitions, from 1; 0 while searching."""
    cost_ns: int = 0
    """What the trial took with everything before it: starting a server, loading the model."""
    members: tuple["Measurement", ...] = ()
    """Of each of several models measured together; then `throughput` is their sum, latencies their mean."""
    host: HostUse | None = None
    throughput_range: Range | None = None
    """By the batches of this one measurement; None where there were too few."""
    p99_range: Range | None = None
    """In ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailure:
    """A trial that could not be measured, and why."""

    variant: str
    load: LoadPoint
    round: int = 0
    reason: str
    log_tail: tuple[str, ...] = ()
    """The last lines of the server's log, where there is one."""
    duration_ns: int = 0
    cost_ns: int = 0


Outcome = Measurement | TrialFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOnly:
    """The server with no model: what memory is not the model's."""

    memory: MemoryUse | None = None
    gpus: tuple[GpuUse, ...] = ()
    energy: EnergyUse | None = None
    """Of the idle machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A step the search took or left, and why: the search trace of the report."""

    variant: str
    text: str
