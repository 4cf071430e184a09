"""PyTorch models on a GPU behind a real server and real clients."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.gpu import networks
from tests.gpu.conftest import Device, GpuServer, write_model
from tests.serving.backends.pytorch.opening import QUIET_JIT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings(QUIET_JIT),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of PyTorch's own, while it compiles
]

Serve = Callable[..., GpuServer]
CLIENTS, REQUESTS = 16, 20
CYCLES = 100
GREEDY = 'backend: "pytorch" input [{ name: "n" data_type: TYPE_INT64 dims: [1] }] '
GREEDY += 'output [{ name: "y" data_type: TYPE_FP32 dims: [1] }] '


def asked(
    client: tritonclient.http.InferenceServerClient, rows: np.ndarray, model: str = "net"
) -> np.ndarray:
    """The answer to these rows of x."""
    given = tritonclient.http.InferInput("x", rows.shape, "FP32").set_data_from_numpy(rows)
    answer: np.ndarray = client.infer(model, [given]).as_numpy("y")
    return answer


@pytest.mark.parametrize("form", networks.FORMATS)
@pytest.mark.timeout(300)
def test_instances_answer_many_clients_in_batches(
    device: Device, serve: Serve, tmp_path: Path, form: str
) -> None:
    config, write = networks.FORMATS[form]
    batching = "dynamic_batching { max_queue_delay_microseconds: 2000 }"
    text = networks.IO + config + device.group(count=2) + batching
    write_model(tmp_path, "net", text, lambda version: write(version, device.name))
    server = serve(tmp_path)
    wrong: list[object] = []

    def load(number: int) -> None:
        random = np.random.default_rng(number)
        with tritonclient.http.InferenceServerClient(server.http) as client:
            for _ in range(REQUESTS):
                rows = random.normal(size=(random.integers(2, 4), networks.WIDTH)).astype(np.float32)
                if not np.allclose(asked(client, rows), 3 * rows + 1, atol=1e-4):
                    wrong.append(rows)

    threads = [threading.Thread(target=load, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with tritonclient.http.InferenceServerClient(server.http) as client:
        [counts] = client.get_inference_statistics("net")["model_stats"]
    assert not wrong
    assert counts["inference_stats"]["success"]["count"] == CLIENTS * REQUESTS
    assert counts["execution_count"] < CLIENTS * REQUESTS


def test_out_of_memory_is_an_error_of_one_request(gpu: Device, serve: Serve, tmp_path: Path) -> None:
    class Greedy(torch.nn.Module):
        def forward(self, n: torch.Tensor) -> torch.Tensor:
            return torch.zeros(int(n[0].item()), device=n.device).sum().reshape(1)

    write_model(
        tmp_path,
        "greedy",
        GREEDY + gpu.group(),
        lambda v: networks.save_script(Greedy(), v),
    )
    server = serve(tmp_path)
    with tritonclient.http.InferenceServerClient(server.http) as client:

        def ask(elements: int) -> float:
            given = tritonclient.http.InferInput("n", [1], "INT64")
            given.set_data_from_numpy(np.array([elements], np.int64))
            return float(client.infer("greedy", [given]).as_numpy("y")[0])

        for _ in range(3):
            with pytest.raises(InferenceServerException, match="out of memory"):
                ask(1 << 40)
            assert ask(1000) == 0


@pytest.mark.timeout(300)
def test_memory_is_given_back_when_a_model_is_unloaded(gpu: Device, serve: Serve, tmp_path: Path) -> None:
    weights = 64 << 20  # 256 MB of FP32

    class Heavy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Parameter(torch.zeros(weights))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 3 * x + 1 + self.weights[0]

    text = networks.IO + gpu.group()
    write_model(tmp_path, "net", text, lambda v: networks.save_script(Heavy(), v))
    server = serve(tmp_path, "--model-control-mode=explicit")
    used: list[int] = []
    with tritonclient.http.InferenceServerClient(server.http, network_timeout=120) as client:
        for _ in range(CYCLES):
            client.load_model("net")
            assert asked(client, np.ones((1, networks.WIDTH), np.float32))[0, 0] == 4
            client.unload_model("net")
            free, total = torch.cuda.mem_get_info(0)
            used.append(total - free)
    assert max(used[-10:]) < max(used[:10]) + (64 << 20)
