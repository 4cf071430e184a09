"""The options of `tpx serve`; tritonserver's spellings are names of the same fields."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tpx.options import Option
from tpx.serving.logs import LogFormat, LogSettings
from tpx.serving.model_options import ModelOptions
from tpx.serving.tracing.flags import TraceFlag, level_words, start_setting, trace_flag
from tpx.serving.tracing.settings import Level, TraceSetting


def _verbosity(text: str) -> int:
    """A level, or whether there is one."""
    level = {"true": "1", "false": "0"}.get(text.lower(), text)
    if not level.isdecimal():
        raise ValueError("expected an integer, at least 0")
    return int(level)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig(ModelOptions):
    """Everything that a server can be told."""

    id: Annotated[str, Option("name of this server in its metadata", section="Server")] = "triton"
    drain_secs: Annotated[
        int,
        Option(
            "seconds after the signal to stop in which the server is not ready but serves everything: "
            "load balancers send their requests elsewhere",
            section="Server",
            minimum=0,
        ),
    ] = 0
    exit_timeout_secs: Annotated[
        int,
        Option("seconds that requests in flight and sequences then have to end", section="Server", minimum=0),
    ] = 30
    max_connections: Annotated[
        int, Option("connections accepted per endpoint", section="Server", minimum=1)
    ] = 10_000
    max_connections_per_client: Annotated[
        int,
        Option(
            "of these, from one address; 0 as many as there are, since a proxy is one address",
            section="Server",
            minimum=0,
        ),
    ] = 0
    connection_turn_us: Annotated[
        int,
        Option(
            "microseconds that one connection may work on what it has sent before others are served",
            section="Server",
            minimum=1,
        ),
    ] = 2000
    min_receive_rate: Annotated[
        int,
        Option(
            "bytes per second, on average, below which a body or message that is coming in is given up, once "
            "--http-body-timeout-secs or --grpc-message-timeout-secs have passed; 0 = any",
            section="Server",
            minimum=0,
        ),
    ] = 240
    max_receive_secs: Annotated[
        int, Option("seconds that a body or message may take to come in", section="Server", minimum=1)
    ] = 3600
    write_timeout_secs: Annotated[
        int, Option("seconds in which a client takes no byte of its answer", section="Server", minimum=1)
    ] = 60
    max_inflated_bytes: Annotated[
        int,
        Option(
            "bytes that compressed requests of more than 64 KiB may take at a time once inflated, over HTTP "
            "and gRPC together; one of them takes at most three quarters",
            section="Server",
            minimum=1,
        ),
    ] = 1 << 30
    allow_client_shm: Annotated[
        bool | None,
        Option(
            "let clients register shared memory; by default if all endpoints listen on this machine only",
            section="Server",
        ),
    ] = None
    client_shm_max_input_size: Annotated[
        int,
        Option("most bytes of input that a request reads from shared memory", section="Server", minimum=1),
    ] = 2**31 - 1
    max_buffered_bytes: Annotated[
        int,
        Option(
            "bytes of requests and answers held over all connections; 0: a quarter of the memory that this "
            "process may use",
            section="Server",
            minimum=0,
        ),
    ] = 0
    max_buffered_wait_secs: Annotated[
        int,
        Option(
            "seconds that a request waits while they are held, then it is refused",
            section="Server",
            minimum=0,
        ),
    ] = 10
    max_string_elements: Annotated[
        int,
        Option("most strings in the BYTES inputs of a request", section="Server", minimum=1),
    ] = 1_000_000
    inline_below_us: Annotated[
        int,
        Option(
            "run models that take less than this on the event loop itself, which saves two thread switches; "
            "0 never does",
            section="Server",
            minimum=0,
        ),
    ] = 100

    allow_http: Annotated[bool, Option("serve HTTP", section="HTTP")] = True
    http_address: Annotated[str, Option("address to listen on", section="HTTP")] = "127.0.0.1"
    http_port: Annotated[
        int, Option("port; 0 chooses a free one", section="HTTP", minimum=0, maximum=65535)
    ] = 8000
    reuse_http_port: Annotated[bool, Option("share the port with other servers", section="HTTP")] = False
    http_max_input_size: Annotated[
        int, Option("largest request body in bytes", section="HTTP", minimum=1)
    ] = 64 << 20
    http_header_timeout_secs: Annotated[
        int, Option("seconds from the first byte of a request head to its end", section="HTTP", minimum=1)
    ] = 10
    http_body_timeout_secs: Annotated[
        int, Option("seconds without a byte of an announced body", section="HTTP", minimum=1)
    ] = 60
    http_idle_timeout_secs: Annotated[
        int, Option("seconds a connection may be silent between requests", section="HTTP", minimum=1)
    ] = 120
    http_header_forward_pattern: Annotated[
        str,
        Option(
            "headers that this regular expression is found in become request parameters",
            section="HTTP",
            metavar="REGEX",
        ),
    ] = ""
    http_restricted_api: Annotated[
        tuple[str, ...],
        Option(
            "parts of the API that only requests with this header may use; repeatable",
            section="HTTP",
            metavar="PART[,PART]:HEADER=VALUE",
        ),
    ] = ()
    http_use_ssl: Annotated[bool, Option("serve HTTPS", section="HTTP")] = False
    http_server_cert: Annotated[Path | None, Option("PEM certificate chain", section="HTTP")] = None
    http_server_key: Annotated[Path | None, Option("PEM private key", section="HTTP")] = None
    http_root_cert: Annotated[
        Path | None, Option("PEM certificates that clients must be signed by", section="HTTP")
    ] = None

    allow_grpc: Annotated[bool, Option("serve gRPC", section="gRPC")] = True
    grpc_address: Annotated[str, Option("address to listen on", section="gRPC")] = "127.0.0.1"
    grpc_port: Annotated[
        int, Option("port; 0 chooses a free one", section="gRPC", minimum=0, maximum=65535)
    ] = 8001
    reuse_grpc_port: Annotated[bool, Option("share the port with other servers", section="gRPC")] = False
    grpc_max_message_size: Annotated[int, Option("largest message in bytes", section="gRPC", minimum=1)] = (
        2**31 - 1
    )
    grpc_max_concurrent_streams: Annotated[
        int, Option("calls in flight on one connection", section="gRPC", minimum=1)
    ] = 10_000
    grpc_max_metadata_size: Annotated[
        int, Option("most bytes of metadata of one call", section="gRPC", minimum=1024)
    ] = 16384
    grpc_max_glitches: Annotated[
        int,
        Option(
            "frames without effect, resets, surplus header fields and the like that one connection may send "
            "at a time before it is ended",
            section="gRPC",
            minimum=1,
        ),
    ] = 2000
    grpc_glitches_per_sec: Annotated[
        int, Option("how many of these a connection may send for long", section="gRPC", minimum=1)
    ] = 100
    grpc_preface_timeout_secs: Annotated[
        int, Option("seconds a connection has to begin speaking HTTP/2", section="gRPC", minimum=1)
    ] = 10
    grpc_header_timeout_secs: Annotated[
        int, Option("seconds from the first byte of a header block to its end", section="gRPC", minimum=1)
    ] = 10
    grpc_message_timeout_secs: Annotated[
        int, Option("seconds without a byte of a request that has begun", section="gRPC", minimum=1)
    ] = 60
    grpc_header_forward_pattern: Annotated[
        str,
        Option(
            "metadata whose key this regular expression is found in become request parameters",
            section="gRPC",
            metavar="REGEX",
        ),
    ] = ""
    grpc_restricted_protocol: Annotated[
        tuple[str, ...],
        Option(
            "parts of the API that only calls with the metadata triton-grpc-protocol-KEY may use; repeatable",
            section="gRPC",
            metavar="PART[,PART]:KEY=VALUE",
        ),
    ] = ()
    grpc_use_ssl: Annotated[bool, Option("serve gRPC over TLS", section="gRPC")] = False
    grpc_use_ssl_mutual: Annotated[
        bool, Option("TLS with client certificates, signed by --grpc-root-cert", section="gRPC")
    ] = False
    grpc_server_cert: Annotated[Path | None, Option("PEM certificate chain", section="gRPC")] = None
    grpc_server_key: Annotated[Path | None, Option("PEM private key", section="gRPC")] = None
    grpc_root_cert: Annotated[
        Path | None, Option("PEM certificates that clients must be signed by", section="gRPC")
    ] = None
    grpc_infer_response_compression_level: Annotated[
        Literal["none", "low", "medium", "high"],
        Option("compress responses for clients that accept it", section="gRPC"),
    ] = "none"
    grpc_keepalive_time: Annotated[
        int, Option("milliseconds of silence before a PING", section="gRPC", minimum=0)
    ] = 7_200_000
    grpc_keepalive_timeout: Annotated[
        int, Option("milliseconds to wait for its answer", section="gRPC", minimum=0)
    ] = 20_000
    grpc_keepalive_permit_without_calls: Annotated[
        bool, Option("allow PINGs while no call is in flight", section="gRPC")
    ] = False
    grpc_http2_max_pings_without_data: Annotated[
        int,
        Option(
            "PINGs we send in a row while we send nothing else; then at most one a minute. 0 knows no limit",
            section="gRPC",
            minimum=0,
        ),
    ] = 2
    grpc_http2_min_recv_ping_interval_without_data: Annotated[
        int, Option("milliseconds between a client's PINGs that are no strike", section="gRPC", minimum=0)
    ] = 300_000
    grpc_http2_max_ping_strikes: Annotated[
        int, Option("strikes before a client is sent away; 0 forgives all", section="gRPC", minimum=0)
    ] = 2
    grpc_max_connection_idle: Annotated[
        int,
        Option(
            "milliseconds without a call before a connection is asked to end; 0 never",
            section="gRPC",
            minimum=0,
        ),
    ] = 3_600_000
    grpc_max_connection_age: Annotated[
        int, Option("milliseconds before a connection is asked to end; 0 never", section="gRPC", minimum=0)
    ] = 0
    grpc_max_connection_age_grace: Annotated[
        int, Option("milliseconds it then has; 0 all it needs", section="gRPC", minimum=0)
    ] = 0

    allow_metrics: Annotated[bool, Option("serve Prometheus metrics", section="Metrics")] = True
    allow_gpu_metrics: Annotated[bool, Option("measure GPUs, where NVML finds some", section="Metrics")] = (
        True
    )
    allow_cpu_metrics: Annotated[
        bool, Option("measure the machine's CPU and memory, and this process", section="Metrics")
    ] = True
    metrics_interval_ms: Annotated[
        int, Option("milliseconds between measurements of CPU and GPU", section="Metrics", minimum=1)
    ] = 2000
    metrics_config: Annotated[
        tuple[str, ...],
        Option(
            "counter_latencies, summary_latencies or histogram_latencies=BOOL, "
            "summary_quantiles=QUANTILE:ERROR,...; repeatable",
            section="Metrics",
            metavar="SETTING=VALUE",
        ),
    ] = ()
    metrics_address: Annotated[
        str, Option("address to listen on; that of HTTP if not given", section="Metrics")
    ] = ""
    metrics_port: Annotated[
        int, Option("port; 0 chooses a free one", section="Metrics", minimum=0, maximum=65535)
    ] = 8002

    log_verbose: Annotated[
        int, Option("1 and more: log every request", section="Logging", metavar="INT", parse=_verbosity)
    ] = 0
    log_info: Annotated[bool, Option("log what happens", section="Logging")] = True
    log_warning: Annotated[bool, Option("log what may be wrong", section="Logging")] = True
    log_error: Annotated[bool, Option("log what failed", section="Logging")] = True
    log_format: Annotated[LogFormat, Option("how a line gives its time", section="Logging")] = "default"
    log_file: Annotated[
        str, Option("log to this file instead of the console", section="Logging", metavar="PATH")
    ] = ""

    trace_config: Annotated[
        tuple[TraceFlag, ...],
        Option(
            "trace requests: level=TIMESTAMPS|TENSORS|OFF, rate=N, count=N, mode=triton|opentelemetry, "
            "triton,file=PATH, triton,log-frequency=N, opentelemetry,url=URL, "
            "opentelemetry,resource=KEY=VALUE, opentelemetry,bsp_max_queue_size=N, "
            "opentelemetry,bsp_schedule_delay=MS, opentelemetry,bsp_max_export_batch_size=N; repeatable",
            section="Tracing",
            metavar="[MODE,]SETTING=VALUE",
            parse=trace_flag,
        ),
    ] = ()
    trace_file: Annotated[
        str, Option("deprecated: --trace-config triton,file=PATH", section="Tracing", metavar="PATH")
    ] = ""
    trace_level: Annotated[
        tuple[Level, ...],
        Option(
            "deprecated: --trace-config level=LEVEL", section="Tracing", metavar="LEVEL", parse=level_words
        ),
    ] = ()
    trace_rate: Annotated[int, Option("deprecated: --trace-config rate=N", section="Tracing", minimum=1)] = (
        1000
    )
    trace_count: Annotated[
        int, Option("deprecated: --trace-config count=N", section="Tracing", minimum=-1)
    ] = -1
    trace_log_frequency: Annotated[
        int, Option("deprecated: --trace-config triton,log-frequency=N", section="Tracing", minimum=0)
    ] = 0

    @property
    def log_settings(self) -> LogSettings:
        """What is logged at first."""
        return LogSettings(
            log_file=self.log_file,
            log_info=self.log_info,
            log_warning=self.log_warning,
            log_error=self.log_error,
            log_verbose_level=self.log_verbose,
            log_format=self.log_format,
        )

    @property
    def trace_setting(self) -> TraceSetting:
        """What is traced at first. Raises UsageError."""
        older = TraceSetting(
            trace_level=self.trace_level,
            trace_rate=self.trace_rate,
            trace_count=self.trace_count,
            log_frequency=self.trace_log_frequency,
            trace_file=self.trace_file,
        )
        return start_setting(self.trace_config, older, os.environ)

    @property
    def auto_complete(self) -> bool:
        """Whether what config.pbtxt leaves open is completed from the model file."""
        return not (self.disable_auto_complete_config or self.strict_model_config)

    @property
    def metrics_host(self) -> str:
        """Where the metrics endpoint listens."""
        return self.metrics_address or (self.http_address if self.allow_http else "127.0.0.1")
