"""Requests to register shared memory, and for tensors in it, over both protocols."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.live import Answer, Live, floats
from tests.serving.transports import Answered, Given, Refused, Transport, set_parameters
from tpx.protocol import messages

SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
SIZE = 64


def register(live: Live, region: str, **body: Any) -> Answer:
    body = {"offset": 0, "byte_size": SIZE, **body}
    return live.http("POST", f"{SYSTEM}/region/{region}/register", json.dumps(body).encode())


def in_region(offset: int = 0, byte_size: int = 8, region: str = "r", **more: Any) -> dict[str, Any]:
    return {
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": byte_size,
        **more,
    }


def request(inputs: Any = None, outputs: Any = None, shape: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    """A request to `double`: its input in shared memory or, without `inputs`, in the JSON."""
    item: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": list(shape)}
    item |= {"data": [1, 2]} if inputs is None else {"parameters": inputs}
    return {"inputs": [item]} | (
        {} if outputs is None else {"outputs": [{"name": "y", "parameters": outputs}]}
    )


def grpc_request(inputs: Any = None, outputs: Any = None, model: str = "double") -> Any:
    message = messages.ModelInferRequest(model_name=model)
    item = message.inputs.add(name="x", datatype="FP32", shape=(1, 2))
    if inputs is None:
        message.raw_input_contents.append(floats([1, 2]).tobytes())
    else:
        set_parameters(item, inputs)
    if outputs is not None:
        set_parameters(message.outputs.add(name="y"), outputs)
    return message


def ask(transport: Transport, inputs: Any = None, outputs: Any = None, model: str = "double") -> Answered:
    """Ask a model whose input, output or both are in shared memory."""
    given = Given() if inputs is None else Given(parameters=inputs)
    return transport.infer(
        model, given, outputs=[] if outputs is None else [{"name": "y", "parameters": outputs}]
    )


def refused(transport: Transport, inputs: Any = None, outputs: Any = None) -> tuple[str, str]:
    """The code and the message that such a request is refused with."""
    with pytest.raises(Refused) as caught:
        ask(transport, inputs, outputs)
    return caught.value.code, caught.value.message


def written(file: Path, offset: int, count: int = 2) -> list[float]:
    values: list[float] = np.frombuffer(file.read_bytes(), np.float32, count, offset).tolist()
    return values
