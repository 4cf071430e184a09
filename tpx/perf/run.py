"""One run: connect, describe, make the requests, sweep, report. The command line and the analyzer start
here."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from tpx.errors import MeasurementError, UsageError
from tpx.options import nearest
from tpx.perf.answers.highest import bearable, highest_answer, highest_course
from tpx.perf.clients.base import Client
from tpx.perf.clients.endpoint import Connections, Endpoint, connect
from tpx.perf.clients.model import ModelDescription, ModelKey
from tpx.perf.fitting import fitted, fitting_notices, needing, with_declared
from tpx.perf.inputs.conversations import check_conversations
from tpx.perf.inputs.dataset import open_data
from tpx.perf.inputs.mix import MixedFeed
from tpx.perf.inputs.requests import FeedSettings, make_requests
from tpx.perf.inputs.shared_memory import SharedTensors, shared_tensors
from tpx.perf.load.dealing import workers_for
from tpx.perf.load.limits import check_openable
from tpx.perf.load.opening import check_timestamps
from tpx.perf.loops import event_loop
from tpx.perf.measure import measure_level
from tpx.perf.members import Member
from tpx.perf.metrics.scraper import Scraper
from tpx.perf.observer import SILENT, Observer
from tpx.perf.options import PerfConfig
from tpx.perf.recording import wall_offset_ns
from tpx.perf.report.model import Report
from tpx.perf.report.recorders import open_recorders
from tpx.perf.results import LevelResult
from tpx.perf.server_statistics import ModelTree, ServerStatistics, SumOfStatistics, model_tree
from tpx.perf.settings import Level, LevelSettings
from tpx.perf.sweep import Manner, sweep
from tpx.perf.target import Target
from tpx.perf.wakeups import FEW_IN_FLIGHT
from tpx.protocol.v2 import RequestedOutput

if TYPE_CHECKING:
    from tpx.perf.capture import Capture

__all__ = ["event_loop", "measure_level", "open_target", "run"]


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a run would do, and whether its first request was answered as it should be."""

    text: str
    good: bool
    notices: tuple[str, ...]


@asynccontextmanager
async def open_target(config: PerfConfig, in_process: str = "") -> AsyncIterator[Target]:
    """The model that `config` names, connected and with its requests made; closed with the context.

    `in_process` is the module that connects to the engine in this process, which this wing does not know.
    Raises WireError where nothing answers, MeasurementError where the model cannot be measured, UsageError
    where the options do not fit it.
    """
    if config.models:
        async with _open_mix(config, in_process) as mixed:
            yield mixed
        return
    key = ModelKey(config.model, config.model_version)
    connections = _connections(config, key, in_process)
    client, control = connections.client, connections.control
    captured, capture = _capturing(config)
    client = captured(client)
    try:
        server = await control.server()
        fit = fitted(config, server)
        if fit is not config:
            client = _connections(fit, key, in_process).client
            client = captured(client)
        model = with_declared(await control.model(key), config.declare)
        _check_kind(model, config)
        if config.trace_settings:
            with needing("trace", server, "--trace-level and its like"):
                await control.set_trace(config.trace_settings)
        tree = await model_tree(control, model, key, calls=config.bls_composing_models.keys)
        data = open_data(model, config.input_settings)
        async with shared_tensors(control, config.shared_memory, config.output_shared_memory_size) as shared:
            settings = _feed_settings(config, model, tree, shared)
            requests = await make_requests(client, model, data, settings)
            if shared is not None:
                with needing(f"{config.shared_memory}_shared_memory", server, "--shared-memory"):
                    await shared.publish()
            yield Target(
                url=config.address,
                protocol=config.protocol,
                server=server,
                model=model,
                version=config.model_version,
                batch_size=config.batch_size,
                client=client,
                control=control,
                feed=requests.feed,
                data=requests.data,
                sequences=tree.takes_sequences,
                timestamps_ns=requests.timestamps_ns,
                conversations=requests.conversations,
                capture=capture,
                statistics=ServerStatistics(control, tree, available="statistics" in server.extensions),
                notices=(*fitting_notices(config, fit, server), *data.notices, *requests.notices),
            )
    finally:
        await client.close()
        await control.close()


