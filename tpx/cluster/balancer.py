"""Configuration of the traffic proxies: HAProxy, reconfigured at run time, and Envoy.

HAProxy has a fixed number of server slots. Commands on its runtime socket add a replica to a slot,
drain it and remove it, so no reload is needed and no connection is lost; a restart renders the current
slots.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpx.cluster.spec import Traffic
from tpx.protocol.handshakes import is_local

BACKENDS = ("http", "grpc")
NOWHERE = "0.0.0.0:1"
_STATS_CONNECTIONS = 100
"""Connections to the statistics page, beside those of clients."""
_SESSIONS = "sessions"
"""HAProxy's backend of requests to OpenAI's API; its servers follow the health of those of http."""
_OPENAI = "/v1/"
_MOST_LOAD = 200
"""Percent of the mean load that a replica may have before the next one gets its sessions: consistent
hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016). With less, sessions are scattered already
where each replica has a request or two.
"""
STICKY_HEADER = "sequence-id"
"""Header for sticky routing: requests with the same value reach one replica while it is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRoute:
    """Address of a replica that may receive traffic."""

    replica: str
    host: str
    http_port: int
    grpc_port: int
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Slots:
    """Assignment of replicas to slots; a replica keeps its slot as long as it exists."""

    routes: tuple[ReplicaRoute | None, ...]

    @classmethod
    def empty(cls, count: int) -> "Slots":
        return cls((None,) * count)

    def placed(self, routes: Sequence[ReplicaRoute]) -> "Slots":
        """Return slots for these routes: known replicas keep their slots, new ones take free slots."""
        by_name = {route.replica: route for route in routes}
        kept = [by_name.pop(old.replica, None) if old else None for old in self.routes]
        waiting = iter(by_name.values())
        return Slots(tuple(route or next(waiting, None) for route in kept))


def changes(old: Slots, new: Slots) -> Iterator[str]:
    """Yield the commands for HAProxy's runtime socket that change `old` slots to `new` ones."""
    for number, (was, now) in enumerate(zip(old.routes, new.routes, strict=True)):
        if was == now:
            continue
        for backend in BACKENDS:
            server = f"{backend}/s{number}"
            if now is None:
                yield f"set server {server} state maint"
            elif was is not None and (was.host, was.http_port, was.grpc_port) == _get_endpoint(now):
                yield f"set server {server} state {_choose_state(now)}"
            else:
                port = now.http_port if backend == "http" else now.grpc_port
                yield f"set server {server} state maint"
                yield f"set server {server} addr {now.host} port {port}"
                yield f"set server {server} check-addr {now.host} port {now.http_port}"
                if backend == "http":
                    yield f"set server {_SESSIONS}/s{number} addr {now.host} port {port}"
                yield f"set server {server} state {_choose_state(now)}"


def _get_endpoint(route: ReplicaRoute) -> tuple[str, int, int]:
    return route.host, route.http_port, route.grpc_port


def _choose_state(route: ReplicaRoute) -> str:
    return "drain" if route.draining else "ready"


