"""Options of `tpx serve`; tritonserver's spellings are aliases of the same fields."""

import os
import re
from functools import partial
from pathlib import Path

from tpx.options import Options, group, option
from tpx.protocol.handshakes import is_local
from tpx.serving.endpoint_options import (
    GrpcSpec,
    HostingSpec,
    HttpSpec,
    MetricsEndpointSpec,
    OpenAiSpec,
    ServiceAddress,
)
from tpx.serving.logs import LogFormat, LogSettings
from tpx.serving.repository.options import ModelSpec
from tpx.serving.tracing.flags import TraceFlag, level_words, start_setting, trace_flag
from tpx.serving.tracing.settings import Level, TraceSetting
from tpx.sources import SECTION, config_file, show_config


def _parse_verbosity(text: str) -> int:
    """Parse a level; 'true' is 1, 'false' is 0."""
    level = {"true": "1", "false": "0"}.get(text.lower(), text)
    if not level.isdecimal():
        raise ValueError("expected an integer, at least 0")
    return int(level)


class ServerLimitsSpec(Options):
    """Limits on the connections of all endpoints and on memory, and the shutdown of the server."""

    id: str = option("triton", "server name in its metadata, which some clients check")
    drain_secs: int = option(
        0,
        "seconds after a stop signal during which the server reports not ready but still serves, so that "
        "load balancers move their traffic",
        minimum=0,
        common=True,
    )
    exit_timeout_secs: int = option(
        30, "seconds that in-flight requests and sequences then have to finish", minimum=0
    )
    max_connections: int = option(10_000, "connections accepted per endpoint", minimum=1, common=True)
    max_connections_per_client: int = option(
        0, "connections accepted from one address; 0 = no limit (a proxy counts as one address)", minimum=0
    )
    connection_turn_us: int = option(
        2000, "microseconds that one connection may use the event loop before others are served", minimum=1
    )
    min_receive_rate: int = option(
        240,
        "minimum average rate, in bytes per second, of an incoming body or message after "
        "--http-body-timeout-secs or --grpc-message-timeout-secs; 0 = none",
        minimum=0,
    )
    max_receive_secs: int = option(3600, "maximum seconds to receive a body or message", minimum=1)
    write_timeout_secs: int = option(
        60, "close a connection whose client reads nothing of its response for this many seconds", minimum=1
    )
    max_inflated_bytes: int = option(
        1 << 30,
        "memory limit in bytes for decompressing requests larger than 64 KiB, over HTTP and gRPC "
        "together; one request may use three quarters of it",
        minimum=1,
    )
    allow_client_shm: bool | None = option(
        None, "let clients register shared memory (default: if all endpoints listen on this machine only)"
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "names besides localhost and IP addresses by which HTTP clients may call the server, .example.com "
        "with its subdomains, or * for any; endpoints that listen on this machine only are always checked; "
        "repeatable",
        metavar="NAME",
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        "origins of pages in browsers that may use the server (CORS), such as https://example.com, or * for "
        "any; repeatable",
        metavar="ORIGIN",
    )
    client_shm_max_input_size: int = option(
        2**31 - 1, "maximum bytes of input that a request may read from shared memory", minimum=1
    )
    max_buffered_bytes: int = option(
        0,
        "memory limit in bytes for requests and responses of all connections; 0 = a quarter of the memory "
        "available to the process",
        minimum=0,
    )
    max_buffered_wait_secs: int = option(
        10, "seconds that a request waits for buffer memory before it is refused", minimum=0
    )
    frontends: int = option(
        0,
        "frontend processes for HTTP and gRPC beside the engine process; 0 = one process does both",
        minimum=0,
        maximum=256,
        common=True,
    )
    max_string_elements: int = option(
        1_000_000, "maximum strings in the BYTES inputs of a request", minimum=1
    )
    inline_below_us: int = option(
        100,
        "run models faster than this on the event loop, which saves two thread switches; 0 = never",
        minimum=0,
    )
    busy_poll_us: int = option(
        50,
        "time to poll for the next request of a client that sends one after the other, before sleeping; "
        "0 = never, as on a single processor and with --frontends",
        minimum=0,
    )


