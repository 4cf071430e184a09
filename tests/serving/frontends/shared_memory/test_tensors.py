"""Inputs and outputs in shared memory, over both protocols."""

from pathlib import Path
from typing import Any

import pytest

from tests.serving.frontends.shared_memory.requests import (
    SIZE,
    SYSTEM,
    grpc_request,
    in_region,
    register,
    request,
    set_parameters,
    written,
)
from tests.serving.live import Channel, Live, floats, outputs_of, serving
from tests.serving.onnx_files import doubling, write_model
from tests.serving.shared_memory.segments import segment
from tpx.protocol import messages
from tpx.protocol.tensors import decode_bytes, encode_bytes


def test_an_input_is_read_from_its_region(live: Live, channel: Channel, region: Path) -> None:
    assert live.infer("double", request(in_region(8))).json["outputs"][0]["data"] == [4, 6]
    data = channel.send("ModelInfer", grpc_request(in_region(8)).SerializeToString())
    assert outputs_of(messages.ModelInferResponse.FromString(data)) == {"y": [[4, 6]]}


def test_an_input_is_read_again_for_every_request(live: Live, channel: Channel, region: Path) -> None:
    for number in range(5):
        region.write_bytes(floats([number, 1]).tobytes().ljust(8192, b"\0"))
        assert live.infer("double", request(in_region())).json["outputs"][0]["data"] == [2 * number, 2]
        data = channel.send("ModelInfer", grpc_request(in_region()).SerializeToString())
        assert outputs_of(messages.ModelInferResponse.FromString(data)) == {"y": [[2 * number, 2]]}


