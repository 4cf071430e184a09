"""`tpx cluster`: replicas of `tpx serve` on a Ray cluster, behind HAProxy."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from http.server import HTTPServer
from typing import TextIO

import yaml
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tpx.argv import from_argv
from tpx.cli.commands import Exit
from tpx.cli.interrupts import until_interrupted
from tpx.cluster import client
from tpx.cluster.balancer import ReplicaRoute, Slots, envoy_config, haproxy_config
from tpx.cluster.page import HOST, open_page
from tpx.cluster.spec import ClusterAddress, from_plain, read_spec
from tpx.errors import UsageError
from tpx.options import Options, group, option, required
from tpx.protocol.json_values import JsonObject
from tpx.ray_driver import connected
from tpx.report.strangers import harmless

WATCH_S = 1.0


class StatusConfig(Options):
    """Options of `tpx cluster status`: the cluster and the output format."""

    address: ClusterAddress = group(ClusterAddress, "Cluster")
    json: bool = option(False, "print JSON instead of a table")
    watch: bool = option(False, "refresh every second until Ctrl-C, with --json a line of JSON each second")


class PageConfig(Options):
    """Options of `tpx cluster page`: the cluster and where its page is."""

    address: ClusterAddress = group(ClusterAddress, "Cluster")
    port: int = option(8090, "port of the page on 127.0.0.1; 0: any free one", minimum=0, maximum=65535)


class ScaleConfig(Options):
    """Options of `tpx cluster scale`: the cluster and its number of replicas."""

    count: int = required("replicas", metavar="COUNT", positional=True, minimum=0)
    address: ClusterAddress = group(ClusterAddress, "Cluster")


class LogsConfig(Options):
    """Options of `tpx cluster logs`: the cluster and the replica."""

    replica: str = required("name of a replica", metavar="REPLICA", positional=True)
    address: ClusterAddress = group(ClusterAddress, "Cluster")
    lines: int = option(100, "number of lines from the end", minimum=1)


class ConfigConfig(Options):
    """Options of `tpx cluster config`: the cluster and the proxy."""

    address: ClusterAddress = group(ClusterAddress, "Cluster")
    envoy: bool = option(False, "print Envoy's configuration as YAML instead of HAProxy's")


def up(argv: Sequence[str]) -> int:
    """Run `tpx cluster up`."""

    def action(out: TextIO) -> None:
        spec = read_spec(argv)
        if not spec.server.model_repository:
            raise UsageError("missing: --model-repository, the directory that holds the models on every node")
        with connected(spec.address.ray_address):
            spec = client.with_balancer(spec)
            with Console(stderr=True).status("starting") as line:
                for status in until_interrupted(client.up(spec)):
                    ready = sum(row["state"] == "ready" for row in status["replicas"])
                    line.update(f"{ready} of {status['desired']} replicas are ready")
            traffic = spec.traffic
            for node in traffic.balancer:
                http = _reached_at(traffic.http_address, node, traffic.http_port)
                grpc = _reached_at(traffic.grpc_address, node, traffic.grpc_port)
                print(f"HTTP http://{http}, gRPC {grpc}", file=out)
            stats = _reached_at(traffic.stats_address, traffic.balancer[0], traffic.stats_port)
            print(f"HAProxy's page: http://{stats}/", file=out)

    return _run_with_ray(action)


def _reached_at(address: str, node: str, port: int) -> str:
    """Return where a balancer is reached: at its node's address if it listens on all of them."""
    where = node if address in ("0.0.0.0", "::", "") else address
    return f"{where}:{port}" if where == node else f"{where}:{port} on {node}"


def update(argv: Sequence[str]) -> int:
    """Run `tpx cluster update`: options that are not given stay as they are."""

    def action(out: TextIO) -> None:
        named = read_spec(argv)
        with connected(named.address.ray_address):
            cluster = client.Cluster(named.address.name)
            status = cluster.status()
            cluster.update(read_spec(argv, from_plain(status["spec"])))
            with Console(stderr=True).status("updating") as line:
                for status in until_interrupted(_poll(cluster)):
                    if status["update"] is None:
                        break
                    line.update(str(status["events"][-1] if status["events"] else "updating"))
            if status["fault"]:
                raise UsageError(status["fault"])
            print(f"every replica runs release {status['release']}", file=out)

    return _run_with_ray(action)