class LoggingSpec(Options):
    """The log: its levels, format and destination."""

    log_verbose: int = option(
        0, "verbosity; 1 or higher logs every request", metavar="INT", parse=_parse_verbosity, common=True
    )
    log_info: bool = option(True, "log INFO messages")
    log_warning: bool = option(True, "log WARNING messages")
    log_error: bool = option(True, "log ERROR messages")
    log_format: LogFormat = option(
        "default", "Triton's log lines with one of two time formats, or one JSON object per line", common=True
    )
    log_file: str = option("", "log to this file instead of the console", metavar="PATH", common=True)

    @property
    def settings(self) -> LogSettings:
        """Log settings at the start."""
        return LogSettings(
            log_file=self.log_file,
            log_info=self.log_info,
            log_warning=self.log_warning,
            log_error=self.log_error,
            log_verbose_level=self.log_verbose,
            log_format=self.log_format,
        )


class TracingSpec(Options):
    """Traces of requests."""

    trace_config: tuple[TraceFlag, ...] = option(
        (),
        "trace requests: level=TIMESTAMPS|TENSORS|OFF, rate=N, count=N, mode=triton|opentelemetry, "
        "triton,file=PATH, triton,log-frequency=N, opentelemetry,url=URL, "
        "opentelemetry,resource=KEY=VALUE, opentelemetry,bsp_max_queue_size=N, "
        "opentelemetry,bsp_schedule_delay=MS, opentelemetry,bsp_max_export_batch_size=N; repeatable",
        metavar="[MODE,]SETTING=VALUE",
        parse=trace_flag,
        common=True,
    )
    trace_file: str = option("", "deprecated: --trace-config triton,file=PATH", metavar="PATH")
    trace_level: tuple[Level, ...] = option(
        (), "deprecated: --trace-config level=LEVEL", metavar="LEVEL", parse=level_words
    )
    trace_rate: int = option(1000, "deprecated: --trace-config rate=N", minimum=1)
    trace_count: int = option(-1, "deprecated: --trace-config count=N", minimum=-1)
    trace_log_frequency: int = option(0, "deprecated: --trace-config triton,log-frequency=N", minimum=0)

    @property
    def setting(self) -> TraceSetting:
        """Trace settings at the start. Raises UsageError."""
        older = TraceSetting(
            trace_level=self.trace_level,
            trace_rate=self.trace_rate,
            trace_count=self.trace_count,
            log_frequency=self.trace_log_frequency,
            trace_file=self.trace_file,
        )
        return start_setting(self.trace_config, older, os.environ)


def _validate_form(form: str, pattern: str, text: str) -> str:
    """Validate text whose `form` an error shows."""
    if not re.fullmatch(pattern, text):
        raise ValueError(f"expected {form}")
    return text


_validate_setting = partial(_validate_form, "<policy>,<setting>=<value>", "[^,]+,[^=]+=.+")
_validate_device_bytes = partial(_validate_form, "<device>:<bytes>", r"\d+:\d+")
_validate_device_share = partial(
    _validate_form, "<device>:<fraction between 0 and 1>", r"\d+:(0?\.\d+|0\.?|1(\.0*)?)"
)


