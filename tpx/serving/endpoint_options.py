"""Options of the endpoints of `tpx serve`, and where each of them shall listen."""

import os
from pathlib import Path
from typing import Literal

import msgspec

from tpx.errors import UsageError
from tpx.options import Options, option
from tpx.sources import HIDDEN


def _mask_key(text: str) -> str:
    """Hide the key in PART:HEADER=VALUE, unless a file or a variable holds it."""
    restriction, equals, key = text.partition("=")
    return restriction + equals + (key if key.startswith(("file:", "env:")) else HIDDEN)


def _validate_port_range(text: str) -> str:
    """Validate `<low>-<high>`."""
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high) <= 65535):
        raise ValueError("expected <low port>-<high port>")
    return text


class HttpSpec(Options):
    """The HTTP endpoint."""

    allow_http: bool = option(True, "serve HTTP")
    http_address: str = option("127.0.0.1", "address to listen on", common=True)
    http_port: int = option(8000, "port; 0 = choose a free one", minimum=0, maximum=65535, common=True)
    reuse_http_port: bool = option(False, "share the port with other servers")
    ui: bool | None = option(
        None,
        "serve a page at / that shows models, load and errors, and the metrics that it reads at /metrics "
        "(default: if HTTP listens on this machine only)",
    )
    http_max_input_size: int = option(64 << 20, "maximum request body in bytes", minimum=1)
    http_header_timeout_secs: int = option(10, "maximum seconds to receive a request head", minimum=1)
    http_body_timeout_secs: int = option(60, "maximum seconds between two reads of a request body", minimum=1)
    http_idle_timeout_secs: int = option(
        120, "close a connection after this many idle seconds between requests", minimum=1
    )
    http_header_forward_pattern: str = option(
        "", "forward headers that match this regular expression as request parameters", metavar="REGEX"
    )
    http_restricted_api: tuple[str, ...] = option(
        (),
        "API groups that require this header; VALUE is the key, file:PATH or env:VARIABLE; repeatable",
        metavar="PART[,PART]:HEADER=VALUE",
        mask=_mask_key,
    )
    http_use_ssl: bool = option(False, "serve HTTPS", common=True)
    http_server_cert: Path | None = option(None, "PEM certificate chain", common=True)
    http_server_key: Path | None = option(None, "PEM private key", common=True)
    http_root_cert: Path | None = option(
        None, "PEM certificates of the authorities that sign client certificates"
    )


class OpenAiSpec(Options):
    """OpenAI's API, which the HTTP endpoint serves in any case."""

    openai_port: int | None = option(
        None,
        "serve OpenAI's API on this port of the HTTP address too; 0 = choose a free one",
        minimum=0,
        maximum=65535,
    )
    openai_restricted_api: tuple[str, ...] = option(
        (),
        "parts inference, metadata, health, and the header that OpenAI's API then requires, such as "
        "inference:Authorization=Bearer KEY; VALUE is the key, file:PATH or env:VARIABLE; repeatable",
        metavar="PART[,PART]:HEADER=VALUE",
        mask=_mask_key,
    )


