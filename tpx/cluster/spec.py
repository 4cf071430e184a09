"""Specification of a cluster: one frozen spec from flags or a YAML file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tpx.argv import given_in_argv
from tpx.errors import UsageError
from tpx.options import Options, build, fields_of, given, group, option
from tpx.protocol.json_values import JsonObject
from tpx.sources import config_file, read_file, values_of

LATENCIES = "nv_inference_request_duration_histogram_us"
_BOUNDS_US = ",".join(
    str(round(first * 10**decade))
    for decade in range(2, 7)
    for first in (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8)
)
"""Buckets of latencies from 100 us to 8 s, each a quarter wider than the one before (ISO 3, R 10)."""


class ClusterAddress(Options):
    """Name of the cluster, and address of Ray."""

    name: str = option(
        "tpx", "name of the cluster; several may share one Ray", "-n", metavar="NAME", common=True
    )
    ray_address: str = option(
        "", "host:port of Ray's head node (default: RAY_ADDRESS)", metavar="ADDRESS", common=True
    )
    config_file: Path | None = config_file("-f")


class Replicas(Options):
    """Number of servers, and the resources of each."""

    replicas: int = option(
        1, "number of replicas; with --max-replicas, the initial number", minimum=0, common=True
    )
    min_replicas: int | None = option(
        None, "minimum replicas, with --max-replicas", minimum=0, metavar="N", common=True
    )
    max_replicas: int | None = option(
        None,
        "maximum replicas: scale between minimum and maximum by utilization and queue time",
        minimum=1,
        metavar="N",
        common=True,
    )
    cpus: float = option(1.0, "CPUs that a replica reserves", minimum=0, common=True)
    gpus: float = option(0.0, "GPUs that a replica reserves", minimum=0, common=True)
    memory: int = option(0, "bytes of memory that a replica reserves; 0 = none", minimum=0, metavar="BYTES")

    def __post_init__(self) -> None:
        low, high = self.bounds
        if low > high:
            raise UsageError(f"--min-replicas {low} is above --max-replicas {high}")

    @property
    def bounds(self) -> tuple[int, int]:
        """Minimum and maximum number of replicas; equal if autoscaling is off."""
        if self.max_replicas is None:
            least = self.replicas if self.min_replicas is None else self.min_replicas
            return (least, max(least, self.replicas))
        least = min(1, self.max_replicas) if self.min_replicas is None else self.min_replicas
        return (least, self.max_replicas)

    @property
    def resources(self) -> Mapping[str, float]:
        """Requested resources of one replica, under Ray's names."""
        requested = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.memory)}
        return {name: amount for name, amount in requested.items() if amount}


class ReplicaServer(Options):
    """Settings of each replica's server."""

    model_repository: tuple[str, ...] = option(
        (),
        "directory that every node can read, or an object store; repeatable",
        metavar="DIR",
        common=True,
        completes="files",
    )
    serve: tuple[str, ...] = option(
        (),
        "options for `tpx serve`, such as --serve=--model-control-mode=explicit; repeatable",
        metavar="WORD",
        common=True,
    )
    version: str = option(
        "", "label of a release: if it changes, `update` replaces every replica", metavar="LABEL"
    )
    log_dir: str = option("/tmp/tpx-cluster", "directory on each node for the replicas' logs", metavar="DIR")
    ready_timeout_secs: float = option(120.0, "maximum seconds until a replica is ready", minimum=1)
    drain_secs: float = option(
        4.0, "seconds that a replica keeps serving after it was removed from the traffic", minimum=0
    )


