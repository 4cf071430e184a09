"""Put one model, or several at once, under a load of `tpx perf`; the result in the journal's terms."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpx.analyzer.results.measurement import (
    Answers,
    Breakdown,
    Configuration,
    Latency,
    Load,
    Measurement,
    Range,
    Spread,
    Variant,
)
from tpx.errors import MeasurementError
from tpx.perf.levels import Level
from tpx.perf.measure.rules import STABILITY_WINDOWS
from tpx.perf.options import SessionSpec
from tpx.perf.report.level_text import Shown, level_block
from tpx.perf.results import ClientTimes, Estimates, LevelResult, ServerBreakdown, Streaming, Verdict
from tpx.perf.session import Session
from tpx.perf.settings import LevelSettings
from tpx.perf.statistics.intervals import Interval
from tpx.perf.statistics.latency import LatencySummary

WARMUP_SHARE = 0.2
"""Of a window, before the first: a model that was just loaded is slow at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """How load is made and when a level counts as measured; the same for every trial of a run."""

    sessions: Mapping[str, SessionSpec]
    """By model: how it is measured, but for its address and its load."""
    in_process: str = ""
    """The module that connects to the engine in this process, which only the command line knows."""
    decoupled: frozenset[str] = frozenset()
    """Models that may send several responses, for which requests go over streams."""
    tell: Callable[[str], None] | None = None
    """Is told every level as tpx perf prints it."""
    one_window: bool = False
    """A level is a single window, as in a final round."""

    @property
    def plain(self) -> SessionSpec:
        """How any of the models is measured: all have the same kind of service and the same protocol."""
        return next(iter(self.sessions.values()))

    def over(self, repository: Path) -> "LoadSettings":
        """The same for the engine in this process, which serves this repository."""
        sessions = {
            name: replace(
                spec,
                service=replace(spec.service, service_kind="inprocess", model_repository=(repository,)),
            )
            for name, spec in self.sessions.items()
        }
        return replace(self, sessions=sessions)

    def session(self, model: str, address: str, load: Load) -> SessionSpec:
        """How a model at host:port is measured under a load."""
        spec = self.sessions[model]
        return replace(
            spec,
            target=replace(spec.target, url=spec.target.url or address),
            inputs=replace(spec.inputs, batch_size=load.batch_size),
            wire=replace(spec.wire, streaming=spec.wire.streaming or model in self.decoupled),
        )


async def measure_load(
    settings: LoadSettings, address: str, configuration: Configuration, load: Load
) -> Measurement:
    """Put a configuration that is served at host:port under load, of several models each under its part.

    Raises as `measure_level` does, MeasurementError also for a decoupled model that has no streams.
    """
    parts = (configuration, *configuration.members)
    decoupled = frozenset(part.variant.model for part in parts if "decoupled: true" in part.text)
    plain = (
        s.target.protocol == "http" and s.service.service_kind == "triton" for s in settings.sessions.values()
    )
    if decoupled and any(plain):
        raise MeasurementError(
            f"model '{min(decoupled)}' is decoupled, which takes streams: use --client-protocol grpc"
        )
    settings, variant = replace(settings, decoupled=decoupled), configuration.variant
    if load.members:
        return await _measure_together(settings, address, variant, load)
    return await measure_level(settings, variant.model, variant.name, address, load)


async def measure_level(
    settings: LoadSettings, model: str, variant: str, address: str, load: Load
) -> Measurement:
    """Keep `load` up against `model` at host:port until the figures are stable or the windows are used up.

    Raises MeasurementError when no request succeeds, WireError when nothing answers, UsageError when the
    model's inputs need a shape.
    """
    config = settings.session(model, address, load)
    async with Session(config, in_process=settings.in_process) as session:
        level = await session.measure(level_of(config, load), _rules(session.settings, settings))
    if settings.tell is not None:
        shown = Shown(
            protocol=config.target.protocol,
            with_engine=config.service.service_kind == "inprocess",
            decoupled=model in settings.decoupled,
            verbose=config.output.verbose > 0,
        )
        settings.tell(f"{variant} at {load}\n{level_block(level, shown)}")
    if level.verdict is Verdict.ERRORS:
        raise MeasurementError(level.reason)
    return to_measurement(level, variant, load)


def _rules(rules: LevelSettings, settings: LoadSettings) -> LevelSettings:
    """Return the rules of a trial: as short as its throughput allows, unless the user has asked for others.

    The best trials are repeated, which says more of them than three windows in a row would.
    """
    if rules.rule != "pa" or rules.request_count:
        return rules
    return replace(
        rules,
        rule="brief",
        warmup_s=rules.warmup_s or rules.interval_ms * WARMUP_SHARE / 1e3,
        one_window=settings.one_window,
        max_windows=1 if settings.one_window else min(rules.max_windows, STABILITY_WINDOWS),
    )


def level_of(config: SessionSpec, load: Load) -> Level:
    """The level of a load: a file of intervals has its own, of which the load is the rate."""
    if config.load.request_intervals is not None:
        return Level("custom_intervals", config.load.request_intervals.rate)
    return Level(load.kind, load.value)


