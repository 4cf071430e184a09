"""What runs on a GPU: `make gpu-kit` carries these tests to one. They skip themselves elsewhere.

With TPX_GPU_REHEARSAL=1 those that can run on the CPU do, so that the tests themselves are tried.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

REHEARSAL = os.environ.get("TPX_GPU_REHEARSAL") == "1"
START_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The GPU, or in a rehearsal the CPU."""

    name: str
    kind: str

    def group(self, count: int = 1) -> str:
        """`instance_group` of a config.pbtxt."""
        gpus = "gpus: [0]" if self.kind == "KIND_GPU" else ""
        return f"instance_group [{{ kind: {self.kind} count: {count} {gpus} }}] "


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuServer:
    """A server in a process of its own, since CUDA memory is shared between processes only."""

    process: subprocess.Popen[bytes]
    http: str
    grpc: str
    metrics: str


@pytest.fixture
def device() -> Device:
    """Where models of a test compute."""
    if torch.cuda.is_available():
        return Device(name="cuda:0", kind="KIND_GPU")
    if REHEARSAL:
        return Device(name="cpu", kind="KIND_CPU")
    pytest.skip("no GPU that PyTorch can use")


@pytest.fixture
def gpu(device: Device) -> Device:
    """The GPU, for what the CPU cannot stand in for."""
    if device.kind != "KIND_GPU":
        pytest.skip("needs a GPU: the CPU cannot stand in for it")
    return device


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., GpuServer]]:
    """Start servers on free ports; they are stopped at the end of the test."""
    with ExitStack() as running:

        def start(repository: Path, *flags: str) -> GpuServer:
            server = _started(repository, flags, tmp_path_factory.mktemp("server") / "log")
            running.callback(_stop, server.process)
            return server

        yield start


def _started(repository: Path, flags: Sequence[str], log: Path) -> GpuServer:
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    words = [sys.executable, "-m", "tpx", "serve", "--model-repository", str(repository), *ports, *flags]
    with log.open("w") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + START_S
    while "is ready" not in log.read_text() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    found = dict(re.findall(r"Started (\w[\w ]*) at (\S+:\d+)", log.read_text()))
    if len(found) != 3:
        process.kill()
        pytest.fail("the server did not start:\n" + log.read_text())
    return GpuServer(
        process=process,
        http=found["HTTPService"],
        grpc=found["GRPCInferenceService"],
        metrics=found["Metrics Service"],
    )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def write_model(repository: Path, name: str, config: str, write: Callable[[Path], Any]) -> Path:
    """A model directory with version 1, whose files `write` writes."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config, encoding="utf-8")
    write(version)
    return repository / name
