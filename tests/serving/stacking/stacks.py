"""Requests with any inputs, bound to a model's signature, and batches of them."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from tests.serving.fakes import ignore
from tpx.protocol import model_config
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest, Parameter
from tpx.serving.request import InferRequest
from tpx.serving.signature import Signature


class Model:
    """What a request knows of its model."""

    name, version, max_batch_size, retired, decoupled = "net", 1, 8, False, False

    def submit(self, request: InferRequest) -> None:
        raise AssertionError("requests are bound here, never submitted")

    def cancelled(self) -> None:
        pass


def configured(text: str, max_batch_size: int = 8) -> Any:
    """A ModelConfig as text."""
    return model_config.parse(f"name: 'net' max_batch_size: {max_batch_size} {text}", "test")


def request(
    config: Any, arrays: Mapping[str, npt.NDArray[Any]], parameters: dict[str, Parameter] | None = None
) -> InferRequest:
    """A request with these inputs."""
    tensors = [Tensor.from_numpy(name, array) for name, array in arrays.items()]
    decoded = DecodedRequest(inputs=tensors, parameters=parameters or {})
    model = Model()
    model.max_batch_size = config.max_batch_size
    head = Signature.of(config, {}).bind(model, decoded)
    return InferRequest(head, [tensor.data for tensor in tensors], ignore, None)
