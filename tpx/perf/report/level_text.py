"""One level as perf_analyzer prints it, and what tpx adds."""

from collections.abc import Iterator, Sequence

from tpx.perf.measure.verdict import BUSY_SHARE
from tpx.perf.metrics_page import GpuFigures, MetricsFigures
from tpx.perf.options import SessionSpec
from tpx.perf.report.model import average_us, percentile_name, rate, usec
from tpx.perf.results import (
    ClientTimes,
    Goodput,
    LatencyEstimate,
    LevelResult,
    MemberFigures,
    OpenLoop,
    ServerBreakdown,
    StreamFigure,
    Streaming,
    Window,
)
from tpx.perf.statistics.intervals import CONFIDENCE, Interval
from tpx.perf.statistics.summaries import LatencySummary, reported_percentiles
from tpx.report.digits import latency, rounded

DELAYED_LIMIT = 0.01
"""Share of late requests above which perf_analyzer warns."""
TOKEN_TIMES = {
    "ttft": "Time to first token",
    "ttst": "Time from first to second token",
    "ttfo": "Time to first output after reasoning",
    "itl": "Inter-token latency",
    "icl": "Between responses",
}
"""Titles of the times of a language model's streams, in the order of reports."""


def level_block(result: LevelResult, spec: SessionSpec, *, decoupled: bool = False) -> str:
    """Return the text of one level, with the blank line that separates it from the next."""
    kind = result.level.kind
    # a user's own schedule has no title, as in perf_analyzer
    lines = [kind.title.format(label=kind.label, value=result.level.value)] if kind.title else []
    if spec.output.verbose:
        lines += [_format_pass(i, w) for i, w in enumerate(result.windows, 1)]
    lines += ["  Client: ", f"    Request count: {result.requests}"]
    if result.latency is not None and result.client is not None:
        lines += _format_client(result, result.latency, spec, decoupled=decoupled)
        lines.append("    " + ("" if decoupled else _format_client_times(result.client, spec)))
    lines += [f"    Errors: {e.count} x {e.code}: {e.message}" for e in result.errors]
    if result.server is not None:
        lines += ["  Server: ", *_format_model(result.server, 1, caching=result.server.caches_responses)]
    if result.metrics is not None:
        lines += metrics_lines(result.metrics)
    lines += extra_lines(result)
    # a client that polls, or that shares its process with the engine, is always busy
    shares = _has_engine(spec) or spec.pace.poll == "busy"
    if result.client_busy > BUSY_SHARE and not shares:
        lines.append(
            f"[WARNING] The client was busy {result.client_busy * 100:.0f}% of the time: tpx perf is not "
            "able to keep up with the desired load. The results may not be accurate."
        )
    if lines[-1]:
        lines.append("")
    return "\n".join(lines) + "\n"


def _format_pass(number: int, window: Window) -> str:
    if window.latency is None:
        return f"  Pass [{number}] no valid requests ({window.failed} failed)"
    head = f"  Pass [{number}] throughput: {rate(window.throughput_infer_per_s)} infer/sec. "
    latency, percentile = window.latency, window.stabilizing_percentile
    if percentile is None:
        return f"{head}Avg latency: {usec(latency.mean_ns)} usec (std {usec(latency.std_ns)} usec). "
    return f"{head}{percentile_name(percentile)} latency: {usec(latency.at(percentile))} usec"


def _has_engine(spec: SessionSpec) -> bool:
    return spec.service.service_kind == "inprocess"


def _format_client(
    result: LevelResult, latency: LatencySummary, spec: SessionSpec, *, decoupled: bool
) -> list[str]:
    lines, pace = [], result.open_loop
    if pace is not None and pace.delayed > DELAYED_LIMIT * pace.slip.count:
        lines += [
            f"    Avg send request rate: {pace.sent_per_s:.2f} infer/sec",
            "    [WARNING] Perf Analyzer was not able to keep up with the desired request rate. "
            f"{100 * pace.delayed / pace.slip.count:.2f}% of the requests were delayed. ",
        ]
    if result.sequences is not None:
        per_s = result.sequences * 1e9 / max(result.duration_ns, 1)
        lines.append(f"    Sequence count: {result.sequences} ({rate(per_s)} seq/sec)")
    lines.append(f"    Throughput: {rate(result.throughput_infer_per_s)} infer/sec")
    if decoupled and result.streaming is not None:
        lines.append(f"    Response Throughput: {rate(result.streaming.responses_per_s)} infer/sec")
    if spec.output.verbose:
        whose = "client and engine busy" if _has_engine(spec) else "client overhead"
        lines.append(f"    Avg {whose}: {result.client_busy * 100:.2f}%")
    if result.percentile is None:
        lines.append(
            f"    Avg latency: {usec(latency.mean_ns)} usec (standard deviation {usec(latency.std_ns)} usec)"
        )
    lines += [
        f"    {percentile_name(p)} latency: {usec(latency.at(p))} usec"
        for p in reported_percentiles(result.percentile)
    ]
    return lines


