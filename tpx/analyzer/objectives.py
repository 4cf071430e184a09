"""Decide which measurement is better: metrics by tag, scores, constraints and their texts, and the ranking
of configurations.

Scores are sums of logarithms, so that A over B and B over C add up to A over C; for one objective the
order is Model Analyzer's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from tpx.analyzer.results.goals import Constraint, Goals
from tpx.analyzer.results.measurement import EnergyUse, Measurement, MemoryUse, Models
from tpx.analyzer.results.pooled import Mean, interval_of, repeated
from tpx.errors import UsageError
from tpx.options import nearest
from tpx.perf.objectives import Compliance
from tpx.perf.results import ClientTimes, LevelResult
from tpx.perf.statistics.intervals import Interval
from tpx.perf.statistics.summaries import LatencySummary
from tpx.report.digits import in_unit, rounded

if TYPE_CHECKING:
    from tpx.analyzer.results.run import ModelRun, VariantRun


NS_PER_MS = 1e6
BYTES_PER_MB = 1e6
LEAST = {"ms": 1e-3, "%": 0.1}
"""Floor of a figure by unit: queue times below 1 us compare as equal, as do utilizations below 0.1%."""


@dataclass(frozen=True, slots=True)
class MeasuredMetric:
    """A figure of a measurement, with Model Analyzer's tag and table header."""

    tag: str
    header: str
    better: Literal["higher", "lower"]
    value: Callable[[Measurement], float | None]

    @property
    def name(self) -> str:
        """The header without its unit."""
        return self.header.partition(" (")[0]

    @property
    def unit(self) -> str:
        return self.header.partition(" (")[2].removesuffix(")")

    def interval(self, measurement: Measurement) -> Interval | None:
        """Return the 95% confidence interval of the true value, from a mean's samples or from batches."""
        estimates = measurement.result.estimates
        if self.tag == "perf_throughput":
            return None if estimates is None else estimates.throughput
        if isinstance(measurement, Mean):
            return interval_of([v for m in measurement.samples if (v := self.value(m)) is not None])
        p99 = estimates.at(99.0) if estimates and self.tag == "perf_latency_p99" else None
        if p99 is None:
            return None
        found = p99.interval
        return replace(
            found, value=found.value / NS_PER_MS, low=found.low / NS_PER_MS, high=_to_ms(found.high)
        )


def _to_ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_MS


