"""The script for scikit-learn and the notebook: what they need is installed by `make test-frameworks`."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.e2e.child import environment
from tests.examples.scripts import SCRIPTS, ran

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_a_model_of_sklearn_is_served_as_onnx(tmp_path: Path) -> None:
    assert "The server's answers are scikit-learn's" in ran("serve_sklearn.py", "models", cwd=tmp_path)
    assert (tmp_path / "models" / "iris" / "1" / "model.onnx").is_file()


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
