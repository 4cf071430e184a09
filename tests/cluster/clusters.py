"""A running cluster of the tests: where it is, its state, its traffic, and what its servers have counted."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.cluster.commands import status, wait_until
from tests.cluster.network import HEAD
from tests.cluster.traffic import Traffic

HTTP, GRPC, STATS = 19000, 19001, 19002
CHECK_S = 3.0
"""Within this time after a server is gone no further request reaches it: two checks, half a second apart, and
as long again as a busy machine may delay them.
"""


def ready() -> list[dict[str, Any]]:
    """Return the replicas that serve."""
    return [row for row in status()["replicas"] if row["state"] == "ready"]


def come(what: str, true: Callable[[], object]) -> None:
    """Wait until a condition of the cluster holds; fails with its state."""
    wait_until(what, true, tell=status)


def traffic(host: str = HEAD, **more: Any) -> Traffic:
    """Return traffic through the balancer of a host."""
    return Traffic(host, HTTP, GRPC, **more)


def check_lost(load: Traffic, lost_s: float) -> None:
    """Fail if the loss of a server cost more requests than were in flight, or one after the checks."""
    assert load.failed_after(lost_s + CHECK_S) == [], lost_s
    assert len(load.failed) <= load.threads, load.failed
    for protocol in ("http", "grpc"):
        assert sum(request.protocol == protocol and not request.fault for request in load.requests) > 50


def kill_balancer(node: str) -> None:
    """Kill HAProxy on a node, and wait until it is started again and accepts connections."""

    def pid() -> int | None:
        found: int | None = next(each.get("pid") for each in status()["balancers"] if each["node"] == node)
        return found

    killed = pid()
    assert killed, status()["balancers"]
    os.kill(killed, signal.SIGKILL)
    come("HAProxy is back", lambda: pid() not in (None, 0, killed))
    wait_until("HAProxy listens", lambda: all(listens(node, port) for port in (HTTP, GRPC)))


def listens(node: str, port: int) -> bool:
    """Return true if a server accepts connections."""
    with socket.socket() as connection:
        connection.settimeout(1)
        return connection.connect_ex((node, port)) == 0


def ask_in_sequence(host: str) -> int:
    """Send a request of sequence seven; return the status."""
    asked = urllib.request.Request(f"http://{host}:{HTTP}/v2", headers={"sequence-id": "seven"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return int(answer.status)


def fetch(url: str) -> str:
    """Return a page."""
    with urllib.request.urlopen(url, timeout=30) as page:
        return str(page.read().decode())


def fetch_on_node(node: int, url: str) -> str:
    """Return a page that only programs on a node can read."""
    program = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"
    words = ["ip", "netns", "exec", f"tpxt{node}", sys.executable, "-c", program, url]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def inferences() -> int:
    """Return the inferences of the replicas that are ready, by their own metrics."""
    pages = [fetch(f"http://{row['host']}:{row['metrics_port']}/metrics") for row in ready()]
    counts = re.findall(r"^nv_inference_count\S* (\S+)", "".join(pages), re.M)
    return int(sum(map(float, counts)))


def answered_by_replica() -> list[int]:
    """Return responses with status 200 by slot, from HAProxy's exporter; health checks are not among them."""
    lines = fetch(f"http://{HEAD}:{STATS}/metrics").splitlines()
    wanted = [line for line in lines if line.startswith('haproxy_server_http_responses_total{proxy="http"')]
    return [int(float(line.rsplit(" ", 1)[1])) for line in wanted if 'code="2xx"' in line]
