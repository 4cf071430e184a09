"""The endpoints of a server: HTTP, gRPC, and metrics, with their listeners, limits, and TLS."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tpx.errors import UsageError
from tpx.protocol.compression import Inflater
from tpx.protocol.grpc.limits import GrpcLimits, KeepaliveLimits
from tpx.protocol.grpc.server import connection_factory as grpc_connections
from tpx.protocol.handshakes import bound_sockets
from tpx.protocol.http1.request import HttpRequest
from tpx.protocol.http1.server import HttpLimits
from tpx.protocol.http1.server import connection_factory as http_connections
from tpx.protocol.listener import Listener
from tpx.protocol.memory_budget import MemoryBudget
from tpx.serving.dataplane import DataPlane
from tpx.serving.endpoint_options import ServiceAddress
from tpx.serving.frontends.access import parse_restrictions
from tpx.serving.frontends.access_log import AccessLog
from tpx.serving.frontends.browsers import BrowserPolicy
from tpx.serving.frontends.forwarding import parse_forwarding
from tpx.serving.frontends.grpc import GrpcFrontend, GrpcRelay
from tpx.serving.frontends.http import HttpAccess, HttpFrontend, HttpRelay
from tpx.serving.frontends.metrics.endpoint import MetricsFrontend
from tpx.serving.frontends.overview import Overview
from tpx.serving.inference_plane import InferencePlane
from tpx.serving.options import ServeConfig


class BoundEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Address of a listening service."""

    service: str
    address: str
    port: int

    @property
    def where(self) -> str:
        """Return address and port as in a URL."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


if TYPE_CHECKING:
    from tpx.serving.frontends.hosted import HostedPaths


class EndpointRelay(HttpRelay, GrpcRelay, Protocol):
    """Forwards requests of both protocols."""


_Connections = Callable[[], asyncio.BaseProtocol]


class _Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service that does not listen yet."""

    where: ServiceAddress
    tls: ssl.SSLContext | None = None
    connect: Callable[[Listener], _Connections]
    """Creates its frontend; returns the factory of its connections."""
    observe: Callable[[Any], None]