def haproxy_config(traffic: Traffic, slots: Slots, socket: str) -> str:
    """Return HAProxy's configuration with these slots.

    A request is retried only if connecting failed, before any byte was sent. If two consecutive checks
    find a replica unready, its sessions are closed, so that clients do not wait for a node that is
    gone.
    """
    every_ms = round(traffic.check_secs * 1000)
    lines = [
        "global",
        f"    stats socket {socket} mode 600 level admin",
        f"    maxconn {2 * traffic.max_connections + _STATS_CONNECTIONS}",
        "    no strict-limits",  # with fewer descriptors than that, serve as many as there are
        "defaults",
        "    mode http",
        "    timeout connect 1s",
        "    timeout http-request 10s",
        "    timeout client 120s",
        "    timeout server 120s",
        f"    timeout check {max(every_ms, 100)}ms",
        "    timeout tunnel 1h",
        "    retries 3",
        "    retry-on conn-failure",
        "    option redispatch 1",
        "    balance leastconn",
        "    option httpchk GET /v2/health/ready",
        "    http-check expect status 200",
        # tcp-ut: drop connections to an unreachable node instead of reusing them when it is back
        f"    default-server inter {every_ms}ms fall 2 rise 1 on-marked-down shutdown-sessions"
        f" tcp-ut {2 * every_ms}ms",
    ]
    for backend, address, port, proto in (
        ("http", traffic.http_address, traffic.http_port, ""),
        ("grpc", traffic.grpc_address, traffic.grpc_port, " proto h2"),
    ):
        lines += [
            f"frontend {backend}_in",
            f"    bind {_format_address(address, port)}{proto}",
            f"    maxconn {traffic.max_connections}",
            *_limit_clients(traffic.max_connections_per_client),
            *(_check_host(address) if backend == "http" else ()),
            *([f"    use_backend {_SESSIONS} if {{ path_beg {_OPENAI} }}"] if backend == "http" else ()),
            f"    default_backend {backend}",
            f"backend {backend}",
            "    stick-table type string len 128 size 200k expire 10m",
            f"    stick on req.hdr({STICKY_HEADER})",
            *(_format_server(number, route, backend, proto) for number, route in enumerate(slots.routes)),
        ]
    lines += [
        *_keep_sessions(traffic, slots),
        "frontend stats",
        f"    bind {_format_address(traffic.stats_address, traffic.stats_port)}",
        f"    maxconn {_STATS_CONNECTIONS}",
        *_check_host(traffic.stats_address),
        "    stats enable",
        "    stats uri /",
        "    http-request use-service prometheus-exporter if { path /metrics }",
    ]
    return "\n".join(lines) + "\n"