def to_measurement(level: LevelResult, variant: str, load: Load) -> Measurement:
    """A level's figures, those of its last windows together."""
    windows = level.windows
    return Measurement(
        variant=variant,
        load=load,
        throughput=level.throughput_infer_per_s,
        latency=_latency(level.latency),
        breakdown=_breakdown(level.server, level.client),
        answers=None if level.streaming is None else _answers(level.streaming),
        stable=level.stable,
        note=_note(level),
        requests=level.requests,
        throughput_range=_range(level.estimates.throughput if level.estimates else None),
        p99_range=_range(_p99(level.estimates)),
        duration_ns=windows[-1].end_ns - windows[0].start_ns if windows else 0,
    )


def _p99(estimates: Estimates | None) -> Interval | None:
    found = estimates.at(99.0) if estimates else None
    return found.interval if found else None


def _range(interval: Interval | None) -> Range | None:
    return None if interval is None else Range(low=interval.low, high=interval.high)


def _answers(streaming: Streaming) -> Answers:
    between = streaming.inter_response
    return Answers(
        first=_spread(streaming.first_response),
        between=None if between is None else _spread(between),
        throughput=streaming.units_per_s or streaming.responses_per_s,
    )


def _spread(summary: LatencySummary) -> Spread:
    percentiles = {f"p{percentile:g}_ns": ns for percentile, ns in summary.percentiles_ns.items()}
    known = {
        name: percentiles.get(name) for name in ("p25_ns", "p50_ns", "p75_ns", "p90_ns", "p95_ns", "p99_ns")
    }
    return Spread(min_ns=summary.min_ns, max_ns=summary.max_ns, avg_ns=summary.mean_ns, **known)


def _latency(summary: LatencySummary | None) -> Latency:
    if summary is None:
        return Latency()
    return Latency(
        avg_ns=summary.mean_ns,
        p50_ns=summary.percentiles_ns[50.0],
        p90_ns=summary.percentiles_ns[90.0],
        p95_ns=summary.percentiles_ns[95.0],
        p99_ns=summary.percentiles_ns[99.0],
    )


def _breakdown(server: ServerBreakdown | None, client: ClientTimes | None) -> Breakdown:
    """Means per request; a figure that nobody counted is absent."""
    send_recv_ns = None if client is None else client.send_ns + client.receive_ns
    wait_ns = None if client is None else client.wait_ns
    if server is None or not server.success_count:
        return Breakdown(client_send_recv_ns=send_recv_ns, client_response_wait_ns=wait_ns)
    computed = max(1, server.compute_count)
    return Breakdown(
        queue_ns=server.queue_ns // max(1, server.queue_count),
        compute_input_ns=server.compute_input_ns // computed,
        compute_infer_ns=server.compute_infer_ns // computed,
        compute_output_ns=server.compute_output_ns // computed,
        client_send_recv_ns=send_recv_ns,
        client_response_wait_ns=wait_ns,
    )


def _note(level: LevelResult) -> str:
    parts = [] if level.stable else [level.reason]
    if level.failed:
        parts.append(f"{level.failed} requests failed")
    return "; ".join(part for part in parts if part)


async def _measure_together(
    settings: LoadSettings, address: str, variant: Variant, load: Load
) -> Measurement:
    """Measure the variant's members all at once, each under its part of the load.

    A model that is done stays under load until the others are, too. Throughputs are added up, latencies
    averaged. Raises what any of them raises.
    """
    over = asyncio.Event()
    left = len(variant.members)

    async def one(member: Variant, part: Load) -> Measurement:
        nonlocal left
        found = await measure_level(settings, member.model, member.name, address, part)
        left -= 1
        if left:
            await _until(over, lambda: measure_level(settings, member.model, member.name, address, part))
        over.set()
        return found

    pairs = zip(variant.members, load.members, strict=True)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(member, part)) for member, part in pairs]
    except BaseExceptionGroup as group_error:
        raise _first(group_error) from group_error
    return _combined([task.result() for task in tasks], variant.name, load)


def _combined(members: Sequence[Measurement], variant: str, load: Load) -> Measurement:
    """Return several models' measurements as one."""
    return Measurement(
        variant=variant,
        load=load,
        throughput=sum(m.throughput for m in members),
        latency=Latency(
            **{name: _mean([getattr(m.latency, name) for m in members]) for name in Latency.__slots__}
        ),
        breakdown=Breakdown(
            **{name: _mean([getattr(m.breakdown, name) for m in members]) for name in Breakdown.__slots__}
        ),
        stable=all(m.stable for m in members),
        note="; ".join(f"{m.variant}: {m.note}" for m in members if m.note),
        requests=sum(m.requests for m in members),
        duration_ns=max(m.duration_ns for m in members),
        members=tuple(members),
    )


async def _until(over: asyncio.Event, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Do the same again and again; a fault of it shows in the others' figures or not at all."""

    async def repeat() -> None:
        while True:
            await work()

    again = asyncio.create_task(repeat())
    try:
        await over.wait()
    finally:
        again.cancel()
        await asyncio.wait((again,))
        _ = again.cancelled() or again.exception()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _mean(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known)) if known else None