class Endpoints:
    """Listens for the enabled services."""

    def __init__(
        self,
        config: ServeConfig,
        plane: DataPlane | InferencePlane,
        metrics: Callable[[], MetricsFrontend] | None,
        memory: MemoryBudget,
        *,
        relay: EndpointRelay | None = None,
        bound: Mapping[str, Sequence[socket.socket]] | None = None,
    ) -> None:
        """Create the endpoints. Raises UsageError.

        `metrics` renders the metrics page; a frontend has none. `relay` handles all verbs except
        inference if `plane` does not; `bound` has open sockets by the flag of their service.
        """
        self._config = config
        self._plane = plane
        self._metrics = metrics
        self._relay = relay
        self._bound = bound or {}
        self._memory = memory
        self._inflater = Inflater(config.server.max_inflated_bytes)
        self.listeners: list[tuple[Listener, Callable[[Any], None]]] = []
        """All listeners, each with its observer of requests."""
        self.serving: list[Listener] = []
        """Listeners of HTTP and gRPC; metrics are served until the end."""
        self._services = self._create_services(AccessLog(plane.logs))

    def _create_services(self, access: AccessLog) -> list[_Service]:
        config, grpc, http = self._config, self._config.grpc, self._config.http
        # an engine also parses the options of the endpoints that its frontends serve
        restricted_grpc = parse_restrictions("--grpc-restricted-protocol", grpc.grpc_restricted_protocol)
        forwarded_grpc = parse_forwarding("--grpc-header-forward-pattern", grpc.grpc_header_forward_pattern)
        restricted_http = parse_restrictions("--http-restricted-api", http.http_restricted_api)
        forwarded_http = parse_forwarding("--http-header-forward-pattern", http.http_header_forward_pattern)
        restricted_openai = parse_restrictions("--openai-restricted-api", config.openai.openai_restricted_api)
        metrics = self._metrics
        server = config.server
        pages = partial(BrowserPolicy.of, hosts=server.allowed_hosts, origins=server.allowed_origins)
        pages("")  # report a mistake before models load

        def connect_grpc(listener: Listener) -> _Connections:
            frontend = GrpcFrontend(
                self._plane, restrictions=restricted_grpc, forwarding=forwarded_grpc, relay=self._relay
            )
            return grpc_connections(listener, grpc_limits(config), frontend.methods(), self._inflater)

        def connect_http(
            where: ServiceAddress, hosted: "HostedPaths | None", listener: Listener
        ) -> _Connections:
            frontend = HttpFrontend(
                self._plane,
                http.http_max_input_size,
                self._inflater,
                access=HttpAccess(
                    restrictions=restricted_http,
                    openai=restricted_openai,
                    openai_only=where.flag == "openai",
                    pages=pages(where.address),
                ),
                forwarding=forwarded_http,
                relay=self._relay,
                front=hosted or overview_of(config, metrics),
            )
            limits = http_limits(config, max_body_bytes=http.http_max_input_size)
            return http_connections(listener, limits, frontend.serve, frontend.judge)

        def connect_metrics(listener: Listener) -> _Connections:
            assert metrics is not None
            serve = pages(config.metrics_host).guard(metrics().serve)
            return http_connections(listener, http_limits(config, max_body_bytes=0), serve)

        services = []
        for where in config.services:
            if where.flag == "grpc":
                tls = grpc_tls(config)
                services.append(_Service(where=where, tls=tls, connect=connect_grpc, observe=access.grpc))
            elif where.flag in ("http", "openai"):
                tls, connect = http_tls(config), partial(connect_http, where, None)
                services.append(_Service(where=where, tls=tls, connect=connect, observe=access.http))
            elif where.hosted:
                connect = partial(connect_http, where, self._hosted_paths(where))
                services.append(_Service(where=where, connect=connect, observe=access.http))
            elif metrics is not None:
                services.append(_Service(where=where, connect=connect_metrics, observe=access.http))
        return services

    def _hosted_paths(self, where: ServiceAddress) -> "HostedPaths":
        """Return the paths of a platform. Raises UsageError."""
        from tpx.serving.frontends.hosted import sagemaker, vertex_ai  # late: few servers are hosted so

        if where.flag == "sagemaker":
            paths = sagemaker(os.environ)
            if paths.models and not self._config.repository.on_request:
                raise UsageError("SAGEMAKER_MULTI_MODEL=true needs --model-control-mode=explicit")
            return paths
        return vertex_ai(os.environ, self._config.hosting.vertex_ai_default_model)

    async def probe(self) -> None:
        """Bind and release every port, before models load. Raises UsageError that names all in use."""
        taken: list[UsageError] = []
        for service in self._services:
            where = service.where
            if where.flag in self._bound:
                continue
            bind = partial(bound_sockets, where.address, where.port, reuse_port=where.reuse_port)
            try:
                for sock in await asyncio.to_thread(bind):
                    sock.close()
            except OSError as exc:
                taken.append(where.in_use(exc))
        if taken:
            raise UsageError("; ".join(error.message for error in taken))

    async def listen(self) -> list[BoundEndpoint]:
        """Accept connections. Raises UsageError for a port in use."""
        server, endpoints = self._config.server, []
        for service in self._services:
            where = service.where
            listener = Listener(
                max_connections=server.max_connections,
                max_per_client=server.max_connections_per_client,
                share_s=server.connection_turn_us / 1e6,
                memory=self._memory,
            )
            try:
                port = await listener.start(
                    service.connect(listener),
                    where.address,
                    where.port,
                    tls=service.tls,
                    reuse_port=where.reuse_port,
                    bound=self._bound.get(where.flag, ()),
                )
            except OSError as exc:
                raise where.in_use(exc) from exc
            if where.flag != "metrics":
                self.serving.append(listener)
            self.listeners.append((listener, service.observe))
            self.observe()
            endpoints.append(BoundEndpoint(service=where.name, address=where.address, port=port))
        return endpoints

    def observe(self) -> None:
        """Report requests to their observers while they are traced or logged."""
        wanted = self._plane.tracer.on or self._plane.logs.verbose
        for listener, observer in self.listeners:
            listener.observer = observer if wanted else None

    def close(self) -> None:
        """Close all connections."""
        for listener, _ in self.listeners:
            listener.close()
        self._inflater.close()


def overview_of(config: ServeConfig, metrics: Callable[[], MetricsFrontend] | None) -> Overview | None:
    """Return what the page at / needs; None if it is off."""
    if not config.has_ui:
        return None

    def answer(request: HttpRequest) -> None:
        if metrics is not None:  # elsewhere another process answers
            metrics().serve(request)

    return Overview(
        controlled=config.repository.on_request,
        metrics=answer if config.metrics.allow_metrics else None,
    )


def http_tls(config: ServeConfig) -> ssl.SSLContext | None:
    """Return the TLS context of the HTTP endpoint, None without TLS. Raises UsageError."""
    http = config.http
    files = http.http_server_cert, http.http_server_key, http.http_root_cert
    return _make_tls_context("http", *files, ["http/1.1"], on=http.http_use_ssl)


def grpc_tls(config: ServeConfig) -> ssl.SSLContext | None:
    """Return the TLS context of the gRPC endpoint, None without TLS. Raises UsageError."""
    grpc = config.grpc
    root, on = grpc.grpc_root_cert, grpc.grpc_use_ssl or grpc.grpc_use_ssl_mutual
    if grpc.grpc_use_ssl_mutual and root is None:
        raise UsageError("--grpc-use-ssl-mutual needs --grpc-root-cert")
    if on and not grpc.grpc_use_ssl_mutual:
        root = None
    return _make_tls_context("grpc", grpc.grpc_server_cert, grpc.grpc_server_key, root, ["h2"], on=on)


