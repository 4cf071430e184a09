"""What tpx says of a GPU, held against nvidia-smi, while a model computes on it."""

import csv
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu import networks
from tests.gpu.conftest import Device, GpuServer, write_model
from tests.serving.backends.pytorch.opening import QUIET_JIT

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings(QUIET_JIT)]

Serve = Callable[..., GpuServer]
MEMORY_TOLERANCE = 0.05


def repository(folder: Path, device: Device) -> Path:
    """A model that computes on the device."""
    config, write = networks.FORMATS["torchscript"]
    write_model(folder, "net", networks.IO + config + device.group(), lambda v: write(v, device.name))
    return folder


def tpx(*words: str, timeout_s: float = 200) -> str:
    """Run a command to its end; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tpx", *words], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metric(page: str, name: str) -> float:
    found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
    assert found, name
    return float(found[1])


def test_the_metrics_page_tells_what_nvidia_smi_tells(gpu: Device, serve: Serve, tmp_path: Path) -> None:
    server = serve(repository(tmp_path, gpu))
    query = "--query-gpu=memory.used,memory.total,power.draw"
    said = subprocess.run(
        ["nvidia-smi", "-i", "0", query, "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    )
    used, total, power = map(float, said.stdout.split(","))
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as answer:
        page = answer.read().decode()
    room = MEMORY_TOLERANCE * total
    assert abs(metric(page, "nv_gpu_memory_total_bytes") / 2**20 - total) < room
    assert abs(metric(page, "nv_gpu_memory_used_bytes") / 2**20 - used) < room
    assert metric(page, "nv_gpu_power_usage") > 0.2 * power
    assert 0 <= metric(page, "nv_gpu_utilization") <= 1


def test_tpx_perf_has_gpu_columns(gpu: Device, serve: Serve, tmp_path: Path) -> None:
    server = serve(repository(tmp_path / "models", gpu))
    rows = tmp_path / "levels.csv"
    tpx(
        *("perf", "-m", "net", "-u", server.http, "--concurrency-range", "4", "-p", "1000", "-f", str(rows)),
        *("--collect-metrics", "--metrics-url", f"http://{server.metrics}/metrics", "--verbose-csv"),
    )
    with rows.open() as file:
        [level] = csv.DictReader(file)
    columns = [name for name in level if "GPU" in name]
    assert columns
    assert all(level[name] for name in columns)


@pytest.mark.timeout(400)
def test_tpx_analyze_reports_memory_of_the_gpu(device: Device, tmp_path: Path) -> None:
    models = repository(tmp_path / "models", device)
    out = tmp_path / "out"
    tpx(
        *("analyze", "profile", "--model-repository", str(models), "--profile-models", "net"),
        *("--run-config-search-max-instance-count", "2", "--run-config-search-max-concurrency", "2"),
        *("--measurement-interval", "500", "--output-model-repository-path", str(tmp_path / "variants")),
        *("--export-path", str(out)),
        timeout_s=380,
    )
    [table] = out.rglob("metrics-model-inference.csv")
    with table.open() as file:
        measured = list(csv.DictReader(file))
    assert measured
    if device.kind == "KIND_GPU":
        [column] = [name for name in measured[0] if "GPU Memory" in name]
        assert all(float(row[column]) > 0 for row in measured)