@asynccontextmanager
async def _open_mix(config: PerfConfig, in_process: str) -> AsyncIterator[Target]:
    """Several models as one target: each is described and has requests of its own, which all leave over the
    connections of the first."""
    shares = config.models or ()
    async with AsyncExitStack() as stack:
        targets = [
            await stack.enter_async_context(
                open_target(replace(config, model=share.name, models=None), in_process)
            )
            for share in shares
        ]
        for target in targets:
            if target.sequences or target.timestamps_ns or target.conversations:
                name = target.model.name
                raise UsageError(f"--models: requests of '{name}' belong together, or to a schedule")
        members = tuple(
            Member(model=s.name, weight=s.weight, statistics=t.statistics)
            for s, t in zip(shares, targets, strict=True)
        )
        yield replace(
            targets[0],
            feed=MixedFeed([t.feed for t in targets], [s.weight for s in shares], config.seed),
            statistics=SumOfStatistics([m.statistics for m in members]),
            members=members,
            notices=tuple(dict.fromkeys(notice for t in targets for notice in t.notices)),
        )


def _capturing(config: PerfConfig) -> tuple[Callable[[Client], Client], "Capture | None"]:
    """What keeps requests and answers for `--profile-export-file`, and what puts it around a client."""
    if config.profile_export_file is None:
        return lambda client: client, None
    from tpx.perf.capture import Capture, CapturingClient  # late: it reads the answers of every transport

    capture = Capture()
    return lambda client: CapturingClient(client, capture), capture


def _connections(config: PerfConfig, key: ModelKey, in_process: str) -> Connections:
    address = config.parsed_address
    endpoint = Endpoint(
        host=address.host,
        port=address.port,
        model=key,
        headers=config.header,
        tls=config.tls(config.protocol, secure=address.secure),
        wire=config.wire,
        service=config.service,
    )
    return connect(config.protocol, endpoint, in_process)


async def dry_run(config: PerfConfig, in_process: str = "") -> DryRun:
    """Prepare everything as a run does, send one request, and say what a run would do."""
    from tpx.perf.probe import probe  # late
    from tpx.perf.report.plan import plan_text

    async with open_target(config, in_process) as target:
        _check_highest(config, target)
        probed = await probe(target, config.timeout)
        text = plan_text(config, target, run_settings(config, target), probed)
        return DryRun(text, probed.good, target.notices)


async def run(
    config: PerfConfig,
    *,
    observer: Observer = SILENT,
    stop: asyncio.Event | None = None,
    in_process: str = "",
) -> Report:
    """The whole run. Setting `stop` ends it with what was measured until then."""
    stop = stop or asyncio.Event()
    started = datetime.now(UTC)

    offset_ns = wall_offset_ns()
    problems: list[str] = []
    async with (
        open_target(config, in_process) as alone,
        _with_workers(config, alone) as loaded,
        _watched(config, loaded, observer, offset_ns, problems) as target,
    ):
        rules = run_settings(config, target)
        if config.poll == "busy" and (config.levels.highest or 0) > FEW_IN_FLIGHT:
            observer.notice(
                f"--poll busy is for 1 to {FEW_IN_FLIGHT} requests in flight: with more the client's own "
                "work delays answers, and it hardly sleeps anyway"
            )
        observer.run_started(target.model, target.data, rules)
        for notice in target.notices:
            observer.notice(notice)

        async def measured(level: Level, settings: LevelSettings) -> LevelResult:
            return await measure_level(target, level, settings, observer=observer, stop=stop)

        levels = await sweep(
            config.levels,
            rules,
            measured,
            stop,
            Manner(
                meets=bearable if config.slo else None,
                search=highest_course if config.slo else None,
                stop_on_unstable=config.stop_on_unstable,
                pause_s=config.cooldown_seconds,
            ),
        )
        report = Report(
            config=config,
            server=target.server,
            model=target.model,
            levels=levels.results,
            error=levels.error,
            answer=highest_answer(levels.results) if config.slo else levels.answer,
            started=started.isoformat(timespec="milliseconds"),
            finished=datetime.now(UTC).isoformat(timespec="milliseconds"),
            interrupted=stop.is_set(),
            offset_ns=offset_ns,
        )
    return replace(report, error="; ".join(filter(None, (report.error, *problems))))


@asynccontextmanager
async def _watched(
    config: PerfConfig, target: Target, observer: Observer, offset_ns: int, problems: list[str]
) -> AsyncIterator[Target]:
    """The same target, with what writes its records down and looks at its metrics."""
    place = config.metrics_place(config.parsed_address.host) if config.collect_metrics else None
    scraper = None if place is None else Scraper(place, observer.notice)
    try:
        with open_recorders(config, target.capture, offset_ns, problems) as recorder:
            yield replace(target, recorder=recorder, metrics=scraper)
    finally:
        if scraper is not None:
            await scraper.stop()


