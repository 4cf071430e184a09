"""Measure one model, or several at once, under a load of `tpx perf`."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from tpx.analyzer.results.measurement import Configuration, LoadPoint, Measurement, Variant
from tpx.analyzer.results.pooled import side_by_side
from tpx.analyzer.runners.outputs import Outputs, answers_of, outputs_of
from tpx.errors import MeasurementError
from tpx.perf.inputs.prompts import PromptSpec
from tpx.perf.levels import Level
from tpx.perf.options import SessionSpec
from tpx.perf.report.level_text import level_block
from tpx.perf.results import LevelResult, Verdict
from tpx.perf.session import Session
from tpx.perf.settings import LevelSettings

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
    learnt: dict[str, PromptSpec] = field(default_factory=dict)
    """Options of made prompts by model, with what the first measurement learnt of the service's tokens."""

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
                self.learnt[member.model] = session.connected.prompts
                result = await session.measure(level_of(spec, part), rules)
            if self.tell is not None:
                text = level_block(result, spec, decoupled=streams)
                self.tell(f"{member.name} at {part}\n{text}")
            if result.verdict is Verdict.ERRORS:
                raise MeasurementError(result.reason)
            return to_measurement(result, member.name, part, windowed=bool(windows))

        if not load.members:
            return await level(variant, load)
        pairs = zip(variant.members, load.members, strict=True)
        members = await _measure_side_by_side([partial(level, *pair) for pair in pairs])
        return Measurement(
            variant=variant.name,
            load=load,
            result=side_by_side([m.result for m in members], Level(load.kind, load.value), load.batch_size),
            duration_ns=max(m.duration_ns for m in members),
            members=tuple(members),
        )

    def _spec_of(self, model: str, address: str, *, streams: bool) -> SessionSpec:
        spec = self.sessions[model]
        return replace(
            spec,
            prompts=self.learnt.get(model, spec.prompts),
            target=replace(spec.target, url=spec.target.url or address),
            wire=replace(spec.wire, streaming=spec.wire.streaming or streams),
        )

    async def outputs(self, model: str, address: str) -> Outputs:
        """Return the outputs of a model that is served at host:port. Raises MeasurementError."""
        spec = self._spec_of(model, address, streams=self.protocol == "grpc")
        if spec.service.service_kind == "openai":
            return await answers_of(spec)
        return await outputs_of(spec, self.in_process)


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


def to_measurement(
    result: LevelResult, variant: str, load: LoadPoint, *, windowed: bool = False
) -> Measurement:
    """Return the measurement of a level, without its batches, single requests and, unless `windowed`, its
    windows, which would fill the journal.
    """
    estimates, windows, streaming = result.estimates, result.windows, result.streaming
    return Measurement(
        variant=variant,
        load=load,
        result=replace(
            result,
            estimates=estimates and replace(estimates, batches=None),
            streaming=streaming and replace(streaming, spans=()),
            windows=windows[-result.kept_windows :] if windowed else (),
        ),
        duration_ns=windows[-1].end_ns - windows[0].start_ns if windows else 0,
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
