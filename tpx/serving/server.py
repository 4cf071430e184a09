"""The server: builds everything from a ServeConfig, starts it, and ends it in order."""

import asyncio
import ctypes
import gc
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tpx.errors import LoadError, TpxError, UsageError
from tpx.protocol.grpc.server import connection_factory as grpc_connections
from tpx.protocol.http1.server import connection_factory as http_connections
from tpx.protocol.inflation import Inflater
from tpx.protocol.listener import Listener
from tpx.protocol.memory_budget import MemoryBudget
from tpx.serving.cache import parse_cache_config
from tpx.serving.dataplane import DataPlane, IndexEntry, Watching
from tpx.serving.distributions.settings import parse_latency_settings
from tpx.serving.frontends.access import parse_restrictions
from tpx.serving.frontends.access_log import AccessLog
from tpx.serving.frontends.forwarding import parse_forwarding
from tpx.serving.frontends.grpc import GrpcFrontend
from tpx.serving.frontends.http import HttpFrontend
from tpx.serving.frontends.metrics.endpoint import CacheFamilies, CustomFamilies, MetricsFrontend
from tpx.serving.frontends.metrics.gpu import open_gpus
from tpx.serving.frontends.metrics.machine import CpuProbe, ProcessProbe
from tpx.serving.frontends.metrics.models import ModelFamilies
from tpx.serving.frontends.metrics.sampler import Sampler
from tpx.serving.frontends.metrics.text import Probe, Source
from tpx.serving.heap import MemoryWatch, available_bytes
from tpx.serving.instances.completions import Completions
from tpx.serving.limits import check_ports, grpc_limits, http_limits
from tpx.serving.logs import LogControl
from tpx.serving.options import ServeConfig
from tpx.serving.parts import backend_settings, control_settings, limiter, shared_memory_limits
from tpx.serving.repository.coordinator import Coordinator
from tpx.serving.repository.loading import Loader, LoadSettings
from tpx.serving.repository.table import ModelRepository
from tpx.serving.shared_memory import cuda
from tpx.serving.shared_memory.regions import SharedMemory
from tpx.serving.shutdown import Shutdown
from tpx.serving.tls import grpc_tls, http_tls
from tpx.serving.tracing.tracer import Tracer, open_sink

log = logging.getLogger(__name__)

# A thread that computes gets the interpreter within this time when it comes back from its kernel; the default
# of 5 ms would be most of a request's latency.
_SWITCH_INTERVAL_S = 0.0005

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_UNLOAD_S = 5
"""At least, however long the requests in flight took."""
_Connections = Callable[[], asyncio.BaseProtocol]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a service listens."""

    service: str
    address: str
    port: int

    @property
    def where(self) -> str:
        """Address and port as a URL has them."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class _Access:
    """Who may use what of the endpoints, and what is forwarded to models. Raises UsageError."""

    def __init__(self, config: ServeConfig) -> None:
        self.http_restrictions = parse_restrictions("--http-restricted-api", config.http_restricted_api)
        self.grpc_restrictions = parse_restrictions(
            "--grpc-restricted-protocol", config.grpc_restricted_protocol
        )
        self.http_forwarding = parse_forwarding(
            "--http-header-forward-pattern", config.http_header_forward_pattern
        )
        self.grpc_forwarding = parse_forwarding(
            "--grpc-header-forward-pattern", config.grpc_header_forward_pattern
        )
        self.http_tls = http_tls(config) if config.allow_http else None
        self.grpc_tls = grpc_tls(config) if config.allow_grpc else None