@asynccontextmanager
async def _with_workers(config: PerfConfig, target: Target) -> AsyncIterator[Target]:
    """The same target, with the processes that the load needs, if it needs more than this one.

    Raises UsageError where several were asked for and the load cannot be divided.
    """
    count = workers_for(config.levels, run_settings(config, target).load)
    _check_highest(config, target, count)
    whole = _undivided(config)
    if whole and config.workers > 1:
        raise UsageError(f"--workers {config.workers}: {whole}")
    if count == 1 or whole:
        yield target
        return
    opening = partial(open_target, config)
    from tpx.perf.load.workers import WorkerPool  # late: most loads need one process

    async with WorkerPool(count, opening, streamed=target.client.streams) as pool:
        yield replace(target, workers=pool)


def _check_highest(config: PerfConfig, target: Target, processes: int = 1) -> None:
    """Raise UsageError where the highest level of the run is more than this machine can open."""
    levels = config.levels
    ends_early = levels.end is not None and bool(config.latency_threshold or config.slo)
    highest = Level(levels.mode, levels.start if ends_early else levels.highest or levels.start)
    check_openable(highest, run_settings(config, target), target.client.lanes_per_connection, processes)


def _undivided(config: PerfConfig) -> str:
    """Why one process has to send everything; empty where several may."""
    if config.poll == "busy":
        return "--poll busy polls in one process"
    if config.service_kind == "inprocess":
        return "an engine in this process is not reached from others"
    if config.levels.mode == "periodic_concurrency":
        return "a periodic concurrency grows by the answers to all of its requests, which one process sees"
    if config.levels.mode == "session_concurrency":
        return "the next conversation is begun by whoever ends one first, in one process"
    if config.levels.mode == "multi_stream":
        return "a query of several requests is sent by one process"
    if config.profile_export_file is not None:
        return "--profile-export-file keeps every answer, which one process does"
    return ""


def run_settings(config: PerfConfig, target: Target) -> LevelSettings:
    """The rules of the run's levels, completed by what the model and its data say."""
    calls = config.calls_asynchronously(sequences=target.sequences)
    here = config.service_kind == "inprocess"
    settings = replace(config.level_settings, asynchronous=calls, with_engine=here)
    if not target.sequences:
        settings = replace(settings, load=replace(settings.load, sequences=0))
    if config.periodic_concurrency_range is not None:
        return replace(settings, request_count=config.periodic_concurrency_range.end)
    if config.session_concurrency is not None:
        check_conversations(target.conversations, config.session_concurrency)
        return replace(settings, request_count=sum(map(len, target.conversations)))
    if not config.fixed_schedule:
        return settings
    check_timestamps(target.timestamps_ns)
    left = len(target.timestamps_ns) - settings.warmup_requests
    if left <= 0:
        raise UsageError(
            "The warmup request count must be less than the total number of payloads in the dataset."
        )
    return replace(settings, request_count=left)


def _feed_settings(
    config: PerfConfig, model: ModelDescription, tree: ModelTree, shared: SharedTensors | None
) -> FeedSettings:
    known = [spec.name for spec in model.outputs]
    for name in config.output:
        if known and name not in known:
            raise UsageError(
                f"--output {name}: model '{model.name}' has no such output{nearest(name, known)} "
                f"(has: {', '.join(known)})"
            )
    outputs = tuple(RequestedOutput(name=name) for name in config.output)
    return FeedSettings(
        fields=replace(config.request_fields, outputs=outputs),
        batch_size=config.batch_size,
        sequences=config.sequence_settings if tree.takes_sequences else None,
        scheduled=config.fixed_schedule,
        conversing=config.session_concurrency is not None,
        tolerance=config.tolerance,
        shared=shared,
        seed=config.seed,
    )


def _check_kind(model: ModelDescription, config: PerfConfig) -> None:
    if model.decoupled and not config.streaming:
        raise MeasurementError(
            "Decoupled models must be run with `--async` and `--streaming` and either `-i grpc` or "
            f"`--service-kind=triton_c_api` (model '{model.name}' is one)"
        )
    if model.scheduler == "sequence" and config.asynchronous and config.levels.unbounded:
        raise UsageError(
            "The 'end' concurrency can not be 0 for sequence models when using asynchronous API."
        )
