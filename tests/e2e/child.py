"""`tpx` as a child process: its words, its ports, and how it ends."""

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.waiting import eventually
from tests.warm import WarmProcess

FRONTENDS = int(os.environ.get("TPX_TEST_FRONTENDS", "0"))
"""Processes of frontends that every server has: `make test-frontends` runs these tests with some."""
ANY_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")


def tpx(
    *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout_s: float = 120
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; a server gets free ports, unless `words` name others."""
    if words[:1] == ("serve",):
        words = ("serve", *ANY_PORTS, *words[1:])
    process = start(words, cwd, env)
    out, err = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def start(
    words: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> "WarmProcess | subprocess.Popen[str]":
    """Start a command; from a new interpreter where variables are given, since it may read them itself."""
    if env is None:
        return WarmProcess(words, cwd, environment())
    return subprocess.Popen(
        [sys.executable, "-m", "tpx", *words],
        cwd=cwd,
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process' environment, with the package found from any directory and output as it comes."""
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": root, "PYTHONUNBUFFERED": "1", **(more or {})}


class Child:
    """A running `tpx serve`; its output is collected while it runs."""

    def __init__(self, words: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None) -> None:
        words = [*_frontends(words), *words]
        self._has_frontends = any(word.startswith("--frontends") for word in words)
        self._process = start(["serve", *words], cwd, env)
        self._said = threading.Condition()
        self._reading = 2
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines))
            for stream, lines in ((self._process.stdout, self.out), (self._process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: "Iterator[str]", lines: list[str]) -> None:
        for line in stream:
            with self._said:
                lines.append(line.rstrip("\n"))
                self._said.notify_all()
        with self._said:
            self._reading -= 1
            self._said.notify_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def engine(self) -> psutil.Process:
        """The process that computes: the child itself, or the one of its children that is called so."""
        process = psutil.Process(self.pid)
        if not self._has_frontends:
            return process
        return next(each for each in process.children() if each.name() == "tpx-engine")

    @property
    def processes(self) -> list[psutil.Process]:
        """The processes that accept connections or compute: the child itself, or engine and frontends."""
        process = psutil.Process(self.pid)
        return process.children() if self._has_frontends else [process]

    @property
    def text(self) -> str:
        return "\n".join([*self.out, *self.err])

    def wait_for(self, pattern: str, timeout_s: float = 60) -> "re.Match[str]":
        """Wait until the output matches."""
        found: list[re.Match[str]] = []

        def said() -> bool:
            found.extend(re.finditer(pattern, self.text))
            return bool(found) or not self._reading

        with self._said:
            self._said.wait_for(said, timeout_s)
        assert found, f"no {pattern!r} in:\n{self.text}"
        return found[0]

    def ready(self) -> "Child":
        self.wait_for(r"is ready")
        return self

    def port(self, service: str) -> int:
        return int(self.wait_for(rf"Started {service} at \S+:(\d+)")[1])

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self, timeout_s: float) -> int | None:
        """The exit status, None if it has not ended in that time."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        for reader in self._readers:
            reader.join(5)
        return status

    def stop(self, timeout_s: float = 25) -> int:
        """End it as an orchestrator does; returns the exit status."""
        self.send(signal.SIGTERM)
        status = self.ended(timeout_s)
        assert status is not None, f"it did not end:\n{self.text}"
        return status

    def close(self) -> None:
        """End it however it is."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def _frontends(words: Sequence[str]) -> list[str]:
    given = any(word.startswith("--frontends") for word in words)
    return [f"--frontends={FRONTENDS}"] if FRONTENDS and not given else []


@contextmanager
def serve(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, ports: bool = True
) -> Iterator[Child]:
    """A child that runs `tpx serve` with these words, on free ports unless told otherwise."""
    child = Child([*(ANY_PORTS if ports else ()), *map(str, words)], cwd, env)
    try:
        yield child
    finally:
        child.close()


def until_waiting(child: Child, model: str, count: int) -> None:
    """So many requests to a model have come, and no instance has begun them."""
    address = f"http://127.0.0.1:{child.port('Metrics Service')}/metrics"
    line = f'nv_inference_pending_request_count{{model="{model}",version="1"}} {count}'

    def there() -> bool:
        with urllib.request.urlopen(address, timeout=10) as page:
            return line in page.read().decode().splitlines()

    eventually(there)
