"""Requests as they are encoded: fields beside the tensors, templates, formats; read back by the server."""

import asyncio
from typing import Any

import pytest

from tests.perf.parsing import parse
from tpx.argv import from_argv
from tpx.errors import UsageError
from tpx.perf.clients.base import PLAIN, Client, RequestFields
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.grpc import GrpcClient
from tpx.perf.clients.grpc_stream import GrpcStreamClient
from tpx.perf.clients.http import connect
from tpx.perf.clients.model import ModelKey
from tpx.perf.clients.wire import RequestParameter, WireSpec
from tpx.perf.options import SessionSpec
from tpx.protocol import v2_json, v2_protobuf
from tpx.protocol.compression import inflate
from tpx.protocol.tensors import Tensor, encode_bytes
from tpx.protocol.v2 import DecodedRequest, RequestedOutput, SharedMemoryRange

FLOATS = Tensor("x", "FP32", (1, 2), b"\0\0\x80\x3f\0\0\0\x40")
LARGE = Tensor("x", "UINT8", (1, 100_000), bytes(100_000))
EVERYTHING = RequestFields(
    sequence=77,
    sequence_start=True,
    parameters={"flag": True, "count": -2, "name": "a:b"},
    outputs=(
        RequestedOutput(name="y"),
        RequestedOutput(name="z", shared_memory=SharedMemoryRange(region="out", offset=8, byte_size=16)),
    ),
)


def endpoint(**wire: Any) -> Endpoint:
    return Endpoint(host="h", port=1, model=ModelKey("net", "2"), wire=WireSpec(**wire))


def http_request(
    tensors: list[Tensor], fields: RequestFields = PLAIN, sequence: int = 0, **wire: Any
) -> DecodedRequest:
    """What the server reads of a request of the HTTP client, or of its template."""
    client = connect(endpoint(**wire)).client
    if sequence:
        made = asyncio.run(client.template(tensors, fields)).fill(sequence)
    else:
        made = asyncio.run(client.prepare(tensors, fields))
    data = made if isinstance(made, bytes) else b"".join(made)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert int(lines["Content-Length"]) == len(body)
    size = lines.get("Inference-Header-Content-Length")
    return v2_json.decode_infer_request("net", body, int(size) if size else None, 1 << 30)


def grpc_request(
    tensors: list[Tensor],
    fields: RequestFields = PLAIN,
    sequence: int = 0,
    *,
    stream: bool = False,
    **wire: Any,
) -> DecodedRequest:
    """The same of gRPC's unary or streaming client."""
    client: Client = GrpcStreamClient(endpoint(**wire)) if stream else GrpcClient(endpoint(**wire))
    if sequence:
        made = asyncio.run(client.template(tensors, fields)).fill(sequence)
    else:
        made = asyncio.run(client.prepare(tensors, fields))
    data = made.framed(b"0000002a") if stream else made.framed
    assert int.from_bytes(data[1:5], "big") == len(data) - 5
    message = data[5:] if not data[0] else inflate(data[5:], wire["grpc_compression_algorithm"], 1 << 30)
    return v2_protobuf.decode_infer_request(message)


@pytest.mark.parametrize("transport", [http_request, grpc_request])
def test_all_fields_arrive(transport: Any) -> None:
    request = transport([FLOATS], EVERYTHING)
    assert request.parameters == {
        "sequence_id": 77,
        "sequence_start": True,
        "sequence_end": False,
        "flag": True,
        "count": -2,
        "name": "a:b",
    }
    y, z = request.outputs
    assert (y.name, y.shared_memory) == ("y", None)
    assert z.shared_memory == SharedMemoryRange(region="out", offset=8, byte_size=16)
    (tensor,) = request.inputs
    assert (tensor.name, tensor.shape, bytes(tensor.data)) == ("x", (1, 2), FLOATS.data)


@pytest.mark.parametrize("transport", [http_request, grpc_request])
def test_an_input_in_shared_memory_is_named_and_not_sent(transport: Any) -> None:
    place = SharedMemoryRange(region="in", offset=4, byte_size=8)
    request = transport([FLOATS], RequestFields(shared_inputs={"x": place}))
    ((tensor, found),) = request.shared_inputs
    assert (tensor.name, bytes(tensor.data), found) == ("x", b"", place)


