"""The gate that the GitHub action runs: it lets a run pass, and stops one that became slower."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.deploy.files import DEPLOY, ROOT, load
from tpx.perf.statistics.summaries import BINS_PER_OCTAVE

ACTION = load("github-action/action.yml")
PAGE = (ROOT / "docs" / "production" / "github-action.md").read_text("utf-8")
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
        level["throughput"]["value"] /= 2**octaves
        level["latency_us"] |= {name: level["latency_us"][name] * 2**octaves for name in ("p50", "p99")}
    file = run.with_name(f"moved{octaves}.json")
    file.write_text(json.dumps(document), encoding="utf-8")
    return str(file)


def bash(script: str, cwd: Path, env: Mapping[str, str], *within: str) -> "subprocess.CompletedProcess[str]":
    """Run a step as GitHub's runner does."""
    runner = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GITHUB_ACTION_PATH": str(DEPLOY / "github-action"),
        "GITHUB_STEP_SUMMARY": str(cwd / "job.md"),
    }
    words = [*within, "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(
        words, cwd=cwd, env={**os.environ, **runner, **env}, capture_output=True, text=True, check=False
    )


def rendered(text: str, values: Mapping[str, str]) -> str:
    """Replace every `${{ name }}`; a name without a value is a KeyError."""
    return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: values[found[1]], text)


def gate(models: Path, reports: Path, **inputs: str) -> "subprocess.CompletedProcess[str]":
    """Run the action's own steps in order, up to the first that fails; tpx is installed already."""
    given = {"models": str(models), "model": "net", "perf_options": "--request-count 60", **inputs}
    values = {f"inputs.{name}": str(each.get("default", "")) for name, each in ACTION["inputs"].items()}
    values |= {f"inputs.{name.replace('_', '-')}": value for name, value in given.items()}
    values["runner.temp"] = str(reports)
    steps = [step for step in ACTION["runs"]["steps"] if "run" in step]
    assert [step["run"].split()[0] for step in steps] == ["python", '"$GITHUB_ACTION_PATH/gate.sh"']
    for step in steps:
        env = {name: rendered(value, values) for name, value in step["env"].items()}
        done = bash(rendered(step["run"], values), models.parent, env)
        if done.returncode:
            break
    return done


@pytest.mark.timeout(300)  # six runs of the action
def test_a_run_that_became_slower_than_a_baseline_is_stopped(models: Path, tmp_path: Path) -> None:
    first = gate(models, tmp_path / "first", baseline=str(tmp_path / "none"))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "::notice::no baseline" in first.stdout
    reports = tmp_path / "first" / "tpx-reports"
    runs = [reports / f"perf-{number}.json" for number in (1, 2, 3)]
    for octaves, status in ((-OCTAVES, 5), (OCTAVES, 0)):
        baseline = tmp_path / f"baseline{octaves}"
        baseline.mkdir()
        for run in runs:
            shutil.move(moved(run, octaves), baseline / run.name)
        done = gate(models, tmp_path / str(octaves), baseline=str(baseline), runs="1")
        assert done.returncode == status, done.stdout + done.stderr
    assert {path.name for path in (tmp_path / str(OCTAVES) / "tpx-reports").iterdir()} == {
        "server.log", "perf-1.json", "perf.html", "perf.xml", "perf.md", "compare.md", "compare.xml",
    }  # fmt: skip
    assert "net" in (tmp_path / "job.md").read_text("utf-8")
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(runs[0], alone)
    undecided = gate(models, tmp_path / "undecided", baseline=str(alone), runs="1")
    assert undecided.returncode == 7, undecided.stdout + undecided.stderr


@pytest.mark.timeout(300)
def test_a_version_slower_than_the_one_before_is_stopped(models: Path, tmp_path: Path) -> None:
    before = tmp_path / "before"
    shutil.copytree(models, before)
    code = before / "net" / "1" / "model.py"
    code.write_text(SLOW.replace("0.02", "0.002"), encoding="utf-8")
    options = {"before": str(before), "perf_options": "--request-count 20 --ab-blocks 5"}
    done = gate(models, tmp_path / "reports", **options)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "worse" in (tmp_path / "job.md").read_text("utf-8")


def test_a_missed_objective_fails_by_its_own_status(models: Path, tmp_path: Path) -> None:
    done = gate(models, tmp_path / "reports", perf_options="--request-count 60 --slo p50<1ms")
    assert done.returncode == 4, done.stdout + done.stderr


def test_a_server_that_does_not_start_is_told(tmp_path: Path) -> None:
    done = gate(tmp_path / "nothing", tmp_path / "reports")
    assert done.returncode == 1
    assert "nothing" in done.stderr


def test_the_workflows_of_the_page_give_the_action_what_it_takes() -> None:
    workflows = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)]
    assert len(workflows) == 2
    for workflow in workflows:
        (given,) = (s["with"] for s in workflow["jobs"]["gate"]["steps"] if "github-action" in s["uses"])
        assert {"models", "model"} <= set(given) <= set(ACTION["inputs"])
        assert bool(given.get("before")) != bool(given.get("baseline"))
