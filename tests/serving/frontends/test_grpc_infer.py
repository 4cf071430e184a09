"""Inference as only gRPC can be asked for it: with typed contents."""

import math
from typing import Any

import pytest

from tests.serving.live import Channel, outputs_of
from tpx.protocol import messages

TYPED = [
    ("double", "FP32", "fp32_contents", [1.0, 2.0], [2.0, 4.0]),
    ("bool", "BOOL", "bool_contents", [True, False], [True, False]),
    ("int8", "INT8", "int_contents", [-128, 127], [-128, 127]),
    ("int64", "INT64", "int64_contents", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
    ("uint64", "UINT64", "uint64_contents", [0, 2**64 - 1], [0, 2**64 - 1]),
    ("fp64", "FP64", "fp64_contents", [0.1, math.inf], [0.1, math.inf]),
    ("words", "BYTES", "bytes_contents", [b"", b"a\0b"], [b"", b"a\0b"]),
]


@pytest.mark.parametrize(("model", "datatype", "field", "values", "expected"), TYPED)
def test_typed_contents_of_every_type(
    channel: Channel, model: str, datatype: str, field: str, values: list[Any], expected: list[Any]
) -> None:
    message = messages.ModelInferRequest(model_name=model)
    item = message.inputs.add(name="x", datatype=datatype, shape=[1, 2])
    getattr(item.contents, field).extend(values)
    answer = messages.ModelInferResponse.FromString(channel.send("ModelInfer", message.SerializeToString()))
    assert outputs_of(answer) == {"y": [expected]}
