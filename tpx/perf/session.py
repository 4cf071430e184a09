"""A session: a model under test, measured level by level.

Runs, searches for the highest load, servers in turns and the analyzer's trials all measure through it.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tpx.errors import UsageError
from tpx.perf.clients.transport import http_dialer
from tpx.perf.connecting import ConnectedModel, open_model
from tpx.perf.inputs.requests import check_conversations
from tpx.perf.levels import Level
from tpx.perf.loads.base import Load, LoadRequest, check_openable, open_load, workers_for
from tpx.perf.loads.rate import check_timestamps
from tpx.perf.loops import waiting
from tpx.perf.measure.collectors import Collector, extended
from tpx.perf.measure.ledger import LevelLedger
from tpx.perf.measure.level import LevelMeasurement, quiet_memory, warm_up
from tpx.perf.measure.verdict import level_result
from tpx.perf.measure.wakeups import FEW_IN_FLIGHT, processors_awake
from tpx.perf.observer import SILENT, Observer, ProgressMeter
from tpx.perf.options import SessionSpec
from tpx.perf.records import wall_offset_ns
from tpx.perf.results import LevelResult
from tpx.perf.settings import LevelSettings

if TYPE_CHECKING:
    from tpx.perf.capture import Capture
    from tpx.perf.loads.workers import WorkerPool

Connect = Callable[[SessionSpec, str, "Capture | None"], AbstractAsyncContextManager[ConnectedModel]]


class Session:
    """Connects with the context and measures any number of levels over the same connections.

    Worker processes, the metrics page and the files of single requests are opened before the first
    level. Setting `stop` ends a level with what was measured so far. Entering the context raises
    WireError if the server does not answer, MeasurementError if the model cannot be measured,
    UsageError if the options do not fit it.
    """

    def __init__(
        self,
        spec: SessionSpec,
        *,
        observer: Observer = SILENT,
        stop: asyncio.Event | None = None,
        in_process: str = "",
        connect: Connect = open_model,
    ) -> None:
        """`in_process` is the module that connects to the engine here; this package must not import it."""
        self.spec = spec
        self.offset_ns = wall_offset_ns()
        """Offset from monotonic times to nanoseconds since 1970."""
        self.problems: list[str] = []
        """Reasons why files of single requests are missing; complete once the session is closed."""
        self._observer = observer
        self._stop = stop or asyncio.Event()
        self._in_process = in_process
        self._connect = connect
        self._stack = AsyncExitStack()
        self._capture: Capture | None = None
        self._workers: WorkerPool | None = None
        self._collectors: list[Collector] | None = None
        """Opened with the first level."""

    async def __aenter__(self) -> Self:
        spec = self.spec
        if spec.output.profile_export_file is not None:
            from tpx.perf.capture import Capture  # late: few runs keep responses

            self._capture = Capture()
        async with AsyncExitStack() as stack:
            if self._capture is not None:
                stack.callback(self._capture.close)
            opened = self._connect(spec, self._in_process, self._capture)
            self.connected = await stack.enter_async_context(opened)
            self.settings = _complete_settings(spec, self.connected)
            self._processes = spec.pace.cluster or workers_for(spec.levels, self.settings)
            levels = spec.levels
            # with a limit or objectives the run may end long before the highest level
            ends_early = levels.end is not None and (spec.windows.latency_threshold or spec.answers.slo)
            highest = Level(levels.mode, levels.start if ends_early else levels.highest or levels.start)
            slots = self.connected.client.slots_per_connection
            check_openable(highest, self.settings, slots, self._processes)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, exc, trace)

    async def measure(self, level: Level, settings: LevelSettings | None = None) -> LevelResult:
        """Measure one level, by the spec's rules unless `settings` are given.

        Raises UsageError if this machine cannot open the load, WireError or MeasurementError if the
        server refuses connections or a worker process is gone.
        """
        settings, observer = settings or self.settings, self._observer
        collectors = self._collectors
        if collectors is None:
            collectors = self._collectors = await self._begin_run()
        batch_size, statistics = self.spec.inputs.batch_size, self.connected.statistics
        observer.level_started(level)
        awake = processors_awake(self.spec.address) if settings.pace.poll == "busy" else nullcontext()
        with quiet_memory(), waiting(settings.pace.poll), awake:
            if settings.warmup_requests or settings.warmup_s:
                warming = await self._open_load(level, settings, warming=True)
                meter = ProgressMeter(warming, observer, level, settings.max_windows, batch_size)
                await warm_up(warming, settings, self._stop, meter)
            load = await self._open_load(level, settings)
            for collector in collectors:
                await collector.begin()
            ledger = LevelLedger(load.records, settings, level, batch_size)
            meter = ProgressMeter(load, observer, level, settings.max_windows, batch_size)
            measured = await LevelMeasurement(load, statistics, ledger, meter, self._stop).run()
        result = extended(level_result(measured), self.connected, self.spec.address, load, measured)
        for collector in collectors:
            result = await collector.finish(measured, result)
        for notice in (*statistics.take_notices(), *(self._workers.take_notices() if self._workers else ())):
            observer.notice(notice)
        observer.level_finished(result)
        return result

    def _build_pool(self) -> "WorkerPool":
        """Return the processes that share the load: on this machine, or one on each of several nodes."""
        from tpx.perf.loads.workers import LocalWorker, StartWorker, WorkerPool  # late: most runs need none

        start: StartWorker = LocalWorker
        if self.spec.pace.cluster:
            from tpx.perf.loads.nodes import ray_nodes

            start = self._stack.enter_context(ray_nodes(self._processes))
        spec = replace(self.spec, prompts=self.connected.prompts)
        return WorkerPool(self._processes, partial(open_model, spec), start)

    async def _begin_run(self) -> list[Collector]:
        """Open what levels need besides connections, and report the run to the observer."""
        spec, stack = self.spec, self._stack
        collectors: list[Collector] = []
        reason = _explain_single_process(spec)
        if reason and (spec.pace.workers > 1 or spec.pace.cluster):
            name = "workers" if spec.pace.workers > 1 else "cluster"
            raise UsageError(f"--{name} {getattr(spec.pace, name)}: {reason}")
        if spec.pace.cluster or (self._processes > 1 and not reason):
            self._workers = await stack.enter_async_context(self._build_pool())
        address = spec.metrics.address(spec.parsed_address.host)
        if address is not None:
            from tpx.perf.measure.scraper import Scraper  # late: few runs need it

            dialer = http_dialer(spec.metrics_endpoint(address))
            scraper = Scraper(address, dialer, self._observer.notice)
            stack.push_async_callback(scraper.stop)
            collectors.append(scraper)
        if spec.output.profile_export_file or spec.output.jsonl:
            from tpx.perf.report.recorders import open_recorders

            recorder = open_recorders(spec, self._capture, self.offset_ns, self.problems)
            collectors.append(stack.enter_context(recorder))
        self._observer.run_started(self.connected.model, self.connected.requests.data, self.settings)
        if spec.pace.poll == "busy" and (spec.levels.highest or 0) > FEW_IN_FLIGHT:
            self._observer.notice(
                f"--poll busy is for 1 to {FEW_IN_FLIGHT} requests in flight: with more the client's own "
                "work delays answers, and it hardly sleeps anyway"
            )
        for notice in self.connected.notices:
            self._observer.notice(notice)
        return collectors

    async def _open_load(self, level: Level, settings: LevelSettings, *, warming: bool = False) -> Load:
        processes = 1 if self._workers is None else self._workers.count
        check_openable(level, settings, self.connected.client.slots_per_connection, processes)
        load_request = LoadRequest(level=level, settings=settings, warming=warming)
        if self._workers is not None:
            return await self._workers.open_load(load_request)
        return await open_load(self.connected, load_request)


def _explain_single_process(spec: SessionSpec) -> str:
    """Return why one process must send everything; empty if several may."""
    if spec.pace.poll == "busy":
        return "--poll busy polls in one process"
    if spec.service.service_kind == "inprocess":
        return "an engine in this process is not reached from others"
    if spec.levels.kind.undivided:
        return spec.levels.kind.undivided
    if spec.output.profile_export_file is not None:
        return "--profile-export-file keeps every answer, which one process does"
    return ""


def _complete_settings(spec: SessionSpec, connected: ConnectedModel) -> LevelSettings:
    """Return the rules of the run's levels, completed by what the model and its data require."""
    calls = spec.wire.calls_asynchronously(sequences=connected.sequences)
    in_process = spec.service.service_kind == "inprocess"
    settings = replace(spec.level_settings, asynchronous=calls, with_engine=in_process)
    if not connected.sequences:
        settings = replace(settings, sequences=0)
    if spec.load.periodic_concurrency_range is not None:
        return replace(settings, request_count=spec.load.periodic_concurrency_range.end)
    if spec.load.session_concurrency is not None:
        check_conversations(connected.requests.conversations, spec.load.session_concurrency)
        return replace(settings, request_count=sum(map(len, connected.requests.conversations)))
    if not spec.load.fixed_schedule:
        return settings
    check_timestamps(connected.requests.timestamps_ns)
    left = len(connected.requests.timestamps_ns) - settings.warmup_requests
    if left <= 0:
        raise UsageError(
            "The warmup request count must be less than the total number of payloads in the dataset."
        )
    return replace(settings, request_count=left)