def test_an_output_goes_to_its_region_and_not_into_the_answer(
    live: Live, channel: Channel, region: Path
) -> None:
    answer = live.infer("double", request(in_region(8), in_region(32)))
    assert answer.json["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 2]}]
    assert "inference-header-content-length" not in answer.headers
    assert written(region, 32) == [4, 6]
    data = channel.send("ModelInfer", grpc_request(in_region(32), in_region(40)).SerializeToString())
    response = messages.ModelInferResponse.FromString(data)
    assert written(region, 40) == [8, 12]
    assert list(response.outputs[0].shape) == [1, 2]
    assert list(response.raw_output_contents) == [b""]


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


def test_a_tensor_in_shared_memory_and_one_behind_the_json(
    live: Live, channel: Channel, region: Path
) -> None:
    raw = floats([5, 6]).tobytes()
    shared = {"name": "a", "datatype": "FP32", "shape": [1, 2], "parameters": in_region(8)}
    binary = {"name": "b", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    answer = live.infer("two", {"inputs": [shared, binary]}, raw)
    assert [output["data"] for output in answer.json["outputs"]] == [[7, 9], [-3, -3]]
    message = messages.ModelInferRequest(model_name="two", raw_input_contents=[raw])
    set_parameters(message.inputs.add(name="a", datatype="FP32", shape=(1, 2)), in_region(8))
    message.inputs.add(name="b", datatype="FP32", shape=(1, 2))
    data = channel.send("ModelInfer", message.SerializeToString())
    assert outputs_of(messages.ModelInferResponse.FromString(data))["sum"] == [[7, 9]]


def test_strings_are_read_and_written_with_their_lengths(live: Live, region: Path) -> None:
    words = [b"", "ü".encode(), b"x" * 10]
    raw = encode_bytes(words)
    region.write_bytes(raw.ljust(8192, b"\0"))
    item = {"name": "x", "datatype": "BYTES", "shape": [1, 3], "parameters": in_region(0, len(raw))}
    where = in_region(len(raw), SIZE - len(raw))
    answer = live.infer("words", {"inputs": [item], "outputs": [{"name": "y", "parameters": where}]})
    assert answer.json["outputs"] == [{"name": "y", "datatype": "BYTES", "shape": [1, 3]}]
    assert decode_bytes(region.read_bytes()[len(raw) : 2 * len(raw)], 3) == words


def test_a_tensor_without_elements_takes_no_bytes(live: Live, region: Path) -> None:
    answer = live.infer("double", request(in_region(0, 0), in_region(0, 0), shape=(1, 0)))
    assert answer.json["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 0]}]


OFFSET = "Invalid offset for shared memory region: 'r'"
END = "Invalid offset + byte size for shared memory region: 'r'"
MISTYPED = "Unable to parse '{}': attempt to access JSON non-{} as {}"
RANGES: list[tuple[dict[str, Any], int, str]] = [
    (in_region(64), 400, OFFSET),
    (in_region(2**63 - 4), 400, OFFSET),
    (in_region(60), 400, END),
    (in_region(8, 2**63 - 8), 400, END),
    (in_region(region="x"), 404, "Unable to find shared memory region: 'x'"),
    (in_region(region=""), 404, "Unable to find shared memory region: ''"),
    (
        {"shared_memory_region": "r"},
        400,
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
        "'{}'",
    ),
]
JSON_RANGES = [
    *RANGES,
    *((in_region(offset), 400, OFFSET) for offset in (2**63, 2**64 - 4)),
    *((in_region(byte_size=size), 400, END) for size in (2**63, 2**64 - 4)),
    *(
        ({**in_region(), key: value}, 400, MISTYPED.format(key, "unsigned-integer", "unsigned-integer"))
        for key in ("shared_memory_offset", "shared_memory_byte_size")
        for value in (-1, 2**64, 2**80, "8", None, 8.0, True)
    ),
    *(
        (
            {**in_region(), "shared_memory_region": value},
            400,
            MISTYPED.format("shared_memory_region", "string", "string"),
        )
        for value in (None, 3, ["r"])
    ),
]
NOT_INT64 = "invalid value type for '{}' parameter for tensor '{}', expected int64_param."
GRPC_RANGES = [
    *RANGES,
    (in_region(-1), 400, OFFSET),
    (in_region(byte_size=-1), 400, END),
    *(
        ({**in_region(), key: value}, 400, NOT_INT64.replace("{}", key, 1))
        for key in ("shared_memory_offset", "shared_memory_byte_size")
        for value in ("8", True, 8.0, 2**64 - 4)
    ),
    (
        {**in_region(), "shared_memory_region": 3},
        400,
        "invalid value type for 'shared_memory_region' parameter for tensor '{}', expected string_param.",
    ),
]


@pytest.mark.parametrize(("where", "status", "message"), JSON_RANGES)
def test_a_range_that_is_not_there_is_refused_for_inputs_and_outputs(
    live: Live, region: Path, where: dict[str, Any], status: int, message: str
) -> None:
    answer = live.infer("double", request(where))
    assert (answer.status, answer.error) == (status, message.format("x"))
    answer = live.infer("double", request(None, where))
    assert (answer.status, answer.error) == (status, message.format("y"))


@pytest.mark.parametrize(("where", "status", "message"), GRPC_RANGES)
def test_a_range_that_is_not_there_is_refused_over_grpc(
    channel: Channel, region: Path, where: dict[str, Any], status: int, message: str
) -> None:
    code = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND"}[status]
    inputs = grpc_request(where).SerializeToString()
    assert channel.error("ModelInfer", inputs) == (code, message.format("x"))
    outputs = grpc_request(None, where).SerializeToString()
    assert channel.error("ModelInfer", outputs) == (code, message.format("y"))


@pytest.mark.parametrize("size", [4, 12])
def test_a_range_of_another_size_than_the_tensor_is_refused(live: Live, region: Path, size: int) -> None:
    assert live.infer("double", request(in_region(0, size))).error == (
        "[request id: <id_unknown>] input byte size mismatch for input 'x' for model 'double'. Expected 8, "
        f"got {size}"
    )


@pytest.mark.parametrize("key", ["shared_memory_offset", "shared_memory_byte_size"])
def test_a_range_without_a_region_is_refused(live: Live, channel: Channel, key: str) -> None:
    message = f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor 'y'"
    assert live.infer("double", request(None, {key: 8})).error == message
    data = grpc_request(None, {key: 8}).SerializeToString()
    assert channel.error("ModelInfer", data) == ("INVALID_ARGUMENT", message)


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


def test_an_output_that_does_not_fit_is_the_clients_fault(live: Live, channel: Channel, region: Path) -> None:
    message = (
        "shared memory size specified with the request for output 'y' (4 bytes) should be at least 8 bytes "
        "to hold the results"
    )
    answer = live.infer("double", request(None, in_region(32, 4)))
    assert (answer.status, answer.error) == (400, message)
    data = grpc_request(None, in_region(32, 4)).SerializeToString()
    assert channel.error("ModelInfer", data) == ("INVALID_ARGUMENT", message)
    assert written(region, 32) == [8, 9]


def test_inputs_are_read_up_to_a_limit(tmp_path: Path) -> None:
    write_model(tmp_path, "double", config="max_batch_size: 8")
    with serving(tmp_path, client_shm_max_input_size=8) as live, segment(4096) as file:
        assert register(live, "r", key=file.name).status == 200
        assert live.infer("double", request(in_region())).status == 200
        answer = live.infer("double", request(in_region(0, 16), shape=(2, 2)))
        assert (answer.status, "Use --client-shm-max-input-size" in answer.error) == (400, True)


def test_a_region_that_is_registered_anew_is_the_one_that_is_read(
    live: Live, channel: Channel, region: Path
) -> None:
    def ask(file: Path) -> tuple[int, Any]:
        answer = live.infer("double", request(in_region(), in_region(32)))
        return answer.status, written(file, 32) if answer.status == 200 else answer.error

    message = grpc_request(in_region(), in_region(32)).SerializeToString()
    assert [ask(region), ask(region)] == 2 * [(200, [0, 2])]
    channel.send("ModelInfer", message)
    assert live.http("POST", f"{SYSTEM}/region/r/unregister").status == 200
    absent = "Unable to find shared memory region: 'r'"
    assert ask(region) == (404, absent)
    assert channel.error("ModelInfer", message) == ("NOT_FOUND", absent)
    with segment(8192, floats([5, 6]).tobytes()) as file:
        assert register(live, "r", key=file.name).status == 200
        assert ask(file) == (200, [10, 12])
        file.write_bytes(floats([7, 8]).tobytes().ljust(8192, b"\0"))
        channel.send("ModelInfer", message)
        assert written(file, 32) == [14, 16]


def test_a_large_input_is_read_anew_for_every_request_and_missed_when_its_file_has_shrunk(
    tmp_path: Path,
) -> None:
    rows, columns = 8, 20_000
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
