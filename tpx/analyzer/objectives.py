"""Which measurement is better: metrics by their tag, scores, constraints, and the ranking of configurations.

Scores are sums of logarithms, so that A over B and B over C add up to A over C; for one objective the order
is Model Analyzer's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tpx.analyzer.results.costs import joules_per_inference
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Answers, Measurement, MemoryUse, Spread
from tpx.analyzer.results.run import ModelRun, VariantRun
from tpx.errors import UsageError
from tpx.options import nearest

NS_PER_MS = 1e6
BYTES_PER_MB = 1e6
LEAST = {"ms": 1e-3, "%": 0.1}
"""By unit, the least that a figure counts as: two queues below a microsecond are alike, and so are two GPUs
of which less than a thousandth is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure of a measurement, under the tag and the header that Model Analyzer gives it."""

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


def _ms(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_MS


def ram_mb(memory: MemoryUse | None) -> float | None:
    """What the server holds for itself alone, or all that is resident where that is not known."""
    if memory is None:
        return None
    return (memory.rss_bytes if memory.uss_bytes is None else memory.uss_bytes) / BYTES_PER_MB


def _ram_left_mb(measurement: Measurement) -> float | None:
    if measurement.memory is None or measurement.memory.host_available_bytes is None:
        return None
    return measurement.memory.host_available_bytes / BYTES_PER_MB


def _gpu_sum_mb(measurement: Measurement, value: Callable[[int, int], int]) -> float | None:
    """Memory is summed over GPUs."""
    if not measurement.gpus:
        return None
    return sum(value(gpu.used_bytes, gpu.total_bytes) for gpu in measurement.gpus) / BYTES_PER_MB


def _gpu_mean(values: Sequence[float | None]) -> float | None:
    """Utilization and power are averaged over the GPUs that report them."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


_STATISTICS = ("min", "max", "avg", "p25", "p50", "p75", "p90", "p95", "p99")
_TOKEN_KINDS: tuple[tuple[str, str, Callable[[Answers], Spread | None]], ...] = (
    ("inter_token_latency", "Inter Token Latency", lambda answers: answers.between),
    ("time_to_first_token", "Time To First Token", lambda answers: answers.first),
)


def _token_metric(tag: str, header: str, spread: Callable[[Answers], Spread | None], name: str) -> Metric:
    """Milliseconds of one statistic of what happens between responses, or before the first."""

    def value(measurement: Measurement) -> float | None:
        found = None if measurement.answers is None else spread(measurement.answers)
        return None if found is None else _ms(getattr(found, f"{name}_ns"))

    return Metric(tag=f"{tag}_{name}", header=f"{name} {header} (ms)", better="lower", value=value)


