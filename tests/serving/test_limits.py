"""What the flags for limits and patience mean at the endpoints, shown to slow and crowding clients."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.serving import onnx_files
from tests.serving.live import Live, serving
from tests.serving.onnx_files import write_model
from tests.waiting import TIMEOUT_S, eventually
from tpx.options import build
from tpx.protocol.grpc.limits import GrpcLimits, KeepaliveLimits
from tpx.protocol.http1.server import HttpLimits
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import PREFACE
from tpx.serving.endpoints import grpc_limits, http_limits
from tpx.serving.options import ServeConfig

HTTP = {
    "http_header_timeout_secs": "head_timeout_s",
    "http_body_timeout_secs": "body_timeout_s",
    "http_idle_timeout_secs": "idle_timeout_s",
    "write_timeout_secs": "write_timeout_s",
}
GRPC = {
    "grpc_max_message_size": "max_message_bytes",
    "grpc_max_concurrent_streams": "max_streams",
    "grpc_preface_timeout_secs": "preface_timeout_s",
    "grpc_message_timeout_secs": "message_timeout_s",
    "write_timeout_secs": "write_timeout_s",
}
KEEPALIVE = {
    "grpc_keepalive_time": ("time_s", 7000, 7.0),
    "grpc_keepalive_timeout": ("timeout_s", 500, 0.5),
    "grpc_keepalive_permit_without_calls": ("permit_without_calls", True, True),
    "grpc_http2_max_pings_without_data": ("max_pings_without_data", 5, 5),
    "grpc_http2_min_recv_ping_interval_without_data": ("min_ping_interval_s", 2500, 2.5),
    "grpc_http2_max_ping_strikes": ("max_ping_strikes", 9, 9),
    "grpc_max_connection_idle": ("max_connection_idle_s", 4000, 4.0),
    "grpc_max_connection_age": ("max_connection_age_s", 3000, 3.0),
    "grpc_max_connection_age_grace": ("max_connection_age_grace_s", 1500, 1.5),
}


@pytest.mark.parametrize(("flag", "field"), HTTP.items())
def test_every_limit_of_http_has_its_flag(flag: str, field: str) -> None:
    usual, changed = ServeConfig(), build(ServeConfig, {flag: 7})
    assert http_limits(changed, max_body_bytes=5) == replace(
        http_limits(usual, max_body_bytes=5),
        **{field: 7},
    )


@pytest.mark.parametrize(("flag", "field"), GRPC.items())
def test_every_limit_of_grpc_has_its_flag(flag: str, field: str) -> None:
    usual, changed = ServeConfig(), build(ServeConfig, {flag: 7})
    assert grpc_limits(changed) == replace(grpc_limits(usual), **{field: 7})


@pytest.mark.parametrize("flag", KEEPALIVE)
def test_every_limit_of_keepalive_has_its_flag_in_milliseconds(flag: str) -> None:
    field, given, meant = KEEPALIVE[flag]
    usual, changed = ServeConfig(), build(ServeConfig, {flag: given})
    expected = replace(grpc_limits(usual).keepalive, **{field: meant})
    assert grpc_limits(changed).keepalive == expected


def test_the_defaults_are_those_of_the_wire() -> None:
    assert http_limits(ServeConfig(), max_body_bytes=64 << 20) == HttpLimits()
    assert grpc_limits(ServeConfig()) == GrpcLimits(keepalive=KeepaliveLimits(max_connection_idle_s=3600))


@pytest.mark.parametrize(
    ("level", "encoding", "effort"),
    [("none", "", 6), ("low", "gzip", 1), ("medium", "gzip", 6), ("high", "gzip", 9)],
)
def test_a_compression_level_is_an_effort(level: Any, encoding: str, effort: int) -> None:
    limits = grpc_limits(build(ServeConfig, {"grpc_infer_response_compression_level": level}))
    assert (limits.response_encoding, limits.response_level) == (encoding, effort)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that has a client go after an idle second, and knows a client by four connections."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "net", onnx_files.doubling())
    with serving(
        repository,
        grpc_max_connection_idle=1000,
        max_connections_per_client=4,
    ) as live:
        yield live


def port_of(live: Live, service: str) -> int:
    return live.ports["HTTPService" if service == "http" else "GRPCInferenceService"]


@pytest.mark.slow
def test_a_grpc_connection_without_calls_is_told_to_go(impatient: Live) -> None:
    goaway, told = frames.goaway(frames.MAX_STREAM_ID, frames.ErrorCode.NO_ERROR), b""
    address = ("127.0.0.1", port_of(impatient, "grpc"))
    with socket.create_connection(address, timeout=TIMEOUT_S) as client:
        client.sendall(PREFACE + frames.settings_frame({}))
        while goaway not in told:
            chunk = client.recv(65536)
            assert chunk
            told += chunk


@pytest.mark.slow
def test_one_client_has_no_more_connections_than_allowed(impatient: Live) -> None:
    address = ("127.0.0.1", port_of(impatient, "http"))
    eventually(lambda: not any(listener.connections for listener in impatient.server.endpoints.serving))
    clients = [socket.create_connection(address, timeout=5) for _ in range(5)]
    try:
        told = clients[-1].recv(1000)
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"127.0.0.1 has 4 connections, its limit" in told
        clients[0].sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert clients[0].recv(1000).startswith(b"HTTP/1.1 200 ")
    finally:
        for client in clients:
            client.close()


def test_bodies_and_messages_over_their_limit_are_refused_before_they_are_read(tmp_path: Path) -> None:
    write_model(tmp_path, "net", onnx_files.doubling())
    with serving(tmp_path, http_max_input_size=1000, grpc_max_message_size=1000) as live:
        with live.raw_http() as client:
            client.sendall(
                b"POST /v2/models/net/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n"
            )
            assert client.recv(1000).startswith(b"HTTP/1.1 413 ")
        with live.channel() as channel:
            code, words = channel.error("ModelInfer", bytes(1001))
        assert code == "RESOURCE_EXHAUSTED"
        assert words == "Received message larger than max (1001 vs. 1000)"
