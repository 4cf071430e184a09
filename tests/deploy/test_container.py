"""The container that TPX_IMAGE names, run by buildah: without root, on a root file system that is read-only.

buildah runs no image as it is configured: the test takes user and command from the image, and mounts its root
file system read-only in a namespace of its own.
"""

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import DEPLOY
from tests.serving.onnx_files import write_model

IMAGE = os.environ.get("TPX_IMAGE", "")
pytestmark = pytest.mark.skipif(not IMAGE, reason="no image: make test-container")

START = """
root=$1 models=$2; shift 2
mount --bind "$root" "$root"
mkdir -p "$root/models"
mount -o remount,ro,bind "$root"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind -o ro "$models" "$root/models"
exec chroot --userspec=65532:65532 "$root" env -i "$@"
"""


def buildah(*words: str) -> str:
    return subprocess.run(["buildah", *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def config() -> Any:
    """Return the image's own description."""
    return json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    """The root directory of a container."""
    container = buildah("from", IMAGE)
    yield buildah("mount", container)
    buildah("rm", container)


def test_the_image_is_as_it_is_written(config: Any) -> None:
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["tpx"]
    assert set(config["ExposedPorts"]) == {"8000/tcp", "8001/tcp", "8002/tcp"}
    assert "/v2/health/ready" in config["Healthcheck"]["Test"][-1]
    assert f'"{config["Cmd"][1]}"' in (DEPLOY / "Containerfile").read_text("utf-8")


def test_it_serves_without_rights_and_drains(config: Any, root: str, tmp_path: Path) -> None:
    write_model(tmp_path, "net", None, None)
    tmp_path.chmod(0o755)
    words = [
        *config["Env"],
        *config["Entrypoint"],
        *config["Cmd"],
        "--http-port=0",
        "--grpc-port=0",
        "--metrics-port=0",
    ]
    command = ["unshare", "-m", "sh", "-ec", START, "sh", root, str(tmp_path), *words, "--drain-secs=2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        said = ""
        for line in server.stdout:
            said += line
            if "is ready" in line:
                break
        found = re.search(r"HTTPService at 0\.0\.0\.0:(\d+)", said)
        assert found is not None, said
        status = Path(f"/proc/{server.pid}/status").read_text("utf-8")
        assert re.search(r"^Uid:\s+65532\s", status, re.MULTILINE), status
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE), status
        asked = f"http://127.0.0.1:{found[1]}/v2"
        assert infer(asked) == [2.0, 4.0]
        server.send_signal(signal.SIGTERM)
        ends = time.perf_counter() + 30
        while ready(asked) and time.perf_counter() < ends:
            time.sleep(0.05)
        assert infer(asked) == [2.0, 4.0]  # not ready, and serving on
        said += server.stdout.read()
        assert server.wait(30) == 0, said


def ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health/ready", timeout=5):
            return True
    except urllib.error.HTTPError:
        return False


def infer(address: str) -> list[float]:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}
    body = json.dumps({"inputs": [tensor]}).encode()
    with urllib.request.urlopen(f"{address}/models/net/infer", body, timeout=5) as response:
        found: list[float] = json.load(response)["outputs"][0]["data"]
    return found
