"""Every format served by `tpx serve` and asked with tritonclient, over both protocols; answers are
eager's."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.torch
import torch
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tests.e2e.child import Child, serve
from tests.serving.backends.pytorch import zoo
from tests.serving.backends.pytorch.opening import tensors

pytestmark = pytest.mark.e2e

IMAGES = np.random.default_rng(0).random((4, 1, 8, 8), np.float32)
IMAGE = "max_batch_size: 8 dynamic_batching { } instance_group [{ kind: KIND_CPU count: 2 }] "
IMAGE_TENSORS = tensors("input", "image FP32 1 8 8") + tensors("output", "scores__0 FP32 5")
MODULE = """
import torch
from torch import nn

class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5))

    def forward(self, image):
        return self.layers(image)
"""
RUNNING = """
import torch

class Running(torch.nn.Module):
    def forward(self, value, ready, before):
        after = before + value * ready
        return after, after
"""
SEQUENCE = (
    "max_batch_size: 4 "
    + tensors("input", "value__0 FP32 1")
    + tensors("output", "sum__0 FP32 1")
    + """sequence_batching { direct { }
  control_input [{ name: "ready__1" control [{ kind: CONTROL_SEQUENCE_READY fp32_false_true: [0, 1] }] }]
  state [{ input_name: "before__2" output_name: "after__1" data_type: TYPE_FP32 dims: [1]
           initial_state: { name: "none" data_type: TYPE_FP32 dims: [1] zero_data: true } }] }"""
)


def add(repository: Path, name: str, text: str, version: str = "1") -> Path:
    """A model's directory with its configuration; returns that of its version."""
    directory = repository / name / version
    directory.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(text, encoding="utf-8")
    return directory