class Traffic(Options):
    """Addresses and balancers that clients connect to, and what one of them may use."""

    http_address: str = option(
        "127.0.0.1",
        "address that HAProxy listens on for HTTP, on each of its nodes; 0.0.0.0 = all",
        metavar="ADDRESS",
        common=True,
    )
    grpc_address: str = option(
        "127.0.0.1", "address that HAProxy listens on for gRPC", metavar="ADDRESS", common=True
    )
    stats_address: str = option(
        "127.0.0.1", "address that HAProxy listens on for its statistics and metrics", metavar="ADDRESS"
    )
    http_port: int = option(8000, "HTTP port of each balancer", minimum=0, maximum=65535, common=True)
    grpc_port: int = option(8001, "gRPC port of each balancer", minimum=0, maximum=65535, common=True)
    stats_port: int = option(8404, "port of HAProxy's statistics page and /metrics", minimum=0, maximum=65535)
    balancer: tuple[str, ...] = option(
        (),
        "address of a node that runs HAProxy; repeatable (default: this node)",
        metavar="ADDRESS",
        common=True,
    )
    haproxy: str = option("haproxy", "HAProxy program on those nodes", metavar="PATH")
    max_connections: int = option(10_000, "connections that HAProxy accepts per port", minimum=1)
    max_connections_per_client: int = option(
        2000, "connections that HAProxy accepts per port from one address; 0 = no limit", minimum=0
    )
    session_header: str = option(
        "x-session-id",
        "header that keeps requests to OpenAI's API on one replica, whose cache then has their prefix; those "
        "without it follow the beginning of their body",
        metavar="NAME",
    )
    session_bytes: int = option(
        512,
        "bytes of a body that choose the replica, if there is no such header; 0 = the least busy",
        minimum=0,
        maximum=8192,
    )
    check_secs: float = option(
        0.5, "seconds between two health checks; two failures remove a replica from the traffic", minimum=0.05
    )


class Scaling(Options):
    """Thresholds and delays for adding and removing replicas."""

    target_utilization: float = option(
        0.7, "share of its CPUs that a replica should use", minimum=0.01, maximum=1
    )
    target_queue_ms: float = option(20.0, "mean queue time above which replicas are added", minimum=0)
    scale_up_secs: float = option(15.0, "seconds of high load before replicas are added", minimum=0)
    scale_down_secs: float = option(120.0, "seconds of low load before replicas are removed", minimum=0)


class Rollout(Options):
    """Rolling update settings."""

    canary_secs: float = option(
        10.0, "seconds in which the first new replica is compared with the old ones; 0 = no canary", minimum=0
    )
    canary_error_share: float = option(
        0.01, "share of failures that the canary may have beyond the old replicas", minimum=0, maximum=1
    )
    canary_latency_ratio: float = option(
        1.5, "maximum ratio of the canary's p99 to that of the old replicas", minimum=1
    )


class ClusterSpec(Options):
    """Specification of a cluster."""

    address: ClusterAddress = group(ClusterAddress, "Cluster")
    replica: Replicas = group(Replicas, "Replicas")
    server: ReplicaServer = group(ReplicaServer, "Server")
    traffic: Traffic = group(Traffic, "Traffic")
    scaling: Scaling = group(Scaling, "Scaling")
    rollout: Rollout = group(Rollout, "Rollout")

    def serve_words(self, host: str) -> tuple[str, ...]:
        """Return the arguments of `tpx serve` for a replica at an address of its node; it chooses its
        own ports.
        """
        listening = [f"--{name}-address={host}" for name in ("http", "grpc", "metrics")]
        ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
        models = [f"--model-repository={where}" for where in self.server.model_repository]
        latencies = (
            "--metrics-config=histogram_latencies=true",
            f"--metrics-config=histogram_buckets={LATENCIES}:{_BOUNDS_US}",
        )
        return (*models, *listening, *ports, *latencies, *self.server.serve)

    def runs_as(self, other: "ClusterSpec") -> bool:
        """Return True if replicas of both specs are identical, so that none has to be replaced."""
        return self.server == other.server and self.replica.resources == other.replica.resources

    def plain(self) -> JsonObject:
        """Return the options that differ from their defaults, as JSON; `from_plain` reads them."""
        return given(self)


def from_plain(plain: JsonObject) -> ClusterSpec:
    """Read the output of `ClusterSpec.plain`, possibly of another version: unknown options are ignored."""
    known = {field.name: field for field in fields_of(ClusterSpec)}
    values = {name: value for name, value in plain.items() if name in known}
    return build(ClusterSpec, {k: tuple(v) if known[k].repeatable else v for k, v in values.items()})


def read_spec(argv: Sequence[str], base: ClusterSpec | None = None) -> ClusterSpec:
    """Return the spec from a command line; it takes precedence over its YAML file, and that over
    `base`. Raises UsageError.
    """
    words = dict(given_in_argv(ClusterSpec, argv))
    # the file is not part of the spec: other nodes do not have it
    from_file = values_of(read_file(ClusterSpec, words.pop("config_file", None)))
    return build(ClusterSpec, {**(base.plain() if base else {}), **from_file, **words})