def _to_mb(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / BYTES_PER_MB


def ram_mb(memory: MemoryUse | None) -> float | None:
    """Return the server's private memory (USS), or its resident memory (RSS) if that is unknown."""
    if memory is None:
        return None
    return _to_mb(memory.rss_bytes if memory.uss_bytes is None else memory.uss_bytes)


def gpu_mb(measurement: Measurement) -> float | None:
    """Return the memory used on all GPUs; None without a GPU."""
    return sum(gpu.used_bytes for gpu in measurement.gpus) / BYTES_PER_MB if measurement.gpus else None


def joules_per_inference(measurement: Measurement, idle: EnergyUse | None = None) -> float | None:
    """Return mean power, of the whole machine or above `idle`, per inference a second; None if unknown."""
    watts = None if measurement.energy is None else measurement.energy.watts
    if watts is None or measurement.throughput <= 0:
        return None
    if idle is not None and idle.watts is not None:
        watts = max(0.0, watts - idle.watts)
    return watts / measurement.throughput


def _read_gpu(name: str) -> Callable[[Measurement], float | None]:
    """Return a reader that averages a figure over the GPUs that report it."""

    def value(measurement: Measurement) -> float | None:
        known = [v for gpu in measurement.gpus if (v := getattr(gpu, name)) is not None]
        return sum(known) / len(known) if known else None

    return value


def _read_ms(
    find: Callable[[LevelResult], LatencySummary | None], name: str
) -> Callable[[Measurement], float | None]:
    """Return a reader of one of `_STATISTICS` of some durations; None without these."""

    def value(measurement: Measurement) -> float | None:
        found = find(measurement.result)
        if found is None:
            return None
        named = {"avg": found.mean_ns, "min": found.min_ns, "max": found.max_ns}
        return _to_ms(named[name] if name in named else found.percentiles_ns.get(float(name[1:])))

    return value


_read_latency = partial(_read_ms, attrgetter("latency"))


def _read_stage(name: str) -> Callable[[Measurement], float | None]:
    """Return a reader of the mean time of a stage in the server; None if it was not counted."""

    def value(measurement: Measurement) -> float | None:
        server = measurement.result.server
        return None if server is None or not server.success_count else _to_ms(server.mean_ns(name))

    return value


def _read_client(measure: Callable[[ClientTimes], int]) -> Callable[[Measurement], float | None]:
    def value(measurement: Measurement) -> float | None:
        times = measurement.result.client
        return None if times is None else _to_ms(measure(times))

    return value


def _tokens_per_s(measurement: Measurement) -> float | None:
    """Return the tokens that the service counted per second, or else the responses; None for one response."""
    streaming = measurement.result.streaming
    return None if streaming is None else streaming.units_per_s or streaming.responses_per_s


_STATISTICS = ("min", "max", "avg", "p25", "p50", "p75", "p90", "p95", "p99")
_TABLE: tuple[tuple[str, str, Literal["higher", "lower"], Callable[[Measurement], float | None]], ...] = (
    ("perf_throughput", "Throughput (infer/sec)", "higher", lambda m: m.throughput),
    ("perf_latency_avg", "Avg Latency (ms)", "lower", _read_latency("avg")),
    *(
        (f"perf_latency_{p}", f"{p} Latency (ms)", "lower", _read_latency(p))
        for p in ("p50", "p90", "p95", "p99")
    ),
    (
        "perf_client_send_recv",
        "Client Send/Recv (ms)",
        "lower",
        _read_client(lambda c: c.send_ns + c.receive_ns),
    ),
    ("perf_client_response_wait", "Response Wait Time (ms)", "lower", _read_client(lambda c: c.wait_ns)),
    ("perf_server_queue", "Server Queue time (ms)", "lower", _read_stage("queue")),
    ("perf_server_compute_input", "Server Compute Input time (ms)", "lower", _read_stage("compute_input")),
    ("perf_server_compute_infer", "Server Compute Infer time (ms)", "lower", _read_stage("compute_infer")),
    ("perf_server_compute_output", "Server Compute Output time (ms)", "lower", _read_stage("compute_output")),
    *(
        (f"{tag}_{each}", f"{each} {header} (ms)", "lower", _read_ms(find, each))
        for tag, header, find in (
            (
                "inter_token_latency",
                "Inter Token Latency",
                lambda r: r.streaming and r.streaming.inter_response,
            ),
            (
                "time_to_first_token",
                "Time To First Token",
                lambda r: r.streaming and r.streaming.first_response,
            ),
        )
        for each in _STATISTICS
    ),
    ("output_token_throughput", "Output Token Throughput (infer/sec)", "higher", _tokens_per_s),
    ("energy_per_inference", "Energy (J/infer)", "lower", joules_per_inference),
    ("cpu_utilization", "Server CPU Utilization (%)", "lower", lambda m: m.cpu_percent),
    ("cpu_used_ram", "RAM Usage (MB)", "lower", lambda m: ram_mb(m.memory)),
    (
        *("cpu_available_ram", "RAM Available (MB)", "higher"),
        lambda m: None if m.memory is None else _to_mb(m.memory.host_available_bytes),
    ),
    ("gpu_used_memory", "GPU Memory Usage (MB)", "lower", gpu_mb),
    (
        *("gpu_free_memory", "GPU Memory Available (MB)", "higher"),
        lambda m: _to_mb(sum(gpu.total_bytes - gpu.used_bytes for gpu in m.gpus)) if m.gpus else None,
    ),
    ("gpu_utilization", "GPU Utilization (%)", "higher", _read_gpu("utilization_percent")),
    ("gpu_power_usage", "GPU Power Usage (W)", "lower", _read_gpu("power_w")),
)
METRICS = {entry[0]: MeasuredMetric(*entry) for entry in _TABLE}

COLUMNS: Mapping[str, str] = {
    "model_name": "Model",
    "gpu_uuid": "GPU UUID",
    "batch_size": "Batch",
    "concurrency": "Concurrency",
    "request_rate": "Request Rate",
    "model_config_path": "Model Config Path",
    "instance_group": "Instance Group",
    "max_batch_size": "Max Batch Size",
    "satisfies_constraints": "Satisfies Constraints",
    "gpu_total_memory": "GPU Memory Available (MB)",
}
"""Columns of Model Analyzer's tables that are not metrics: tag -> header."""

BACKEND_PARAMETER = "backend_parameter/"
"""Prefix of the tag of a parameter from a configuration's `parameters`."""


def metric(tag: str) -> MeasuredMetric:
    """Return the metric with this tag. Raises UsageError that suggests the closest known tag."""
    found = METRICS.get(tag)
    if found is None:
        raise UsageError(f"unknown metric '{tag}'{nearest(tag, METRICS)}")
    return found


def score(measurement: Measurement, goals: Goals) -> float:
    """Return the score of a measurement; higher is better.

    The difference of two scores is the logarithm of how many times better one is. Weights are relative,
    both among objectives and among models measured together. A measurement that lacks an objective's
    figure ranks below all that have it.
    """
    if measurement.members:
        weights = [goals.weight_of(model_of(member)) for member in measurement.members]
        scores = [score(member, own) for member, own in _split_by_model(measurement, goals)]
        return sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights)
    total = 0.0
    for objective in goals.objectives:
        measured = metric(objective.tag)
        value = measured.value(measurement)
        if value is None:
            return -math.inf
        value = max(value, LEAST.get(measured.unit, 1e-9))
        total += objective.weight * math.log(value) * (1 if measured.better == "higher" else -1)
    return total / sum(objective.weight for objective in goals.objectives)