METRICS: dict[str, Metric] = {
    metric.tag: metric
    for metric in (
        Metric(
            tag="perf_throughput",
            header="Throughput (infer/sec)",
            better="higher",
            value=lambda m: m.throughput,
        ),
        Metric(
            tag="perf_latency_avg",
            header="Avg Latency (ms)",
            better="lower",
            value=lambda m: _ms(m.latency.avg_ns),
        ),
        Metric(
            tag="perf_latency_p50",
            header="p50 Latency (ms)",
            better="lower",
            value=lambda m: _ms(m.latency.p50_ns),
        ),
        Metric(
            tag="perf_latency_p90",
            header="p90 Latency (ms)",
            better="lower",
            value=lambda m: _ms(m.latency.p90_ns),
        ),
        Metric(
            tag="perf_latency_p95",
            header="p95 Latency (ms)",
            better="lower",
            value=lambda m: _ms(m.latency.p95_ns),
        ),
        Metric(
            tag="perf_latency_p99",
            header="p99 Latency (ms)",
            better="lower",
            value=lambda m: _ms(m.latency.p99_ns),
        ),
        Metric(
            tag="perf_client_send_recv",
            header="Client Send/Recv (ms)",
            better="lower",
            value=lambda m: _ms(m.breakdown.client_send_recv_ns),
        ),
        Metric(
            tag="perf_client_response_wait",
            header="Response Wait Time (ms)",
            better="lower",
            value=lambda m: _ms(m.breakdown.client_response_wait_ns),
        ),
        Metric(
            tag="perf_server_queue",
            header="Server Queue time (ms)",
            better="lower",
            value=lambda m: _ms(m.breakdown.queue_ns),
        ),
        Metric(
            tag="perf_server_compute_input",
            header="Server Compute Input time (ms)",
            better="lower",
            value=lambda m: _ms(m.breakdown.compute_input_ns),
        ),
        Metric(
            tag="perf_server_compute_infer",
            header="Server Compute Infer time (ms)",
            better="lower",
            value=lambda m: _ms(m.breakdown.compute_infer_ns),
        ),
        Metric(
            tag="perf_server_compute_output",
            header="Server Compute Output time (ms)",
            better="lower",
            value=lambda m: _ms(m.breakdown.compute_output_ns),
        ),
        *(_token_metric(*kind, statistic) for kind in _TOKEN_KINDS for statistic in _STATISTICS),
        Metric(
            tag="output_token_throughput",
            header="Output Token Throughput (infer/sec)",
            better="higher",
            value=lambda m: None if m.answers is None else m.answers.throughput,
        ),
        Metric(
            tag="energy_per_inference",
            header="Energy (J/infer)",
            better="lower",
            value=joules_per_inference,
        ),
        Metric(
            tag="cpu_utilization",
            header="Server CPU Utilization (%)",
            better="lower",
            value=lambda m: m.cpu_percent,
        ),
        Metric(tag="cpu_used_ram", header="RAM Usage (MB)", better="lower", value=lambda m: ram_mb(m.memory)),
        Metric(tag="cpu_available_ram", header="RAM Available (MB)", better="higher", value=_ram_left_mb),
        Metric(
            tag="gpu_used_memory",
            header="GPU Memory Usage (MB)",
            better="lower",
            value=lambda m: _gpu_sum_mb(m, lambda used, _: used),
        ),
        Metric(
            tag="gpu_free_memory",
            header="GPU Memory Available (MB)",
            better="higher",
            value=lambda m: _gpu_sum_mb(m, lambda used, total: total - used),
        ),
        Metric(
            tag="gpu_utilization",
            header="GPU Utilization (%)",
            better="higher",
            value=lambda m: _gpu_mean([g.utilization_percent for g in m.gpus]),
        ),
        Metric(
            tag="gpu_power_usage",
            header="GPU Power Usage (W)",
            better="lower",
            value=lambda m: _gpu_mean([g.power_w for g in m.gpus]),
        ),
    )
}


def metric(tag: str) -> Metric:
    """The metric of a tag; UsageError with the nearest known tag."""
    found = METRICS.get(tag)
    if found is None:
        raise UsageError(f"unknown metric '{tag}'{nearest(tag, METRICS)}")
    return found


def score(measurement: Measurement, goals: Goals) -> float:
    """Higher is better; the difference of two scores is the logarithm of how many times better one is.

    Weights count relative to each other, those of objectives and those of models measured together. A
    measurement that lacks an objective's figure ranks below all that have it.
    """
    if measurement.members:
        weights = [goals.weight_of(model_of(member)) for member in measurement.members]
        scores = [score(member, goals.of(model_of(member))) for member in measurement.members]
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


def unmeasured(measurement: Measurement, goals: Goals) -> tuple[str, ...]:
    """Tags of the objectives that a measurement has no figure of, so that it has no score."""
    if measurement.members:
        found = [tag for m in measurement.members for tag in unmeasured(m, goals.of(model_of(m)))]
        return tuple(dict.fromkeys(found))
    return tuple(o.tag for o in goals.objectives if metric(o.tag).value(measurement) is None)


