"""`tpx analyze profile` against real servers: children of `tpx serve`, and what goes wrong with them."""

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.e2e.child import start, tpx
from tpx import examples
from tpx.analyzer.results.journal import read_last_run
from tpx.analyzer.results.run import Run
from tpx.protocol import model_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]


QUICK = ("--measurement-interval", "40", "--max-trials", "3", "--duration-seconds", "0")
"""Windows this short measure nothing well; what they are for is to see everything happen."""
ONE = ("-c=1", "--run-config-search-max-instance-count=1", "--run-config-search-max-model-batch-size=1")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    examples.write(directory, ["add_sub"])
    return directory


def command(models: Path, *words: str) -> list[str]:
    return ["analyze", "profile", "-m", str(models), "--profile-models", "add_sub", *QUICK, *words]


def servers_of(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children(recursive=True) if "serve" in child.cmdline()]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    deadline_ns = time.monotonic_ns() + int(timeout_s * 1e9)
    while not condition():
        assert time.monotonic_ns() < deadline_ns, f"still waiting until {what}"
        time.sleep(0.02)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_whole_run_leaves_tables_report_and_configurations_and_no_server(
    models: Path, tmp_path: Path, protocol: str
) -> None:
    words = ("-c=1,2", "--run-config-search-max-instance-count=2", f"--client-protocol={protocol}")
    more = ("--final-rounds=0", "--run-config-search-max-model-batch-size=1", "--collect-cpu-metrics")
    done = tpx(*command(models, *words, *more), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "In 6 measurements across 3 configurations, " in done.stdout
    assert "[3/3] add_sub_config_1 at concurrency 2: " in done.stderr

    with (tmp_path / "results" / "metrics-model-inference.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["Model"]]
    assert {(row["Model Config Path"], row["Concurrency"]) for row in rows} == {
        (f"add_sub_config_{name}", load) for name in ("default", "0", "1") for load in ("1", "2")
    }
    assert all(float(row["Throughput (infer/sec)"]) > 10 for row in rows)
    assert all(float(row["RAM Usage (MB)"]) > 10 for row in rows)
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")

    variant = tmp_path / "configurations" / "add_sub_config_1"
    config = model_config.read(variant / "config.pbtxt")
    assert config.instance_group[0].count == 2
    assert (variant / "1" / "model.onnx").is_file()
    run = Run.from_records(read_last_run(tmp_path / "results" / "run.jsonl"))
    assert run.server_only is not None
    assert all(
        m.p99_ns and m.result.server and m.result.server.compute_infer_ns
        for v in run.models[0].variants
        for m in v.measurements
    )


def test_ctrl_c_finishes_the_measurement_and_writes_everything(models: Path, tmp_path: Path) -> None:
    process = start(command(models, "-c", "1,2,3,4,5,6,7,8"), tmp_path)
    assert process.stderr is not None
    try:
        assert process.stderr.readline().startswith("add_sub: at most ")
        first = process.stderr.readline()
        assert "add_sub_config_default at concurrency 1" in first
        servers = servers_of(psutil.Process(process.pid))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "interrupted: finishing this measurement" in err
    assert "The run was interrupted" in out
    assert (tmp_path / "report.html").is_file()
    assert len(servers) == 1
    assert not servers[0].is_running()


def test_reports_are_written_even_if_nobody_reads_stdout(models: Path, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tpx", *command(models, "--final-rounds=0", "--verbose", *ONE)],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.endswith("\nError: cannot write to stdout: No space left on device\n")
    assert done.stderr.startswith("* GET /v2/health/live: 200, ")
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "results" / "metrics-model-inference.csv").is_file()


MOODY = """
import json, os, signal, time
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.count = json.loads(args["model_config"])["instance_group"][0]["count"]
        if self.count == 2:
            raise RuntimeError("no memory for 2 instances")
    def execute(self, requests):
        if self.count == 3:
            os.kill(SERVER, signal.SIGKILL)
        if self.count == 4:
            time.sleep(60)
        answers = [pb_utils.Tensor("y", r.inputs()[0].as_numpy()) for r in requests]
        return [pb_utils.InferenceResponse([answer]) for answer in answers]
SERVER = int(open(f"/proc/{os.getppid()}/stat").read().split()[3])  # the parent is what forks models
"""
MOODY_CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
instance_group { count: 1 kind: KIND_CPU }
"""


def test_bad_days_of_a_server_are_rows_with_their_reasons_and_the_run_goes_on(tmp_path: Path) -> None:
    """With two instances it does not load, with three the server dies, with four it hangs, with five it
    works."""
    directory = tmp_path / "models" / "moody" / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(MOODY)
    (directory.parent / "config.pbtxt").write_text(MOODY_CONFIG)
    words = ("-m=models", "--profile-models=moody", "-c=1", "--perf-analyzer-timeout=2", "--final-rounds=0")
    done = tpx("analyze", "profile", *QUICK, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run.from_records(read_last_run(tmp_path / "results" / "run.jsonl"))
    (model,) = run.models
    reasons = {failure.variant: failure.reason for failure in model.failures}
    assert reasons.keys() == {"moody_config_1", "moody_config_2", "moody_config_3"}
    assert "no memory for 2 instances" in reasons["moody_config_1"]
    assert "the server was killed by signal 9 while it was measured" in reasons["moody_config_2"]
    assert "no result after 2 s (--perf-analyzer-timeout" in reasons["moody_config_3"]
    assert all(failure.log_tail for failure in model.failures)
    assert {v.variant.name for v in model.measured} == {
        "moody_config_default",
        "moody_config_0",
        "moody_config_4",
    }
    how = {p.variant: p.how for p in model.preparations[:6]}
    assert (how["moody_config_0"], how["moody_config_4"]) == ("loaded", "restarted")
    page = (tmp_path / "report.html").read_text()
    assert "no memory for 2 instances" in page
    assert "killed by signal 9" in page


def test_a_model_that_cannot_be_served_is_status_one_with_the_servers_reason(tmp_path: Path) -> None:
    directory = tmp_path / "models" / "add_sub" / "1"
    directory.mkdir(parents=True)
    (directory / "model.onnx").write_bytes(b"not a model")
    done = tpx(*command(tmp_path / "models"), cwd=tmp_path)
    assert done.returncode == 1
    assert "`add_sub` cannot be profiled" in done.stdout
    assert "add_sub" in done.stderr
    assert "Nothing measured" in (tmp_path / "report.html").read_text()


def test_a_killed_analyzer_leaves_no_server_and_a_readable_journal(models: Path, tmp_path: Path) -> None:
    process = start(
        command(models, "-c", "1,2,3,4"), tmp_path, {"TMPDIR": str(tmp_path)}
    )  # for what it leaves
    assert process.stderr is not None
    for _ in ("the outlook", "the first measurement"):
        process.stderr.readline()
    servers = servers_of(psutil.Process(process.pid))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert servers
    wait_until(lambda: not any(s.is_running() for s in servers), "the server has ended")
    run = Run.from_records(read_last_run(tmp_path / "results" / "run.jsonl"))
    assert run.outcome == "unfinished"
    assert run.models[0].measurement_count >= 1
