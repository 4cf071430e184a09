"""The server: builds the object graph from a ServeConfig, starts it, and shuts it down."""

import asyncio
import gc
import logging
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tpx.errors import LoadError, TpxError, UsageError
from tpx.options import nearest
from tpx.protocol.compression import Inflater
from tpx.protocol.handshakes import is_local
from tpx.protocol.memory_budget import MemoryBudget
from tpx.serving.backends.table import KNOWN, backend_names
from tpx.serving.cache import parse_cache_config
from tpx.serving.dataplane import DataPlane, RepositoryEntry, Watching
from tpx.serving.distributions.settings import parse_latency_settings
from tpx.serving.endpoints import BoundEndpoint, Endpoints, check_ports, overview_of
from tpx.serving.frontends.grpc import GrpcFrontend
from tpx.serving.frontends.http import HttpFrontend
from tpx.serving.frontends.metrics.endpoint import MetricsFrontend, cache_families, custom_families
from tpx.serving.frontends.metrics.gpu import open_gpus
from tpx.serving.frontends.metrics.loop import LoopMetrics, cpu_times_of
from tpx.serving.frontends.metrics.machine import CpuMetrics, ProcessMetrics, Sampler
from tpx.serving.frontends.metrics.models import ModelFamilies
from tpx.serving.frontends.metrics.text import MetricsProbe
from tpx.serving.heap import MemoryWatch, buffered_bytes, give_memory_back, keep_freed_memory
from tpx.serving.instances.completions import Completions
from tpx.serving.logs import LogControl
from tpx.serving.options import ServeConfig
from tpx.serving.polling import BusyPolling, polling_time_ns
from tpx.serving.repository.coordinator import Coordinator
from tpx.serving.repository.layout import LocalRepository, Repository
from tpx.serving.repository.loading import Loader, LoadSettings
from tpx.serving.repository.options import ModelSpec
from tpx.serving.repository.table import ModelRepository
from tpx.serving.scheduling.limiter import Limiter, NoLimiter, RateLimiter, parse_resources
from tpx.serving.shared_memory import cuda
from tpx.serving.shared_memory.regions import SharedMemory, SharedMemoryLimits
from tpx.serving.shared_memory.system import region_limit
from tpx.serving.tracing.tracer import Tracer, open_sink

if TYPE_CHECKING:
    from tpx.serving.processes.hub import FrontendHub
    from tpx.serving.processes.supervisor import EngineSpec
    from tpx.serving.repository.stores.addresses import StoreAddress

log = logging.getLogger(__name__)

# Time within which a computing thread regains the interpreter lock after its kernel; the default of 5 ms
# would be most of a request's latency.
_SWITCH_INTERVAL_S = 0.0005

_UNLOAD_S = 5
"""Minimum time for unloading models, however long requests in flight took."""


_LINGER_S = 5
"""Grace period after the last computation, for partly received requests and for clients to read responses."""
_LOOK_EVERY_S = 0.05


class Accepting(Protocol):
    """A listener, or all listeners of the frontend processes."""

    shares_port: bool

    @property
    def connections(self) -> int: ...
    def release(self) -> None:
        """Ask clients to reconnect."""

    def stop_accepting(self) -> None:
        """Close the port and idle connections."""


async def shut_down(
    plane: DataPlane, listeners: Sequence[Accepting], *, drain_s: int, exit_timeout_s: int
) -> float | None:
    """Shut down `listeners` in the order that load balancers, clients, and models need.

    1. Not ready: load balancers start to remove the server. All requests are served for `drain_s`
    seconds; in the second half clients are asked to reconnect. 2. Stopping: new requests are refused.
    Requests in flight and started sequences may finish within `exit_timeout_s` seconds; ports and
    connections stay open. 3. Closing: connections end once their responses are read.

    Returns the seconds left for unloading the models, or None if time ran out while something was busy.
    """
    time_s = asyncio.get_running_loop().time
    plane.exiting = True
    if drain_s:
        log.info("Draining: reporting not ready, serving for another %d s", drain_s)
        await asyncio.sleep(drain_s / 2)
        for listener in listeners:
            listener.release()
        await asyncio.sleep(drain_s / 2)
    plane.stopping = True
    plane.control.stop()
    for listener in listeners:
        if listener.shares_port:
            listener.release()
    ends_s = time_s() + exit_timeout_s
    if not await _wait_until_finished(plane, ends_s):
        return None
    for listener in listeners:
        listener.stop_accepting()
    patience_s = min(ends_s, time_s() + _LINGER_S)
    while sum(listener.connections for listener in listeners) and time_s() < patience_s:  # noqa: ASYNC110 (an event would add a check to every connection)
        await asyncio.sleep(_LOOK_EVERY_S)
    return max(0.0, ends_s - time_s())


