"""`--dry-run`: the plan of a run, and one probe request to check the server's response."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from time import perf_counter_ns
from typing import Any

from tpx.errors import InvalidRequest, MeasurementError, WireError
from tpx.perf.capture import parts_of, read_outputs
from tpx.perf.clients.model import ModelDescription, TensorDescription
from tpx.perf.connecting import ConnectedModel
from tpx.perf.levels import Level, LevelRange, level_number
from tpx.perf.loads.senders import end_sequences
from tpx.perf.options import SessionSpec
from tpx.perf.session import Session
from tpx.perf.settings import LevelSettings
from tpx.protocol.tensors import Tensor
from tpx.report.digits import latency

PATIENCE_S = 60.0
SHOWN_LEVELS = 16


@dataclass(frozen=True, slots=True)
class DryRun:
    """The plan of a run, and whether its first request got the expected response."""

    text: str
    good: bool
    notices: tuple[str, ...]


async def dry_run(spec: SessionSpec, in_process: str = "") -> DryRun:
    """Prepare everything like a run, send one request, and describe what the run would do."""
    async with Session(spec, in_process=in_process) as session:
        probed = await probe(session.connected, spec)
        text = plan_text(spec, session.connected, session.settings, probed)
        return DryRun(text, probed.good, session.connected.notices)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedOutput:
    """An output of the response; `wrong` says how it contradicts the model's metadata."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    wrong: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The result of the probe: the server's `error`, or outputs.

    `mismatch` says how the outputs differ from the data's expected ones.
    """

    latency_ns: int
    error: str = ""
    outputs: tuple[ProbedOutput, ...] = ()
    responses: int = 1
    mismatch: str = ""

    @property
    def good(self) -> bool:
        return not (self.error or self.mismatch or any(output.wrong for output in self.outputs))


async def probe(connected: ConnectedModel, spec: SessionSpec) -> ProbeResult:
    """Send the first request of the data, then end its sequence.

    Raises MeasurementError if there is no response within the timeout, or within a minute without one.
    """
    (slot,) = await connected.client.open(1)
    connected.feed.begin(Level("concurrency", 1))
    source = connected.feed.source(0)
    done: asyncio.Future[ProbeResult] = asyncio.get_running_loop().create_future()
    start_ns = perf_counter_ns()

    def answered(response: object) -> None:
        if not done.done():
            latency_ns = perf_counter_ns() - start_ns
            done.set_result(_judged(connected, spec.inputs.batch_size, response, source.step, latency_ns))

    def lost(error: WireError) -> None:
        if not done.done():
            done.set_exception(error)

    slot.on_lost = lost
    slot.send(source.next(), answered)
    patience_s = spec.target.timeout or PATIENCE_S
    try:
        async with asyncio.timeout(patience_s):
            return await done
    except TimeoutError as exc:
        raise MeasurementError(f"the probe request was not answered within {patience_s:g} s") from exc
    finally:
        await end_sequences([(slot, source)], patience_s)


def _judged(
    connected: ConnectedModel, batch_size: int, response: Any, step: int, latency_ns: int
) -> ProbeResult:
    """Return the result of a response. Its bytes are valid only during the callback."""
    client = connected.client
    if response.status != client.success:
        failure = client.failure(response)
        return ProbeResult(latency_ns=latency_ns, error=f"{failure.code}: {failure.message}")
    try:
        answers = list(read_outputs(parts_of(response)))
    except (InvalidRequest, KeyError, TypeError, ValueError) as exc:
        return ProbeResult(latency_ns=latency_ns, error=f"the response cannot be read: {exc}")
    check = connected.feed.check
    first = next((tensors for tensors in answers if tensors), [])
    return ProbeResult(
        latency_ns=latency_ns,
        outputs=tuple(_output(connected.model, tensor, batch_size) for tensor in first),
        responses=len(answers),
        mismatch="" if check is None else check(step, response),
    )


def _output(model: ModelDescription, tensor: Tensor, batch_size: int) -> ProbedOutput:
    spec = next((spec for spec in model.outputs if spec.name == tensor.name), None)
    return ProbedOutput(
        name=tensor.name,
        datatype=tensor.datatype,
        shape=tensor.shape,
        wrong="" if spec is None else _wrong(spec, tensor, batch_size if model.max_batch_size else None),
    )


def _wrong(spec: TensorDescription, tensor: Tensor, batch_size: int | None) -> str:
    if tensor.datatype != spec.datatype:
        return f"the model says {spec.datatype}"
    if not len(tensor.data):
        return ""  # the data is in shared memory, or has no elements
    expected = spec.shape if batch_size is None or spec.shape_tensor else (batch_size, *spec.shape)
    fits = len(expected) == len(tensor.shape) and all(
        e in (-1, d) for e, d in zip(expected, tensor.shape, strict=True)
    )
    return "" if fits else f"the model says {list(expected)}"


def plan_text(
    config: SessionSpec, connected: ConnectedModel, settings: LevelSettings, probe: ProbeResult
) -> str:
    """Return the plan of a run and the result of its probe request, one item per line."""
    lines = [*_target(config, connected), *_data(config, connected), *_load(config, settings), *_probe(probe)]
    return "".join(line.rstrip() + "\n" for line in lines)


def _target(config: SessionSpec, connected: ConnectedModel) -> Iterator[str]:
    model, server = connected.model, connected.server
    version = f", version {config.target.model_version}" if config.target.model_version else ""
    decoupled = ", decoupled" if model.decoupled else ""
    service = f"{config.service.service_kind} over {config.target.protocol}"
    yield f"Server: {server.name} {server.version} at {config.address}, {service}"
    yield (
        f"Model: {model.name}{version} ({model.platform or 'unknown platform'}), max_batch_size "
        f"{model.max_batch_size}, scheduler {model.scheduler}{decoupled}"
    )


def _data(config: SessionSpec, connected: ConnectedModel) -> Iterator[str]:
    data = connected.requests.data
    where = ", ".join(map(str, config.inputs.files)) or config.inputs.kind
    streams = f"{data.streams} stream{'s' if data.streams != 1 else ''}"
    yield f"Data: {where}: {streams} with {data.steps} step{'s' if data.steps != 1 else ''}"
    sources = config.inputs.sources
    for tensor in data.tensors:
        source = f", {sources[tensor.name]}" if tensor.name in sources else ""
        yield f"  {tensor.name} {tensor.datatype} {list(tensor.shape)}{source}"
    if connected.sequences:
        sequences, length = config.sequences, "as long as their streams"
        if sequences.fixed or not config.inputs.files:
            length = f"of {sequences.length} requests +- {sequences.sequence_length_variation:g}%"
        ids = sequences.sequence_id_range
        yield f"Sequences: {length}, ids {ids.first} to before {ids.end}"
    if connected.conversations:
        yield f"Conversations: {len(connected.conversations)}, each sent once"
    if config.inputs.shared_memory != "none":
        yield f"Shared memory: {config.inputs.shared_memory}"
    if connected.feed.check is not None:
        yield f"Outputs: compared with validation_data, {config.inputs.tolerance or 'exactly'}"


def _load(config: SessionSpec, settings: LevelSettings) -> Iterator[str]:
    levels = config.levels
    yield f"Load: {levels.mode} {levels}"
    if settings.warmup_requests:
        yield f"  {settings.warmup_requests} warmup requests before each level"
    if settings.request_count:
        yield f"  {settings.request_count} requests in each level"
    elif settings.mode == "count_windows":
        yield f"  windows of at least {settings.window_requests} requests, at most {settings.max_windows}"
    else:
        yield f"  windows of {settings.window_ns / 1e9:g} s, at most {settings.max_windows} in each level"
    yield f"Seed: {config.inputs.seed}"
    for value in _first_levels(levels):
        level = Level(levels.mode, value)
        yield f"  {level}: seed {level_number(config.inputs.seed, level)}"


def _first_levels(levels: LevelRange) -> Iterator[float]:
    """Yield the levels that are certain to be measured, up to SHOWN_LEVELS."""
    searched = not levels.listed and (levels.binary or levels.unbounded)
    return islice(levels.values(), 1 if searched else SHOWN_LEVELS)


def _probe(probe: ProbeResult) -> Iterator[str]:
    if probe.error:
        yield f"Probe: failed after {latency(probe.latency_ns)}: {probe.error}"
        return
    several = f", {probe.responses} responses" if probe.responses > 1 else ""
    yield f"Probe: answered in {latency(probe.latency_ns)}{several}"
    for output in probe.outputs:
        verdict = f" ({output.wrong})" if output.wrong else ""
        yield f"  {output.name} {output.datatype} {list(output.shape)}{verdict}"
    if probe.mismatch:
        yield f"  not as expected: {probe.mismatch}"
