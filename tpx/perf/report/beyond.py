"""What perf_analyzer has no words for, on lines of their own behind its report: how sure the figures are, the
latency without the wait before sending, streams, the server's batches and gauges."""

from collections.abc import Iterator

from tpx.perf.latency import LatencySummary
from tpx.perf.metrics.figures import MetricsFigures
from tpx.perf.report.figures import percentile_name, rate, usec
from tpx.perf.results import (
    Estimates,
    LatencyEstimate,
    LevelResult,
    MemberFigures,
    OpenLoop,
    Sessions,
    Streaming,
)
from tpx.perf.statistics.intervals import CONFIDENCE

NOTICED_DIFFERENCE = 0.05
"""Both latencies of an open loop are shown where they differ by more."""
NO_BATCHES = 1.005


def beyond_lines(result: LevelResult) -> list[str]:
    """Nothing where there is nothing to add."""
    lines = list(_lines(result))
    return ["  Beyond: ", *(f"    {line}" for line in lines), ""] if lines else []


def _lines(result: LevelResult) -> Iterator[str]:
    if result.wake_ups is not None:
        yield f"Wake-ups dominate: {result.wake_ups}"
    elif result.estimates is not None:
        yield from _estimates(result.estimates, result)
    if result.open_loop is not None:
        yield from _pace(result.open_loop, result)
    if result.sessions is not None:
        yield _sessions(result.sessions)
    yield from map(_member, result.members)
    if result.streaming is not None and result.streaming.inter_response is not None:
        yield from _stream(result.streaming)
    if result.server is not None and result.server.mean_batch > NO_BATCHES * result.batch_size:
        yield f"Mean batch in the server: {result.server.mean_batch:.2f}"
    if result.metrics is not None:
        yield from _metrics(result.metrics)


def _sessions(sessions: Sessions) -> str:
    missing = f", {sessions.unsent_turns} turns not sent" if sessions.unsent_turns else ""
    return f"Conversations: {sessions.finished} of {sessions.total} finished{missing}"


def _member(member: MemberFigures) -> str:
    latency = ""
    if member.latency is not None:
        p50, p99 = (usec(member.latency.at(p)) for p in (50.0, 99.0))
        latency = f", p50 {p50} usec, p99 {p99} usec"
    failed = f", {member.failed} failed" if member.failed else ""
    return (
        f"Model {member.model} (weight {member.weight:g}): {member.requests} requests, "
        f"{rate(member.throughput_infer_per_s)} infer/sec{latency}{failed}"
    )


def _estimates(estimates: Estimates, result: LevelResult) -> Iterator[str]:
    through = estimates.throughput
    sure = [f"{rate(through.low)} to {rate(through.high or through.value)} infer/sec"]
    sure += [_range(e) for e in estimates.latency if e.percentile in (None, 99.0)]
    yield f"{CONFIDENCE * 100:g}% sure: {', '.join(sure)}"
    if result.latency is not None:
        tail = estimates.at(99.9)
        note = f" ({_brief(tail.note)})" if tail is not None and tail.note else ""
        yield f"99.9th percentile: {usec(result.latency.at(99.9))} usec{note}"


def _range(estimate: LatencyEstimate) -> str:
    name = "mean" if estimate.percentile is None else percentile_name(estimate.percentile)
    interval = estimate.interval
    if interval.high is None:
        return f"{name} at least {usec(interval.low)} usec ({_brief(estimate.note)})"
    return f"{name} {usec(interval.low)} to {usec(interval.high)} usec"


def _brief(note: str) -> str:
    """Without the numbers, which JSON has."""
    return note.partition(" (")[0]


def waited_before(pace: OpenLoop, latency: LatencySummary) -> bool:
    """Whether requests waited noticeably before they were sent."""
    return latency.at(99.0) > pace.service_latency.at(99.0) * (1 + NOTICED_DIFFERENCE)


def _pace(pace: OpenLoop, result: LevelResult) -> Iterator[str]:
    if result.latency is None:
        return
    service = pace.service_latency
    if waited_before(pace, result.latency):
        yield (
            "Latency above counts from when requests were due; from when they were sent: "
            f"mean {usec(service.mean_ns)} usec, p50 {usec(service.at(50.0))} usec, "
            f"p99 {usec(service.at(99.0))} usec"
        )
    if pace.skipped:
        yield f"Not sent because they were late: {pace.skipped}"


def _stream(stream: Streaming) -> Iterator[str]:
    first, gap = stream.first_response, stream.inter_response
    yield (
        f"First response: mean {usec(first.mean_ns)} usec, p50 {usec(first.at(50.0))} usec, "
        f"p99 {usec(first.at(99.0))} usec; latency above is the last one's"
    )
    if gap is not None:
        yield (
            f"Between responses: mean {usec(gap.mean_ns)} usec, p50 {usec(gap.at(50.0))} usec, "
            f"p99 {usec(gap.at(99.0))} usec"
        )
    if stream.units:
        yield f"Output tokens: {stream.units} ({rate(stream.units_per_s)} per second)"


def _metrics(metrics: MetricsFigures) -> Iterator[str]:
    if metrics.cpu_utilization is not None:
        yield f"Server's processor: {metrics.cpu_utilization * 100:.0f}%"
    if metrics.memory_used_bytes is not None:
        yield f"Server's memory: {metrics.memory_used_bytes / 2**20:.0f} MiB"
    for series in metrics.series:
        if series.per_s is not None:
            yield f"{series.name}: {rate(series.per_s)} per second"
        else:
            yield f"{series.name}: {rate(series.mean)} ({rate(series.low)} to {rate(series.high)})"
