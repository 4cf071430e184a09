"""Requests for inference over HTTP, good and bad."""

from typing import Any

from tests.serving.live import Live

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