def gain_percent(ours: Measurement, theirs: Measurement, goals: Goals) -> float | None:
    """By how much the first is better at what is asked for; of throughput alone the ratio of both, less one.
    None where one of them lacks a figure."""
    difference = score(ours, goals) - score(theirs, goals)
    return math.expm1(difference) * 100 if math.isfinite(difference) else None


def failure_percent(measurement: Measurement, goals: Goals) -> float:
    """By how much the measurement misses the constraints together, in percent; 0 when it satisfies all.

    Of several models measured together each has its own constraints, and all of them count.
    """
    if measurement.members:
        return sum(failure_percent(m, goals.of(model_of(m))) for m in measurement.members)
    return sum(c.failure_percent(metric(c.tag).value(measurement)) for c in goals.constraints)


def satisfies(measurement: Measurement, goals: Goals) -> bool:
    """Whether a measurement keeps every constraint."""
    if measurement.members:
        return all(satisfies(m, goals.of(model_of(m))) for m in measurement.members)
    return all(c.satisfied_by(metric(c.tag).value(measurement)) for c in goals.constraints)


def model_of(member: Measurement) -> str:
    """Variants are named after their model; a model's own name may contain `_config_` too."""
    return member.variant.rpartition("_config_")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedVariant:
    """A configuration's measurements from the best to the worst, those that satisfy the constraints first."""

    run: VariantRun
    passing: tuple[Measurement, ...]
    failing: tuple[Measurement, ...]

    @property
    def name(self) -> str:
        return self.run.variant.name

    @property
    def ordered(self) -> tuple[Measurement, ...]:
        return self.passing + self.failing

    @property
    def best(self) -> Measurement:
        """The best measurement that satisfies the constraints, or the one nearest to it."""
        return self.ordered[0]

    settled: Measurement | None = None
    """What the final repetitions show, at the load that the search found best; None without them."""
    settled_satisfies: bool = False

    @property
    def figures(self) -> Measurement:
        """What the configuration is judged by: the final repetitions, where it has any, else its best."""
        return self.settled or self.best

    @property
    def satisfies(self) -> bool:
        return self.settled_satisfies if self.settled else bool(self.passing)


def rank(model: ModelRun, goals: Goals) -> tuple[RankedVariant, ...]:
    """The measured configurations from the best to the worst; ties keep the order of the search.

    Configurations that satisfy the constraints come first by their best such measurement, the others
    by how little they miss. Those that were measured again come before those that were not: the best of
    many measurements is too good to be true.
    """
    goals = goals.of(model.model)
    ranked = [_order(variant, goals) for variant in model.measured]
    passing = [r for r in ranked if r.satisfies]
    failing = [r for r in ranked if not r.satisfies]
    finalists = [score(r.figures, goals) for r in passing if r.settled and not r.run.variant.is_default]
    passing.sort(key=lambda r: (not _in_final(r, goals, finalists), -score(r.figures, goals)))
    failing.sort(key=lambda r: failure_percent(r.figures, goals))
    return tuple(passing + failing)


def _in_final(ranked: RankedVariant, goals: Goals, finalists: Sequence[float]) -> bool:
    """Whether a configuration's place is decided by its repetitions alone. The default is repeated whatever
    the search thought of it, and stands where its figures put it."""
    if ranked.run.variant.is_default and finalists and score(ranked.figures, goals) < min(finalists):
        return False
    return ranked.settled is not None


def _order(variant: VariantRun, goals: Goals) -> RankedVariant:
    passing = [m for m in variant.measurements if satisfies(m, goals)]
    failing = [m for m in variant.measurements if not satisfies(m, goals)]
    passing.sort(key=lambda m: -score(m, goals))
    failing.sort(key=lambda m: failure_percent(m, goals))
    settled = variant.settled
    return RankedVariant(
        run=variant,
        passing=tuple(passing),
        failing=tuple(failing),
        settled=settled,
        settled_satisfies=settled is not None and satisfies(settled, goals),
    )