_TIME_NAMES = {
    "HTTP": ("send", "receive", "send/recv"),
    "gRPC": ("marshal", "unmarshal", "(un)marshal request/response"),
    "engine": ("submit", "take", "submit/take"),
}
"""Names of sending, receiving, and both, by the way of a request."""


def _format_client_times(client: ClientTimes, spec: SessionSpec) -> str:
    way = "engine" if _has_engine(spec) else "gRPC" if spec.target.protocol == "grpc" else "HTTP"
    sending, receiving, both = _TIME_NAMES[way]
    parts = (
        f"{both} {usec(client.send_ns + client.receive_ns)} usec + response wait {usec(client.wait_ns)} usec"
    )
    if spec.output.verbose:
        parts = (
            f"{sending} {usec(client.send_ns)} usec + response wait {usec(client.wait_ns)} usec + "
            f"{receiving} {usec(client.receive_ns)} usec"
        )
    return f"Avg {way} time: {usec(client.total_ns)} usec ({parts})"


MOST_GPUS = 16


def _format_model(server: ServerBreakdown, depth: int, *, caching: bool) -> list[str]:
    """Return the lines of a model and of those that it is composed of; `caching` holds for the whole tree.

    The times of an ensemble are sums over its models, in whole microseconds per request.
    """
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
    every = [model for _, model in server.walk()]
    steps = [model for model in every if not model.composing]
    queue = sum(usec(model.mean_ns("queue")) for model in steps)
    compute = sum(average_us(model.compute_ns, model.compute_count) for model in steps)
    if not caching:
        computing = f"compute {compute} usec" if server.composing else _format_steps(server)
        lines += [f"{request} ({_format_overhead(total, queue, compute)} + {computing})", ""]
    else:
        hit, miss = (sum(usec(m.mean_ns(stage)) for m in every) for stage in ("cache_hit", "cache_miss"))
        # an ensemble whose responses are cached: a hit has no times of its models
        if not (server.composing and server.response_cache):
            either = sum(
                average_us(
                    m.cache_hit_ns + m.cache_miss_ns + m.compute_ns, m.compute_count + m.cache_hit_count
                )
                for m in steps
            )
            request += f" ({_format_overhead(total, queue, either)} + cache hit/miss {either} usec)"
        missed = f"{margin}{margin}  Average Cache Miss Latency: {miss + compute} usec "
        if not server.composing:
            missed += f"(cache lookup/insertion {miss} usec + {_format_steps(server)})"
        # indented by twice the margin, as in perf_analyzer
        lines += [request, f"{margin}{margin}  Average Cache Hit Latency: {hit} usec", missed, ""]
    if server.composing:
        lines.append(f"{margin}Composing models: ")
        for part in sorted(server.composing, key=lambda part: (part.model, part.version)):
            lines.append(f"{margin}{part.model}, version: {part.version}")
            lines += _format_model(part, depth + 1, caching=caching)
    return lines


def _format_overhead(total: int, queue: int, computing: int) -> str:
    return f"overhead {max(0, total - queue - computing)} usec + queue {queue} usec"


def _format_steps(server: ServerBreakdown) -> str:
    parts = (
        f"compute {name} {usec(server.mean_ns(f'compute_{name}'))} usec"
        for name in ("input", "infer", "output")
    )
    return " + ".join(parts)


GPU_FIGURES = (
    ("Avg GPU Utilization", "utilization", "%"),
    ("Avg GPU Power Usage", "power_w", " watts"),
    ("Max GPU Memory Usage", "memory_used_bytes", " bytes"),
    ("Total GPU Memory", "memory_total_bytes", " bytes"),
)
"""perf_analyzer's titles of the figures of a GPU, and their units in its text."""


