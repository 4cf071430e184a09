"""ONNX Runtime's wheels report usage to Microsoft by default; in tpx they do not."""

import os
import subprocess
import sys
from pathlib import Path

from tests.serving.onnx_files import write_model

ROOT = Path(__file__).parents[4]
SESSION = """
import sys
import tpx.serving.backends.onnxruntime
import onnxruntime
onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
"""


def test_onnx_runtime_keeps_no_device_identifier_and_no_events(tmp_path: Path) -> None:
    write_model(tmp_path, "net", None, None)
    # it reports nothing in CI and in tests of its own, which it knows by these variables
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH")}
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(
        [sys.executable, "-c", SESSION, str(tmp_path / "net" / "1" / "model.onnx")],
        env={**environment, "HOME": str(home), "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert list(home.rglob("*")) == []
