"""Builds a level's result from its measurement: verdicts with perf_analyzer's messages and their
causes.

It adds warnings if figures contradict each other, the server's counters, or the plan.
"""

from collections.abc import Iterator

from tpx.perf.levels import CONCURRENCY, LATE_NS, level_number
from tpx.perf.measure.estimates import estimate
from tpx.perf.measure.ledger import MeasuredLevel, client_times
from tpx.perf.objectives import Compliance
from tpx.perf.results import ClientCheck, LevelResult, Verdict

BUSY_SHARE = 0.9
"""Share of its processor's time above which the client itself limits a level."""
STRAINED_SHARE = 0.5
"""Share below which a late client was delayed by something else."""
NOTICED_LAG_NS = 1_000_000
LAG_OF_LATENCY = 0.25
"""Share of the median latency from which an event loop lag counts as part of the latencies."""
LITTLES_TOLERANCE = 0.1
COUNT_TOLERANCE = 0.05
EDGE_REQUESTS = 10
"""Requests near a border, besides those in flight, that client and server may count in different windows."""
OWN_PROCESSOR = 0.95
"""Share of busy time below which a polling client had to share its processor."""


def level_result(measured: MeasuredLevel) -> LevelResult:
    """Build the result of a level, without the figures that only some levels have."""
    merged, status, settings = measured.merged, measured.status, measured.settings
    verdict, reason = judge(measured)
    warnings: tuple[str, ...] = ()
    if verdict is not Verdict.ERRORS:  # errors explain every other contradiction
        warnings = tuple(filter(None, (status.warning, *list_warnings(measured))))
    return LevelResult(
        level=measured.level,
        batch_size=measured.batch_size,
        verdict=verdict,
        stable=status.stable
        and merged.latency is not None
        and (verdict is not Verdict.ERRORS or measured.over_budget),
        interrupted=measured.ending.interrupted,
        over_budget=measured.over_budget,
        reason=reason,
        percentile=settings.percentile,
        windows=measured.windows,
        requests=merged.requests,
        duration_ns=merged.duration_ns,
        throughput_infer_per_s=merged.throughput_infer_per_s,
        latency=merged.latency,
        client=client_times(measured.rows),
        client_busy=measured.check.cpu_share,
        server=measured.server,
        failed=measured.failed,
        errors=measured.errors,
        seed=level_number(settings.seed, measured.level),
        kept_windows=status.kept,
        warmup_windows=status.warmup,
        estimates=estimate(measured.sample, measured.batch_size, settings.percentile),
        in_flight=measured.in_flight,
        client_check=measured.check,
        warnings=warnings,
        slo=measured.slo,
    )


def judge(measured: MeasuredLevel) -> tuple[Verdict, str]:
    """Return the verdict on a level, and for the user the reason why it is not ok."""
    merged, settings = measured.merged, measured.settings
    failure = _explain_failure(measured)
    if failure or merged.latency is None:
        return Verdict.ERRORS, failure
    name, interrupted = str(measured.level).capitalize(), measured.ending.interrupted
    limit = measured.status.limit
    if limit is not None and limit.outcome is Compliance.VIOLATED:
        reason = f"Measured latency went over the set limit of {settings.latency_limit_ms} msec."
        return Verdict.OVER_LIMIT, reason
    if limit is not None and limit.outcome is Compliance.UNDECIDED and not interrupted:
        longer = "A greater --request-count" if settings.request_count else "A longer -p or more windows (-r)"
        return Verdict.BORDERLINE, (
            f"{name} is borderline: its latency may lie on either side of the limit of "
            f"{settings.latency_limit_ms} msec ({limit.reason}). {longer} may settle it."
        )
    if not measured.status.stable:
        option = "request-count" if settings.mode == "count_windows" else "interval"
        reason = (
            f"Failed to obtain stable measurement within {settings.max_windows} measurement windows "
            f"for {measured.level}. Please try to increase the --measurement-{option}."
        )
        if interrupted:
            reason = f"{name} was interrupted in window {len(measured.windows)}, before it was stable."
        return Verdict.UNSTABLE, f"{reason} ({measured.status.moved})"
    bound = client_bound(measured.check, merged.latency.at(50.0))
    # a client that polls, or that shares its process with the engine, is always busy
    if bound and not (settings.with_engine or settings.pace.poll == "busy"):
        return Verdict.CLIENT_BOUND, f"{name} is client-bound: {bound}."
    return Verdict.OK, ""


