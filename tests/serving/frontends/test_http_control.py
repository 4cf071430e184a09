"""The model repository over HTTP."""

import base64
import http.client
import json
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.live import Answer, Live, serving
from tests.serving.onnx_files import write_model
from tests.serving.repository.controlled import times, write
from tpx.protocol.tensors import Tensor


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models of this module lie."""
    return tmp_path_factory.mktemp("control")


@pytest.fixture(scope="module")
def live(repository: Path) -> Iterator[Live]:
    """A server whose models are loaded on request."""
    with serving(repository, model_control_mode="explicit") as running:
        yield running


def post(live: Live, path: str, body: Any = None) -> Answer:
    """POST a JSON value, or these bytes."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return live.http("POST", "/v2/repository" + path, data)


def load(live: Live, name: str, **parameters: Any) -> Answer:
    """Load a model; the parameters are named as in the protocol, but for their colon."""
    return post(live, f"/models/{name}/load", {"parameters": parameters} if parameters else None)


def index(live: Live, *names: str, **body: Any) -> list[dict[str, str]]:
    """What the index says of these models."""
    return [entry for entry in post(live, "/index", body).json if entry["name"] in names]


def factor(live: Live, name: str) -> float:
    """What a model multiplies with."""
    answer = live.infer_binary(name, {"x": np.ones((1, 2), dtype=np.float32)})
    assert answer.status == 200, answer.body
    return float(np.frombuffer(answer.tail, dtype=np.float32)[0])


def encoded(model: Any) -> str:
    """The base64 of an ONNX file."""
    return base64.b64encode(model.SerializeToString()).decode()


def test_a_large_model_comes_in_one_request(live: Live) -> None:
    data = base64.encodebytes(bytes(20 << 20)).decode()
    files = {"file:1/model.onnx": encoded(times(3)), "file:1/weights": data}
    assert load(live, "large", config="{}", **files).status == 200
    assert factor(live, "large") == 3


def test_a_load_that_fails_says_what_the_model_lacks(live: Live, repository: Path) -> None:
    directory = write_model(repository, "broken")
    (directory / "1" / "model.onnx").write_bytes(b"broken")
    answer = load(live, "broken")
    assert answer.status == 400
    assert answer.error.startswith(
        "load failed for model 'broken': version 1 is at UNAVAILABLE state: Internal: onnx runtime cannot "
    )
    [entry] = index(live, "broken")
    assert entry["state"] == "UNAVAILABLE"
    assert entry["reason"].startswith("Internal: onnx runtime cannot load")
    assert live.get("/v2/health/ready").status == 400
    assert post(live, "/models/broken/unload").status == 200
    assert live.get("/v2/health/ready").status == 200


MISSING_FILE = """
import pathlib

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        pathlib.Path(__file__).with_name("weights.bin").read_bytes()
"""
NO_CLASS = "raise ImportError(__file__)"
PYTHON = '{"backend": "python", "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}]}'


@pytest.mark.parametrize(
    ("config", "files", "named"),
    [
        ("{}", {"1/model.onnx": b"broken"}, "1/model.onnx"),
        (PYTHON, {"1/model.py": MISSING_FILE.encode()}, "'1/weights.bin'"),
        (PYTHON, {"1/model.py": NO_CLASS.encode()}, "1/model.py"),
        (PYTHON, {"1/other.py": b""}, "1"),
        ('{"backend": "onnxruntime"}', {"labels.txt": b""}, ""),
    ],
)
def test_a_load_with_files_that_fails_names_them_as_the_client_did(
    live: Live, config: str, files: Mapping[str, bytes], named: str
) -> None:
    parameters = {f"file:{path}": base64.b64encode(content).decode() for path, content in files.items()}
    answer = load(live, "brought", config=config, **parameters)
    assert answer.status == 400
    told = f"{answer.error} {index(live, 'brought')}"
    assert tempfile.gettempdir() not in told
    assert "tpx-model-" not in told
    assert named in told


def test_many_clients_load_and_unload_at_once(live: Live, repository: Path) -> None:
    for name in ("crowd-a", "crowd-b"):
        write(repository, 2, name=name)
    statuses: list[int] = []

    def client(number: int) -> None:
        for turn in range(12):
            verb = "unload" if (turn + number) % 2 else "load"
            statuses.append(post(live, f"/models/crowd-{'ab'[number % 2]}/{verb}").status)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert statuses == [200] * 96
    for name in ("crowd-a", "crowd-b"):
        assert load(live, name).status == 200
        assert factor(live, name) == 2


def test_a_client_that_leaves_does_not_take_its_load_with_it(live: Live, repository: Path) -> None:
    write(repository, 6, name="left")
    connection = http.client.HTTPConnection("127.0.0.1", live.http_port, timeout=10)
    connection.request("POST", "/v2/repository/models/left/load")
    connection.close()
    for _ in range(5000):
        if live.get("/v2/models/left/ready").status == 200:
            break
    assert factor(live, "left") == 6


class Traffic:
    """A client that asks without end, and holds every answer against what may serve at that moment."""

    def __init__(self, live: Live, name: str) -> None:
        self._live, self._name = live, name
        self.least = self.most = 1
        """The factors of the models that may answer: of the last that was loaded, and of what is loading."""
        self.count = 0
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._binary, self._json, self._grpc)]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)

    def _judge(self, least: int, value: float) -> None:
        self.count += 1
        if not least <= value <= self.most:
            self.wrong.append(f"{value}, not from {least} to {self.most}")

    def _ask(self, ask: Any) -> None:
        while not self._stop.is_set():
            least = self.least
            try:
                self._judge(least, ask())
            except Exception as exc:  # noqa: BLE001 (any failure is one of the server)
                self.wrong.append(repr(exc))

    def _binary(self) -> None:
        self._ask(lambda: factor(self._live, self._name))

    def _json(self) -> None:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 1]}

        def ask() -> float:
            answer = self._live.infer(self._name, {"inputs": [tensor]})
            assert answer.status == 200, answer.body
            return float(answer.json["outputs"][0]["data"][0])

        self._ask(ask)

    def _grpc(self) -> None:
        with self._live.channel() as channel:

            def ask() -> float:
                answer = channel.infer(self._name, {"x": np.ones((1, 2), dtype=np.float32)})
                raw = answer.raw_output_contents[0]
                return float(Tensor("y", "FP32", (1, 2), raw).numpy()[0, 0])

            self._ask(ask)


def test_no_request_notices_that_its_model_is_replaced(live: Live, repository: Path) -> None:
    write(repository, 1, name="busy")
    assert load(live, "busy").status == 200
    with Traffic(live, "busy") as traffic:
        for new in range(2, 12):
            if new % 3 == 0:  # one that fails changes nothing
                (repository / "busy" / "1" / "model.onnx").write_bytes(b"broken")
                assert load(live, "busy").status == 400
            write(repository, new, name="busy")
            traffic.most = new
            assert load(live, "busy").status == 200
            traffic.least = new
    assert traffic.wrong == []
    assert traffic.count > 100
