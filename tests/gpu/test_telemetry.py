"""What tpx says of a GPU, held against nvidia-smi, while a model computes on it."""

import csv
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.gpu import networks
from tests.gpu.conftest import Device, GpuServer, write_model
from tests.serving.backends.pytorch.opening import QUIET_JIT

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings(QUIET_JIT)]

Serve = Callable[..., GpuServer]
MEMORY_TOLERANCE = 0.05
UTILIZATION_S = 20.0
"""By when a GPU that computes all the while is told as busy: it is sampled about once a second."""


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


def nvidia_smi(*figures: str) -> list[float]:
    """The first GPU's figures, by nvidia-smi's names."""
    words = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(figures)}", "--format=csv,noheader,nounits"]
    return [float(each) for each in subprocess.check_output(words, text=True).split(",")]


def metrics_page(server: GpuServer) -> str:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as answer:
        page: str = answer.read().decode()
    return page


@contextmanager
def busy_gpu(device: Device) -> Iterator[None]:
    """Multiply matrices on the GPU all the while."""
    ended = threading.Event()

    def multiply() -> None:
        matrix = torch.ones(4096, 4096, device=device.name)
        while not ended.is_set():
            matrix @ matrix
            torch.cuda.synchronize()

    thread = threading.Thread(target=multiply)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_the_metrics_page_tells_what_nvidia_smi_tells(gpu: Device, serve: Serve, tmp_path: Path) -> None:
    server = serve(repository(tmp_path, gpu))
    with busy_gpu(gpu):
        deadline = time.monotonic() + UTILIZATION_S
        while metric(metrics_page(server), "nv_gpu_utilization") < 0.5 and time.monotonic() < deadline:
            time.sleep(0.2)
        used, total, power, utilization = nvidia_smi(
            "memory.used", "memory.total", "power.draw", "utilization.gpu"
        )
        page = metrics_page(server)
    room = MEMORY_TOLERANCE * total
    assert abs(metric(page, "nv_gpu_memory_total_bytes") / 2**20 - total) < room
    assert abs(metric(page, "nv_gpu_memory_used_bytes") / 2**20 - used) < room
    assert 0.5 * power < metric(page, "nv_gpu_power_usage") < 2 * power
    assert utilization > 50
    assert metric(page, "nv_gpu_utilization") > 0.5


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
        [table] = out.rglob("metrics-model-gpu.csv")
        with table.open() as file:
            of_the_gpu = list(csv.DictReader(file))
        assert len(of_the_gpu) == len(measured)
        assert all(float(row["GPU Memory Usage (MB)"]) > 0 for row in of_the_gpu)
