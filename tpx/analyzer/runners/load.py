"""Measure one model, or several at once, under a load of `tpx perf`; results use the journal's types."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from tpx.analyzer.results.measurement import (
    Configuration,
    Latency,
    LatencyBreakdown,
    LoadPoint,
    Measurement,
    Range,
    ResponseFigures,
    Variant,
    WindowFigures,
)
from tpx.analyzer.results.pooled import means
from tpx.analyzer.runners.answers import Answers, answers_of
from tpx.errors import MeasurementError
from tpx.perf.levels import Level
from tpx.perf.options import SessionSpec
from tpx.perf.report.level_text import level_block
from tpx.perf.results import ClientTimes, LevelResult, ServerBreakdown, Verdict
from tpx.perf.session import Session
from tpx.perf.settings import LevelSettings
from tpx.perf.statistics.summaries import LatencySummary

WARMUP_SHARE = 0.2
"""Share of a window used as warm-up before the first: a model is slow right after it is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGenerator:
    """Applies load to served models; shared by all trials of a run."""

    sessions: Mapping[str, SessionSpec]
    """Session settings by model, without address and load."""
    most_windows: int
    """Maximum number of windows of a measurement of the search, unless a session has its own."""
    in_process: str = ""
    """Module that connects to the engine in this process; the command line supplies it."""
    tell: Callable[[str], None] | None = None
    """Receives every level's results as tpx perf prints them."""

    @property
    def protocol(self) -> Literal["http", "grpc"]:
        """Protocol of all models."""
        return next(iter(self.sessions.values())).target.protocol

    def over(self, repository: Path) -> "LoadGenerator":
        """Return a generator for the engine in this process, which serves this repository."""
        sessions = {
            name: replace(
                spec,
                service=replace(spec.service, service_kind="inprocess", model_repository=(repository,)),
            )
            for name, spec in self.sessions.items()
        }
        return replace(self, sessions=sessions)

    async def measure(
        self, configuration: Configuration, load: LoadPoint, address: str = "", *, windows: int = 0
    ) -> Measurement:
        """Measure a configuration that is served at host:port; models measured together, each under its part.

        A level ends after `windows`, which the result then tells, or when its figures are stable. Raises
        MeasurementError if no request succeeds or a decoupled model cannot stream, WireError if the server
        does not respond, UsageError if inputs need a shape.
        """
        variant, parts = configuration.variant, (configuration, *configuration.members)
        # models that may send several responses, whose requests use streams
        decoupled = {part.variant.model for part in parts if part.decoupled}
        plain = (
            s.target.protocol == "http" and s.service.service_kind == "triton" for s in self.sessions.values()
        )
        if decoupled and any(plain):
            raise MeasurementError(
                f"model '{min(decoupled)}' is decoupled, which requires streams: use --client-protocol grpc"
            )

        async def level(member: Variant, part: LoadPoint) -> Measurement:
            streams = member.model in decoupled
            spec = self._spec_of(member.model, address, streams=streams)
            spec = replace(spec, inputs=replace(spec.inputs, batch_size=part.batch_size))
            async with Session(spec, in_process=self.in_process) as session:
                rules = shorten_rules(
                    session.settings, spec.windows.max_trials or self.most_windows, fixed=windows
                )
                result = await session.measure(level_of(spec, part), rules)
            if self.tell is not None:
                text = level_block(result, spec, decoupled=streams)
                self.tell(f"{member.name} at {part}\n{text}")
            if result.verdict is Verdict.ERRORS:
                raise MeasurementError(result.reason)
            found = to_measurement(result, member.name, part)
            return replace(found, windows=windows_of(result)) if windows else found

        if not load.members:
            return await level(variant, load)
        pairs = zip(variant.members, load.members, strict=True)
        members = await _measure_side_by_side([partial(level, *pair) for pair in pairs])
        return Measurement(
            variant=variant.name,
            load=load,
            throughput=sum(m.throughput for m in members),
            latency=means([m.latency for m in members]),
            breakdown=means([m.breakdown for m in members]),
            stable=all(m.stable for m in members),
            note="; ".join(f"{m.variant}: {m.note}" for m in members if m.note),
            requests=sum(m.requests for m in members),
            duration_ns=max(m.duration_ns for m in members),
            members=tuple(members),
        )

    def _spec_of(self, model: str, address: str, *, streams: bool) -> SessionSpec:
        spec = self.sessions[model]
        return replace(
            spec,
            target=replace(spec.target, url=spec.target.url or address),
            wire=replace(spec.wire, streaming=spec.wire.streaming or streams),
        )

    async def answers(self, model: str, address: str) -> Answers:
        """Return the outputs of a model that is served at host:port. Raises MeasurementError."""
        spec = self._spec_of(model, address, streams=self.protocol == "grpc")
        return await answers_of(spec, self.in_process)


