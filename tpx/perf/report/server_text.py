"""The server's own account of a level, as perf_analyzer prints it."""

from dataclasses import dataclass

from tpx.perf.metrics.figures import GpuFigures, MetricsFigures
from tpx.perf.report.figures import average_us, rate
from tpx.perf.results import ServerBreakdown

MOST_GPUS = 16


def server_lines(server: ServerBreakdown) -> list[str]:
    """What stands below `Server:`."""
    return _model_lines(server, 1, caching=has_response_cache(server))


def has_response_cache(server: ServerBreakdown) -> bool:
    """Whether a model, or one that it is made of, answers from the response cache."""
    return server.response_cache or any(has_response_cache(part) for part in server.composing)


def composing_in_order(server: ServerBreakdown) -> list[ServerBreakdown]:
    """The models that an ensemble is made of, as perf_analyzer lists them: by name and version."""
    return sorted(server.composing, key=lambda part: (part.model, part.version))


def _model_lines(server: ServerBreakdown, depth: int, *, caching: bool) -> list[str]:
    """One model, and those that it is made of; `caching` is about the whole tree."""
    margin = "  " * depth
    if server.success_count == 0:
        return [f"{margin}  Request count: 0"]
    lines = [f"{margin}  Inference count: {server.inference_count}"]
    lines.append(f"{margin}  Execution count: {server.execution_count}")
    if caching:
        lines.append(f"{margin}  Cache hit count: {server.cache_hit_count}")
        lines.append(f"{margin}  Cache miss count: {server.cache_miss_count}")
    lines.append(f"{margin}  Successful request count: {server.success_count}")
    total = average_us(server.success_ns, server.success_count)
    request = f"{margin}  Avg request latency: {total} usec"
    times = _times(server)
    if not caching:
        lines += [f"{request} ({_overhead(total, times.queue, times.compute)} + {_plain(server, times)})", ""]
    else:
        lines += [request + _cache_parts(server, times, total), *_cache_lines(server, times, margin), ""]
    if server.composing:
        lines.append(f"{margin}Composing models: ")
        for part in composing_in_order(server):
            lines.append(f"{margin}{part.model}, version: {part.version}")
            lines += _model_lines(part, depth + 1, caching=caching)
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Whole microseconds of each request; of an ensemble, the sums of its models'."""

    queue: int
    compute: int
    hit: int
    miss: int
    either: int
    """What a request took from the cache or from computing."""


def _times(server: ServerBreakdown) -> _Times:
    hit = average_us(server.cache_hit_ns, server.cache_hit_count)
    miss = average_us(server.cache_miss_ns, server.cache_miss_count)
    if server.composing:
        parts = [_times(part) for part in server.composing]
        return _Times(
            queue=sum(p.queue for p in parts),
            compute=sum(p.compute for p in parts),
            hit=hit + sum(p.hit for p in parts),
            miss=miss + sum(p.miss for p in parts),
            either=sum(p.either for p in parts),
        )
    spent_ns = server.cache_hit_ns + server.cache_miss_ns + server.compute_ns
    return _Times(
        queue=average_us(server.queue_ns, server.queue_count),
        compute=average_us(server.compute_ns, server.compute_count),
        hit=hit,
        miss=miss,
        either=average_us(spent_ns, server.compute_count + server.cache_hit_count),
    )


def _overhead(total: int, queue: int, computing: int) -> str:
    return f"overhead {max(0, total - queue - computing)} usec + queue {queue} usec"


def _plain(server: ServerBreakdown, times: _Times) -> str:
    return f"compute {times.compute} usec" if server.composing else _steps(server)


def _steps(server: ServerBreakdown) -> str:
    first, then, last = (
        average_us(ns, server.compute_count)
        for ns in (server.compute_input_ns, server.compute_infer_ns, server.compute_output_ns)
    )
    return f"compute input {first} usec + compute infer {then} usec + compute output {last} usec"


def _cache_parts(server: ServerBreakdown, times: _Times, total: int) -> str:
    if server.composing and server.response_cache:
        return ""  # the answers of the whole are cached: its models' times are not part of a hit
    return f" ({_overhead(total, times.queue, times.either)} + cache hit/miss {times.either} usec)"


def _cache_lines(server: ServerBreakdown, times: _Times, margin: str) -> list[str]:
    """Hits and misses, set off by twice the margin as perf_analyzer does."""
    missed = f"{margin}{margin}  Average Cache Miss Latency: {times.miss + times.compute} usec "
    if not server.composing:
        missed += f"(cache lookup/insertion {times.miss} usec + {_steps(server)})"
    return [f"{margin}{margin}  Average Cache Hit Latency: {times.hit} usec", missed]


def metrics_lines(metrics: MetricsFigures) -> list[str]:
    """What perf_analyzer prints of the GPUs."""
    lines = ["  Server Prometheus Metrics: "]
    if len(metrics.gpus) > MOST_GPUS:
        return [
            *lines,
            "Too many GPUs on system to print out individual Prometheus metrics, use the CSV output feature "
            "to see metrics.",
        ]
    for title, name, unit in (
        ("Avg GPU Utilization", "utilization", "%"),
        ("Avg GPU Power Usage", "power_w", " watts"),
        ("Max GPU Memory Usage", "memory_used_bytes", " bytes"),
        ("Total GPU Memory", "memory_total_bytes", " bytes"),
    ):
        lines.append(f"    {title}:")
        lines += [f"      {gpu.uuid} : {value}{unit}" for gpu in metrics.gpus if (value := _shown(gpu, name))]
    return lines


def _shown(gpu: GpuFigures, name: str) -> str:
    """A figure of a GPU, a utilization in percent; empty where it is not known."""
    value = getattr(gpu, name)
    if value is None:
        return ""
    if name == "utilization":
        return rate(value * 100)
    return rate(value) if name == "power_w" else str(int(value))