async def _wait_until_finished(plane: DataPlane, ends_s: float) -> bool:
    """Wait for requests in flight and sequences. Return False at the deadline if requests or loads are
    left; sequences are abandoned then.
    """
    log.info("Waiting for in-flight requests to complete.")
    control, told_s = plane.control, -1
    while True:
        serving = [*plane.served(), *control.retirement.draining]
        busy = [one for one in serving if one.sequences > 0 or (one.in_flight > 0 and not one.abandoned)]
        left_s = ends_s - asyncio.get_running_loop().time()
        if told_s != max(0, round(left_s)):
            told_s = max(0, round(left_s))
            log.info("Timeout %d: Found %d model versions that have in-flight inferences", told_s, len(busy))
            for model in busy:
                count, name = max(model.in_flight, model.sequences), model.name
                log.info("Model '%s' (version %d) has %d in-flight inferences", name, model.version, count)
            if control.in_use.busy:
                log.info("%d loads or unloads have not ended", control.in_use.busy)
        if not busy and not control.in_use.busy:
            return True
        if left_s <= 0:
            return not control.in_use.busy and not any(model.in_flight for model in busy)
        await asyncio.sleep(min(_LOOK_EVERY_S, left_s))


class InferenceServer:
    """One server on the running event loop: `start`, then `stop`."""

    def __init__(
        self, config: ServeConfig, logs: LogControl | None = None, spec: "EngineSpec | None" = None
    ) -> None:
        """Create the server; with a `spec` it is the engine of frontend processes. Raises UsageError."""
        if spec is None and config.server.frontends:
            raise UsageError(
                "--frontends needs `tpx serve`: a server inside a Python program runs in one process"
            )
        self._config = config
        self._spec = spec
        self.logs = LogControl(config.logging.settings) if logs is None else logs
        trace_setting = config.tracing.setting
        self.tracer = Tracer(trace_setting, open_sink(trace_setting))
        self._failed_start: list[RepositoryEntry] = []
        loop = asyncio.get_running_loop()
        self._cache = parse_cache_config(
            config.repository.cache_config, config.repository.response_cache_byte_size
        )
        # with frontends, the client has three processes to wait for: polling in one brings nothing
        poll_ns = 0 if spec is not None else polling_time_ns(config.server.busy_poll_us)
        self._polling = BusyPolling(poll_ns, loop.call_soon)
        settings = LoadSettings(
            options=config.repository,
            inline_below_ns=config.server.inline_below_us * 1000,
            latencies=parse_latency_settings(config.metrics.metrics_config),
            cache=self._cache,
            limiter=limiter(config),
            polling=self._polling,
            backend_settings=backend_settings(config),
        )
        self.repository = ModelRepository(namespaces=config.repository.model_namespacing)
        self.control = Coordinator(
            self.repository,
            Loader(settings, Completions(loop), loop),
            open_repositories(config.repository),
        )
        budget = MemoryBudget(
            buffered_bytes(config.server.max_buffered_bytes), config.server.max_buffered_wait_secs
        )
        self._memory_watch = MemoryWatch(budget)
        self.plane = DataPlane(
            self.repository,
            self.control,
            SharedMemory(cuda.opener(), shared_memory_limits(config), budget),
            Watching(self.tracer, self.logs),
            config.server.id,
            # with load on demand, one model that fails to load must not make the server unready
            strict_readiness=config.repository.strict_readiness
            and config.repository.model_control_mode != "lazy",
            max_string_elements=config.server.max_string_elements,
        )
        self._sampler = Sampler([], 1)
        self._metrics: MetricsFrontend | None = None
        self._hub = None if spec is None else self._create_hub(spec, budget)
        own = config
        if spec is not None:  # an engine itself serves only metrics
            http, grpc = replace(config.http, allow_http=False), replace(config.grpc, allow_grpc=False)
            own = replace(config, http=http, grpc=grpc)
        bound = {} if spec is None else {"metrics": spec.metrics}
        self.endpoints = Endpoints(own, self.plane, self._get_metrics_frontend, budget, bound=bound)
        self.tracer.watch(self._publish_state)
        self.logs.watch(lambda _: self._publish_state())

    def status(self) -> list[RepositoryEntry]:
        """Return every known version, for the startup table; after a failed start, as of that time."""
        return self._failed_start or self.plane.index(ready_only=False)

    async def start(self) -> list[BoundEndpoint]:
        """Load the models, then listen. Raises LoadError, UsageError."""
        check_ports(self._config)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        keep_freed_memory()
        try:
            endpoints = await self._load_and_listen()
        except TpxError:
            self._failed_start = self.status()
            await self._close_all()
            raise
        self._memory_watch.start()
        give_memory_back()  # loading leaves some megabytes
        # the objects created so far are permanent: exempt them from garbage collection
        gc.freeze()
        return endpoints

    async def stop(self) -> bool:
        """Drain, let requests in flight end, close, and unload. Metrics are served until the end.

        Returns False if time ran out: what still computes or finalizes cannot be stopped, so the
        process must exit.
        """
        left_s = await shut_down(
            self.plane,
            self.endpoints.serving if self._hub is None else [self._hub],
            drain_s=self._config.server.drain_secs,
            exit_timeout_s=self._config.server.exit_timeout_secs,
        )
        if left_s is None:
            await self.abandon()
            return False
        log.info("All models are stopped, unloading models")
        self._log_unloading(left_s)
        ending = asyncio.get_running_loop().create_task(self._close_all())
        ended, _ = await asyncio.wait([ending], timeout=max(left_s, _UNLOAD_S))
        if not ended:
            await self.abandon()
            return False
        await ending
        self._log_unloading(left_s)
        return True

    async def abandon(self) -> None:
        """Remove temporary files and write traces, without waiting for loads or computations."""
        self.control.abandon()
        await asyncio.to_thread(self.tracer.close)

    async def _close_all(self) -> None:
        if self._hub is not None:
            self._hub.close()
        self.endpoints.close()
        self._sampler.stop()
        self._memory_watch.stop()
        self.plane.offload.close()
        await self.control.close()
        await asyncio.to_thread(self.tracer.close)

    async def _load_and_listen(self) -> list[BoundEndpoint]:
        await self.endpoints.probe()
        await self.control.start()
        failed = self.repository.failures()
        if failed and self._config.repository.exit_on_error:
            known = {(entry.namespace, entry.name) for entry in self.status()}
            raise LoadError(
                f"failed to load {len(failed)} of {max(len(known), len(failed))} models: {', '.join(failed)} "
                "(--exit-on-error=false serves the others)"
            )
        self.plane.started = True
        endpoints = await self.endpoints.listen()
        if self._hub is None or self._spec is None:
            return endpoints
        await self._hub.listen()
        self._spec.report_started()
        return [*self._spec.bound, *endpoints]

    def _publish_state(self) -> None:
        self.endpoints.observe()
        if self._hub is not None:
            self._hub.tell_state()

    def _log_unloading(self, timeout_s: float) -> None:
        log.info(
            "Timeout %d: Found %d live models and %d in-flight non-inference requests",
            timeout_s,
            len(self.repository.served()),
            self.control.in_use.busy,
        )

    def _create_hub(self, spec: "EngineSpec", budget: MemoryBudget) -> "FrontendHub":
        from tpx.serving.processes.hub import FrontendHub  # late: most servers run in one process

        config, plane = self._config, self.plane
        # frontends inflate: requests arrive here uncompressed
        inflater = Inflater(config.server.max_inflated_bytes)
        overview = overview_of(config, self._get_metrics_frontend)
        http = HttpFrontend(plane, config.http.http_max_input_size, inflater, front=overview)
        return FrontendHub(plane, spec, http, GrpcFrontend(plane), budget)

    def _get_metrics_frontend(self) -> MetricsFrontend:
        """Return the renderer of the metrics page; the first call starts sampling the machine."""
        if self._metrics is None:
            self._metrics = self._create_metrics_frontend()
        return self._metrics

    def _create_metrics_frontend(self) -> MetricsFrontend:
        config = self._config
        probes: list[MetricsProbe] = []
        if config.metrics.allow_cpu_metrics:
            times = cpu_times_of(threading.current_thread(), lambda: self._polling.polls)
            probes = [CpuMetrics(), ProcessMetrics(), LoopMetrics(times, advises=self._spec is None)]
        gpus = open_gpus() if config.metrics.allow_gpu_metrics else None
        if gpus is not None:
            probes.append(gpus)
        self._sampler = Sampler(probes, config.metrics.metrics_interval_ms / 1000)
        self._sampler.start()
        models = ModelFamilies(
            parse_latency_settings(config.metrics.metrics_config), {} if gpus is None else gpus.uuids
        )
        sources = [self._sampler.families, lambda: custom_families(self.control.metrics)]
        cache = self._cache
        if cache is not None:
            sources.append(lambda: cache_families(cache))
        if self._hub is not None:
            sources.append(self._hub.families)
        return MetricsFrontend(self.plane, models, sources)


