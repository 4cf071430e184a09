"""One request of a model in its final bytes, and the check that a server's answer to it is right."""

import asyncio
import http.client
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.models import Model, Served
from tpx.errors import MeasurementError, TpxError
from tpx.protocol import messages
from tpx.protocol.grpc import client as grpc_client

Protocol = Literal["grpc", "http", "json"]
"""gRPC, HTTP with binary tensors, HTTP with tensors as JSON."""

GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"
CHECK_S = 30.0

Arrays = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A request as a load generator sends it; over gRPC `body` has the message's five-byte prefix."""

    path: str
    headers: Mapping[str, str]
    body: bytes


def inputs(model: Model, rows: int = 1) -> Arrays:
    """So many rows for every input: values between 0 and 1, the same in every run."""
    return {
        tensor.name: _values(rows * math.prod(tensor.dims)).reshape(rows, *tensor.dims)
        for tensor in model.inputs
    }


def _values(count: int) -> npt.NDArray[np.float32]:
    return (np.arange(count) % 97 / 97).astype(np.float32)


def payload(served: Served, protocol: Protocol, rows: int = 1) -> Payload:
    """The request that asks for so many rows."""
    arrays = inputs(served.model, rows)
    if protocol == "grpc":
        request = messages.ModelInferRequest(model_name=served.name)
        for name, array in arrays.items():
            request.inputs.add(name=name, datatype="FP32", shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        message = request.SerializeToString()
        headers = {"content-type": "application/grpc", "te": "trailers"}
        return Payload(path=GRPC_PATH, headers=headers, body=struct.pack(">BI", 0, len(message)) + message)
    path = f"/v2/models/{served.name}/infer"
    tensors = [_json_tensor(name, array, protocol) for name, array in arrays.items()]
    if protocol == "json":
        body = json.dumps({"inputs": tensors}).encode()
        return Payload(path=path, headers={"Content-Type": "application/json"}, body=body)
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }
    raw = b"".join(array.tobytes() for array in arrays.values())
    return Payload(path=path, headers=headers, body=head + raw)


def _json_tensor(name: str, array: npt.NDArray[np.float32], protocol: Protocol) -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": list(array.shape)}
    if protocol == "json":
        return {**tensor, "data": array.ravel().tolist()}
    return {**tensor, "parameters": {"binary_data_size": array.nbytes}}


def expected(model: Model, onnx: Path) -> Arrays:
    """What the model answers to `inputs`, by ONNX Runtime itself."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in model.outputs]
    return dict(zip(names, session.run(names, dict(inputs(model))), strict=True))


def check(request: Payload, protocol: Protocol, port: int, right: Arrays) -> int:
    """Send the request once; returns the size of the answer's body in bytes.

    Raises MeasurementError where the answer is an error or its tensors differ from `right`.
    """
    try:
        size, answer = (_ask_grpc if protocol == "grpc" else _ask_http)(request, port)
    except TpxError as exc:
        raise MeasurementError(f"{protocol} {request.path} fails: {exc}") from exc
    for name, array in right.items():
        if name not in answer or not np.allclose(answer[name], array.ravel(), rtol=1e-3, atol=1e-5):
            raise MeasurementError(f"{protocol} {request.path} answers with a wrong '{name}'")
    return size


def _ask_http(request: Payload, port: int) -> tuple[int, Arrays]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CHECK_S)
    try:
        connection.request("POST", request.path, request.body, dict(request.headers))
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as exc:
        raise MeasurementError(f"{request.path} does not answer: {exc}") from exc
    finally:
        connection.close()
    if response.status != 200:
        raise MeasurementError(
            f"{request.path} answers {response.status}: {body[:200].decode(errors='replace')}"
        )
    head_size = int(response.headers.get("Inference-Header-Content-Length") or len(body))
    arrays, rest = {}, body[head_size:]
    for tensor in json.loads(body[:head_size])["outputs"]:
        if "data" in tensor:
            arrays[tensor["name"]] = np.array(tensor["data"], np.float32).ravel()
        else:
            size = tensor["parameters"]["binary_data_size"]
            arrays[tensor["name"]], rest = np.frombuffer(rest[:size], np.float32), rest[size:]
    return len(body), arrays


def _ask_grpc(request: Payload, port: int) -> tuple[int, Arrays]:
    async def ask() -> bytes:
        connection = await grpc_client.connect("127.0.0.1", port)
        try:
            return bytes(await connection.unary(request.path, request.body[5:], timeout_s=CHECK_S))
        finally:
            connection.close()

    data = asyncio.run(ask())
    answer = messages.ModelInferResponse.FromString(data)
    raw = list(answer.raw_output_contents) or [
        np.array(item.contents.fp32_contents, np.float32).tobytes() for item in answer.outputs
    ]
    arrays = {
        item.name: np.frombuffer(part, np.float32) for item, part in zip(answer.outputs, raw, strict=True)
    }
    return len(data) + 5, arrays
