"""The data types of a search: a variant under a load is a trial, which ends as a measurement or a failure."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tpx.perf.results import LevelResult, Verdict, Window

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
class Measurement:
    """The result of one trial: that of its level, and what the machine used meanwhile."""

    variant: str
    load: LoadPoint
    result: LevelResult
    """The level without its batches; of models measured together, summed throughputs and mean latencies."""
    duration_ns: int = 0
    """Duration of the trial, including warm-up and unstable windows."""
    memory: MemoryUse | None = None
    gpus: tuple[GpuUse, ...] = ()
    cpu_percent: float | None = None
    """Processor time of the server's processes, in percent of one processor."""
    energy: EnergyUse | None = None
    round: int = 0
    """Number of the final round, from 1; 0 during the search."""
    cost_ns: int = 0
    """Duration of the trial including its preparation: starting a server, loading the model."""
    members: tuple["Measurement", ...] = ()
    """One per model measured together."""
    host: HostUse | None = None

    @property
    def throughput(self) -> float:
        """Inferences per second: requests per second times the batch size."""
        return self.result.throughput_infer_per_s

    @property
    def stable(self) -> bool:
        return self.result.stable

    @property
    def p99_ns(self) -> int | None:
        """The p99 latency; None if unknown."""
        return None if self.result.latency is None else self.result.latency.percentiles_ns.get(99.0)

    @property
    def mean_ns(self) -> int | None:
        return None if self.result.latency is None else self.result.latency.mean_ns

    @property
    def windows(self) -> tuple[Window, ...]:
        """Windows of a final round, which tell how much they scatter; none of the search."""
        return self.result.windows

    @property
    def note(self) -> str:
        """Reasons to doubt the figures, for the user."""
        if self.members:
            return "; ".join(f"{m.variant}: {m.note}" for m in self.members if m.note)
        failed = f"{self.result.failed} requests failed" if self.result.failed else ""
        return "; ".join(filter(None, (_describe_doubt(self.result), failed, *self.result.guesses)))


def _describe_doubt(level: LevelResult) -> str:
    """Return why a level's figures are uncertain; empty if they are stable."""
    found = level.estimates.throughput if level.estimates else None
    if level.verdict is not Verdict.UNSTABLE or not found or found.high is None or not found.value:
        return "" if level.stable else level.reason
    half = (found.high - found.low) / 2 / found.value
    return (
        f"its throughput was known to \u00b1{half:.0%} only; try a longer "
        "--measurement-interval or more --max-trials"
    )


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
