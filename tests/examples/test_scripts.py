"""The scripts of `examples/`, run as a user runs them, and the notebook."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.e2e.child import environment
from tpx import examples

SCRIPTS = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    examples.write(str(folder), ["mnist"])
    return folder


def ran(script: str, *words: object, cwd: Path, status: int = 0) -> str:
    """Return what a script prints."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *map(str, words)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def test_a_model_of_sklearn_is_served_as_onnx(tmp_path: Path) -> None:
    assert "The server's answers are scikit-learn's" in ran("serve_sklearn.py", "models", cwd=tmp_path)
    assert (tmp_path / "models" / "iris" / "1" / "model.onnx").is_file()


def test_a_business_rule_calls_the_model_and_refuses_what_is_unsure(tmp_path: Path) -> None:
    out = ran("python_model.py", "models", cwd=tmp_path)
    assert out.splitlines() == ["a stroke: 1", "a white page: ask a person"]


def test_a_gate_writes_a_baseline_compares_with_it_and_fails_on_a_missed_objective(
    repository: Path, tmp_path: Path
) -> None:
    quick = ("--concurrency", 1, "--interval-ms", 100, "--windows", 1, "--min-effect", 1000)
    words = (repository, "mnist", *quick)
    assert "wrote 3 runs to baseline" in ran("ci_gate.py", *words, "--slo", "errors<=100%", cwd=tmp_path)
    once = (*words, "--runs", 1)
    compared = ran("ci_gate.py", *once, "--slo", "errors<=100%", cwd=tmp_path)
    assert "against 3 runs in baseline: same" in compared
    assert (tmp_path / "report.html").stat().st_size > 10_000
    ran("ci_gate.py", *once, "--slo", "p99<1us", cwd=tmp_path, status=4)


def test_the_best_configuration_is_found_and_shown(repository: Path, tmp_path: Path) -> None:
    words = ("--budget", "1s", "--interval-ms", 100, "--final-rounds", 0, "--max-p99-ms", 10_000)
    out = ran("find_best_configuration.py", repository, "mnist", *words, cwd=tmp_path)
    assert "# config.pbtxt of mnist_config_" in out
    assert (tmp_path / "analysis.html").stat().st_size > 10_000


def test_the_notebook_runs_and_is_stored_with_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = nbformat.read(SCRIPTS / "notebook.ipynb", as_version=4)
    shown = [cell for cell in stored.cells if cell.cell_type == "code" and cell.outputs]
    assert len(shown) == 5, "execute it anew and store it"
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    client = NotebookClient(stored, timeout=60, resources={"metadata": {"path": str(tmp_path)}})
    done = client.execute()
    [report] = [
        output.data
        for cell in done.cells
        for output in cell.get("outputs", ())
        if "<iframe srcdoc=" in output.get("data", {}).get("text/html", "")
    ]
    assert report["text/plain"].startswith("<PerfRun: ")
