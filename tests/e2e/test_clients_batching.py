"""Dynamic batching as tritonclient's users meet it: priorities, timeouts, limits, ragged and optional inputs.
The models of queues wait at a gate, so that requests meet there."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.e2e.batching_models import OPTIONAL, RAGGED, gated, optional, ragged
from tests.serving.gated import GATE, installed
from tests.serving.live import Live, serving
from tests.serving.onnx_files import write_model
from tests.waiting import eventually

pytestmark = pytest.mark.e2e

Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    gated(repository, "levels", "priority_levels: 3 default_priority_level: 2")
    timeout = "default_timeout_microseconds: 60000000 allow_timeout_override: true"
    gated(repository, "patient", f"default_queue_policy {{ {timeout} }}")
    gated(repository, "limited", "default_queue_policy { max_queue_size: 1 }")
    write_model(repository, "ragged", ragged(), RAGGED)
    write_model(repository, "lone", ragged(), RAGGED.replace("20000000", "100000"))
    write_model(repository, "optional", optional(), OPTIONAL)
    with installed(tmp_path_factory.mktemp("site")), serving(repository) as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def infer(live: Live, protocol: str, model: str, arrays: dict[str, Array], **options: Any) -> dict[str, Any]:
    """One request with a client of its own."""
    module: Any = tritonclient.http if protocol == "http" else tritonclient.grpc
    port = live.http_port if protocol == "http" else live.ports["GRPCInferenceService"]
    inputs = [
        module.InferInput(name, array.shape, "FP32").set_data_from_numpy(array)
        for name, array in arrays.items()
    ]
    with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
        result = client.infer(model, inputs, **options)
    return {name: result.as_numpy(name) for name in ("y", "total")}


class Rush:
    """Requests that meet in a queue: a first one keeps the instance busy, the others come while it does."""

    def __init__(self, live: Live, protocol: str, model: str, workers: int = 8) -> None:
        self._live, self._protocol, self._model = live, protocol, model
        self._pool = ThreadPoolExecutor(workers)
        GATE.close()

    def send(self, number: float, **options: Any) -> "Future[Any]":
        """Send one and wait until the server has it."""
        served = self._live.server.repository.get(self._model)
        before = served.in_flight
        future = self._pool.submit(self._infer, number, options)
        eventually(lambda: served.in_flight > before or future.done())
        return future

    def _infer(self, number: float, options: dict[str, Any]) -> Any:
        array = np.array([[number]], np.float32)
        out = infer(self._live, self._protocol, self._model, {"x": array}, **options)
        assert out["y"].tolist() == [[number]]
        return out

    def wait(self) -> list[float]:
        """Free the instance; their numbers, in the order in which they were computed."""
        GATE.open()
        self._pool.shutdown()
        return GATE.passed


def refusal(future: "Future[Any]") -> tuple[str, str]:
    """Status and message of a request that was refused."""
    with pytest.raises(InferenceServerException) as caught:
        future.result(timeout=20)
    status = str(caught.value.status()).removeprefix("StatusCode.")
    return status, caught.value.message()


UNAVAILABLE = {"http": "503", "grpc": "UNAVAILABLE"}


def failures(live: Live, model: str, reason: str) -> int:
    page = live_metrics(live)
    pattern = rf'nv_inference_request_failure{{model="{model}",reason="{reason}",version="1"}} (\d+)'
    alternative = rf'nv_inference_request_failure{{model="{model}",version="1",reason="{reason}"}} (\d+)'
    found = re.search(pattern, page) or re.search(alternative, page)
    assert found is not None, page
    return int(found[1])


def live_metrics(live: Live) -> str:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{live.ports['Metrics Service']}/metrics") as page:
        return str(page.read().decode())


def test_requests_of_higher_priority_are_computed_first(live: Live, protocol: str) -> None:
    rush = Rush(live, protocol, "levels")
    rush.send(0)
    for number, priority in ((1, 3), (2, 0), (3, 1), (4, 2), (5, 1)):
        rush.send(number, priority=priority)
    assert rush.wait() == [0, 3, 5, 2, 4, 1]


def test_a_request_may_want_to_wait_less(live: Live, protocol: str) -> None:
    rush = Rush(live, protocol, "patient")
    rush.send(0)
    status, message = refusal(rush.send(1, timeout=1000))
    assert (status, message) == (UNAVAILABLE[protocol], "Request timeout expired")
    rush.wait()


def test_a_full_queue_refuses(live: Live, protocol: str) -> None:
    before = failures(live, "limited", "REJECTED")
    rush = Rush(live, protocol, "limited")
    rush.send(0)
    rush.send(1)
    status, message = refusal(rush.send(2, request_id="third"))
    assert (status, message) == (UNAVAILABLE[protocol], "[request id: third] Exceeds maximum queue size")
    assert rush.wait() == [0, 1]
    assert failures(live, "limited", "REJECTED") == before + 1


def executions(live: Live, model: str) -> dict[int, int]:
    """Batches computed, by their size."""
    [item] = live.get(f"/v2/models/{model}/stats").json["model_stats"]
    return {batch["batch_size"]: batch["compute_infer"]["count"] for batch in item["batch_stats"]}


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(timeout=20) for future in [pool.submit(call) for call in calls]]


def test_requests_of_any_shape_are_one_ragged_batch(live: Live, protocol: str) -> None:
    def call(rows: int, size: int, begin: int) -> dict[str, Any]:
        array = (begin + np.arange(rows * size, dtype=np.float32)).reshape(rows, size)
        out = infer(live, protocol, "ragged", {"x": array})
        assert out["y"].tolist() == (array * 2).tolist()
        return out

    before = executions(live, "ragged").get(8, 0)
    sizes = [(1, 3), (1, 5), (1, 1), (1, 7), (1, 2), (1, 2), (1, 4), (1, 6)]
    answers = together([partial(call, rows, size, 10 * n) for n, (rows, size) in enumerate(sizes)])
    assert executions(live, "ragged").get(8, 0) == before + 1
    for (_, size), out in zip(sizes, answers, strict=True):
        assert out["total"].tolist() == [[size + 100 * 7 + 10000 * 30]]


def test_a_lone_ragged_request_is_a_batch_too(live: Live, protocol: str) -> None:
    out = infer(live, protocol, "lone", {"x": np.ones((1, 3), np.float32)})
    assert out["y"].tolist() == [[2, 2, 2]]
    assert out["total"].tolist() == [[3 + 300 + 30000]]


def test_requests_with_and_without_an_optional_input_are_two_batches(live: Live, protocol: str) -> None:
    x, w = np.array([[1, 2]], np.float32), np.array([[10, 20]], np.float32)

    def bare() -> Any:
        return infer(live, protocol, "optional", {"x": x})["y"].tolist()

    def full() -> Any:
        return infer(live, protocol, "optional", {"x": x, "w": w})["y"].tolist()

    def turned() -> Any:
        return infer(live, protocol, "optional", {"w": w, "x": x})["y"].tolist()

    assert together([bare, full, bare, full, turned, bare]) == [
        [[1001, 1002]],
        [[11, 22]],
        [[1001, 1002]],
        [[11, 22]],
        [[11, 22]],
        [[1001, 1002]],
    ]