class Server:
    """One server on the running event loop: `start`, then `stop`."""

    def __init__(self, config: ServeConfig, logs: LogControl | None = None) -> None:
        self._config = config
        self.logs = LogControl(config.log_settings) if logs is None else logs
        trace_setting = config.trace_setting
        self.tracer = Tracer(trace_setting, open_sink(trace_setting))
        self._access = _Access(config)
        self._inflater = Inflater(config.max_inflated_bytes)
        self._listeners: list[Listener] = []
        self._metrics_listener: Listener | None = None
        self._failed_start: list[IndexEntry] = []
        self._observers: list[tuple[Listener, Callable[[Any], None]]] = []
        self.tracer.watch(self._observe)
        self.logs.watch(lambda _: self._observe())
        self._sampler = Sampler([], 1)
        loop = asyncio.get_running_loop()
        self._cache = parse_cache_config(config.cache_config, config.response_cache_byte_size)
        settings = LoadSettings(
            auto_complete=config.auto_complete,
            inline_below_ns=config.inline_below_us * 1000,
            latencies=parse_latency_settings(config.metrics_config),
            cache=self._cache,
            limiter=limiter(config),
            backend_directory=config.backend_directory,
            agent_directory=config.repoagent_directory,
            backend_settings=backend_settings(config),
            namespaces=config.model_namespacing,
        )
        self.repository = ModelRepository(namespaces=config.model_namespacing)
        self.control = Coordinator(
            self.repository, Loader(settings, Completions(loop), loop), control_settings(config)
        )
        self._memory = MemoryBudget(
            config.max_buffered_bytes or available_bytes() // 4, config.max_buffered_wait_secs
        )
        self._memory_watch = MemoryWatch(self._memory)
        memory = SharedMemory(cuda.opener(), shared_memory_limits(config))
        self.plane = DataPlane(
            self.repository,
            self.control,
            memory,
            Watching(self.tracer, self.logs),
            config.id,
            # what one client asks for and cannot be loaded is no reason for others to go elsewhere
            strict_readiness=config.strict_readiness and config.model_control_mode != "lazy",
            max_string_elements=config.max_string_elements,
        )

    def status(self) -> list[IndexEntry]:
        """Every known version of every model, for the startup table; after a start that failed as it then
        was."""
        return self._failed_start or self.plane.index(ready_only=False)

    async def start(self) -> list[Endpoint]:
        """Load the models, then listen. Raises LoadError, UsageError."""
        check_ports(self._config)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        _keep_freed_memory()
        try:
            endpoints = await self._load_and_listen()
        except TpxError:
            self._failed_start = self.status()
            await self._end()
            raise
        self.plane.started = True
        self._memory_watch.start()
        # what was made so far stays: the collector need not look at it again
        gc.collect()
        gc.freeze()
        return endpoints

    async def stop(self) -> bool:
        """Serve on for the drain, let requests in flight end, close, unload. Metrics are served to the end.

        False if the time for it ran out: what still computes or is finalized cannot be stopped, the process
        must end.
        """
        config = self._config
        serving = [each for each in self._listeners if each is not self._metrics_listener]
        left_s = await Shutdown(
            self.plane, serving, drain_s=config.drain_secs, exit_timeout_s=config.exit_timeout_secs
        ).run()
        if left_s is None:
            await self.abandon()
            return False
        log.info("All models are stopped, unloading models")
        self._log_unloading(left_s)
        ending = asyncio.get_running_loop().create_task(self._end())
        ended, _ = await asyncio.wait([ending], timeout=max(left_s, _UNLOAD_S))
        if not ended:
            await self.abandon()
            return False
        await ending
        self._log_unloading(left_s)
        return True

    async def abandon(self) -> None:
        """The process ends whatever computes or loads: leave no files behind, and no trace unwritten."""
        self.control.abandon()
        await self._end_traces()

    async def _end(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._sampler.stop()
        self._memory_watch.stop()
        self.plane.offload.close()
        self._inflater.close()
        await self.control.close()
        await self._end_traces()

    async def _end_traces(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.tracer.close)

    def _observe(self) -> None:
        """Have the listeners tell of requests while somebody wants to know."""
        wanted = self.tracer.on or self.logs.verbose
        for listener, observer in self._observers:
            listener.observer = observer if wanted else None

    async def _load_and_listen(self) -> list[Endpoint]:
        await self.control.start()
        failed = self.repository.failures()
        if failed and self._config.exit_on_error:
            raise LoadError(f"failed to load all models: {', '.join(failed)}")
        return [await self._listen(*service) for service in self._services()]

    def _log_unloading(self, timeout_s: float) -> None:
        log.info(
            "Timeout %d: Found %d live models and %d in-flight non-inference requests",
            timeout_s,
            len(self.repository.served()),
            self.control.busy,
        )

    def _services(self) -> list[tuple[str, str, int]]:
        config = self._config
        services = [
            ("GRPCInferenceService", config.grpc_address, config.grpc_port, config.allow_grpc),
            ("HTTPService", config.http_address, config.http_port, config.allow_http),
            ("Metrics Service", config.metrics_host, config.metrics_port, config.allow_metrics),
        ]
        return [(name, address, port) for name, address, port, allowed in services if allowed]

    def _metrics(self) -> MetricsFrontend:
        """The metrics page, and what measures the machine for it."""
        config = self._config
        probes: list[Probe] = [CpuProbe(), ProcessProbe()] if config.allow_cpu_metrics else []
        gpus = open_gpus() if config.allow_gpu_metrics else None
        if gpus is not None:
            probes.append(gpus)
        self._sampler = Sampler(probes, config.metrics_interval_ms / 1000)
        self._sampler.start()
        models = ModelFamilies(
            parse_latency_settings(config.metrics_config), {} if gpus is None else gpus.uuids
        )
        sources: list[Source] = [self._sampler, CustomFamilies(self.control.metrics)]
        if self._cache is not None:
            sources.append(CacheFamilies(self._cache))
        return MetricsFrontend(self.plane, models, sources)

    async def _listen(self, service: str, address: str, port: int) -> Endpoint:
        config = self._config
        listener = Listener(
            max_connections=config.max_connections,
            max_per_client=config.max_connections_per_client,
            share_s=config.connection_turn_us / 1e6,
            memory=self._memory,
        )
        access = AccessLog(self.logs)
        observer: Callable[[Any], None] = access.http
        option, tls, reuse = "metrics", None, False
        if service == "HTTPService":
            factory, option = self._http(listener), "http"
            tls, reuse = self._access.http_tls, config.reuse_http_port
        elif service == "GRPCInferenceService":
            factory, option, observer = self._grpc(listener), "grpc", access.grpc
            tls, reuse = self._access.grpc_tls, config.reuse_grpc_port
        else:
            self._metrics_listener = listener
            limits = http_limits(config, max_body_bytes=0)
            factory = http_connections(listener, limits, self._metrics().serve)
        try:
            bound = await listener.start(factory, address, port, tls=tls, reuse_port=reuse)
        except OSError as exc:
            raise UsageError(
                f"Socket '{address}:{port}' already in use or not available: {exc.strerror} "
                f"(--{option}-port and --{option}-address say where it shall be)"
            ) from exc
        self._listeners.append(listener)
        self._observers.append((listener, observer))
        self._observe()
        return Endpoint(service=service, address=address, port=bound)

    def _http(self, listener: Listener) -> _Connections:
        config, access = self._config, self._access
        frontend = HttpFrontend(
            self.plane,
            config.http_max_input_size,
            self._inflater,
            restrictions=access.http_restrictions,
            forwarding=access.http_forwarding,
        )
        limits = http_limits(config, max_body_bytes=config.http_max_input_size)
        judge = frontend.judge if access.http_restrictions is not None else None
        return http_connections(listener, limits, frontend.serve, judge)

    def _grpc(self, listener: Listener) -> _Connections:
        access = self._access
        frontend = GrpcFrontend(
            self.plane, restrictions=access.grpc_restrictions, forwarding=access.grpc_forwarding
        )
        return grpc_connections(listener, grpc_limits(self._config), frontend.methods(), self._inflater)


def _keep_freed_memory() -> None:
    """Have the allocator keep what the bodies of requests have used, instead of asking for zeroed pages anew.

    glibc gets there by itself, to these very bounds, but only after a body of this size; before that several
    large requests at a time cost more in page faults than in anything else. Unloading gives all of it back.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 64 << 20)