def write_repository(repository: Path) -> None:
    network = zoo.Convolution().eval()
    zoo.save_script(
        network, add(repository, "script", 'backend: "pytorch" ' + IMAGE + IMAGE_TENSORS) / "model.pt"
    )
    program = zoo.exported(network, torch.ones(2, 1, 8, 8))
    zoo.save_exported(program, add(repository, "exported", IMAGE) / "model.pt2")
    module = add(repository, "module", 'backend: "pytorch" runtime: "model.py" ' + IMAGE + IMAGE_TENSORS)
    (module / "model.py").write_text(MODULE, encoding="utf-8")
    safetensors.torch.save_file(network.state_dict(), module / "model.safetensors")
    echo = tensors("input", "x BF16 -1") + tensors("output", "y BF16 -1")
    zoo.save_script(
        zoo.Identity(), add(repository, "echo_bf16", 'platform: "pytorch_libtorch" ' + echo) / "model.pt"
    )
    words = tensors("input", "texts STRING -1") + tensors("output", "LOUD__0 STRING -1", "LENGTH__1 INT64 -1")
    zoo.save_script(zoo.Shout(), add(repository, "shout", words) / "model.pt")
    (add(repository, "running", 'backend: "pytorch" ' + SEQUENCE) / "model.py").write_text(RUNNING)
    refuses = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 2000 } "
    refuses += tensors("input", "x FP32 3") + tensors("output", "y FP32 3")
    zoo.save_script(zoo.Refuses(), add(repository, "refuses", refuses) / "model.pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """tritonclient's module for a protocol, and where the server listens; each call has a client of its own,
    since those over HTTP belong to one thread."""

    module: ModuleType
    address: str

    def client(self) -> Any:
        return self.module.InferenceServerClient(self.address)

    def input(self, name: str, array: npt.NDArray[Any]) -> Any:
        datatype = {"f": "FP32", "O": "BYTES", "V": "BF16"}[array.dtype.kind]
        return self.module.InferInput(name, array.shape, datatype).set_data_from_numpy(array)

    def infer(self, model: str, how: Mapping[str, Any] | None = None, **arrays: npt.NDArray[Any]) -> Any:
        inputs = [self.input(name, array) for name, array in arrays.items()]
        with self.client() as client:
            return client.infer(model, inputs, **(how or {}))


def library_of(child: Child, protocol: str) -> Library:
    if protocol == "http":
        return Library(module=tritonclient.http, address=f"127.0.0.1:{child.port('HTTPService')}")
    return Library(module=tritonclient.grpc, address=f"127.0.0.1:{child.port('GRPCInferenceService')}")


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    repository = tmp_path_factory.mktemp("pytorch")
    write_repository(repository)
    with serve("--model-repository", repository) as running:
        running.wait_for("is ready|failed to load", 50)
        yield running.ready()
        assert running.stop() == 0


@pytest.fixture(scope="module", params=["http", "grpc"])
def library(request: pytest.FixtureRequest, child: Child) -> Library:
    return library_of(child, request.param)


def eager(images: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    with torch.inference_mode():
        scores: npt.NDArray[Any] = zoo.Convolution().eval()(torch.from_numpy(images)).numpy()
    return scores


@pytest.mark.parametrize(
    ("model", "output"), [("script", "scores__0"), ("exported", "OUTPUT__0"), ("module", "scores__0")]
)
def test_many_at_once_are_batched_and_each_gets_what_eager_computes(
    library: Library, model: str, output: str
) -> None:
    count = 48
    barrier = threading.Barrier(8)

    def ask(index: int) -> npt.NDArray[Any]:
        if index < 8:
            barrier.wait(10)
        rows = np.roll(IMAGES, index, axis=3)[: 1 + index % 3]
        scores: npt.NDArray[Any] = library.infer(model, image=rows).as_numpy(output)
        return scores

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(count)))
    for index, answer in enumerate(answers):
        assert np.allclose(answer, eager(np.roll(IMAGES, index, axis=3)[: 1 + index % 3]), atol=1e-5)


def test_what_the_server_tells_of_an_archive_is_what_is_in_it(library: Library) -> None:
    as_json = {"as_json": True} if library.module is tritonclient.grpc else {}
    with library.client() as client:
        metadata = client.get_model_metadata("exported", **as_json)
    assert [(one["name"], one["datatype"]) for one in metadata["inputs"]] == [("image", "FP32")]
    assert [list(map(int, one["shape"])) for one in metadata["outputs"]] == [[-1, 5]]
    assert metadata["platform"] == "torch_aoti"


def test_bfloat16_and_strings_cross_the_wire(library: Library) -> None:
    x = np.array([1.0, -3.0], triton_to_np_dtype("BF16"))
    assert library.infer("echo_bf16", x=x).as_numpy("y").tolist() == [1.0, -3.0]
    answer = library.infer("shout", texts=np.array([b"hello", b""], dtype=np.object_))
    assert answer.as_numpy("LOUD__0").tolist() == [b"hello!", b"!"]
    assert answer.as_numpy("LENGTH__1").tolist() == [5, 0]


def test_the_server_keeps_the_states_of_sequences(library: Library) -> None:
    sums: dict[int, list[float]] = {7: [], 8: []}
    for index, value in enumerate((1.0, 10.0, 100.0)):
        for sequence, seen in sums.items():
            how = {"sequence_id": sequence, "sequence_start": index == 0, "sequence_end": index == 2}
            answer = library.infer("running", how, value__0=np.array([[value * sequence]], np.float32))
            seen.append(float(answer.as_numpy("sum__0")[0, 0]))
    assert sums == {7: [7, 77, 777], 8: [8, 88, 888]}


def test_a_model_that_fails_harms_only_the_request_that_made_it_fail(library: Library) -> None:
    def ask(value: float) -> str:
        try:
            answer = library.infer("refuses", x=np.full((1, 3), value, np.float32))
        except InferenceServerException as exc:
            return str(exc.message())
        return str(answer.as_numpy("y").tolist())

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, [1.0, -1.0, 3.0] * 8))
    for answer, wanted in zip(
        answers, ["[[2.0, 2.0, 2.0]]", "an element is negative", "[[6."] * 8, strict=True
    ):
        assert wanted in answer
