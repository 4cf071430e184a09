"""Servers of others, as processes of their own, for as long as the tests of a module take."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 100.0
STOP_S = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a server is told to listen."""

    http: int
    grpc: int
    metrics: int

    def at(self, protocol: str) -> tuple[str, ...]:
        """What says to `tpx perf` where it is."""
        port = self.grpc if protocol == "grpc" else self.http
        return ("-i", protocol, "-u", f"127.0.0.1:{port}")


def free_ports() -> Ports:
    """Ports that nobody has yet."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    http, grpc, metrics = (s.getsockname()[1] for s in sockets)
    for each in sockets:
        each.close()
    return Ports(http=http, grpc=grpc, metrics=metrics)


@contextmanager
def running(
    words: Sequence[str | Path], ports: Ports, models: Sequence[str], log: Path, env: Mapping[str, str]
) -> Iterator[None]:
    """A server, ready for these models; ended with the context."""
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, env={**os.environ, **env})
    try:
        ends = time.monotonic() + START_S
        for name in models:
            while not _answers(f"http://127.0.0.1:{ports.http}/v2/models/{name}/ready"):
                assert process.poll() is None, log.read_text("utf-8", "replace")[-2000:]
                assert time.monotonic() < ends, log.read_text("utf-8", "replace")[-2000:]
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def fetched(url: str) -> str:
    """The page at a URL."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def _answers(url: str) -> bool:
    try:
        fetched(url)
    except (OSError, urllib.error.URLError):
        return False
    return True