def _make_tls_context(
    what: str, cert: Path | None, key: Path | None, root: Path | None, protocols: list[str], *, on: bool
) -> ssl.SSLContext | None:
    """Return a server's context; with `root`, clients must present a certificate that it signed."""
    if not on:
        if any((cert, key, root)):
            raise UsageError(
                f"certificates are given for {what}, but not --{what}-use-ssl, which enables them"
            )
        return None
    if cert is None or key is None:
        raise UsageError(f"--{what}-use-ssl needs --{what}-server-cert and --{what}-server-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(protocols)
    try:
        context.load_cert_chain(cert, key)
        if root is not None:
            context.load_verify_locations(root)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as exc:
        files = [f"certificate '{cert}'", f"key '{key}'", *([f"root '{root}'"] if root is not None else [])]
        missing = [file for file in (cert, key, root) if file is not None and not file.is_file()]
        why = f"there is no file '{missing[0]}'" if missing else exc
        raise UsageError(f"cannot use the {what} {' or '.join(files)}: {why}") from exc
    return context


def http_limits(config: ServeConfig, *, max_body_bytes: int) -> HttpLimits:
    """Return the limits of a connection to the HTTP or the metrics endpoint."""
    return HttpLimits(
        max_body_bytes=max_body_bytes,
        head_timeout_s=config.http.http_header_timeout_secs,
        body_timeout_s=config.http.http_body_timeout_secs,
        min_receive_rate=config.server.min_receive_rate,
        max_receive_s=config.server.max_receive_secs,
        idle_timeout_s=config.http.http_idle_timeout_secs,
        write_timeout_s=config.server.write_timeout_secs,
    )


def grpc_limits(config: ServeConfig) -> GrpcLimits:
    """Return the limits of a gRPC connection."""
    grpc, level = config.grpc, config.grpc.grpc_infer_response_compression_level
    return GrpcLimits(
        max_message_bytes=grpc.grpc_max_message_size,
        max_metadata_bytes=grpc.grpc_max_metadata_size,
        glitch_burst=grpc.grpc_max_glitches,
        glitches_per_s=grpc.grpc_glitches_per_sec,
        max_streams=grpc.grpc_max_concurrent_streams,
        preface_timeout_s=grpc.grpc_preface_timeout_secs,
        header_timeout_s=grpc.grpc_header_timeout_secs,
        message_timeout_s=grpc.grpc_message_timeout_secs,
        min_receive_rate=config.server.min_receive_rate,
        max_receive_s=config.server.max_receive_secs,
        write_timeout_s=config.server.write_timeout_secs,
        response_encoding="" if level == "none" else "gzip",
        response_level={"low": 1, "high": 9}.get(level, 6),
        keepalive=KeepaliveLimits(
            time_s=config.grpc.grpc_keepalive_time / 1000,
            timeout_s=config.grpc.grpc_keepalive_timeout / 1000,
            permit_without_calls=config.grpc.grpc_keepalive_permit_without_calls,
            max_pings_without_data=config.grpc.grpc_http2_max_pings_without_data,
            min_ping_interval_s=config.grpc.grpc_http2_min_recv_ping_interval_without_data / 1000,
            max_ping_strikes=config.grpc.grpc_http2_max_ping_strikes,
            max_connection_idle_s=config.grpc.grpc_max_connection_idle / 1000,
            max_connection_age_s=config.grpc.grpc_max_connection_age / 1000,
            max_connection_age_grace_s=config.grpc.grpc_max_connection_age_grace / 1000,
        ),
    )


_NAMES = {
    "http": "HTTP",
    "grpc": "GRPC",
    "openai": "OpenAI",
    "metrics": "metrics",
    "sagemaker": "Sagemaker",
    "vertex-ai": "Vertex AI",
}


def check_ports(config: ServeConfig) -> None:
    """Raise UsageError for endpoints with the same port, all at once, or a port that a platform forbids."""
    hosting = config.hosting
    hosted = [service for service in config.services if service.hosted]
    if hosted and config.server.frontends:
        raise UsageError(f"{hosted[0].name} needs --frontends 0")
    low, _, high = hosting.sagemaker_safe_port_range.partition("-")
    for service in config.services if high and hosting.allow_sagemaker else ():
        if service.flag != "sagemaker" and not int(low) <= service.port <= int(high):
            raise UsageError(
                f"The port {service.port} of {service.name} is not in the range {low}-{high} of "
                "--sagemaker-safe-port-range"
            )
    seen: dict[tuple[str, int], str] = {}
    conflicts: list[str] = []
    services = {service.flag: service for service in config.services if service.port}
    for flag, name in _NAMES.items():
        if flag not in services:
            continue
        address, port = services[flag].address, services[flag].port
        other = seen.setdefault((address, port), name)
        if other != name:
            conflicts.append(
                f"The server cannot listen to {other} requests and {name} requests at the same address and "
                f"port {address}:{port}"
            )
    if conflicts:
        raise UsageError("; ".join(conflicts))
