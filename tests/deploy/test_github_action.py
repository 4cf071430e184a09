"""The gate that the GitHub action runs: it lets a run pass, and stops one that became slower."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY
from tpx.perf.statistics.batches import BINS_PER_OCTAVE

GATE = DEPLOY / "github-action" / "gate.sh"
SLOW = """
import time
import triton_python_backend_utils as utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.02)
        arrays = [utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [utils.InferenceResponse([utils.Tensor("y", array)]) for array in arrays]
"""
CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""


OCTAVES = 4
"""How much faster, or slower, a baseline is made: nobody's machine is that noisy."""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A model that takes 20 ms."""
    version = tmp_path / "models" / "net" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    (version / "model.py").write_text(SLOW, encoding="utf-8")
    return tmp_path / "models"


def moved(run: Path, octaves: int) -> str:
    """A copy of a run whose every request took 2**octaves as long."""
    document = json.loads(run.read_text("utf-8"))
    for level in document["levels"]:
        batches = level["batches"]
        taken = batches["end_ns"] - batches["start_ns"]
        batches["end_ns"] = batches["start_ns"] + int(taken * 2**octaves)
        sums = [int(int(each) * 2**octaves) for each in batches["latency_sum_ns"].split()]
        bins = [int(each) + octaves * BINS_PER_OCTAVE for each in batches["bins"].split()]
        batches |= {"latency_sum_ns": " ".join(map(str, sums)), "bins": " ".join(map(str, bins))}
    file = run.with_name(f"moved{octaves}.json")
    file.write_text(json.dumps(document), encoding="utf-8")
    return str(file)


def gate(models: Path, reports: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": paths,
        "MODELS": str(models),
        "MODEL": "net",
        "REPORTS": str(reports),
        "PERF_OPTIONS": "--request-count 60",
        "GITHUB_STEP_SUMMARY": str(reports.parent / "summary.md"),
        **more,
    }
    return subprocess.run([GATE], env=environment, capture_output=True, text=True, check=False)


def test_a_run_that_became_slower_is_stopped(models: Path, tmp_path: Path) -> None:
    first = gate(models, tmp_path / "first", BASELINE=str(tmp_path / "none.json"))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "::notice::no baseline" in first.stdout
    run = tmp_path / "first" / "perf.json"
    slower = gate(models, tmp_path / "slower", BASELINE=moved(run, -OCTAVES))
    assert slower.returncode == 5, slower.stdout + slower.stderr
    faster = gate(models, tmp_path / "faster", BASELINE=moved(run, OCTAVES))
    assert faster.returncode == 0, faster.stdout + faster.stderr
    assert {path.name for path in (tmp_path / "slower").iterdir()} == {
        "server.log", "perf.json", "perf.html", "perf.xml", "perf.md", "compare.md", "compare.xml",
    }  # fmt: skip
    assert "net" in (tmp_path / "summary.md").read_text("utf-8")


def test_a_missed_objective_fails_by_its_own_status(models: Path, tmp_path: Path) -> None:
    done = gate(models, tmp_path / "reports", PERF_OPTIONS="--request-count 60 --slo p50<1ms")
    assert done.returncode == 4, done.stdout + done.stderr


def test_a_server_that_does_not_start_is_told(tmp_path: Path) -> None:
    done = gate(tmp_path / "nothing", tmp_path / "reports")
    assert done.returncode == 1
    assert "nothing" in done.stderr