def _format_address(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _limit_clients(most: int) -> Iterator[str]:
    """Yield the lines of a frontend that bound the connections of one address."""
    if most:
        yield "    stick-table type ipv6 size 100k expire 10m store conn_cur"
        yield "    tcp-request connection track-sc0 src"
        yield f"    tcp-request connection reject if {{ sc0_conn_cur gt {most} }}"


def _check_host(address: str) -> Iterator[str]:
    """Yield the lines of a frontend that refuse names which are not this machine's, as `tpx serve` does."""
    if is_local(address):
        names = r"^([^:]*\.)?localhost\.?(:[0-9]+)?$ ^[0-9.]+(:[0-9]+)?$ ^\[[0-9a-f:.]+\](:[0-9]+)?$"
        yield f"    acl own_name req.hdr(host) -m reg -i {names}"
        yield "    http-request deny deny_status 403 if { req.hdr(host) -m found } !own_name"


def _keep_sessions(traffic: Traffic, slots: Slots) -> Iterator[str]:
    """Yield the backend in which requests of a session reach one replica while it is not too busy."""
    yield f"backend {_SESSIONS}"
    yield "    balance hash var(txn.session)"
    yield "    hash-type consistent"
    yield f"    hash-balance-factor {_MOST_LOAD}"
    yield f"    http-request set-var(txn.session) req.hdr({traffic.session_header})"
    if traffic.session_bytes:
        none = "if !{ var(txn.session) -m found }"
        yield f"    http-request wait-for-body time 10s at-least {traffic.session_bytes} {none}"
        yield f"    http-request set-var(txn.session) req.body,bytes(0,{traffic.session_bytes}) {none}"
    for number, route in enumerate(slots.routes):
        where = NOWHERE if route is None else f"{route.host}:{route.http_port}"
        weight = " weight 0" if route is not None and route.draining else ""
        yield f"    server s{number} {where} track http/s{number}{weight}"


def _format_server(number: int, route: ReplicaRoute | None, backend: str, proto: str) -> str:
    check = f" check check-proto h1{proto}"
    if route is None:
        return f"    server s{number} {NOWHERE}{check} port 1 disabled"
    port = route.http_port if backend == "http" else route.grpc_port
    weight = " weight 0" if route.draining else ""
    return f"    server s{number} {route.host}:{port}{check} port {route.http_port}{weight}"


def envoy_config(traffic: Traffic, routes: Sequence[ReplicaRoute]) -> dict[str, object]:
    """Return the equivalent static configuration of Envoy (v3); `envoy -c` reads it as YAML or JSON."""
    ready = [route for route in routes if not route.draining]
    return {
        "admin": {"address": _build_address(traffic.stats_address, traffic.stats_port)},
        "static_resources": {
            "listeners": [_build_listener(*each, traffic.session_header) for each in _list_ports(traffic)],
            "clusters": [
                _build_cluster(name, policy, traffic, ready)
                for name in BACKENDS
                for policy in ("LEAST_REQUEST", "MAGLEV")
            ],
        },
    }


def _list_ports(traffic: Traffic) -> tuple[tuple[str, str, int], ...]:
    return (
        ("http", traffic.http_address, traffic.http_port),
        ("grpc", traffic.grpc_address, traffic.grpc_port),
    )


def _build_address(host: str, port: int) -> dict[str, object]:
    return {"socket_address": {"address": host, "port_value": port}}


def _build_listener(name: str, address: str, port: int, session_header: str) -> dict[str, object]:
    other_hosts = "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    route = {
        "timeout": "0s",
        "retry_policy": {
            "retry_on": "connect-failure",
            "num_retries": 3,
            "retry_host_predicate": [
                {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": {"@type": other_hosts}}
            ],
            "host_selection_retry_max_attempts": 5,
        },
    }
    routes = [
        {
            "match": {"prefix": prefix, "headers": [{"name": header, "present_match": True}]},
            "route": {
                **route,
                "cluster": _name_cluster(name, "MAGLEV"),
                "hash_policy": [{"header": {"header_name": header}}],
            },
        }
        for prefix, header in (("/", STICKY_HEADER), (_OPENAI, session_header))
    ] + [
        {"match": {"prefix": "/"}, "route": {**route, "cluster": _name_cluster(name, "LEAST_REQUEST")}},
    ]
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3."
        "HttpConnectionManager",
        "stat_prefix": name,
        "codec_type": "AUTO",
        "request_headers_timeout": "10s",
        "route_config": {"virtual_hosts": [{"name": name, "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
                },
            }
        ],
    }
    network = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {
        "name": name,
        "address": _build_address(address, port),
        "filter_chains": [{"filters": [network]}],
    }


def _name_cluster(name: str, policy: str) -> str:
    return f"{name}_{policy.lower()}"


def _build_cluster(
    name: str, policy: str, traffic: Traffic, routes: Sequence[ReplicaRoute]
) -> dict[str, object]:
    """Return the replicas under a load balancing policy; MAGLEV keeps the requests of a sequence together."""
    endpoints = [
        {
            "endpoint": {
                "address": _build_address(route.host, route.http_port if name == "http" else route.grpc_port),
                "health_check_config": {"port_value": route.http_port},
            }
        }
        for route in routes
    ]
    options = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    protocol = "http_protocol_options" if name == "http" else "http2_protocol_options"
    return {
        "name": _name_cluster(name, policy),
        "connect_timeout": "1s",
        "lb_policy": policy,
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},  # never to an unready replica
        "close_connections_on_host_health_failure": True,
        "load_assignment": {
            "cluster_name": _name_cluster(name, policy),
            "endpoints": [{"lb_endpoints": endpoints}],
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": options,
                "explicit_http_config": {protocol: {}},
            }
        },
        "health_checks": [
            {
                "timeout": f"{traffic.check_secs}s",
                "interval": f"{traffic.check_secs}s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/v2/health/ready"},
            }
        ],
    }
