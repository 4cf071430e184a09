"""Inputs and outputs in shared memory, over both protocols."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.serving.frontends.shared_memory.requests import (
    SIZE,
    SYSTEM,
    ask,
    grpc_request,
    in_region,
    refused,
    register,
    request,
    written,
)
from tests.serving.live import Channel, Live, floats, serving
from tests.serving.onnx_files import doubling, write_model
from tests.serving.shared_memory.segments import segment
from tests.serving.transports import TRANSPORTS, Given, Transport, connected
from tpx.protocol.tensors import Tensor, decode_bytes, encode_bytes
from tpx.protocol.v2 import DecodedRequest, SharedMemoryRange
from tpx.serving.request import InferRequest, InferResponse


def test_an_input_is_read_from_its_region(transport: Transport, region: Path) -> None:
    assert ask(transport, in_region(8)).values == {"y": [[4, 6]]}


def test_an_input_is_read_again_for_every_request(transport: Transport, region: Path) -> None:
    for number in range(5):
        region.write_bytes(floats([number, 1]).tobytes().ljust(8192, b"\0"))
        assert ask(transport, in_region()).values == {"y": [[2 * number, 2]]}


def test_requests_that_share_a_head_are_bound_before_either_is_submitted(live: Live, region: Path) -> None:
    """What belongs to one of them, its region and its buffers, is not in the head."""
    done: Future[list[Any]] = Future()
    answers: list[Any] = []
    held: list[list[int]] = []

    def keep(_: InferRequest, response: InferResponse) -> None:
        answers.append(response.outputs[0].numpy().tolist())
        if len(answers) == 2:
            done.set_result(answers)

    def bind_both() -> None:
        plane = live.server.plane
        tensor = Tensor("x", "FP32", (1, 2), b"")
        decoded = DecodedRequest(model_name="double", inputs=[tensor])
        decoded.shared_inputs = [(tensor, SharedMemoryRange(region="r", offset=8, byte_size=8))]
        first = plane.bind(decoded)
        second = first.head.repeat([], keep, None)
        assert second is not None
        bound = [first.request(keep, None), second]
        held.append([len(each.regions) for each in bound])
        for each in bound:
            plane.infer(each)

    live.loop.call_soon_threadsafe(bind_both)
    assert done.result(20) == [[[4, 6]]] * 2
    assert held == [[1, 1]]


def test_an_output_goes_to_its_region_and_not_into_the_answer(transport: Transport, region: Path) -> None:
    [output] = ask(transport, in_region(8), in_region(32)).outputs
    assert (output.name, output.datatype, output.shape, bytes(output.data)) == ("y", "FP32", (1, 2), b"")
    assert written(region, 32) == [4, 6]


def test_an_answer_whose_outputs_are_all_in_shared_memory_is_json(live: Live, region: Path) -> None:
    answer = live.infer("double", request(in_region(8), in_region(32)))
    assert answer.json["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 2]}]
    assert "inference-header-content-length" not in answer.headers


def test_some_outputs_go_there_and_others_into_the_answer(live: Live, region: Path) -> None:
    tensors = [
        {"name": name, "datatype": "FP32", "shape": [1, 2], "parameters": in_region(offset)}
        for name, offset in (("a", 8), ("b", 0))
    ]
    for how in ({"binary_data": True}, {"binary_data": False}):
        outputs = [{"name": "sum", "parameters": in_region(40)}, {"name": "difference", "parameters": how}]
        answer = live.infer("two", {"inputs": tensors, "outputs": outputs})
        assert written(region, 40) == [2, 4]
        if how["binary_data"]:
            assert answer.tail == floats([2, 2]).tobytes()
            assert "parameters" not in answer.head["outputs"][0]
        else:
            assert answer.json["outputs"][1]["data"] == [2, 2]


def test_one_tensor_may_be_in_shared_memory_and_another_in_the_request(
    transport: Transport, region: Path
) -> None:
    shared = Given(name="a", parameters=in_region(8))
    answer = transport.infer("two", shared, Given(name="b", values=[5, 6]))
    assert answer.values == {"sum": [[7, 9]], "difference": [[-3, -3]]}


def test_strings_are_read_and_written_with_their_lengths(transport: Transport, region: Path) -> None:
    words = [b"", "ü".encode(), b"x" * 10]
    raw = encode_bytes(words)
    region.write_bytes(raw.ljust(8192, b"\0"))
    given = Given(datatype="BYTES", shape=(1, 3), parameters=in_region(0, len(raw)))
    where = in_region(len(raw), SIZE - len(raw))
    [output] = transport.infer("words", given, outputs=[{"name": "y", "parameters": where}]).outputs
    assert (output.datatype, output.shape, bytes(output.data)) == ("BYTES", (1, 3), b"")
    assert decode_bytes(region.read_bytes()[len(raw) : 2 * len(raw)], 3) == words


def test_a_tensor_without_elements_takes_no_bytes(transport: Transport, region: Path) -> None:
    given = Given(shape=(1, 0), parameters=in_region(0, 0))
    [output] = transport.infer(
        "double", given, outputs=[{"name": "y", "parameters": in_region(0, 0)}]
    ).outputs
    assert (output.name, output.shape) == ("y", (1, 0))


OFFSET = "Invalid offset for shared memory region: 'r'"
END = "Invalid offset + byte size for shared memory region: 'r'"
MISTYPED = "Unable to parse '{}': attempt to access JSON non-{} as {}"
INVALID = "INVALID_ARGUMENT"
RANGES: list[tuple[dict[str, Any], str, str]] = [
    (in_region(64), INVALID, OFFSET),
    (in_region(2**63 - 4), INVALID, OFFSET),
    (in_region(60), INVALID, END),
    (in_region(8, 2**63 - 8), INVALID, END),
    (in_region(region="x"), "NOT_FOUND", "Unable to find shared memory region: 'x'"),
    (in_region(region=""), "NOT_FOUND", "Unable to find shared memory region: ''"),
    (
        {"shared_memory_region": "r"},
        INVALID,
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
        "'{}'",
    ),
]
JSON_RANGES = [
    *((in_region(offset), INVALID, OFFSET) for offset in (2**63, 2**64 - 4)),
    *((in_region(byte_size=size), INVALID, END) for size in (2**63, 2**64 - 4)),
    *(
        ({**in_region(), key: value}, INVALID, MISTYPED.format(key, "unsigned-integer", "unsigned-integer"))
        for key in ("shared_memory_offset", "shared_memory_byte_size")
        for value in (-1, 2**64, 2**80, "8", None, 8.0, True)
    ),
    *(
        (
            {**in_region(), "shared_memory_region": value},
            INVALID,
            MISTYPED.format("shared_memory_region", "string", "string"),
        )
        for value in (None, 3, ["r"])
    ),
]
NOT_INT64 = "invalid value type for '{}' parameter for tensor '{}', expected int64_param."
GRPC_RANGES = [
    (in_region(-1), INVALID, OFFSET),
    (in_region(byte_size=-1), INVALID, END),
    *(
        ({**in_region(), key: value}, INVALID, NOT_INT64.replace("{}", key, 1))
        for key in ("shared_memory_offset", "shared_memory_byte_size")
        for value in ("8", True, 8.0, 2**64 - 4)
    ),
    (
        {**in_region(), "shared_memory_region": 3},
        INVALID,
        "invalid value type for 'shared_memory_region' parameter for tensor '{}', expected string_param.",
    ),
]


OVER = [(over, *case) for over in TRANSPORTS for case in RANGES]
OVER += [("HTTP", *case) for case in JSON_RANGES] + [("gRPC", *case) for case in GRPC_RANGES]


@pytest.mark.parametrize(("over", "where", "code", "message"), OVER)
def test_a_range_that_is_not_there_is_refused_for_inputs_and_outputs(
    live: Live, region: Path, over: str, where: dict[str, Any], code: str, message: str
) -> None:
    with connected(live, over) as client:
        assert refused(client, where) == (code, message.format("x"))
        assert refused(client, None, where) == (code, message.format("y"))


@pytest.mark.parametrize("key", ["shared_memory_offset", "shared_memory_byte_size"])
def test_a_range_without_a_region_is_refused(transport: Transport, key: str) -> None:
    message = f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor 'y'"
    assert refused(transport, None, {key: 8}) == (INVALID, message)


def test_a_tensor_has_one_source(live: Live, channel: Channel, region: Path) -> None:
    both = request(in_region())
    both["inputs"][0]["data"] = [1, 2]
    assert live.infer("double", both).error.endswith("But set 'data' 'shared_memory_region'")
    message = grpc_request(in_region())
    message.inputs[0].contents.fp32_contents.extend([1, 2])
    assert channel.error("ModelInfer", message.SerializeToString())[1] == (
        "unexpected 'content' provided when using shared memory for input tensor 'x' for model 'double'"
    )
    message = grpc_request(in_region())
    message.raw_input_contents.append(bytes(8))
    assert "unexpected additional input data" in channel.error("ModelInfer", message.SerializeToString())[1]


@pytest.mark.parametrize("other", ["binary_data", "classification"])
def test_an_output_in_shared_memory_is_nothing_else(live: Live, region: Path, other: str) -> None:
    how = in_region() | {other: True if other == "binary_data" else 1}
    assert live.infer("double", request(None, how)).error == (
        f"Output can't set both 'shared_memory_region' and '{other}'"
    )
    assert live.infer("double", request(None, in_region(binary_data=False))).status == 200


def test_an_output_that_does_not_fit_is_the_clients_fault(transport: Transport, region: Path) -> None:
    message = (
        "shared memory size specified with the request for output 'y' (4 bytes) should be at least 8 bytes "
        "to hold the results"
    )
    assert refused(transport, None, in_region(32, 4)) == (INVALID, message)
    assert written(region, 32) == [8, 9]


def test_inputs_are_read_up_to_a_limit(tmp_path: Path) -> None:
    write_model(tmp_path, "double", config="max_batch_size: 8")
    with serving(tmp_path, client_shm_max_input_size=8) as live, segment(4096) as file:
        assert register(live, "r", key=file.name).status == 200
        assert live.infer("double", request(in_region())).status == 200
        answer = live.infer("double", request(in_region(0, 16), shape=(2, 2)))
        assert (answer.status, "Use --client-shm-max-input-size" in answer.error) == (400, True)


def test_a_region_that_is_registered_anew_is_the_one_that_is_read(
    live: Live, transport: Transport, region: Path
) -> None:
    def doubled(file: Path) -> list[float]:
        ask(transport, in_region(), in_region(32))
        return written(file, 32)

    assert [doubled(region), doubled(region)] == [[0, 2]] * 2
    assert live.http("POST", f"{SYSTEM}/region/r/unregister").status == 200
    absent = "Unable to find shared memory region: 'r'"
    assert refused(transport, in_region(), in_region(32)) == ("NOT_FOUND", absent)
    with segment(8192, floats([5, 6]).tobytes()) as file:
        assert register(live, "r", key=file.name).status == 200
        assert doubled(file) == [10, 12]
        file.write_bytes(floats([7, 8]).tobytes().ljust(8192, b"\0"))
        assert doubled(file) == [14, 16]


@pytest.mark.parametrize("columns", [20_000, 40_000])  # read by the event loop, and by the instance
def test_a_large_input_is_read_anew_for_every_request_and_missed_when_its_file_has_shrunk(
    tmp_path: Path, columns: int
) -> None:
    rows = 8
    write_model(tmp_path, "wide", doubling("batch", columns), config="max_batch_size: 8")
    size = 4 * rows * columns
    item = {"name": "x", "datatype": "FP32", "shape": [rows, columns], "parameters": in_region(0, size)}
    body = {"inputs": [item], "outputs": [{"name": "y", "parameters": in_region(size, size)}]}
    with serving(tmp_path) as live, segment(2 * size) as file:
        assert register(live, "r", key=file.name, byte_size=2 * size).status == 200
        for number in range(12):
            data = floats([number] * (size // 4)).tobytes()
            file.write_bytes(data.ljust(2 * size, b"\0"))
            assert live.infer("wide", body).status == 200
            assert set(written(file, size, size // 4)) == {2 * number}
        file.write_bytes(b"\0" * 100)
        answer = live.infer("wide", body)
        assert (answer.status, "is shorter than when it was registered" in answer.error) == (400, True)