class GrpcSpec(Options):
    """The gRPC endpoint."""

    allow_grpc: bool = option(True, "serve gRPC")
    grpc_address: str = option("127.0.0.1", "address to listen on")
    grpc_port: int = option(8001, "port; 0 = choose a free one", minimum=0, maximum=65535, common=True)
    reuse_grpc_port: bool = option(False, "share the port with other servers")
    grpc_max_message_size: int = option(2**31 - 1, "maximum message in bytes", minimum=1)
    grpc_max_concurrent_streams: int = option(10_000, "maximum concurrent calls on one connection", minimum=1)
    grpc_max_metadata_size: int = option(16384, "maximum metadata of a call in bytes", minimum=1024)
    grpc_max_glitches: int = option(
        2000,
        "burst limit per connection for frames without effect, resets, surplus header fields, and the "
        "like; beyond it the connection is closed",
        minimum=1,
    )
    grpc_glitches_per_sec: int = option(100, "sustained limit per second for the same", minimum=1)
    grpc_preface_timeout_secs: int = option(
        10, "maximum seconds until a new connection sends the HTTP/2 preface", minimum=1
    )
    grpc_header_timeout_secs: int = option(10, "maximum seconds to receive a header block", minimum=1)
    grpc_message_timeout_secs: int = option(
        60, "maximum seconds between two reads of a request message", minimum=1
    )
    grpc_header_forward_pattern: str = option(
        "",
        "forward metadata whose key matches this regular expression as request parameters",
        metavar="REGEX",
    )
    grpc_restricted_protocol: tuple[str, ...] = option(
        (),
        "API groups that require the metadata triton-grpc-protocol-KEY; VALUE is the key, file:PATH or "
        "env:VARIABLE; repeatable",
        metavar="PART[,PART]:KEY=VALUE",
        mask=_mask_key,
    )
    grpc_use_ssl: bool = option(False, "serve gRPC over TLS")
    grpc_use_ssl_mutual: bool = option(False, "require client certificates signed by --grpc-root-cert")
    grpc_server_cert: Path | None = option(None, "PEM certificate chain")
    grpc_server_key: Path | None = option(None, "PEM private key")
    grpc_root_cert: Path | None = option(
        None, "PEM certificates of the authorities that sign client certificates"
    )
    grpc_infer_response_compression_level: Literal["none", "low", "medium", "high"] = option(
        "none", "compress responses for clients that accept compression"
    )
    grpc_keepalive_time: int = option(
        7_200_000, "milliseconds without traffic before a keepalive PING", minimum=0
    )
    grpc_keepalive_timeout: int = option(
        20_000, "milliseconds to wait for the PING's acknowledgement", minimum=0
    )
    grpc_keepalive_permit_without_calls: bool = option(
        False, "send keepalive PINGs while no call is in flight"
    )
    grpc_http2_max_pings_without_data: int = option(
        2, "PINGs sent in a row without other frames, then at most one per minute; 0 = unlimited", minimum=0
    )
    grpc_http2_min_recv_ping_interval_without_data: int = option(
        300_000,
        "minimum milliseconds between a client's PINGs; a shorter interval is a ping strike",
        minimum=0,
    )
    grpc_http2_max_ping_strikes: int = option(
        2, "ping strikes before the client is disconnected; 0 = never", minimum=0
    )
    grpc_max_connection_idle: int = option(
        3_600_000,
        "milliseconds without a call before a connection is closed gracefully; 0 = never",
        minimum=0,
    )
    grpc_max_connection_age: int = option(
        0, "milliseconds before a connection is closed gracefully; 0 = never", minimum=0
    )
    grpc_max_connection_age_grace: int = option(
        0, "milliseconds that its calls then have to finish; 0 = unlimited", minimum=0
    )


class MetricsEndpointSpec(Options):
    """The metrics endpoint."""

    allow_metrics: bool = option(True, "serve Prometheus metrics")
    allow_gpu_metrics: bool = option(True, "collect GPU metrics, if NVML finds GPUs")
    allow_cpu_metrics: bool = option(
        True, "collect CPU and memory metrics of the machine and of this process"
    )
    metrics_interval_ms: int = option(
        2000, "milliseconds between two samples of CPU and GPU metrics", minimum=1
    )
    metrics_config: tuple[str, ...] = option(
        (),
        "counter_latencies, summary_latencies or histogram_latencies=BOOL, "
        "summary_quantiles=QUANTILE:ERROR,..., histogram_buckets=HISTOGRAM:BOUND,...; repeatable",
        metavar="SETTING=VALUE",
    )
    metrics_address: str = option("", "address to listen on (default: the HTTP address)")
    metrics_port: int = option(8002, "port; 0 = choose a free one", minimum=0, maximum=65535, common=True)


class HostingSpec(Options):
    """Endpoints that Amazon SageMaker and Google's Vertex AI call."""

    allow_sagemaker: bool = option(False, "serve SageMaker's /ping and /invocations on all addresses")
    sagemaker_port: int = option(8080, "port; 0 = choose a free one", minimum=0, maximum=65535)
    sagemaker_safe_port_range: str = option(
        "", "allowed ports of the other endpoints", metavar="LOW-HIGH", parse=_validate_port_range
    )
    allow_vertex_ai: bool | None = option(
        None,
        "serve AIP_HEALTH_ROUTE and AIP_PREDICT_ROUTE on all addresses (default: if AIP_MODE is PREDICTION)",
    )
    vertex_ai_port: int | None = option(
        None, "port (default: AIP_HTTP_PORT or 8080)", minimum=0, maximum=65535
    )
    vertex_ai_default_model: str = option("", "model of AIP_PREDICT_ROUTE (default: the only one)")

    @property
    def serves_vertex_ai(self) -> bool:
        if self.allow_vertex_ai is None:
            return os.environ.get("AIP_MODE") == "PREDICTION"
        return self.allow_vertex_ai

    @property
    def vertex_ai_port_or_default(self) -> int:
        if self.vertex_ai_port is not None:
            return self.vertex_ai_port
        given = os.environ.get("AIP_HTTP_PORT", "8080")
        return int(given) if given.isdecimal() else 8080


class ServiceAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a service shall listen."""

    flag: str
    """Prefix of its flags."""
    name: str
    address: str
    port: int
    reuse_port: bool = False

    @property
    def hosted(self) -> bool:
        """True if a platform calls it."""
        return self.flag in ("sagemaker", "vertex-ai")

    def in_use(self, error: OSError) -> UsageError:
        """Return the error to raise if the port cannot be bound."""
        return UsageError(
            f"Socket '{self.address}:{self.port}' already in use or not available: {error.strerror} "
            f"(choose another with --{self.flag}-port{'' if self.hosted else f' or --{self.flag}-address'})"
        )