def _explain_failure(measured: MeasuredLevel) -> str:
    """Return why a level has no usable figures; empty if it has some."""
    errors, ending, last = measured.errors, measured.ending, measured.windows[-1]
    first = f" The first: {errors[0].code}: {errors[0].message}" if errors else ""
    if measured.over_budget:
        allowed = measured.settings.max_errors
        return f"{measured.failed} requests failed, more than --max-errors {allowed} allows.{first}"
    if measured.merged.latency is None or last.dead:
        if errors:
            return f"No valid requests recorded in a window: all {last.failed} failed.{first}"
        if ending.interrupted and measured.merged.latency is None:
            return f"{str(measured.level).capitalize()} was interrupted before a request was answered."
        return "No valid requests recorded within time interval. Please use a larger time window."
    return f"The server no longer responds: {ending.lost}.{first}" if ending.lost else ""


def client_bound(check: ClientCheck, median_latency_ns: int) -> str:
    """Return why the client and not the server limited a level; empty if it did not."""
    busy = f"the client was busy {check.cpu_share * 100:.0f}% of the time"
    if check.cpu_share > BUSY_SHARE:
        return busy
    if check.cpu_share < STRAINED_SHARE:
        return ""
    if check.slip_p99_ns > max(NOTICED_LAG_NS, median_latency_ns):
        return f"{busy} and sent requests late (p99 {check.slip_p99_ns / 1e6:.1f} ms)"
    if check.loop_lag_p99_ns > max(NOTICED_LAG_NS, LAG_OF_LATENCY * median_latency_ns):
        return (
            f"{busy} and its event loop lagged (p99 {check.loop_lag_p99_ns / 1e6:.1f} ms), which is part of "
            "the latencies"
        )
    return ""


def list_warnings(measured: MeasuredLevel) -> Iterator[str]:
    """Yield the reasons to doubt the figures, one sentence each."""
    yield from _check_littles_law(measured)
    yield from _check_other_clients(measured)
    level, check = measured.level, measured.check
    if level.kind.open_loop and check.slip_p99_ns > LATE_NS:
        yield (
            f"Requests were sent late: one in a hundred by {check.slip_p99_ns / 1e6:.1f} ms or more, while "
            f"the client was busy {check.cpu_share * 100:.0f}% of the time. Latency counts from when they "
            "were due."
        )
    if measured.settings.pace.poll == "busy" and check.cpu_share < OWN_PROCESSOR:
        yield (
            f"The polling client had a processor for {check.cpu_share * 100:.0f}% of the time only: others "
            "run there, and its latencies contain their turns. --poll busy needs a processor that nothing "
            "else uses."
        )


def _check_littles_law(measured: MeasuredLevel) -> Iterator[str]:
    """Warn if throughput times latency differs from the concurrency of a closed loop (Little 1961)."""
    level, merged, in_flight = measured.level, measured.merged, measured.in_flight
    if level.kind is not CONCURRENCY or not merged.requests or measured.settings.pace.think_time:
        return
    if measured.settings.request_count and merged.requests + merged.failed < EDGE_REQUESTS * level.value:
        return  # with so few requests, ramp-up and drain dominate
    off = abs(level.value - in_flight) / level.value
    if off > LITTLES_TOLERANCE:
        yield (
            f"Measurement inconsistent: by throughput and latency {in_flight:.2f} requests were in "
            f"flight, {off * 100:.0f}% off the concurrency of {level.value:g} (Little's law). Longer windows "
            "help if requests take nearly as long as a window."
        )


def _check_other_clients(measured: MeasuredLevel) -> Iterator[str]:
    server, batch_size = measured.server, measured.batch_size
    if server is None or not measured.merged.requests:
        return
    sent = measured.merged.requests * batch_size
    # a cache hit counts as a success without an inference
    counted = server.success_count * batch_size if server.response_cache else server.inference_count
    edge = (EDGE_REQUESTS + measured.level.value) * batch_size
    if counted and abs(counted - sent) > max(COUNT_TOLERANCE * sent, edge):
        more, why = "fewer", "the statistics cover another time"
        if counted > sent:
            more, why = "more", "other clients use the model"
        yield (
            f"The server counted {counted} inferences, {abs(counted - sent) / sent * 100:.0f}% {more} than "
            f"the {sent} of this client: {why}, and the server's figures are not of this measurement alone."
        )
