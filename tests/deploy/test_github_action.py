"""The gate that the GitHub action runs: it lets a run pass, and stops one that became slower."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.deploy.files import DEPLOY, LOOPBACK_UP, ROOT, load
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


def test_a_run_that_became_slower_is_stopped(models: Path, tmp_path: Path) -> None:
    first = gate(models, tmp_path / "first", baseline=str(tmp_path / "none.json"))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "::notice::no baseline" in first.stdout
    run = tmp_path / "first" / "tpx-reports" / "perf.json"
    slower = gate(models, tmp_path / "slower", baseline=moved(run, -OCTAVES))
    assert slower.returncode == 5, slower.stdout + slower.stderr
    faster = gate(models, tmp_path / "faster", baseline=moved(run, OCTAVES))
    assert faster.returncode == 0, faster.stdout + faster.stderr
    assert {path.name for path in (tmp_path / "slower" / "tpx-reports").iterdir()} == {
        "server.log", "perf.json", "perf.html", "perf.xml", "perf.md", "compare.md", "compare.xml",
    }  # fmt: skip
    assert "net" in (tmp_path / "job.md").read_text("utf-8")


def test_a_missed_objective_fails_by_its_own_status(models: Path, tmp_path: Path) -> None:
    done = gate(models, tmp_path / "reports", perf_options="--request-count 60 --slo p50<1ms")
    assert done.returncode == 4, done.stdout + done.stderr


def test_a_server_that_does_not_start_is_told(tmp_path: Path) -> None:
    done = gate(tmp_path / "nothing", tmp_path / "reports")
    assert done.returncode == 1
    assert "nothing" in done.stderr


def test_the_workflow_of_the_page_measures_both_versions_in_turns(models: Path, tmp_path: Path) -> None:
    """Both versions are the same, so only chance may find one worse; ports are those of the page."""
    *_, workflow = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "models").symlink_to(models)
    alone = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
    for step in yaml.safe_load(workflow)["jobs"]["gate"]["steps"]:
        script = step.get("run", "").replace("-m mnist", "-m net --request-count 20")
        if script and "pip install" not in script:
            done = bash(f"{LOOPBACK_UP}\n{script}", tmp_path, {}, *alone)
            assert done.returncode in (0, 5), done.stdout + done.stderr
    assert "localhost:9000 against localhost:8000" in (tmp_path / "job.md").read_text("utf-8")