def open_repositories(options: ModelSpec) -> list[Repository]:
    """Return the model repositories. Raises UsageError."""
    if options.model_memory_limit and not options.on_request:
        raise UsageError(
            "--model-memory-limit needs --model-control-mode=lazy or explicit: in the mode "
            f"'{options.model_control_mode}' a model that was unloaded to make room would not be loaded again"
        )
    return [_open_repository(place) for place in (*options.model_repository, *options.models)]


def _open_repository(place: "Path | StoreAddress") -> Repository:
    if isinstance(place, Path):
        return LocalRepository(place)
    from tpx.serving.repository.stores.store import StoreRepository  # late: few models are in object stores

    return StoreRepository(place, os.environ, Path.home())


def limiter(config: ServeConfig) -> Limiter:
    """Return the rate limiter; one that limits nothing if it is off. Raises UsageError."""
    resources = parse_resources(config.repository.rate_limit_resource)
    if config.repository.rate_limit != "off":
        return RateLimiter(resources)
    if resources:
        log.warning("--rate-limit-resource has no effect without --rate-limit execution_count")
    return NoLimiter()


def backend_settings(config: ServeConfig) -> dict[str, dict[str, str]]:
    """Return the settings `[backend,]key=value` by backend; warn of unknown ones. Raises UsageError."""
    out: dict[str, dict[str, str]] = {}
    for flag in config.repository.backend_config:
        backend, comma, pair = flag.rpartition(",")
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--backend-config must be [<backend>,]<key>=<value>, got '{flag}'")
        out.setdefault(backend if comma else "", {})[key] = value
    if others := out.keys() - KNOWN.keys() - {""}:
        backends = backend_names(config.repository.backend_directory)
        for name in sorted(others.difference(backends)):
            log.warning(
                "--backend-config names '%s', which is not a backend%s", name, nearest(name, backends)
            )
    return out


def shared_memory_limits(config: ServeConfig) -> SharedMemoryLimits:
    """Return the limits on clients' shared memory."""
    http, grpc, allowed = config.http, config.grpc, config.server.allow_client_shm
    if allowed is None:  # by default if all clients are on this machine
        addresses = [http.http_address] * http.allow_http + [grpc.grpc_address] * grpc.allow_grpc
        allowed = all(map(is_local, addresses))
    return SharedMemoryLimits(
        allowed=allowed,
        max_regions=region_limit(),
        max_input_bytes=config.server.client_shm_max_input_size,
    )
