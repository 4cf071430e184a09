"""Runs on a server of somebody else: `tpx serve`, and a real Triton where TPX_TRITONSERVER names one."""

import json
import os
import signal
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.child import start, tpx
from tests.warm import WarmProcess
from tpx.analyzer.results.journal import Measured, read_last_run
from tpx.analyzer.results.run import Run
from tpx.analyzer.runners.local import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

VARIABLE = "TPX_TRITONSERVER"
MODEL = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.Tensor("y", r.inputs()[0].as_numpy()) for r in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
instance_group { count: 1 kind: KIND_CPU }
"""
QUICK = (
    *("--measurement-interval", "40", "--max-trials", "3", "--duration-seconds", "0", "--final-rounds", "0"),
    *("--run-config-search-max-instance-count", "2", "--run-config-search-max-model-batch-size", "1"),
)


@dataclass(slots=True)
class Peer:
    """A server with the models `mine`, which is loaded, and `asked`, which is not."""

    command: tuple[str, ...]
    http: int
    grpc: int
    process: "WarmProcess | subprocess.Popen[str] | None" = None

    def start(self) -> None:
        program, *words = self.command
        if program == "tpx":
            self.process = start(words)
        else:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
            )
        ends = time.monotonic() + 60
        while not self._live():
            assert self.process.poll() is None, "the server ended"
            assert time.monotonic() < ends, "the server does not answer"
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(40)
            for stream in (self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()

    def states(self) -> dict[str, str]:
        return {m["name"]: m.get("state", "") for m in self.ask("POST", "/v2/repository/index")}

    def ask(self, method: str, path: str) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read() or b"null")

    def options(self) -> tuple[str, ...]:
        endpoints = {"http": self.http, "grpc": self.grpc}
        words = (f"--triton-{name}-endpoint=127.0.0.1:{port}" for name, port in endpoints.items())
        return ("--triton-launch-mode=remote", *words, "--client-max-retries=10")

    def _live(self) -> bool:
        try:
            self.ask("GET", "/v2/health/ready")
        except OSError:
            return False
        return True


def command_of(program: str, models: Path, http: int, grpc: int, mode: str) -> tuple[str, ...]:
    ports = (f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={free_port()}")
    flags = (f"--model-repository={models}", *ports, f"--model-control-mode={mode}")
    loaded = ("--load-model=mine",) if mode == "explicit" else ()
    if program == "tpx":
        return ("tpx", "serve", *flags, *loaded)
    prefix = f"--backend-config=python,shm-region-prefix-name=remote_{uuid.uuid4().hex[:8]}_"
    return (program, *flags, *loaded, "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", prefix)


@pytest.fixture(params=["tpx", "triton"])
def program(request: pytest.FixtureRequest) -> str:
    if request.param == "tpx":
        return "tpx"
    path = os.environ.get(VARIABLE)
    if not path:
        pytest.skip(f"{VARIABLE} does not name a tritonserver; `make differential` fetches one")
    return path


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name in ("mine", "asked"):
        directory = tmp_path / "models" / name / "1"
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(MODEL)
        (directory.parent / "config.pbtxt").write_text(CONFIG)
    return tmp_path / "models"


@pytest.fixture
def peer(program: str, models: Path) -> Iterator[Peer]:
    yield from _peer(program, models, "explicit")


@pytest.fixture
def loading_all(program: str, models: Path) -> Iterator[Peer]:
    """The same under `--model-control-mode=none`."""
    yield from _peer(program, models, "none")


def _peer(program: str, models: Path, mode: str) -> Iterator[Peer]:
    http, grpc = free_port(), free_port()
    peer = Peer(command_of(program, models, http, grpc, mode), http, grpc)
    peer.start()
    try:
        yield peer
    finally:
        peer.stop()


def analyze(directory: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return tpx("analyze", "profile", *QUICK, *words, cwd=directory)


def measured(directory: Path) -> Mapping[str, list[int]]:
    """By variant the loads that were measured."""
    run = Run.from_records(read_last_run(directory / "results" / "run.jsonl"))
    return {
        v.variant.name: [m.load.value for m in v.measurements]
        for v in run.models[0].variants
        if v.measurements
    }


@pytest.mark.timeout(240)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_variants_are_loaded_into_a_remote_server_and_it_is_left_as_it_was(
    peer: Peer, tmp_path: Path, protocol: str
) -> None:
    before = peer.ask("GET", "/v2/models/mine/config")
    words = ("--profile-models=asked,mine", "-c=1", f"--client-protocol={protocol}")
    done = analyze(tmp_path, *peer.options(), *words)
    assert done.returncode == 0, done.stderr
    run = Run.from_records(read_last_run(tmp_path / "results" / "run.jsonl"))
    assert [[v.variant.name for v in m.measured] for m in run.models] == [
        ["asked_config_default", "asked_config_0", "asked_config_1"],
        ["mine_config_default", "mine_config_0", "mine_config_1"],
    ]
    assert {p.how for m in run.models for p in m.preparations} <= {"loaded", "found"}
    assert peer.states()["mine"] == "READY"
    assert peer.states()["asked"] != "READY"
    assert peer.ask("GET", "/v2/models/mine/config") == before


@pytest.mark.timeout(240)
def test_a_remote_server_that_disappears_interrupts_the_run_and_resume_goes_on(
    peer: Peer, tmp_path: Path
) -> None:
    words = (*peer.options(), "--profile-models=asked", "-c=1,2,3,4")
    process = start(["analyze", "profile", *QUICK, *words, "--client-max-retries=2"], tmp_path)
    assert process.stderr is not None
    while "concurrency 2" not in process.stderr.readline():
        assert process.poll() is None
    peer.stop(signal.SIGKILL)
    out, err = process.communicate(timeout=150)
    assert process.returncode == 1, err
    assert "no longer responds" in out
    assert "continue with --resume" in out
    assert (tmp_path / "report.html").is_file()
    before = measured(tmp_path)
    assert len(before) < 3

    peer.start()
    done = analyze(tmp_path, *words, "--resume")
    assert done.returncode == 0, done.stderr
    assert measured(tmp_path) == {f"asked_config_{name}": [1, 2, 3, 4] for name in ("default", "0", "1")}, (
        done.stderr
    )
    records = read_last_run(tmp_path / "results" / "run.jsonl")
    trials = [(r.measurement.variant, r.measurement.load) for r in records if isinstance(r, Measured)]
    assert len(trials) == len(set(trials))


@pytest.mark.timeout(240)
def test_a_server_that_does_not_load_by_request_is_measured_as_it_is_or_refused(
    loading_all: Peer, tmp_path: Path
) -> None:
    words = (*loading_all.options(), "--profile-models=mine", "-c=1")
    refused = analyze(tmp_path, *words)
    assert refused.returncode == 1
    assert (
        "--model-control-mode=explicit, or measure what it serves with --reload-model-disable"
        in refused.stdout
    )
    again = ("--override-output-model-repository", "--reload-model-disable")
    done = analyze(tmp_path, *words, *again)
    assert done.returncode == 0, done.stderr
    assert measured(tmp_path) == {"mine_config_default": [1]}
    assert loading_all.states() == {"mine": "READY", "asked": "READY"}


@pytest.mark.timeout(240)
def test_a_model_that_may_not_be_loaded_cannot_be_profiled(peer: Peer, tmp_path: Path) -> None:
    done = analyze(tmp_path, *peer.options(), "--profile-models=asked", "-c=1", "--reload-model-disable")
    assert done.returncode == 1
    assert "`asked` cannot be profiled" in done.stdout
    assert peer.states()["asked"] != "READY"


def test_an_address_where_nobody_is_says_so(tmp_path: Path) -> None:
    nobody = Peer((), free_port(), free_port())
    done = analyze(tmp_path, *nobody.options(), "--profile-models=m", "--client-max-retries=1")
    assert done.returncode == 1
    assert f"no server answers at 127.0.0.1:{nobody.grpc}" in done.stderr
