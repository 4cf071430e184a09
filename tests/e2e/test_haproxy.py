"""A rolling restart behind a real HAProxy: clients over HTTP and gRPC notice nothing."""

import csv
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from tests.e2e.child import Child, serve
from tests.serving.live import SERVICE, floats, infer_message, outputs_of
from tests.serving.onnx_files import doubling, write_model
from tests.waiting import eventually
from tpx.protocol import messages

HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")  # no user has /usr/sbin
CONFIG = Path(__file__).with_name("haproxy.cfg")
DRAIN_S = 4
CALLERS = 3
PAUSE_S = 0.02
"""For each protocol."""
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}).encode()

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(HAPROXY is None, reason="no haproxy here (Debian: apt-get install haproxy)"),
]


def free_ports(names: list[str]) -> dict[str, int]:
    """A free port for each name, below those that clients get: a server gets its own again."""
    found: dict[str, int] = {}
    while len(found) < len(names):
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            if port not in found.values() and probe.connect_ex(("127.0.0.1", port)) != 0:
                found[names[len(found)]] = port
    return found


class Balancer:
    """What HAProxy's statistics say."""

    def __init__(self, stats: Path) -> None:
        self._stats = stats

    def statuses(self) -> dict[tuple[str, str], str]:
        """UP, DOWN and the like by backend and server."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(self._stats))
            sock.sendall(b"show stat\n")
            page = b"".join(iter(lambda: sock.recv(1 << 16), b"")).decode()
        rows = csv.DictReader(page.removeprefix("# ").splitlines())
        return {(row["pxname"], row["svname"]): row["status"] for row in rows if row["type"] == "2"}

    def wait_until_up(self) -> None:
        """Wait until every server of every backend takes requests."""
        eventually(lambda: set(self.statuses().values()) == {"UP"}, 20)


@contextmanager
def balancing(ports: Mapping[str, int], directory: Path) -> Iterator[Balancer]:
    """HAProxy with the configuration that lies beside this file."""
    assert HAPROXY is not None
    stats = directory / "stats.sock"
    environment = {
        **os.environ,
        "STATS_SOCKET": str(stats),
        **{name: str(port) for name, port in ports.items()},
    }
    with (directory / "haproxy.log").open("w") as log:
        process = subprocess.Popen(
            [HAPROXY, "-db", "-f", str(CONFIG)], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        eventually(stats.exists, 20)
        yield Balancer(stats)
    finally:
        process.terminate()
        process.wait(20)


class Traffic:
    """Callers that ask again and again; their failures, and how many requests were answered."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.answered = 0
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, ask: Callable[[], None]) -> None:
        """Add a caller; `ask` makes one request, and raises where it fails."""
        self._threads.append(threading.Thread(target=self._run, args=(ask,)))
        self._threads[-1].start()

    def _run(self, ask: Callable[[], None]) -> None:
        while not self._stopping.wait(PAUSE_S):
            try:
                ask()
                self.answered += 1
            except Exception as exc:  # noqa: BLE001 (whatever it is, it is a failed request)
                self.failures.append(repr(exc))

    def go_on(self) -> None:
        """Wait until more requests are answered, or one has failed."""
        before = self.answered
        eventually(lambda: self.answered >= before + 60 or bool(self.failures), 30)

    def stop(self) -> None:
        """End the callers."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)


def http_caller(port: int, stack: ExitStack) -> Callable[[], None]:
    """Requests on one connection that is kept alive."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    stack.callback(connection.close)

    def ask() -> None:
        connection.request("POST", "/v2/models/net/infer", BODY)
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 200, answer
        assert json.loads(answer)["outputs"][0]["data"] == [2, 4]

    return ask


def grpc_caller(port: int, stack: ExitStack) -> Callable[[], None]:
    """Calls on one channel."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}", options=own))
    call = channel.unary_unary(SERVICE + "ModelInfer", None, None)
    message = infer_message("net", {"x": floats([3, 4])})

    def ask() -> None:
        answer = messages.ModelInferResponse.FromString(call(message, timeout=20))
        assert outputs_of(answer) == {"y": [[6, 8]]}

    return ask


def test_a_rolling_restart_behind_haproxy_fails_no_request(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "net", doubling())
    names = [f"{server}_{protocol}_PORT" for server in ("FIRST", "SECOND") for protocol in ("HTTP", "GRPC")]
    ports = free_ports(["HTTP_PORT", "GRPC_PORT", *names])
    with ExitStack() as stack:

        def start(server: str) -> Child:
            words = [f"--{each}-port={ports[f'{server}_{each.upper()}_PORT']}" for each in ("http", "grpc")]
            words += ["--metrics-port=0", f"--drain-secs={DRAIN_S}"]
            child = stack.enter_context(serve("--model-repository", tmp_path / "models", *words, ports=False))
            return child.ready()

        servers = {name: start(name) for name in ("FIRST", "SECOND")}
        balancer = stack.enter_context(balancing(ports, tmp_path))
        balancer.wait_until_up()
        traffic = Traffic()
        stack.callback(traffic.stop)
        for _ in range(CALLERS):
            traffic.start(http_caller(ports["HTTP_PORT"], stack))
            traffic.start(grpc_caller(ports["GRPC_PORT"], stack))
        traffic.go_on()
        for name, server in servers.items():
            server.send(signal.SIGTERM)
            assert server.ended(30) == 0
            traffic.go_on()
            start(name)
            balancer.wait_until_up()
            traffic.go_on()
        traffic.stop()
    assert traffic.failures == []
