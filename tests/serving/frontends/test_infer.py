"""Inference over both transports, with tensors as JSON and as bytes: the same answers and refusals."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.serving.transports import Given, Refused, Transport
from tpx.protocol.tensors import encode_bytes


def refused(transport: Transport, model: str, *given: Given, **fields: Any) -> Refused:
    """How a request is refused; the server still answers afterwards."""
    with pytest.raises(Refused) as caught:
        transport.infer(model, *given, **fields)
    assert transport.infer("double", Given()).values == {"y": [[2, 4]]}
    return caught.value


def test_tensors_go_in_and_come_out(encoding: Transport) -> None:
    answer = encoding.infer("two", Given(name="a", values=[5, 6]), Given(name="b"), request_id='my "id" ü')
    assert (answer.model, answer.version, answer.request_id) == ("two", "1", 'my "id" ü')
    assert [(each.name, each.datatype, each.shape) for each in answer.outputs] == [
        ("sum", "FP32", (1, 2)),
        ("difference", "FP32", (1, 2)),
    ]
    assert answer.values == {"sum": [[6, 8]], "difference": [[4, 4]]}


@pytest.mark.parametrize("names", [["difference"], ["sum"]])
def test_outputs_come_as_asked(encoding: Transport, names: list[str]) -> None:
    answer = encoding.infer("two", Given(name="a"), Given(name="b"), outputs=[{"name": n} for n in names])
    assert [each.name for each in answer.outputs] == names


TYPES: list[tuple[str, Sequence[Any]]] = [
    ("BOOL", [True, False]),
    ("INT8", [-128, 127]),
    ("INT64", [-(2**63), 2**63 - 1]),
    ("UINT64", [0, 2**64 - 1]),
    ("FP64", [0.1, -1e300]),
    ("BYTES", [b"", "grüß 😀".encode()]),
]


@pytest.mark.parametrize(("datatype", "values"), TYPES)
def test_every_type_that_json_can_carry_comes_back(
    encoding: Transport, datatype: str, values: Sequence[Any]
) -> None:
    model = "words" if datatype == "BYTES" else datatype.lower()
    [output] = encoding.infer(model, Given(datatype=datatype, values=values)).outputs
    assert (output.name, output.datatype, output.shape) == ("y", datatype, (1, 2))
    assert output.numpy().tolist() == [values]


@pytest.mark.parametrize(
    ("datatype", "raw"),
    [
        ("FP16", np.array([1.5, -2], np.float16).tobytes()),
        ("BF16", struct.pack("<HH", 0x3FC0, 0xFF80)),
        ("FP64", struct.pack("<dd", np.nan, np.inf)),
        ("BYTES", encode_bytes([b"a\0b", b"a" * 1000])),
    ],
)
def test_bytes_of_every_type_come_back_bit_by_bit(transport: Transport, datatype: str, raw: bytes) -> None:
    model = "words" if datatype == "BYTES" else datatype.lower()
    [output] = transport.infer(model, Given(datatype=datatype, raw=raw)).outputs
    assert (output.datatype, bytes(output.data)) == (datatype, raw)


def test_versions_are_addressed(encoding: Transport) -> None:
    assert encoding.infer("versions", Given(), version="1").values == {"y": [[2, 4]]}
    assert encoding.infer("versions", Given(), version="3").values == {"y": [[1, 2]]}
    assert encoding.infer("versions", Given()).version == "3"
    refusal = refused(encoding, "versions", Given(), version="2")
    assert refusal.code == "NOT_FOUND"
    assert refusal.message == "Request for unknown model: 'versions' version 2 is not found"


def test_labels_and_classes(encoding: Transport) -> None:
    given = Given(shape=(2, 3), values=[0.5, 3, 2, 9, 1, 1])
    asked = [{"name": "y", "parameters": {"classification": 2}}]
    [output] = encoding.infer("label", given, outputs=asked).outputs
    assert (output.datatype, output.shape) == ("BYTES", (2, 2))
    assert output.numpy().tolist() == [
        [b"3.000000:1:dog", b"2.000000:2"],
        [b"9.000000:0:cat", b"1.000000:1:dog"],
    ]


def test_many_strings_with_lengths_that_lie_are_refused(transport: Transport) -> None:
    given: Any = {"datatype": "BYTES", "shape": (1, 50_000)}
    raw = encode_bytes([b"ab"] * 50_000)
    for lie in (raw[:-1], raw + b"\xff" * 4):
        message = refused(transport, "words", Given(**given, raw=lie), request_id="9").message
        assert message.startswith("[request id: 9] ")
        assert "for inference input 'x' for model 'words'" in message
    assert bytes(transport.infer("words", Given(**given, raw=raw)).outputs[0].data) == raw


def test_giant_ids_and_names_are_answered(encoding: Transport) -> None:
    giant = "g" * (1 << 20)
    assert encoding.infer("double", Given(), request_id=giant).request_id == giant
    for refusal in (
        refused(encoding, "double", Given(name=giant)),
        refused(encoding, "double", Given(), outputs=[{"name": giant}]),
    ):
        assert refusal.message.count("g") > 100
