"""OpenVINO sends an event to its makers when it is imported, unless a package of theirs is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

import tpx.serving.backends

_SAY = "from openvino.tools import ovc; print(type(ovc.telemetry).__module__)"


@pytest.mark.parametrize("path", ["openvino/backend.py", "openvino_genai/engine.py"])
def test_a_server_reports_nothing(path: str) -> None:
    file = Path(tpx.serving.backends.__file__).parent / path
    load = f"import runpy; runpy.run_path({str(file)!r})"  # as the process of an engine does
    if path.startswith("openvino/"):
        load = "import tpx.serving.backends.openvino.backend"
    done = subprocess.run(
        [sys.executable, "-c", f"{load}; {_SAY}"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "openvino.tools.ovc.telemetry_stub"
