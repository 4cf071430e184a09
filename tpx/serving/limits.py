"""What clients may ask of the endpoints, from the options."""

from tpx.errors import UsageError
from tpx.protocol.grpc.keepalive import KeepaliveLimits
from tpx.protocol.grpc.server import GrpcLimits
from tpx.protocol.http1.server import HttpLimits
from tpx.serving.options import ServeConfig


def http_limits(config: ServeConfig, *, max_body_bytes: int) -> HttpLimits:
    """The limits of a connection to the HTTP or the metrics endpoint."""
    return HttpLimits(
        max_body_bytes=max_body_bytes,
        head_timeout_s=config.http_header_timeout_secs,
        body_timeout_s=config.http_body_timeout_secs,
        min_receive_rate=config.min_receive_rate,
        max_receive_s=config.max_receive_secs,
        idle_timeout_s=config.http_idle_timeout_secs,
        write_timeout_s=config.write_timeout_secs,
    )


def grpc_limits(config: ServeConfig) -> GrpcLimits:
    """The limits of a gRPC connection."""
    level = config.grpc_infer_response_compression_level
    return GrpcLimits(
        max_message_bytes=config.grpc_max_message_size,
        max_metadata_bytes=config.grpc_max_metadata_size,
        glitch_burst=config.grpc_max_glitches,
        glitches_per_s=config.grpc_glitches_per_sec,
        max_streams=config.grpc_max_concurrent_streams,
        preface_timeout_s=config.grpc_preface_timeout_secs,
        header_timeout_s=config.grpc_header_timeout_secs,
        message_timeout_s=config.grpc_message_timeout_secs,
        min_receive_rate=config.min_receive_rate,
        max_receive_s=config.max_receive_secs,
        write_timeout_s=config.write_timeout_secs,
        response_encoding="" if level == "none" else "gzip",
        response_level={"low": 1, "high": 9}.get(level, 6),
        keepalive=KeepaliveLimits(
            time_s=config.grpc_keepalive_time / 1000,
            timeout_s=config.grpc_keepalive_timeout / 1000,
            permit_without_calls=config.grpc_keepalive_permit_without_calls,
            max_pings_without_data=config.grpc_http2_max_pings_without_data,
            min_ping_interval_s=config.grpc_http2_min_recv_ping_interval_without_data / 1000,
            max_ping_strikes=config.grpc_http2_max_ping_strikes,
            max_connection_idle_s=config.grpc_max_connection_idle / 1000,
            max_connection_age_s=config.grpc_max_connection_age / 1000,
            max_connection_age_grace_s=config.grpc_max_connection_age_grace / 1000,
        ),
    )


def check_ports(config: ServeConfig) -> None:
    """Raise UsageError where two endpoints would listen to the same port."""
    services = [
        ("HTTP", config.allow_http, config.http_address, config.http_port),
        ("GRPC", config.allow_grpc, config.grpc_address, config.grpc_port),
        ("metrics", config.allow_metrics, config.metrics_host, config.metrics_port),
    ]
    seen: dict[tuple[str, int], str] = {}
    for name, allowed, address, port in services:
        if not allowed or not port:
            continue
        if (address, port) in seen:
            raise UsageError(
                f"The server cannot listen to {seen[address, port]} requests and {name} requests at the same "
                f"address and port {address}:{port}"
            )
        seen[address, port] = name