def window_scores(measurement: Measurement, goals: Goals) -> list[float]:
    """Return the score of each window of a measurement; its own score if its windows are unknown.

    Figures that are not known by window, such as memory, are those of the measurement.
    """
    members = measurement.members
    count = min((len(member.windows) for member in members), default=len(measurement.windows))
    parts = (
        replace(measurement, members=tuple(_cut_window(member, number) for member in members))
        if members
        else _cut_window(measurement, number)
        for number in range(count)
    )
    return [score(part, goals) for part in parts] or [score(measurement, goals)]


def _cut_window(measurement: Measurement, number: int) -> Measurement:
    window, result = measurement.windows[number], measurement.result
    result = replace(result, throughput_infer_per_s=window.throughput_infer_per_s, latency=window.latency)
    return replace(measurement, result=result)


def unmeasured(measurement: Measurement, goals: Goals) -> tuple[str, ...]:
    """Return the tags of objectives that were not measured, which leaves the measurement without a score."""
    lacking = (
        objective.tag
        for part, own in _split_by_model(measurement, goals)
        for objective in own.objectives
        if metric(objective.tag).value(part) is None
    )
    return tuple(dict.fromkeys(lacking))


def gain_percent(measurement: Measurement, baseline: Measurement, goals: Goals) -> float | None:
    """Return the gain of the first over the second on the objectives, in percent; None without a figure."""
    difference = score(measurement, goals) - score(baseline, goals)
    return math.expm1(difference) * 100 if math.isfinite(difference) else None


def failure_percent(measurement: Measurement, goals: Goals) -> float:
    """Return by how many percent all constraints, of every model, are missed in total; 0 if none is."""
    return sum(
        constraint.failure_percent(metric(constraint.tag).value(part))
        for part, own in _split_by_model(measurement, goals)
        for constraint in own.constraints
    )


def satisfies(measurement: Measurement, goals: Goals) -> bool:
    """Return True if the measurement satisfies every constraint."""
    return failure_percent(measurement, goals) == 0


def compliance_of(measurement: Measurement, goals: Goals) -> Compliance:
    """Return the compliance with all constraints, which is that of the worst."""
    found = set()
    for part, own in _split_by_model(measurement, goals):
        for constraint in own.constraints:
            measured = metric(constraint.tag)
            found.add(constraint.compliance(measured.value(part), measured.interval(part)))
    worst = (Compliance.VIOLATED, Compliance.UNDECIDED)
    return next((each for each in worst if each in found), Compliance.MET)


def _split_by_model(measurement: Measurement, goals: Goals) -> list[tuple[Measurement, Goals]]:
    """Return the measurements judged separately, each with its goals: one per model measured together."""
    members = [(member, goals.of(model_of(member))) for member in measurement.members]
    return members or [(measurement, goals)]


def model_of(member: Measurement) -> str:
    """Return the model's name from its variant's, `MODEL_config_N`; it may contain `_config_` itself."""
    return member.variant.rpartition("_config_")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedVariant:
    """A configuration with its measurements under each load, those within the constraints first."""

    run: "VariantRun"
    passing: tuple[Measurement, ...]
    failing: tuple[Measurement, ...]
    figures: Measurement
    """Mean of its final rounds if it satisfies the constraints, or the best that does, or the closest."""
    satisfies: bool
    """True if the figures satisfy the constraints at face value; `compliance` adds the uncertainty."""
    compliance: Compliance

    @property
    def name(self) -> str:
        return self.run.variant.name

    @property
    def ordered(self) -> tuple[Measurement, ...]:
        return self.passing + self.failing

    @property
    def by_load(self) -> tuple[Measurement, ...]:
        """Return the measurements by batch size, then by load: the order of every table's rows."""
        return tuple(sorted(self.ordered, key=lambda m: (m.load.batch_size, m.load.value)))

    @property
    def settled(self) -> Mean | None:
        """The figures if they are the mean of final rounds, else None."""
        return self.figures if repeated(self.figures) else None

    @property
    def rounds(self) -> frozenset[int]:
        """Numbers of the final rounds under the load of the figures."""
        return frozenset(m.round for m in self.run.repetitions if m.load == self.figures.load)