@pytest.mark.parametrize("transport", [http_request, grpc_request])
@pytest.mark.parametrize("tensor", [FLOATS, LARGE])
@pytest.mark.parametrize("sequence", [1, 127, 128, 2**32 - 1, 2**63 - 1])
def test_a_template_is_filled_with_any_sequence(transport: Any, tensor: Tensor, sequence: int) -> None:
    fields = RequestFields(sequence_end=True, parameters={"a": 1})
    request = transport([tensor], fields, sequence)
    assert request.parameters == {
        "a": 1, "sequence_id": sequence, "sequence_start": False, "sequence_end": True,
    }  # fmt: skip
    assert bytes(request.inputs[0].data) == bytes(tensor.data)


def test_a_template_serves_one_sequence_after_another() -> None:
    template = asyncio.run(GrpcClient(endpoint()).template([FLOATS], PLAIN))
    for sequence in (5, 300, 6, 301):
        request = v2_protobuf.decode_infer_request(template.fill(sequence).framed[5:])
        assert request.parameters["sequence_id"] == sequence


@pytest.mark.parametrize("sequence", [0, 9])
def test_a_request_on_a_stream_has_its_id_and_asks_for_the_end(sequence: int) -> None:
    request = grpc_request([FLOATS], PLAIN, sequence, stream=True)
    assert (request.request_id, request.empty_final_response) == ("0000002a", True)
    assert request.parameters.get("sequence_id", 0) == sequence
    assert bytes(request.inputs[0].data) == FLOATS.data


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sequence", [0, 9])
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_messages_are_compressed(stream: bool, sequence: int, algorithm: str) -> None:
    request = grpc_request([LARGE], PLAIN, sequence, stream=stream, grpc_compression_algorithm=algorithm)
    assert bytes(request.inputs[0].data) == LARGE.data


def test_tensors_go_into_the_json_where_that_is_asked_for() -> None:
    words = Tensor("w", "BYTES", (1, 2), encode_bytes(["grün".encode(), b""]))
    request = http_request([FLOATS, words], input_tensor_format="json", output_tensor_format="json")
    assert [bytes(t.data) for t in request.inputs] == [FLOATS.data, words.data]
    assert not request.default_binary
    assert http_request([FLOATS], input_tensor_format="json").default_binary


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (Tensor("h", "FP16", (1,), bytes(2)), "input 'h' is FP16"),
        (Tensor("b", "BF16", (1,), bytes(2)), "input 'b' is BF16"),
        (Tensor("w", "BYTES", (1,), encode_bytes([b"\xff"])), "contains bytes that are not text"),
    ],
)
def test_what_json_cannot_carry_is_named(tensor: Tensor, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        http_request([tensor], input_tensor_format="json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1:int", RequestParameter("a", 1)),
        ("a:-5:int", RequestParameter("a", -5)),
        ("a:true:bool", RequestParameter("a", True)),
        ("a:x:y:string", RequestParameter("a", "x:y")),
        ("a::string", RequestParameter("a", "")),
    ],
)
def test_a_request_parameter_has_a_type(text: str, expected: RequestParameter) -> None:
    config = from_argv(SessionSpec, ["-m", "net", "--request-parameter", text])
    assert config.wire.request_parameter == (expected,)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--request-parameter", "a:1"), "The value does not match <name:value:type>."),
        (("--request-parameter", "a:x:float"), "Unsupported type provided: 'float'."),
        (("--async", "--sync"), "Cannot specify --async and --sync simultaneously."),
        (("--streaming",), "Streaming is only allowed with gRPC protocol and Triton C API."),
        (("-i", "grpc", "--streaming", "--sync"), "can not use streaming with synchronous API"),
        (
            ("--grpc-compression-algorithm", "gzip"),
            "Using compression algorithm is only allowed with gRPC protocol.",
        ),
        (("--grpc-compression-algorithm", "zip"), "Unsupported type provided: 'zip'."),
        (("-i", "grpc", "--output-tensor-format", "json"), "are only allowed with HTTP protocol"),
        (("--service-kind", "bento"), "Unsupported type provided: 'bento'."),
        (("--service-kind", "openai"), "Must supply --endpoint for OpenAI service kind."),
        (("--service-kind", "tfserving"), "--service-kind tfserving is reached with -i grpc"),
        (("--service-kind", "triton_c_api"), "--model-repository should not be empty"),
        (("--endpoint", "v1"), "--endpoint applies to --service-kind openai only"),
    ],
)
def test_a_bad_value_gets_its_message(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(*words)
    assert text in caught.value.message