class CompatibilitySpec(Options):
    """Options of tritonserver that have no effect in tpx: each is accepted with one warning."""

    cache_directory: Path = option(Path("/opt/tritonserver/caches"), "caches are built in", inert=True)
    http_thread_count: int = option(8, "one event loop serves all connections", minimum=1, inert=True)
    grpc_infer_thread_count: int = option(
        2, "one event loop serves all connections", minimum=2, maximum=128, inert=True
    )
    grpc_infer_allocation_pool_size: int = option(8, "messages are not pooled", minimum=0, inert=True)
    grpc_max_response_pool_size: int = option(
        2**31 - 1, "flow control bounds what waits for a client", minimum=1, inert=True
    )
    buffer_manager_thread_count: int = option(0, "instances gather their own tensors", minimum=0, inert=True)
    pinned_memory_pool_byte_size: int = option(
        268_435_456, "there is no pool of pinned memory", minimum=0, inert=True
    )
    cuda_memory_pool_byte_size: tuple[str, ...] = option(
        (), "there is no pool of GPU memory", metavar="DEVICE:BYTES", parse=_validate_device_bytes, inert=True
    )
    cuda_virtual_address_size: tuple[str, ...] = option(
        (),
        "growable states are kept in host memory",
        metavar="DEVICE:BYTES",
        parse=_validate_device_bytes,
        inert=True,
    )
    min_supported_compute_capability: float = option(
        6.0, "backends check their GPUs themselves", minimum=0, inert=True
    )
    enable_peer_access: bool = option(True, "GPUs do not exchange tensors", inert=True)
    model_load_gpu_limit: tuple[str, ...] = option(
        (),
        "loading does not check GPU memory",
        metavar="DEVICE:FRACTION",
        parse=_validate_device_share,
        inert=True,
    )
    host_policy: tuple[str, ...] = option(
        (), "threads may run on any core", metavar="POLICY,SETTING=VALUE", parse=_validate_setting, inert=True
    )
    sagemaker_thread_count: int = option(8, "one event loop serves all connections", minimum=1, inert=True)
    vertex_ai_thread_count: int = option(8, "one event loop serves all connections", minimum=1, inert=True)


class ServeConfig(Options):
    """All options of a server, in the order of the help."""

    repository: ModelSpec = group(ModelSpec, "Models")
    server: ServerLimitsSpec = group(ServerLimitsSpec, "Server")
    http: HttpSpec = group(HttpSpec, "HTTP")
    openai: OpenAiSpec = group(OpenAiSpec, "OpenAI's API")
    grpc: GrpcSpec = group(GrpcSpec, "gRPC")
    metrics: MetricsEndpointSpec = group(MetricsEndpointSpec, "Metrics")
    logging: LoggingSpec = group(LoggingSpec, "Logging")
    tracing: TracingSpec = group(TracingSpec, "Tracing")
    hosting: HostingSpec = group(HostingSpec, "SageMaker and Vertex AI")
    compatibility: CompatibilitySpec = group(CompatibilitySpec, "Accepted for compatibility")

    @property
    def has_ui(self) -> bool:
        """True if the HTTP endpoint serves the page at /."""
        return is_local(self.http.http_address) if self.http.ui is None else self.http.ui

    @property
    def metrics_host(self) -> str:
        """Address of the metrics endpoint."""
        return self.metrics.metrics_address or (
            self.http.http_address if self.http.allow_http else "127.0.0.1"
        )

    @property
    def services(self) -> list[ServiceAddress]:
        """The enabled services."""
        http, grpc, metrics, hosting = self.http, self.grpc, self.metrics, self.hosting
        services = (
            (grpc.allow_grpc, "grpc", "GRPCInferenceService", grpc.grpc_address, grpc.grpc_port),
            (http.allow_http, "http", "HTTPService", http.http_address, http.http_port),
            (
                self.openai.openai_port is not None,
                "openai",
                "OpenAI HTTPService",
                http.http_address,
                self.openai.openai_port or 0,
            ),
            (metrics.allow_metrics, "metrics", "Metrics Service", self.metrics_host, metrics.metrics_port),
            (
                hosting.allow_sagemaker,
                "sagemaker",
                "Sagemaker HTTPService",
                "0.0.0.0",
                hosting.sagemaker_port,
            ),
            (
                hosting.serves_vertex_ai,
                "vertex-ai",
                "Vertex AI HTTPService",
                "0.0.0.0",
                hosting.vertex_ai_port_or_default,
            ),
        )
        shared = {"http": http.reuse_http_port, "grpc": grpc.reuse_grpc_port}
        return [
            ServiceAddress(
                flag=flag, name=name, address=address, port=port, reuse_port=shared.get(flag, False)
            )
            for allowed, flag, name, address, port in services
            if allowed
        ]


class ServeWords(Options):
    """All options of a command line: those of the server, and how they are given."""

    server: ServeConfig = group(ServeConfig)
    config_file: Path | None = config_file("-f", section=SECTION)
    show_config: bool = show_config(SECTION)
