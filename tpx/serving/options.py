"""The options of `tpx serve`; tritonserver's spellings are names of the same fields."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpx.options import group, option
from tpx.serving.logs import LogFormat, LogSettings
from tpx.serving.model_options import CompatibilitySpec, ModelSpec
from tpx.serving.tracing.flags import TraceFlag, level_words, start_setting, trace_flag
from tpx.serving.tracing.settings import Level, TraceSetting


def _verbosity(text: str) -> int:
    """A level, or whether there is one."""
    level = {"true": "1", "false": "0"}.get(text.lower(), text)
    if not level.isdecimal():
        raise ValueError("expected an integer, at least 0")
    return int(level)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """Connections of all endpoints, memory, and the end of the server."""

    id: str = option(
        "tpx", "name of this server in its metadata; `triton` for clients that look for it", "--server-name"
    )
    drain_secs: int = option(
        0,
        "seconds after the signal to stop in which the server is not ready but serves everything: "
        "load balancers send their requests elsewhere",
        minimum=0,
        common=True,
    )
    exit_timeout_secs: int = option(
        30, "seconds that requests in flight and sequences then have to end", minimum=0
    )
    max_connections: int = option(10_000, "connections accepted per endpoint", minimum=1, common=True)
    max_connections_per_client: int = option(
        0,
        "of these, from one address; 0 as many as there are, since a proxy is one address",
        minimum=0,
    )
    connection_turn_us: int = option(
        2000,
        "microseconds that one connection may work on what it has sent before others are served",
        minimum=1,
    )
    min_receive_rate: int = option(
        240,
        "bytes per second, on average, below which a body or message that is coming in is given up, once "
        "--http-body-timeout-secs or --grpc-message-timeout-secs have passed; 0 = any",
        minimum=0,
    )
    max_receive_secs: int = option(3600, "seconds that a body or message may take to come in", minimum=1)
    write_timeout_secs: int = option(60, "seconds in which a client takes no byte of its answer", minimum=1)
    max_inflated_bytes: int = option(
        1 << 30,
        "bytes that compressed requests of more than 64 KiB may take at a time once inflated, over HTTP "
        "and gRPC together; one of them takes at most three quarters",
        minimum=1,
    )
    allow_client_shm: bool | None = option(
        None,
        "let clients register shared memory; by default if all endpoints listen on this machine only",
    )
    client_shm_max_input_size: int = option(
        2**31 - 1, "most bytes of input that a request reads from shared memory", minimum=1
    )
    max_buffered_bytes: int = option(
        0,
        "bytes of requests and answers held over all connections; 0: a quarter of the memory that this "
        "process may use",
        minimum=0,
    )
    max_buffered_wait_secs: int = option(
        10,
        "seconds that a request waits while they are held, then it is refused",
        minimum=0,
    )
    frontends: int = option(
        0,
        "processes that speak HTTP and gRPC, beside the one that computes; 0: one process does both",
        minimum=0,
        maximum=256,
        common=True,
    )
    max_string_elements: int = option(1_000_000, "most strings in the BYTES inputs of a request", minimum=1)
    inline_below_us: int = option(
        100,
        "run models that take less than this on the event loop itself, which saves two thread switches, and "
        "those of up to ten times this for a lone client; 0 never does",
        minimum=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSpec:
    """The HTTP endpoint."""

    allow_http: bool = option(True, "serve HTTP")
    http_address: str = option("127.0.0.1", "address to listen on", common=True)
    http_port: int = option(8000, "port; 0 chooses a free one", minimum=0, maximum=65535, common=True)
    reuse_http_port: bool = option(False, "share the port with other servers")
    http_max_input_size: int = option(64 << 20, "largest request body in bytes", minimum=1)
    http_header_timeout_secs: int = option(
        10, "seconds from the first byte of a request head to its end", minimum=1
    )
    http_body_timeout_secs: int = option(60, "seconds without a byte of an announced body", minimum=1)
    http_idle_timeout_secs: int = option(
        120, "seconds a connection may be silent between requests", minimum=1
    )
    http_header_forward_pattern: str = option(
        "",
        "headers that this regular expression is found in become request parameters",
        metavar="REGEX",
    )
    http_restricted_api: tuple[str, ...] = option(
        (),
        "parts of the API that only requests with this header may use; repeatable",
        metavar="PART[,PART]:HEADER=VALUE",
    )
    http_use_ssl: bool = option(False, "serve HTTPS", common=True)
    http_server_cert: Path | None = option(None, "PEM certificate chain", common=True)
    http_server_key: Path | None = option(None, "PEM private key", common=True)
    http_root_cert: Path | None = option(None, "PEM certificates that clients must be signed by")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcSpec:
    """The gRPC endpoint."""

    allow_grpc: bool = option(True, "serve gRPC")
    grpc_address: str = option("127.0.0.1", "address to listen on")
    grpc_port: int = option(8001, "port; 0 chooses a free one", minimum=0, maximum=65535, common=True)
    reuse_grpc_port: bool = option(False, "share the port with other servers")
    grpc_max_message_size: int = option(2**31 - 1, "largest message in bytes", minimum=1)
    grpc_max_concurrent_streams: int = option(10_000, "calls in flight on one connection", minimum=1)
    grpc_max_metadata_size: int = option(16384, "most bytes of metadata of one call", minimum=1024)
    grpc_max_glitches: int = option(
        2000,
        "frames without effect, resets, surplus header fields and the like that one connection may send "
        "at a time before it is ended",
        minimum=1,
    )
    grpc_glitches_per_sec: int = option(100, "how many of these a connection may send for long", minimum=1)
    grpc_preface_timeout_secs: int = option(
        10, "seconds a connection has to begin speaking HTTP/2", minimum=1
    )
    grpc_header_timeout_secs: int = option(
        10, "seconds from the first byte of a header block to its end", minimum=1
    )
    grpc_message_timeout_secs: int = option(
        60, "seconds without a byte of a request that has begun", minimum=1
    )
    grpc_header_forward_pattern: str = option(
        "",
        "metadata whose key this regular expression is found in become request parameters",
        metavar="REGEX",
    )
    grpc_restricted_protocol: tuple[str, ...] = option(
        (),
        "parts of the API that only calls with the metadata triton-grpc-protocol-KEY may use; repeatable",
        metavar="PART[,PART]:KEY=VALUE",
    )
    grpc_use_ssl: bool = option(False, "serve gRPC over TLS")
    grpc_use_ssl_mutual: bool = option(False, "TLS with client certificates, signed by --grpc-root-cert")
    grpc_server_cert: Path | None = option(None, "PEM certificate chain")
    grpc_server_key: Path | None = option(None, "PEM private key")
    grpc_root_cert: Path | None = option(None, "PEM certificates that clients must be signed by")
    grpc_infer_response_compression_level: Literal["none", "low", "medium", "high"] = option(
        "none", "compress responses for clients that accept it"
    )
    grpc_keepalive_time: int = option(7_200_000, "milliseconds of silence before a PING", minimum=0)
    grpc_keepalive_timeout: int = option(20_000, "milliseconds to wait for its answer", minimum=0)
    grpc_keepalive_permit_without_calls: bool = option(False, "allow PINGs while no call is in flight")
    grpc_http2_max_pings_without_data: int = option(
        2,
        "PINGs we send in a row while we send nothing else; then at most one a minute. 0 knows no limit",
        minimum=0,
    )
    grpc_http2_min_recv_ping_interval_without_data: int = option(
        300_000, "milliseconds between a client's PINGs that are no strike", minimum=0
    )
    grpc_http2_max_ping_strikes: int = option(
        2, "strikes before a client is sent away; 0 forgives all", minimum=0
    )
    grpc_max_connection_idle: int = option(
        3_600_000,
        "milliseconds without a call before a connection is asked to end; 0 never",
        minimum=0,
    )
    grpc_max_connection_age: int = option(
        0, "milliseconds before a connection is asked to end; 0 never", minimum=0
    )
    grpc_max_connection_age_grace: int = option(0, "milliseconds it then has; 0 all it needs", minimum=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSpec:
    """The metrics endpoint."""

    allow_metrics: bool = option(True, "serve Prometheus metrics")
    allow_gpu_metrics: bool = option(True, "measure GPUs, where NVML finds some")
    allow_cpu_metrics: bool = option(True, "measure the machine's CPU and memory, and this process")
    metrics_interval_ms: int = option(2000, "milliseconds between measurements of CPU and GPU", minimum=1)
    metrics_config: tuple[str, ...] = option(
        (),
        "counter_latencies, summary_latencies or histogram_latencies=BOOL, "
        "summary_quantiles=QUANTILE:ERROR,...; repeatable",
        metavar="SETTING=VALUE",
    )
    metrics_address: str = option("", "address to listen on; that of HTTP if not given")
    metrics_port: int = option(8002, "port; 0 chooses a free one", minimum=0, maximum=65535, common=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSpec:
    """The log: its levels, format and place."""

    log_verbose: int = option(
        0, "1 and more: log every request", metavar="INT", parse=_verbosity, common=True
    )
    log_info: bool = option(True, "log what happens")
    log_warning: bool = option(True, "log what may be wrong")
    log_error: bool = option(True, "log what failed")
    log_format: LogFormat = option(
        "default", "Triton's lines with their time in two forms, or a JSON object per record", common=True
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSpec:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Everything that a server can be told, in the order of the help."""

    repository: ModelSpec = group(ModelSpec, "Models")
    server: ServerSpec = group(ServerSpec, "Server")
    http: HttpSpec = group(HttpSpec, "HTTP")
    grpc: GrpcSpec = group(GrpcSpec, "gRPC")
    metrics: MetricsSpec = group(MetricsSpec, "Metrics")
    logging: LoggingSpec = group(LoggingSpec, "Logging")
    tracing: TracingSpec = group(TracingSpec, "Tracing")
    compatibility: CompatibilitySpec = group(CompatibilitySpec, "Accepted for compatibility")

    @property
    def metrics_host(self) -> str:
        """Where the metrics endpoint listens."""
        return self.metrics.metrics_address or (
            self.http.http_address if self.http.allow_http else "127.0.0.1"
        )