def status(argv: Sequence[str]) -> int:
    """Run `tpx cluster status`."""

    def action(out: TextIO) -> None:
        config = from_argv(StatusConfig, argv)
        with connected(config.address.ray_address):
            cluster = client.Cluster(config.address.name)
            if config.json and config.watch:
                for found in until_interrupted(_poll(cluster)):
                    print(json.dumps(found), file=out, flush=True)
            elif config.json:
                print(json.dumps(cluster.status(), indent=2), file=out)
            elif config.watch:
                with Live(console=Console(file=out), auto_refresh=False) as live:
                    for found in until_interrupted(_poll(cluster)):
                        live.update(table(found), refresh=True)
            else:
                found = cluster.status()
                Console(file=out).print(table(found))
                for event in found["events"][-5:]:
                    print(harmless(event), file=out)

    return _run_with_ray(action)


def _poll(cluster: client.Cluster) -> Iterator[JsonObject]:
    """Yield the cluster's status every second."""
    while True:
        yield cluster.status()
        time.sleep(WATCH_S)


def page(argv: Sequence[str]) -> int:
    """Run `tpx cluster page`: serve the page until Ctrl-C."""

    def action(out: TextIO) -> None:
        config = from_argv(PageConfig, argv)
        with connected(config.address.ray_address):
            cluster = client.Cluster(config.address.name)
            with open_page(config.port, cluster.status) as server:
                print(f"http://{HOST}:{server.server_port}/", file=out, flush=True)
                server.timeout = WATCH_S
                for _ in until_interrupted(_answer(server)):
                    pass

    return _run_with_ray(action)


def _answer(server: HTTPServer) -> Iterator[None]:
    """Answer requests, a connection or a second each time."""
    while True:
        server.handle_request()
        yield


def scale(argv: Sequence[str]) -> int:
    """Run `tpx cluster scale`."""

    def action(_: TextIO) -> None:
        config = from_argv(ScaleConfig, argv)
        with connected(config.address.ray_address):
            client.Cluster(config.address.name).scale(config.count)

    return _run_with_ray(action)


def down(argv: Sequence[str]) -> int:
    """Run `tpx cluster down`."""

    def action(_: TextIO) -> None:
        address = from_argv(DownConfig, argv).address
        with connected(address.ray_address):
            client.Cluster(address.name).down()

    return _run_with_ray(action)


def logs(argv: Sequence[str]) -> int:
    """Run `tpx cluster logs`."""

    def action(out: TextIO) -> None:
        config = from_argv(LogsConfig, argv)
        with connected(config.address.ray_address):
            print(harmless(client.Cluster(config.address.name).log(config.replica, config.lines)), file=out)

    return _run_with_ray(action)


def config(argv: Sequence[str]) -> int:
    """Run `tpx cluster config`: print the proxy's configuration for the replicas that are ready now."""

    def action(out: TextIO) -> None:
        options = from_argv(ConfigConfig, argv)
        with connected(options.address.ray_address):
            found = client.Cluster(options.address.name).status()
        traffic = from_plain(found["spec"]).traffic
        routes = [
            ReplicaRoute(
                replica=row["name"], host=row["host"], http_port=row["http_port"], grpc_port=row["grpc_port"]
            )
            for row in found["replicas"]
            if row["state"] == "ready"
        ]
        if options.envoy:
            print(yaml.safe_dump(envoy_config(traffic, routes), sort_keys=False), end="", file=out)
        else:
            print(haproxy_config(traffic, Slots(tuple(routes)), "/run/haproxy-tpx.sock"), end="", file=out)

    return _run_with_ray(action)


class DownConfig(Options):
    """Options of `tpx cluster down`: the cluster."""

    address: ClusterAddress = group(ClusterAddress, "Cluster")


def table(status: JsonObject) -> Table:
    """Return the replicas of a cluster as a table."""
    low, high = status["bounds"]
    wanted = f"{status['desired']} replicas" + (f" (of {low} to {high})" if low != high else "")
    title = f"{status['name']}: {wanted}, release {status['release']}"
    shown = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in ("replica", "node", "state", "models", "req/s", "p99 ms", "queue ms", "restarts"):
        shown.add_column(
            heading, no_wrap=True, justify="left" if heading in ("replica", "node", "state") else "right"
        )
    for row in status["replicas"]:
        sample = row["sample"]
        tail = "" if sample["p99_ms"] is None else f"{sample['p99_ms']:.1f}"
        shown.add_row(
            *(
                row["name"],
                row["host"],
                row["state"],
                str(row["models"]),
                f"{sample['requests_per_s']:.0f}",
                tail,
            ),
            *(f"{sample['queue_ms']:.1f}", str(row["restarts"])),
        )
    shown.caption = (
        "; ".join(f"{row['name']}: {row['message']}" for row in status["replicas"] if row["message"]) or None
    )
    return shown


def _run_with_ray(action: Callable[[TextIO], None]) -> int:
    """Run `action` with stdout for its results; redirect everything that Ray prints meanwhile to stderr."""
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        action(out)
    return Exit.OK
