"""Requests for inference, good and bad, over both protocols."""

from typing import Any

from tests.serving.live import Channel, Live, floats, outputs_of
from tpx.protocol import messages

JSON_X = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}


def binary_head(size: int = 8, shape: tuple[int, ...] = (1, 2), name: str = "x", **fields: Any) -> Any:
    """A request for `double` whose tensor lies behind the JSON."""
    item = {"name": name, "datatype": "FP32", "shape": list(shape), "parameters": {"binary_data_size": size}}
    return {"inputs": [item], **fields}


def refusal(live: Live, request: Any, tail: bytes = b"", model: str = "double", **headers: str) -> str:
    """The message of a 400; the server still answers afterwards."""
    answer = live.infer(model, request, tail, **headers)
    assert answer.status == 400, answer.body[:500]
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json) == ["error"]
    assert live.infer("double", {"inputs": [JSON_X]}).status == 200
    return answer.error


# over gRPC


def refused(channel: Channel, message: Any) -> str:
    """The message of an INVALID_ARGUMENT; the server still answers afterwards."""
    data = message if isinstance(message, bytes) else message.SerializeToString()
    code, text = channel.error("ModelInfer", data)
    assert code == "INVALID_ARGUMENT", text
    assert outputs_of(channel.infer("double", {"x": floats([1, 2])})) == {"y": [[2, 4]]}
    return text


def grpc_request(*raw: bytes, shape: tuple[int, ...] = (1, 2), datatype: str = "FP32", **fields: Any) -> Any:
    """A request for `double` with one input and these raw contents."""
    message = messages.ModelInferRequest(
        model_name=fields.pop("model", "double"), raw_input_contents=list(raw), **fields
    )
    message.inputs.add(name="x", datatype=datatype, shape=shape)
    return message
