"""What a run would do, as text: `--dry-run`."""

from collections.abc import Iterator

from tpx.perf.connecting import ConnectedModel
from tpx.perf.levels import Level, LevelRange
from tpx.perf.options import PerfConfig
from tpx.perf.probe import Probe
from tpx.perf.seeds import level_number
from tpx.perf.settings import LevelSettings

SHOWN_LEVELS = 16


def plan_text(config: PerfConfig, connected: ConnectedModel, settings: LevelSettings, probe: Probe) -> str:
    """The plan of a run and what its probe request gave, one thing a line."""
    lines = [*_target(config, connected), *_data(config, connected), *_load(config, settings), *_probe(probe)]
    return "".join(line.rstrip() + "\n" for line in lines)


def _target(config: PerfConfig, connected: ConnectedModel) -> Iterator[str]:
    model, server = connected.model, connected.server
    version = f", version {config.model_version}" if config.model_version else ""
    decoupled = ", decoupled" if model.decoupled else ""
    service = f"{config.service_kind} over {config.protocol}"
    yield f"Server: {server.name} {server.version} at {config.address}, {service}"
    yield (
        f"Model: {model.name}{version} ({model.platform or 'unknown platform'}), max_batch_size "
        f"{model.max_batch_size}, scheduler {model.scheduler}{decoupled}"
    )


def _data(config: PerfConfig, connected: ConnectedModel) -> Iterator[str]:
    data = connected.requests.data
    where = ", ".join(map(str, config.data_files)) or ("zero" if "zero" in config.input_data else "random")
    streams = f"{data.streams} stream{'s' if data.streams != 1 else ''}"
    yield f"Data: {where}: {streams} with {data.steps} step{'s' if data.steps != 1 else ''}"
    sources = {source.name: source for source in config.input}
    for tensor in data.tensors:
        source = f", {sources[tensor.name]}" if tensor.name in sources else ""
        yield f"  {tensor.name} {tensor.datatype} {list(tensor.shape)}{source}"
    if connected.sequences:
        sequences = config.sequence_settings
        length = "as long as their streams"
        if config.sequence_length is not None or not config.data_files:
            length = f"of {sequences.length} requests +- {sequences.variation:g}%"
        yield f"Sequences: {length}, ids {sequences.first_id} to before {sequences.end_id}"
    if connected.conversations:
        yield f"Conversations: {len(connected.conversations)}, each sent once"
    if config.shared_memory != "none":
        yield f"Shared memory: {config.shared_memory}"
    if connected.feed.check is not None:
        yield f"Outputs: compared with validation_data, {config.tolerance or 'exactly'}"


def _load(config: PerfConfig, settings: LevelSettings) -> Iterator[str]:
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
    yield f"Seed: {config.seed}"
    for value in _first_levels(levels):
        level = Level(levels.mode, value)
        yield f"  {level}: seed {level_number(config.seed, level)}"


def _first_levels(levels: LevelRange) -> Iterator[float]:
    """Those that are certain to come, as far as they are not too many."""
    if levels.listed:
        yield from levels.listed[:SHOWN_LEVELS]
        return
    value: float | None = levels.start
    for _ in range(SHOWN_LEVELS):
        if value is None:
            return
        yield value
        if levels.binary or levels.unbounded or levels.end is None:
            return
        value = levels.after(value)


def _probe(probe: Probe) -> Iterator[str]:
    if probe.error:
        yield f"Probe: failed after {probe.latency_ns / 1000:.0f} usec: {probe.error}"
        return
    several = f", {probe.responses} responses" if probe.responses > 1 else ""
    yield f"Probe: answered in {probe.latency_ns / 1000:.0f} usec{several}"
    for output in probe.outputs:
        verdict = f" ({output.wrong})" if output.wrong else ""
        yield f"  {output.name} {output.datatype} {list(output.shape)}{verdict}"
    if probe.mismatch:
        yield f"  not as expected: {probe.mismatch}"
