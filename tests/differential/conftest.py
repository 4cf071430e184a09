"""A real Triton and a tpx over the same models; all is skipped unless TPX_TRITONSERVER names the program."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.differential.models import write_for_tpx, write_for_triton
from tests.differential.outcomes import Server
from tests.e2e.child import serve

VARIABLE = "TPX_TRITONSERVER"
START_S = 120
LOGGED = ("failed to load", "Failed to process the request(s)", "has a conflict")
"""What the cases provoke: refused loads, wrong answers of Python models, sequences that start anew."""
FLAGS = ("--model-control-mode=explicit", "--load-model=*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """The two that must agree."""

    triton: Server
    tpx: Server


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    program = os.environ.get(VARIABLE)
    if not program:
        pytest.skip(f"{VARIABLE} does not name a tritonserver; `make differential` fetches one")
    root = tmp_path_factory.mktemp("differential")
    ours = write_for_tpx(root / "tpx")
    with (
        _triton(program, write_for_triton(root / "triton"), root / "triton.log") as triton,
        serve("--model-repository", ours, *FLAGS) as child,
    ):
        child.ready()
        tpx = Server(child.port("HTTPService"), child.port("GRPCInferenceService"))
        yield Both(triton=triton, tpx=tpx)
        triton.close()
        tpx.close()
        assert child.stop() == 0
        assert [line for line in child.err if not any(words in line for words in LOGGED)] == []


@contextmanager
def _triton(program: str, repository: Path, log: Path) -> Iterator[Server]:
    ports = [_free_port() for _ in range(3)]
    words = [
        program,
        f"--model-repository={repository}",
        *FLAGS,
        *(f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)),
        # two servers with one prefix end each other's model processes
        f"--backend-config=python,shm-region-prefix-name=differential_{uuid.uuid4().hex[:8]}_",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output)
    try:
        _wait_until_ready(process, ports[0], log)
        yield Server(ports[0], ports[1])
        assert process.poll() is None, f"Triton ended with {process.returncode}, see {log}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    ends = time.perf_counter() + START_S
    while time.perf_counter() < ends:
        assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")[-4000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise AssertionError(f"Triton was not ready in {START_S} s:\n{log.read_text()[-4000:]}")
