"""A real Prometheus as a child process, and its HTTP API."""

import json
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import eventually

CONFIG = """
global: {{ scrape_interval: 1s, scrape_timeout: 1s }}
scrape_configs:
  - job_name: tpx
    static_configs: [ {{ targets: [ "{target}" ] }} ]
"""


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, port: int, log: Path) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self._log = log

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer of its API. Raises OSError while it starts."""
        words = urllib.parse.urlencode(query)
        try:
            with urllib.request.urlopen(f"{self._base}/api/v1/{path}?{words}", timeout=5) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as exc:
            with exc:  # it holds the connection
                raise OSError(f"{exc.code} {exc.reason}") from None
        assert answer["status"] == "success", answer
        return answer["data"]

    def value(self, query: str) -> float | None:
        """The one value of an instant query, None while there is none."""
        found = self.get("query", query=query)["result"]
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def wait_for(self, query: str, wanted: float) -> None:
        """Wait until a query has a value."""
        got: list[object] = []

        def there() -> bool:
            try:
                got.append(self.value(query))
            except OSError as exc:  # it does not listen yet, or is not ready
                got.append(str(exc))
            return got[-1] == wanted

        try:
            eventually(there)
        except AssertionError as exc:
            said = self._log.read_text()
            raise AssertionError(f"{query} is {got[-1]}, not {wanted}; it said:\n{said}") from exc


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[Prometheus]:
    """A child that scrapes `target` every second."""
    (directory / "prometheus.yml").write_text(CONFIG.format(target=target), encoding="utf-8")
    log, port = directory / "prometheus.log", free_port()
    with log.open("w") as output:
        child = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Prometheus(port, log)
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
