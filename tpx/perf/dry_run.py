"""`--dry-run`: the plan of a run, and one probe request to check the server's response."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from time import perf_counter_ns
from typing import Any

from tpx.errors import InvalidRequest, MeasurementError, WireError
from tpx.perf.capture import parts_of, read_outputs
from tpx.perf.clients.model import TensorDescription
from tpx.perf.connecting import ConnectedModel
from tpx.perf.levels import Level, level_number
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
        connected, model, server = session.connected, session.connected.model, session.connected.server
        probed, good = await _probe_model(connected, spec)
        version = f", version {spec.target.model_version}" if spec.target.model_version else ""
        lines = [
            f"Server: {server.name} {server.version} at {spec.address}, {spec.service.service_kind} over "
            f"{spec.target.protocol}",
            f"Model: {model.name}{version} ({model.platform or 'unknown platform'}), max_batch_size "
            f"{model.max_batch_size}, scheduler {model.scheduler}{', decoupled' * model.decoupled}",
            *_describe_data(spec, connected),
            *_describe_load(spec, session.settings),
            *probed,
        ]
        return DryRun("".join(line.rstrip() + "\n" for line in lines), good, connected.notices)


async def _probe_model(connected: ConnectedModel, spec: SessionSpec) -> tuple[list[str], bool]:
    """Send the first request of the data, then end its sequence; return what to tell about its response,
    and whether that is as expected.

    Raises MeasurementError if there is no response within the timeout, or within a minute without one.
    """
    (slot,) = await connected.client.open(1)
    connected.requests.feed.begin(Level("concurrency", 1))
    source = connected.requests.feed.source(0)
    done: asyncio.Future[tuple[list[str], bool]] = asyncio.get_running_loop().create_future()
    start_ns = perf_counter_ns()

    def answered(response: object) -> None:
        # the bytes of a response are valid only during this callback
        if not done.done():
            after = latency(perf_counter_ns() - start_ns)
            done.set_result(_judge_response(connected, spec.inputs.batch_size, response, source.step, after))

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


def _judge_response(
    connected: ConnectedModel, batch_size: int, response: Any, step: int, after: str
) -> tuple[list[str], bool]:
    client, model, check = connected.client, connected.model, connected.requests.feed.check
    if response.status != client.success:
        failure = client.failure(response)
        return [f"Probe: failed after {after}: {failure.code}: {failure.message}"], False
    try:
        answers = list(read_outputs(parts_of(response)))
    except (InvalidRequest, KeyError, TypeError, ValueError) as exc:
        return [f"Probe: failed after {after}: the response cannot be read: {exc}"], False
    several = f", {len(answers)} responses" if len(answers) > 1 else ""
    lines, good = [f"Probe: answered in {after}{several}"], True
    known = {spec.name: spec for spec in model.outputs}
    for tensor in next((tensors for tensors in answers if tensors), []):
        spec, wrong = known.get(tensor.name), ""
        if spec is not None:
            wrong = _describe_mismatch(spec, tensor, batch_size if model.max_batch_size else None)
        good = good and not wrong
        verdict = f" ({wrong})" if wrong else ""
        lines.append(f"  {tensor.name} {tensor.datatype} {list(tensor.shape)}{verdict}")
    mismatch = "" if check is None else check(0, step, response)
    return lines + [f"  not as expected: {mismatch}"] * bool(mismatch), good and not mismatch


def _describe_mismatch(spec: TensorDescription, tensor: Tensor, batch_size: int | None) -> str:
    """Return how an output contradicts the model's metadata; empty if it does not."""
    if tensor.datatype != spec.datatype:
        return f"the model says {spec.datatype}"
    if not len(tensor.data):
        return ""  # the data is in shared memory, or has no elements
    expected = spec.shape if batch_size is None or spec.shape_tensor else (batch_size, *spec.shape)
    fits = len(expected) == len(tensor.shape) and all(
        e in (-1, d) for e, d in zip(expected, tensor.shape, strict=True)
    )
    return "" if fits else f"the model says {list(expected)}"


def _describe_data(config: SessionSpec, connected: ConnectedModel) -> Iterator[str]:
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
    if connected.requests.conversations:
        yield f"Conversations: {len(connected.requests.conversations)}, each sent once"
    if config.inputs.shared_memory != "none":
        yield f"Shared memory: {config.inputs.shared_memory}"
    if connected.requests.feed.check is not None:
        yield f"Outputs: compared with validation_data, {config.inputs.tolerance or 'exactly'}"


def _describe_load(config: SessionSpec, settings: LevelSettings) -> Iterator[str]:
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
    # the levels that are certain to be measured
    searched = not levels.listed and (levels.binary or levels.unbounded)
    for value in islice(levels.values(), 1 if searched else SHOWN_LEVELS):
        level = Level(levels.mode, value)
        yield f"  {level}: seed {level_number(config.inputs.seed, level)}"