def rank(model: "ModelRun", goals: Goals) -> tuple[RankedVariant, ...]:
    """Return the measured configurations from best to worst; ties keep the order of the search.

    Configurations that satisfy the constraints come first, by score; the others follow by how little
    they miss. Remeasured configurations rank above those that were not, except a better default: the best
    of many single measurements is biased upward.
    """
    goals = goals.of(*model.models)
    ranked = [_rank_points(variant, goals) for variant in model.measured]
    passing = [r for r in ranked if r.satisfies]
    failing = [r for r in ranked if not r.satisfies]
    finalists = [score(r.figures, goals) for r in passing if r.settled and not r.run.variant.is_default]

    def place(ranked: RankedVariant) -> tuple[bool, bool, float]:
        own, default = score(ranked.figures, goals), ranked.run.variant.is_default
        # the default is always remeasured: below all other finalists, its figures alone rank it
        final = ranked.settled is not None
        if default and finalists and ranked.run.repetitions:
            final = own >= min(finalists) if final else own > max(finalists)
        return not final, ranked.compliance is not Compliance.MET, -own

    passing.sort(key=place)
    failing.sort(key=lambda r: failure_percent(r.figures, goals))
    return tuple(passing + failing)


def _rank_points(variant: "VariantRun", goals: Goals) -> RankedVariant:
    passing = [m for m in variant.points if satisfies(m, goals)]
    failing = [m for m in variant.points if not satisfies(m, goals)]
    passing.sort(
        key=lambda m: (not repeated(m), compliance_of(m, goals) is not Compliance.MET, -score(m, goals))
    )
    failing.sort(key=lambda m: (not repeated(m), failure_percent(m, goals)))
    figures = (*passing, *failing)[0]
    return RankedVariant(
        run=variant,
        passing=tuple(passing),
        failing=tuple(failing),
        figures=figures,
        satisfies=satisfies(figures, goals),
        compliance=compliance_of(figures, goals),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConstraint:
    """A constraint and the model it applies to."""

    constraint: Constraint
    model: str = ""
    """Model that the constraint applies to, if several are measured together; otherwise empty."""

    def value(self, measurement: Measurement) -> float | None:
        """Return the constrained figure, or None if it was not measured."""
        return metric(self.constraint.tag).value(self._select_member(measurement))

    def _select_member(self, measurement: Measurement) -> Measurement:
        return next((m for m in measurement.members if model_of(m) == self.model), measurement)

    def compliance(self, measurement: Measurement) -> Compliance:
        """Return whether the limit is met; undecided if the confidence interval contains it."""
        part, measured = self._select_member(measurement), metric(self.constraint.tag)
        return self.constraint.compliance(measured.value(part), measured.interval(part))

    def __str__(self) -> str:
        """Return `p99 latency of at most 10 ms`, followed by ` for a` if the constraint names a model."""
        measured, word = metric(self.constraint.tag), {"max": "at most", "min": "at least"}
        text = f"{in_words(self.constraint.tag)} of {word[self.constraint.bound]} {self.constraint.limit:g}"
        return f"{text} {measured.unit}".rstrip() + (f" for {self.model}" if self.model else "")

    def miss(self, measurement: Measurement) -> str:
        """Return `p99 latency 12.4 ms, 24% over`, or an empty string if the constraint is satisfied."""
        value = self.value(measurement)
        if self.constraint.satisfied_by(value):
            return ""
        whose = f"{self.model}: " if self.model else ""
        if value is None:
            return f"{whose}{in_words(self.constraint.tag)} not measured"
        side = "over" if self.constraint.bound == "max" else "under"
        percent, measured = self.constraint.failure_percent(value), metric(self.constraint.tag)
        share = f"{percent:.0f}" if percent >= 1 else rounded(percent)
        return f"{whose}{in_words(self.constraint.tag)} {shown(measured, value)}, {share}% {side}"


def limits_of(goals: Goals, models: Models) -> tuple[ModelConstraint, ...]:
    """Return the constraints of a model, or of each of several that are measured together."""
    return tuple(
        ModelConstraint(constraint=c, model=name if len(models) > 1 else "")
        for name in models
        for c in goals.of(name).constraints
    )


def describe_limits(limits: Sequence[ModelConstraint]) -> str:
    """Return `p99 latency of at most 10 ms and throughput of at least 50 infer/sec`."""
    return " and ".join(map(str, limits))


def describe_misses(measurement: Measurement, limits: Sequence[ModelConstraint]) -> str:
    """Return `p99 latency 12.4 ms, 24% over` for the constraints that the measurement violates."""
    return "; ".join(text for limit in limits if (text := limit.miss(measurement)))


def shown(measured: MeasuredMetric, value: float) -> str:
    """Return a figure with its unit, rounded for display."""
    return in_unit(value, measured.unit.replace("/sec", "/s"))


def in_words(tag: str) -> str:
    """Return a metric's name as it is written within a sentence."""
    name = metric(tag).name
    return name if name[:3].isupper() else name[0].lower() + name[1:].lower()
