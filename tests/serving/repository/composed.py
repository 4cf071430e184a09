"""Repositories of ensembles, made of models that multiply."""

import asyncio
from pathlib import Path

import numpy as np

from tests.serving.repository.controlled import Scene, write
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.request import InferRequest, InferResponse
from tpx.serving.served import Served

IO = (
    "input [{ name: 'x' data_type: TYPE_FP32 dims: [2] }] "
    "output [{ name: 'y' data_type: TYPE_FP32 dims: [2] }] "
)


def chain(*models: str, version: int = -1, namespace: str = "") -> str:
    """The configuration of an ensemble that calls one model after the other."""
    tensors = ["x", *(f"t{n}" for n in range(1, len(models))), "y"]
    steps = ", ".join(
        f"{{ model_name: '{model}' model_version: {version} model_namespace: '{namespace}' "
        f"input_map {{ key: 'x' value: '{given}' }} "
        f"output_map {{ key: 'y' value: '{made}' }} }}"
        for model, given, made in zip(models, tensors, tensors[1:], strict=False)
    )
    return f"platform: 'ensemble' max_batch_size: 4 {IO} ensemble_scheduling {{ step [ {steps} ] }}"


def ensemble(repository: Path, name: str, *models: str, version: int = -1, namespace: str = "") -> None:
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(chain(*models, version=version, namespace=namespace))


def model(repository: Path, name: str, factor: float, config: str = "") -> None:
    write(repository, factor, name=name)
    (repository / name / "config.pbtxt").write_text(config or "max_batch_size: 8")


def house(repository: Path) -> None:
    """`top` is 2 * 3 * 5, of which `inner` is 3 * 5."""
    for name, factor in (("two", 2), ("three", 3), ("five", 5)):
        model(repository, name, factor)
    ensemble(repository, "inner", "three", "five")
    ensemble(repository, "top", "two", "inner")


WHOLE = {f"{name}:1": "READY" for name in ("two", "three", "five", "inner", "top")}


def gated(repository: Path, name: str) -> None:
    """A model that gives back what it gets once the gate is open (tests/serving/gated.py)."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(f"backend: 'gated' max_batch_size: 8 {IO}")


async def answers(it: Scene, name: str, shape: tuple[int, ...]) -> InferResponse:
    """One request of ones."""
    return await send(it.repository.get(name), Tensor.from_numpy("x", np.ones(shape, np.float32)))


async def send(served: Served, tensor: Tensor) -> InferResponse:
    """One request with this input."""
    future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
    head = served.bind(DecodedRequest(model_name=served.name, inputs=[tensor], default_binary=True))
    served.submit(InferRequest(head, [tensor.data], lambda _, response: future.set_result(response), None))
    return await future