def metrics_lines(metrics: MetricsFigures) -> list[str]:
    """Return the lines that perf_analyzer prints about GPUs, utilization in percent."""
    lines = ["  Server Prometheus Metrics: "]
    if len(metrics.gpus) > MOST_GPUS:
        return [
            *lines,
            "Too many GPUs on system to print out individual Prometheus metrics, use the CSV output feature "
            "to see metrics.",
        ]
    for title, name, unit in GPU_FIGURES:
        lines.append(f"    {title}:")
        for uuid, value in gpu_values(metrics.gpus, name, 100 if unit == "%" else 1):
            lines.append(f"      {uuid} : {value}{unit}")
    return lines


def gpu_values(gpus: Sequence[GpuFigures], name: str, factor: float = 1) -> Iterator[tuple[str, str]]:
    """Yield the uuid and one figure of each GPU that has it; bytes are whole."""
    for gpu in gpus:
        value = getattr(gpu, name)
        if value is not None:
            yield gpu.uuid, str(int(value)) if name.startswith("memory") else rate(value * factor)


NOTICED_DIFFERENCE = 0.05
"""Relative difference above which both latencies of an open loop are shown."""
NO_BATCHES = 1.005
SKEWED = 1.5
"""Ratio of the mean latency to the p50 above which their difference is explained."""


def extra_lines(result: LevelResult) -> list[str]:
    """Return the lines that tpx adds to a level's text; empty if there are none."""
    lines = list(_describe_result(result))
    return ["  tpx adds:", *(f"    {line}" for line in lines), ""] if lines else []


def _describe_result(result: LevelResult) -> Iterator[str]:
    yield from _describe_certainty(result)
    if result.open_loop is not None and result.latency is not None:
        yield from _describe_pace(result.open_loop, result.latency)
    if result.sessions is not None:
        unsent = result.sessions.unsent_turns
        missing = f", {unsent} turns not sent" if unsent else ""
        yield f"Conversations: {result.sessions.finished} of {result.sessions.total} finished{missing}"
    if result.resent:
        yield f"Requests sent again, as the server had closed their connection: {result.resent:,}"
    yield from map(_describe_member, result.members)
    if result.streaming is not None:
        describe = _describe_tokens if result.streaming.units else _describe_stream
        yield from describe(result.streaming)
    if result.goodput is not None:
        yield _describe_goodput(result.goodput)
    usual_ns = result.latency.at(50.0) if result.latency is not None else 0
    if result.latency is not None and result.latency.mean_ns > SKEWED * usual_ns > 0:
        yield (
            f"Skewed latency: the mean is {result.latency.mean_ns / usual_ns:.1f} times the p50, since a few "
            "requests take much longer"
        )
    if result.server is not None and result.server.mean_batch > NO_BATCHES * result.batch_size:
        yield f"Mean batch in the server: {result.server.mean_batch:.2f}"
    if result.metrics is not None:
        yield from _describe_metrics(result.metrics)


def _describe_pace(pace: OpenLoop, total: LatencySummary) -> Iterator[str]:
    if waited_before(pace, total):
        yield (
            "Latency above counts from when requests were due; from when they were sent: "
            f"{_summarize_latency(pace.service_latency)}"
        )
    if pace.skipped:
        yield f"Not sent because they were late: {pace.skipped}"


def _describe_stream(stream: Streaming) -> Iterator[str]:
    first, between = stream.times("ttft"), stream.times("icl")
    if first is not None and between is not None:
        yield f"First response: {_summarize_latency(first)}; latency above is the last one's"
        yield f"Between responses: {_summarize_latency(between)}"


