"""Explanations of a level's figures: each formula, with its numbers filled in."""

from collections.abc import Iterator

from tpx.perf.levels import CONCURRENCY
from tpx.perf.measure.verdict import BUSY_SHARE
from tpx.perf.results import Estimates, LevelResult, ServerBreakdown, Window
from tpx.perf.settings import LevelSettings
from tpx.perf.statistics.intervals import Interval
from tpx.perf.statistics.latency import LatencySummary, rank, reported_percentiles


def explain(result: LevelResult, settings: LevelSettings) -> str:
    """Return the explanation as lines of text; `settings` are those with which the level was measured."""
    lines = [f"How the figures of {result.level} came about"]
    lines += [f"  {line}" for line in _lines(result, settings)]
    return "\n".join(lines) + "\n"


def _lines(result: LevelResult, settings: LevelSettings) -> Iterator[str]:
    kept = result.windows[len(result.windows) - result.kept_windows :]
    yield from _windows(result, kept)
    yield from _throughput(result)
    if result.latency is not None:
        yield from _latency(result.latency, result.percentile, result.estimates)
    yield from _client(result, settings)
    if result.server is not None and result.server.success_count:
        yield from _server(result.server)
        yield from _network(result, with_engine=settings.with_engine)
    yield from _stability(result, kept, settings)
    if result.level.kind is CONCURRENCY and result.latency is not None:
        yield (
            f"Little's law: (sum of all requests' times) / duration = {result.in_flight:.2f} in flight, "
            f"concurrency {result.level.value:g}"
        )


def _windows(result: LevelResult, kept: tuple[Window, ...]) -> Iterator[str]:
    dropped = len(result.windows) - len(kept)
    left_out = f", {result.warmup_windows} as warm-up" if result.warmup_windows else ""
    yield (
        f"windows: {len(result.windows)} measured, the last {len(kept)} count ({dropped} left out{left_out})"
        "; a request belongs to the window in which it ends"
    )
    counts = " + ".join(str(w.requests) for w in kept)
    yield f"request count = successes of the windows = {counts} = {result.requests}"
    if result.failed:
        yield f"failed = {result.failed} requests of all windows; throughput and latency are without them"


def _throughput(result: LevelResult) -> Iterator[str]:
    yield (
        f"throughput = requests x batch size / duration = {result.requests} x {result.batch_size} / "
        f"{result.duration_ns / 1e9:.6f} s = {result.throughput_infer_per_s:.6g} infer/sec"
    )
    if result.estimates is not None:
        batches = result.estimates.batches
        yield (
            f"  {_interval(result.estimates.throughput, 1)} infer/sec, by Student's t of {batches.count} "
            f"batches of {batches.seconds:.3f} s"
        )


def _latency(latency: LatencySummary, percentile: float | None, estimates: Estimates | None) -> Iterator[str]:
    count = latency.count
    yield (
        f"avg latency = sum of (end - intended start) / count = {latency.mean_ns * count / 1e3:.0f} / "
        f"{count} = {latency.mean_ns / 1e3:.1f} usec"
    )
    yield from _known(estimates, None)
    yield (
        f"standard deviation = sqrt(sum of (latency - avg)^2 / ({count} - 1)) = "
        f"{latency.std_ns / 1e3:.1f} usec"
    )
    for p in reported_percentiles(percentile):
        yield (
            f"p{p:g} = sorted latencies[int({p / 100:g} x ({count} - 1) + 0.5)] = number {rank(p, count)} of "
            f"0 to {count - 1} = {latency.at(p) / 1e3:.1f} usec"
        )
        yield from _known(estimates, p)


def _known(estimates: Estimates | None, percentile: float | None) -> Iterator[str]:
    found = estimates.at(percentile) if estimates is not None else None
    if found is not None:
        note = f" ({found.note})" if found.note else ""
        yield f"  {_interval(found.interval, 1e3)} usec{note}"


def _interval(interval: Interval, unit: float) -> str:
    high = "unknown" if interval.high is None else f"{interval.high / unit:.6g}"
    return f"{interval.confidence * 100:g}% confidence interval {interval.low / unit:.6g} to {high}"


def _client(result: LevelResult, settings: LevelSettings) -> Iterator[str]:
    times = result.client
    if times is None:
        return
    total, send, receive = (ns / 1e3 for ns in (times.total_ns, times.send_ns, times.receive_ns))
    yield (
        f"response wait = avg time - send - receive = {total:.1f} - {send:.1f} - {receive:.1f} = "
        f"{times.wait_ns / 1e3:.1f} usec"
    )
    told = f"above {BUSY_SHARE * 100:.0f}% the level is client-bound"
    if settings.with_engine:
        told = "the engine's part is in it"
    elif settings.pace.poll == "busy":
        told = "it polls without sleeping"
    yield (
        f"client overhead = processor time of the event loop / time = {result.client_busy * 100:.2f}%; {told}"
    )


def _server(server: ServerBreakdown) -> Iterator[str]:
    yield (
        f"server request latency = success ns / count = {server.success_ns} / {server.success_count} = "
        f"{server.success_ns / server.success_count / 1e3:.1f} usec"
    )
    for name, (total_ns, count) in server.stages.items():
        if count:
            each = f"{total_ns} ns / {count} = {total_ns / count / 1e3:.1f} usec"
            yield f"server {name.replace('_', ' ')} = {each}"
    if server.execution_count:
        yield (
            f"mean server batch = inferences / executions = {server.inference_count} / "
            f"{server.execution_count} = {server.mean_batch:.2f}"
        )


def _network(result: LevelResult, *, with_engine: bool) -> Iterator[str]:
    if result.client is None or result.server is None:
        return
    wait, rest = result.client.wait_ns / 1e3, result.network_ns / 1e3
    what = "the way to the engine and back" if with_engine else "network and server send/receive"
    yield (
        f"{what} = response wait - what the server accounts for = {wait:.1f} - "
        f"{max(0.0, wait - rest):.1f} = {rest:.1f} usec"
    )


def _stability(result: LevelResult, kept: tuple[Window, ...], settings: LevelSettings) -> Iterator[str]:
    verdict = "stable" if result.stable else "not stable"
    if settings.request_count:
        yield "stability: a counted run is one window, which is not compared with others"
        return
    if settings.rule == "ci":
        yield (
            f"stability: both 95% confidence intervals within +-{settings.stability * 50:g}% at two looks in "
            f"a row: {verdict}"
        )
        return
    good = [w for w in kept if w.latency is not None]
    if len(good) < len(kept) or not good:
        yield f"stability: a window without a valid request: {verdict}"
        return
    for name, values in (
        ("throughput", [w.throughput_infer_per_s for w in good]),
        ("latency", [w.latency_ns / 1e3 for w in good]),
    ):
        yield (
            f"stability of {name}: greatest / least of {len(good)} windows = {max(values):.6g} / "
            f"{min(values):.6g} = {max(values) / max(min(values), 1e-9):.4f}, allowed "
            f"{1 + settings.stability:g}: {verdict}"
        )
