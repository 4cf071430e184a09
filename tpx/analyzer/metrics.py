"""Metrics of a measurement by Model Analyzer's tags: how each is read, its header, unit and interval."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Literal

from tpx.analyzer.results.measurement import EnergyUse, Measurement, MemoryUse
from tpx.analyzer.results.pooled import Mean, interval_of
from tpx.errors import UsageError
from tpx.options import nearest
from tpx.perf.results import ClientTimes, LevelResult
from tpx.perf.statistics.intervals import Interval
from tpx.perf.statistics.summaries import LatencySummary
from tpx.report.digits import in_unit

NS_PER_MS = 1e6
BYTES_PER_MB = 1e6


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


def _user_tokens_per_s(measurement: Measurement) -> float | None:
    streaming = measurement.result.streaming
    return None if streaming is None else streaming.user_units_per_s


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
                lambda r: r.streaming and (r.streaming.times("itl") or r.streaming.times("icl")),
            ),
            (
                "time_to_first_token",
                "Time To First Token",
                lambda r: r.streaming and r.streaming.times("ttft"),
            ),
        )
        for each in _STATISTICS
    ),
    ("output_token_throughput", "Output Token Throughput (infer/sec)", "higher", _tokens_per_s),
    (
        *("output_token_throughput_per_user", "Output Token Throughput Per User (tokens/sec)", "higher"),
        _user_tokens_per_s,
    ),
    (
        *("goodput", "Goodput (requests/sec)", "higher"),
        lambda m: None if m.result.goodput is None else m.result.goodput.per_s.value,
    ),
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


def shown(measured: MeasuredMetric, value: float) -> str:
    """Return a figure with its unit, rounded for display."""
    # Model Analyzer's heading of tokens has the unit of inferences
    unit = "tokens/s" if measured.tag == "output_token_throughput" else measured.unit.replace("/sec", "/s")
    return in_unit(value, unit)


def in_words(tag: str) -> str:
    """Return a metric's name as it is written within a sentence."""
    name = metric(tag).name
    return name if name[:3].isupper() else name[0].lower() + name[1:].lower()
