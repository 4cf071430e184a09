"""Asking Python models over HTTP and gRPC, in few words."""

import json
from typing import Any

import numpy as np

from tests.serving.live import Answer, Live


def ask(live: Live, asked: str, /, *values: float, **parameters: Any) -> Answer:
    """`x` with these values."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(values)], "data": list(values)}
    return live.infer(asked, {"inputs": [tensor], "parameters": parameters})


def y_of(answer: Answer) -> list[float]:
    """The output `y`; fails where there is an error."""
    assert answer.status == 200, answer.body
    data: list[float] = next(item["data"] for item in answer.json["outputs"] if item["name"] == "y")
    return data


def say(live: Live, words: str, **fields: Any) -> Answer:
    """Have the model `say` do something."""
    tensor = {"name": "say", "datatype": "BYTES", "shape": [1], "data": [words]}
    return live.infer("say", {"inputs": [tensor], **fields})


def said(answer: Answer) -> Any:
    """What it says; fails where there is an error."""
    assert answer.status == 200, answer.body
    [text] = answer.json["outputs"][0]["data"]
    return text


def facts(answer: Answer) -> Any:
    """As `said`, of JSON."""
    return json.loads(said(answer))


def floats(*values: float) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """An FP32 vector."""
    return np.array(values, dtype=np.float32)