def shorten_rules(rules: LevelSettings, windows: int, *, fixed: int = 0) -> LevelSettings:
    """Return the rules of a trial: as short as a stable throughput allows, unless others were requested.

    It has at most `windows` windows, or exactly `fixed`.
    """
    if rules.rule != "pa" or rules.request_count:
        return rules
    return replace(
        rules,
        rule="brief",
        warmup_s=rules.warmup_s or rules.interval_ms * WARMUP_SHARE / 1e3,
        fixed_windows=fixed,
        max_windows=fixed or windows,
    )


def level_of(config: SessionSpec, load: LoadPoint) -> Level:
    """Return the level of a load; a file of intervals has its own kind, with its mean rate as the load."""
    if config.load.request_intervals is not None:
        return Level("custom_intervals", config.load.request_intervals.rate)
    return Level(load.kind, load.value)


def to_measurement(level: LevelResult, variant: str, load: LoadPoint) -> Measurement:
    """Return the pooled figures of a level's last windows."""
    estimates, streaming, windows = level.estimates, level.streaming, level.windows
    p99 = estimates.at(99.0) if estimates else None
    throughput_range, p99_range = (
        None if found is None else Range(low=found.low, high=found.high)
        for found in (estimates.throughput if estimates else None, p99.interval if p99 else None)
    )
    doubts = (_explain_doubt(level), f"{level.failed} requests failed" if level.failed else "")
    return Measurement(
        variant=variant,
        load=load,
        throughput=level.throughput_infer_per_s,
        latency=_convert_latency(level.latency) or Latency(),
        breakdown=_merge_breakdown(level.server, level.client),
        answers=None
        if streaming is None
        else ResponseFigures(
            first=_convert_latency(streaming.first_response) or Latency(),
            between=_convert_latency(streaming.inter_response),
            throughput=streaming.units_per_s or streaming.responses_per_s,
        ),
        stable=level.stable,
        note="; ".join(filter(None, (*doubts, *level.guesses))),
        requests=level.requests,
        throughput_range=throughput_range,
        p99_range=p99_range,
        duration_ns=windows[-1].end_ns - windows[0].start_ns if windows else 0,
    )


def windows_of(level: LevelResult) -> tuple[WindowFigures, ...]:
    """Return the figures of the windows that a level's figures are computed over."""
    return tuple(
        WindowFigures(throughput=w.throughput_infer_per_s, latency=_convert_latency(w.latency) or Latency())
        for w in level.windows[-level.kept_windows :]
    )


def _explain_doubt(level: LevelResult) -> str:
    """Return why a level's figures are uncertain; empty if they are stable."""
    found = level.estimates.throughput if level.estimates else None
    if level.verdict is not Verdict.UNSTABLE or not found or found.high is None or not found.value:
        return "" if level.stable else level.reason
    half = (found.high - found.low) / 2 / found.value
    return (
        f"its throughput was known to \u00b1{half:.0%} only; try a longer "
        "--measurement-interval or more --max-trials"
    )


def _convert_latency(summary: LatencySummary | None) -> Latency | None:
    if summary is None:
        return None
    known = {f"p{each}_ns": summary.percentiles_ns.get(each) for each in (25, 50, 75, 90, 95, 99)}
    return Latency(min_ns=summary.min_ns, max_ns=summary.max_ns, avg_ns=summary.mean_ns, **known)


def _merge_breakdown(server: ServerBreakdown | None, client: ClientTimes | None) -> LatencyBreakdown:
    """Return means per request; figures that were not counted stay None."""
    own = LatencyBreakdown()
    if client is not None:
        sent_ns = client.send_ns + client.receive_ns
        own = LatencyBreakdown(client_send_recv_ns=sent_ns, client_response_wait_ns=client.wait_ns)
    if server is None or not server.success_count:
        return own
    computed = max(1, server.compute_count)
    return replace(
        own,
        queue_ns=server.queue_ns // max(1, server.queue_count),
        compute_input_ns=server.compute_input_ns // computed,
        compute_infer_ns=server.compute_infer_ns // computed,
        compute_output_ns=server.compute_output_ns // computed,
    )


async def _measure_side_by_side(
    works: Sequence[Callable[[], Coroutine[object, object, Measurement]]],
) -> list[Measurement]:
    """Measure several models at once, each under load until all have finished; raise their first error."""
    over = asyncio.Event()
    left = len(works)

    async def repeat(work: Callable[[], Coroutine[object, object, object]]) -> None:
        while True:
            await work()

    async def one(work: Callable[[], Coroutine[object, object, Measurement]]) -> Measurement:
        nonlocal left
        found = await work()
        left -= 1
        if left:
            # keep up this model's load, so that the others are measured beside it to the end
            again = asyncio.create_task(repeat(work))
            try:
                await over.wait()
            finally:
                again.cancel()
                await asyncio.wait((again,))
                _ = again.cancelled() or again.exception()  # its own measurement is complete
        over.set()
        return found

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(work)) for work in works]
    except BaseExceptionGroup as group_error:
        error: BaseException = group_error
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group_error
    return [task.result() for task in tasks]
