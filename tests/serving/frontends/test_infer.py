"""Inference over both transports, with tensors as JSON and as bytes: the same answers and refusals."""

import struct
from collections.abc import Mapping, Sequence
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


def test_unknown_models_are_not_found(encoding: Transport) -> None:
    refusal = refused(encoding, "nobody", Given())
    assert refusal.code == "NOT_FOUND"
    assert refusal.message == "Request for unknown model: 'nobody' is not found"
    assert refused(encoding, "m" * 5000, Given()).code == "NOT_FOUND"


def test_labels_and_classes(encoding: Transport) -> None:
    given = Given(shape=(2, 3), values=[0.5, 3, 2, 9, 1, 1])
    asked = [{"name": "y", "parameters": {"classification": 2}}]
    [output] = encoding.infer("label", given, outputs=asked).outputs
    assert (output.datatype, output.shape) == ("BYTES", (2, 2))
    assert output.numpy().tolist() == [
        [b"3.000000:1:dog", b"2.000000:2"],
        [b"9.000000:0:cat", b"1.000000:1:dog"],
    ]


REFUSALS: list[tuple[Mapping[str, Any], str]] = [
    ({"shape": (2**62 + 2,)}, "byte size overflow for input 'x'"),
    ({"shape": (2**62,)}, "byte size overflow for input 'x'"),
    ({"shape": (2**32, 2**32)}, "causes total element count to exceed maximum size"),
    ({"shape": (2,)}, "unexpected shape for input 'x' for model 'double'. Expected"),
    ({"shape": (5, 1), "values": [0] * 5}, "inference request batch-size must be <= 4 for 'double'"),
    ({"shape": (0, 2), "values": []}, "inference request batch-size must be >= 1 for 'double'"),
    ({"shape": (1,) * 2000, "values": [1]}, "unexpected shape for input 'x'"),
    ({"datatype": "INT32"}, "data-type is 'INT32', but model 'double' expects 'FP32'"),
    ({"name": "z"}, "unexpected inference input 'z' for model 'double'"),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSALS)
def test_a_tensor_that_cannot_be_is_refused(
    encoding: Transport, wrong: Mapping[str, Any], message: str
) -> None:
    refusal = refused(encoding, "double", Given(**wrong))
    assert refusal.code == "INVALID_ARGUMENT"
    assert message in refusal.message


def test_inputs_and_outputs_that_are_missing_twice_or_unknown_are_refused(encoding: Transport) -> None:
    assert refused(encoding, "double").message.startswith(
        "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'double'. Got input(s) [], "
        "but missing required input(s) ['x']."
    )
    twice = refused(encoding, "double", Given(), Given(), request_id="9")
    assert twice.message == "[request id: 9] input 'x' already exists in request"
    for names, message in (
        ("yy", "output 'y' already exists in request"),
        ("yz", "unexpected inference output 'z' for model 'double'"),
    ):
        outputs = [{"name": name} for name in names]
        assert refused(encoding, "double", Given(), outputs=outputs).message.endswith(message)


def test_parameters_with_reserved_names_are_refused(encoding: Transport) -> None:
    refusal = refused(encoding, "double", Given(), parameters={"triton_x": True})
    assert "parameter keys starting with 'triton_' are reserved" in refusal.message


@pytest.mark.parametrize("value", [-1, "3"])
def test_a_number_of_classes_that_is_none_is_refused(encoding: Transport, value: Any) -> None:
    asked = [{"name": "y", "parameters": {"classification": value}}]
    refusal = refused(encoding, "double", Given(), outputs=asked)
    assert refusal.code == "INVALID_ARGUMENT"
    assert "'classification'" in refusal.message


@pytest.mark.parametrize("size", [4, 12])
def test_bytes_of_another_size_than_the_tensor_are_refused(transport: Transport, size: int) -> None:
    assert refused(transport, "double", Given(raw=bytes(size))).message.endswith(
        f"input byte size mismatch for input 'x' for model 'double'. Expected 8, got {size}"
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\xffab",
        b"\x01\x00",
        b"\x01\x00\x00\x00",
        encode_bytes([b"a"]),
        encode_bytes([b"a", b"b", b"c"]),
        b"",
    ],
)
def test_strings_with_lengths_that_lie_are_refused(transport: Transport, raw: bytes) -> None:
    refusal = refused(transport, "words", Given(datatype="BYTES", raw=raw))
    assert "for inference input 'x' for model 'words'" in refusal.message


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