def _describe_tokens(stream: Streaming) -> Iterator[str]:
    """Yield the figures of a language model; intervals are of the p99."""
    for name, title in TOKEN_TIMES.items():
        figure = stream.figure(name)
        if figure is not None:
            tail = next((e for e in figure.estimates if e.percentile == 99.0), None)
            sure = "" if tail is None or tail.interval.low <= 0 else f" ({_format_ends(tail.interval)})"
            yield f"{title}: {_summarize_latency(figure.summary)}{sure}"
    speed = "" if stream.user_units_per_s is None else f", {rounded(stream.user_units_per_s)} for each user"
    lengths = _describe_lengths(stream.figure("output_tokens"))
    yield f"Output tokens: {stream.units:,} ({rounded(stream.units_per_s)} per second{speed}){lengths}"
    if stream.reasoning_units:
        yield f"Reasoning tokens: {stream.reasoning_units:,} of these"
    if stream.prompt_units:
        cached = f", {stream.cached_units / stream.prompt_units * 100:.0f}% of them cached"
        lengths = _describe_lengths(stream.figure("input_tokens"))
        yield f"Prompt tokens: {stream.prompt_units:,}{cached if stream.cached_units else ''}{lengths}"


def _format_ends(interval: Interval) -> str:
    low = latency(interval.low)
    return f"at least {low}" if interval.high is None else f"{low}-{latency(interval.high)}"


def _describe_lengths(figure: StreamFigure | None) -> str:
    if figure is None:
        return ""
    found = figure.summary
    return f"; a request: mean {figure.mean:,.4g}, p50 {found.at(50.0):,}, p99 {found.at(99.0):,}"


def _describe_goodput(found: Goodput) -> str:
    ends = (found.per_s.low, found.per_s.high)
    sure = f" ({rounded(ends[0])}-{rounded(ends[1])})" if ends[1] is not None and ends[0] > 0 else ""
    return (
        f"Goodput: {rounded(found.per_s.value)} requests/s{sure}, {found.share * 100:.4g}% of the requests "
        f"met {', '.join(found.bounds)}"
    )


def _describe_certainty(result: LevelResult) -> Iterator[str]:
    if result.wake_ups is not None:
        yield f"Wake-ups dominate: {result.wake_ups}"
    elif result.estimates is not None:
        through = result.estimates.throughput
        latencies = [e for e in result.estimates.latency if e.percentile in (None, 99.0)]
        # a bound of zero says nothing
        ranges = [_format_range(e) for e in latencies if e.interval.low > 0]
        if through.low > 0:
            ranges.insert(0, f"{rounded(through.low)}-{rounded(through.high or through.value)} infer/s")
        if ranges:
            yield f"{CONFIDENCE * 100:g}% CI: {', '.join(ranges)}"
        if result.latency is not None:
            tail = result.estimates.at(99.9)
            note = f" ({_shorten_note(tail.note)})" if tail is not None and tail.note else ""
            yield f"p99.9: {latency(result.latency.at(99.9))}{note}"


def _describe_member(member: MemberFigures) -> str:
    times = f", {_summarize_latency(member.latency)}" if member.latency is not None else ""
    failed = f", {member.failed} failed" if member.failed else ""
    return (
        f"Model {member.model} (weight {member.weight:g}): {member.requests} requests, "
        f"{rounded(member.throughput_infer_per_s)} infer/s{times}{failed}"
    )


def _summarize_latency(found: LatencySummary) -> str:
    return f"mean {latency(found.mean_ns)}, p50 {latency(found.at(50.0))}, p99 {latency(found.at(99.0))}"


def _format_range(estimate: LatencyEstimate) -> str:
    name = "mean" if estimate.percentile is None else percentile_name(estimate.percentile)
    note = f" ({_shorten_note(estimate.note)})" if estimate.interval.high is None else ""
    return f"{name} {_format_ends(estimate.interval)}{note}"


def _shorten_note(note: str) -> str:
    """Return a note without its numbers, which are in the JSON."""
    return note.partition(" (")[0]


def waited_before(pace: OpenLoop, total: LatencySummary) -> bool:
    """Return True if requests noticeably waited before they were sent; `total` includes that time."""
    return total.at(99.0) > pace.service_latency.at(99.0) * (1 + NOTICED_DIFFERENCE)


def _describe_metrics(metrics: MetricsFigures) -> Iterator[str]:
    if metrics.cpu_utilization is not None:
        yield f"Server's processor: {metrics.cpu_utilization * 100:.0f}%"
    if metrics.memory_used_bytes is not None:
        yield f"Server's memory: {metrics.memory_used_bytes / 2**20:.0f} MiB"
    for series in metrics.series:
        if series.per_s is not None:
            yield f"{series.name}: {rounded(series.per_s)} per second"
        else:
            yield f"{series.name}: {rounded(series.mean)} ({rounded(series.low)} to {rounded(series.high)})"
