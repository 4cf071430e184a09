"""Shared memory over both protocols: registering, and tensors in it, in Triton's words."""

import base64
import gc
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.live import Answer, Channel, Live, floats, outputs_of, serving
from tests.serving.onnx_files import busy, write_model
from tests.serving.shared_memory.segments import descriptors, open_descriptors, segment
from tests.serving.test_disconnects import eventually
from tpx.protocol import messages
from tpx.protocol.tensors import decode_bytes, encode_bytes

SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
SIZE = 64
HANDLE = base64.b64encode(bytes(64)).decode()


@pytest.fixture
def file(live: Live) -> Iterator[Path]:
    """Two pages that begin with the numbers 0 to 15; whatever was registered is unregistered afterwards."""
    with segment(8192, np.arange(16, dtype=np.float32).tobytes()) as path:
        yield path
    assert live.http("POST", SYSTEM + "/unregister").status == 200


@pytest.fixture
def region(live: Live, file: Path) -> Path:
    """The first 64 bytes of the file are registered as "r"."""
    assert register(live, "r", key=f"/{file.name}").status == 200
    return file


def register(live: Live, region: str, **body: Any) -> Answer:
    body = {"offset": 0, "byte_size": SIZE, **body}
    return live.http("POST", f"{SYSTEM}/region/{region}/register", json.dumps(body).encode())


def in_region(offset: int = 0, byte_size: int = 8, region: str = "r", **more: Any) -> dict[str, Any]:
    return {
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": byte_size,
        **more,
    }


def request(inputs: Any = None, outputs: Any = None, shape: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    """A request to `double`: its input in shared memory or, without `inputs`, in the JSON."""
    item: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": list(shape)}
    item |= {"data": [1, 2]} if inputs is None else {"parameters": inputs}
    return {"inputs": [item]} | (
        {} if outputs is None else {"outputs": [{"name": "y", "parameters": outputs}]}
    )


def grpc_request(inputs: Any = None, outputs: Any = None, model: str = "double") -> Any:
    message = messages.ModelInferRequest(model_name=model)
    item = message.inputs.add(name="x", datatype="FP32", shape=(1, 2))
    if inputs is None:
        message.raw_input_contents.append(floats([1, 2]).tobytes())
    else:
        set_parameters(item, inputs)
    if outputs is not None:
        set_parameters(message.outputs.add(name="y"), outputs)
    return message


def set_parameters(item: Any, parameters: dict[str, Any]) -> None:
    for key, value in parameters.items():
        field = {str: "string_param", bool: "bool_param", float: "double_param"}.get(
            type(value), "int64_param"
        )
        if field == "int64_param" and value >= 2**63:
            field = "uint64_param"
        setattr(item.parameters[key], field, value)


def written(file: Path, offset: int, count: int = 2) -> list[float]:
    values: list[float] = np.frombuffer(file.read_bytes(), np.float32, count, offset).tolist()
    return values


# registering over HTTP


def test_what_is_registered_is_in_the_status_until_it_is_unregistered(live: Live, file: Path) -> None:
    key = f"/{file.name}"
    assert live.get(SYSTEM + "/status").json == []
    assert register(live, "b", key=key, offset=4096, byte_size=8).body == b""
    assert register(live, "a", key=key).status == 200
    a = {"name": "a", "key": key, "offset": 0, "byte_size": SIZE}
    b = {"name": "b", "key": key, "offset": 4096, "byte_size": 8}
    assert live.get(SYSTEM + "/status").json == [a, b]
    assert live.get(SYSTEM + "/region/b/status").json == [b]
    assert list(live.get(SYSTEM + "/region/b/status").json[0]) == ["name", "key", "offset", "byte_size"]
    assert live.http("POST", SYSTEM + "/region/a/unregister").body == b""
    assert live.get(SYSTEM + "/status").json == [b]
    assert live.http("POST", SYSTEM + "/unregister").status == 200
    assert live.get(SYSTEM + "/status").json == []


def test_the_offset_is_zero_unless_it_is_given(live: Live, file: Path) -> None:
    body = json.dumps({"key": file.name, "byte_size": SIZE}).encode()
    assert live.http("POST", SYSTEM + "/region/r/register", body).status == 200
    assert live.get(SYSTEM + "/region/r/status").json[0]["offset"] == 0


@pytest.mark.parametrize("escaped", ["a%20b", "%C3%BC", "a.b-c~d", "%25", "..", "r;x"])
def test_a_region_may_have_an_odd_name(live: Live, channel: Channel, file: Path, escaped: str) -> None:
    assert register(live, escaped, key=f"/{file.name}").status == 200
    [status] = live.get(f"{SYSTEM}/region/{escaped}/status").json
    assert list(channel.call("SystemSharedMemoryStatus", name=status["name"]).regions) == [status["name"]]
    answer = live.infer("double", request(in_region(region=status["name"])))
    assert answer.json["outputs"][0]["data"] == [0, 2]


NO_STRING = "Unable to parse '{}': attempt to access JSON non-string as string"
NO_NUMBER = "Unable to parse '{}': attempt to access JSON non-unsigned-integer as unsigned-integer"
MALFORMED = [
    ({"key": ...}, "Shared memory register request has no 'key' field"),
    ({"byte_size": ...}, "Shared memory register request has no 'byte_size' field"),
    *(({"key": value}, NO_STRING.format("key")) for value in (None, 3, ["/k"])),
    *(
        ({field: value}, NO_NUMBER.format(field))
        for field in ("offset", "byte_size")
        for value in (None, "64", 64.0, -1, True, 2**64)
    ),
]


@pytest.mark.parametrize(("change", "message"), MALFORMED)
def test_a_malformed_registration_is_refused(
    live: Live, file: Path, change: dict[str, Any], message: str
) -> None:
    body = {"key": f"/{file.name}", "offset": 0, "byte_size": SIZE, **change}
    body = {field: value for field, value in body.items() if value is not ...}
    answer = live.http("POST", SYSTEM + "/region/r/register", json.dumps(body).encode())
    assert (answer.status, answer.error) == (400, message)
    assert live.get(SYSTEM + "/status").json == []


INVALID = "failed to register shared memory region 'r': invalid args"


@pytest.mark.parametrize(
    ("offset", "byte_size"),
    [(0, 8193), (4096, 4097), (8192, 1), (1 << 20, 64), (0, 0), (0, 2**63), (2**64 - 4096, 8192)],
)
def test_a_registration_outside_of_the_file_is_refused(
    live: Live, channel: Channel, file: Path, offset: int, byte_size: int
) -> None:
    key = f"/{file.name}"
    answer = register(live, "r", key=key, offset=offset, byte_size=byte_size)
    assert (answer.status, answer.error) == (400, INVALID)
    message = messages.SystemSharedMemoryRegisterRequest(
        name="r", key=key, offset=offset, byte_size=byte_size
    )
    assert channel.error("SystemSharedMemoryRegister", message.SerializeToString()) == (
        "INVALID_ARGUMENT",
        INVALID,
    )


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"{", b"null", b"\xff", b'{"key": "\\ud800"}'])
def test_a_body_that_is_no_registration_is_refused(live: Live, body: bytes) -> None:
    for kind in (SYSTEM, CUDA):
        assert live.http("POST", kind + "/region/r/register", body).status == 400


def test_a_name_is_asked_for_before_the_body_is_looked_at(live: Live, region: Path) -> None:
    for kind, word in ((SYSTEM, "system"), (CUDA, "cuda")):
        answer = live.http("POST", kind + "/register", b"{")
        message = f"'region name' is necessary to register {word} shared memory region"
        assert (answer.status, answer.error) == (400, message)
        answer = live.http("POST", kind + "/region/r/register", b"{")
        assert (answer.status, answer.error) == (400, "shared memory region 'r' already in manager")


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_a_region_that_is_not_there_is_not_found(
    live: Live, channel: Channel, region: Path, kind: str
) -> None:
    message = f"Unable to find {kind} shared memory region: 'x'"
    answer = live.get(f"/v2/{kind}sharedmemory/region/x/status")
    assert (answer.status, answer.error) == (404, message)
    name = f"{kind.capitalize()}SharedMemoryStatus"
    data = getattr(messages, f"{name}Request")(name="x").SerializeToString()
    assert channel.error(name, data) == ("NOT_FOUND", message)
    assert live.http("POST", f"/v2/{kind}sharedmemory/region/x/unregister").status == 200


def test_a_region_of_the_other_kind_is_not_found_and_not_unregistered(live: Live, region: Path) -> None:
    answer = live.get(CUDA + "/region/r/status")
    message = "The region named 'r' is registered as system shared memory, not CUDA shared memory"
    assert (answer.status, answer.error) == (404, message)
    for path in ("/region/r/unregister", "/unregister"):
        assert live.http("POST", CUDA + path).status == 200
    assert [item["name"] for item in live.get(SYSTEM + "/status").json] == ["r"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/status"),
        ("GET", "/region/r/register"),
        ("GET", "/unregister"),
        ("PUT", "/region/r/register"),
    ],
)
def test_a_wrong_method_is_told(live: Live, method: str, path: str) -> None:
    for kind in (SYSTEM, CUDA):
        assert live.http(method, kind + path).status == 405


@pytest.mark.parametrize(
    "path", ["/region/a%2Fb/status", "/region//status", "/region/a/b/status", "/region/r"]
)
def test_a_path_that_names_no_region_is_not_found(live: Live, path: str) -> None:
    assert live.get(SYSTEM + path).error == "Not Found"


# CUDA: without a GPU


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Shared memory register request has no 'raw_handle' field"),
        ({"raw_handle": {"b64": HANDLE}}, "Shared memory register request has no 'device_id' field"),
        (
            {"raw_handle": {"b64": HANDLE}, "device_id": 0},
            "Shared memory register request has no 'byte_size' field",
        ),
        *(
            (
                {"raw_handle": handle, "device_id": 0, "byte_size": 64},
                "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
            )
            for handle in (
                None,
                HANDLE,
                {},
                {"b64": None},
                {"b64": 3},
                {"b64": "!"},
                {"b64": "AAAA"},
                {"b64": "ü"},
            )
        ),
        (
            {"raw_handle": {"b64": HANDLE}, "device_id": 0, "byte_size": 64},
            "failed to register CUDA shared memory region: 'g', GPUs not supported",
        ),
    ],
)
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
def test_cuda_memory_is_refused_as_documented(live: Live, body: dict[str, Any], message: str) -> None:
    answer = live.http("POST", CUDA + "/region/g/register", json.dumps(body).encode())
    assert (answer.status, answer.error) == (400, message)
    assert live.get(CUDA + "/status").json == []


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
def test_cuda_memory_is_refused_as_documented_over_grpc(channel: Channel) -> None:
    for handle, message in (
        (bytes(64), "failed to register CUDA shared memory region: 'g', GPUs not supported"),
        (bytes(63), "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
    ):
        register = messages.CudaSharedMemoryRegisterRequest(name="g", raw_handle=handle, byte_size=64)
        assert channel.error("CudaSharedMemoryRegister", register.SerializeToString()) == (
            "INVALID_ARGUMENT",
            message,
        )
    assert len(channel.call("CudaSharedMemoryStatus").regions) == 0
    channel.call("CudaSharedMemoryUnregister")


# inputs and outputs


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
    *((in_region(offset), 400, OFFSET) for offset in (2**64 - 4, 2**64, 2**80)),
    *((in_region(byte_size=size), 400, END) for size in (2**63, 2**64 - 4, 2**64)),
    *(
        ({**in_region(), key: value}, 400, MISTYPED.format(key, "unsigned-integer", "unsigned-integer"))
        for key in ("shared_memory_offset", "shared_memory_byte_size")
        for value in (-1, "8", None, 8.0, True)
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


# clients that misbehave


def test_a_file_that_is_cut_short_after_registration_is_an_error_of_the_request(
    live: Live, channel: Channel, region: Path
) -> None:
    os.truncate(region, 4)
    message = "shared memory region 'r' is shorter than when it was registered"
    for inputs, outputs in ((in_region(), None), (None, in_region())):
        answer = live.infer("double", request(inputs, outputs))
        assert (answer.status, answer.error) == (400, message)
        data = grpc_request(inputs, outputs).SerializeToString()
        assert channel.error("ModelInfer", data) == ("INVALID_ARGUMENT", message)
    assert region.stat().st_size == 4
    os.truncate(region, 8192)
    assert live.infer("double", request(in_region())).json["outputs"][0]["data"] == [0, 0]


def test_a_file_that_was_removed_still_serves(live: Live, region: Path) -> None:
    region.unlink()
    assert live.infer("double", request(in_region(8), in_region(32))).status == 200
    assert live.infer("double", request(in_region(32))).json["outputs"][0]["data"] == [8, 12]


def test_a_region_is_closed_when_it_is_unregistered_though_its_clients_stay(
    live: Live, channel: Channel, file: Path
) -> None:
    data = grpc_request(outputs=in_region(32)).SerializeToString()
    assert channel.outcome("ModelInfer", data) == "NOT_FOUND"
    assert live.get(SYSTEM + "/status").json == []  # both connections are open
    before = descriptors()
    gc.disable()  # nothing is left for it
    try:
        for ask in (
            lambda: channel.send("ModelInfer", data),
            lambda: live.infer("double", request(None, in_region(32))),
            lambda: live.infer("double", request(None, in_region(32, 4))),
        ):
            assert register(live, "r", key=file.name).status == 200
            ask()
            assert live.http("POST", SYSTEM + "/region/r/unregister").status == 200
            eventually(lambda: open_descriptors() == before, timeout_s=2)
    finally:
        gc.enable()


def test_failing_registrations_leave_no_descriptor(live: Live, channel: Channel, file: Path) -> None:
    before = descriptors()
    for number in range(300):
        assert register(live, f"r{number}", key=f"/{file.name}", byte_size=1 << 40).status == 400
        name = f"g{number}"
        message = messages.SystemSharedMemoryRegisterRequest(
            name=name, key=f"/{file.name}", byte_size=1 << 40
        )
        assert (
            channel.outcome("SystemSharedMemoryRegister", message.SerializeToString()) == "INVALID_ARGUMENT"
        )
    assert abs(descriptors() - before) <= 2


def test_a_link_to_a_file_elsewhere_is_not_followed(live: Live, file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(4096))
    file.unlink()
    file.symlink_to(secret)
    answer = register(live, "r", key=f"/{file.name}")
    assert (answer.status, "symbolic link" in answer.error) == (400, True)


# requests in flight, on a model that collects requests for a while


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    delay = "dynamic_batching { max_queue_delay_microseconds: 150000 }"
    write_model(repository, "patient", config=f"max_batch_size: 8 {delay}")
    write_model(repository, "busy", busy(), "max_batch_size: 8")
    (repository / "repeat" / "1").mkdir(parents=True)
    (repository / "repeat" / "config.pbtxt").write_text("backend: 'repeat'", encoding="utf-8")
    with serving(repository) as running:
        yield running


def test_a_region_that_is_unregistered_and_taken_again_in_flight_gets_nothing_of_the_first(
    patient: Live,
) -> None:
    with segment(4096, floats([1, 2]).tobytes()) as first, segment(4096) as second:
        assert register(patient, "r", key=first.name).status == 200
        answers: list[Answer] = []
        asked = threading.Thread(
            target=lambda: answers.append(patient.infer("patient", request(in_region(), in_region(32))))
        )
        before = descriptors()
        asked.start()
        while not any(model.in_flight for model in patient.server.plane.served()):
            pass
        assert patient.http("POST", SYSTEM + "/region/r/unregister").status == 200
        assert patient.get(SYSTEM + "/status").json == []
        assert register(patient, "r", key=second.name).status == 200
        asked.join(10)
        assert answers[0].status == 200
        assert written(first, 32) == [2, 4]
        assert written(second, 32) == [0, 0]
        assert patient.http("POST", SYSTEM + "/unregister").status == 200
        assert abs(descriptors() - before) <= 2


def test_nothing_is_written_for_a_client_that_has_gone(patient: Live) -> None:
    [model] = [model for model in patient.server.plane.served() if model.name == "busy"]
    with segment(4096) as file, patient.channel() as channel:
        assert register(patient, "r", key=file.name).status == 200
        call = channel._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        asked = call.future(grpc_request(None, in_region(32), model="busy").SerializeToString(), timeout=10)
        while not model.in_flight:
            pass
        time.sleep(0.02)  # it computes: to be cancelled in the queue would be another thing
        asked.cancel()
        while model.in_flight:
            time.sleep(0.001)
        assert model.statistics.durations()["success"].count == 1
        assert written(file, 32) == [0, 0]
        assert patient.http("POST", SYSTEM + "/unregister").status == 200


def test_every_response_of_a_stream_goes_to_the_region_and_the_empty_final_one_comes(patient: Live) -> None:
    with segment(4096) as file, patient.channel() as channel:
        assert register(patient, "r", key=file.name).status == 200
        message = messages.ModelInferRequest(model_name="repeat")
        for name, datatype, values in (
            ("IN", "INT32", np.array([5, 6, 7], np.int32)),
            ("DELAY", "UINT32", np.zeros(3, np.uint32)),
            ("WAIT", "UINT32", np.zeros(1, np.uint32)),
        ):
            message.inputs.add(name=name, datatype=datatype, shape=values.shape)
            message.raw_input_contents.append(values.tobytes())
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        set_parameters(message.outputs.add(name="OUT"), in_region(16, 4))
        open_stream = channel._channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = [
            messages.ModelStreamInferResponse.FromString(data)
            for data in open_stream(iter([message.SerializeToString()]), timeout=10)
        ]
        assert [answer.error_message for answer in answers] == [""] * 4
        assert [len(answer.infer_response.outputs) for answer in answers] == [1, 1, 1, 0]
        assert [list(answer.infer_response.raw_output_contents) for answer in answers[:3]] == [[b""]] * 3
        assert np.frombuffer(file.read_bytes(), np.int32, 1, 16).tolist() == [7]
        assert patient.http("POST", SYSTEM + "/unregister").status == 200


# what the server allows


def test_a_server_may_refuse_all_shared_memory(tmp_path: Path) -> None:
    write_model(tmp_path, "double")
    disabled = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    with serving(tmp_path, allow_client_shm=False) as live, live.channel() as channel:
        for path in ("/region/r/register", "/register", "/region/r/unregister", "/unregister"):
            for kind in (SYSTEM, CUDA):
                answer = live.http("POST", kind + path, b"{")
                assert (answer.status, answer.error) == (501, disabled)
        assert live.get(SYSTEM + "/status").json == []
        assert channel.error("SystemSharedMemoryRegister", b"") == ("UNIMPLEMENTED", disabled)
        assert channel.error("CudaSharedMemoryUnregister", b"") == ("UNIMPLEMENTED", disabled)
        assert live.infer("double", request(in_region())).status == 404


def test_inputs_are_read_up_to_a_limit(tmp_path: Path) -> None:
    write_model(tmp_path, "double", config="max_batch_size: 8")
    with serving(tmp_path, client_shm_max_input_size=8) as live, segment(4096) as file:
        assert register(live, "r", key=file.name).status == 200
        assert live.infer("double", request(in_region())).status == 200
        answer = live.infer("double", request(in_region(0, 16), shape=(2, 2)))
        assert (answer.status, "Use --client-shm-max-input-size" in answer.error) == (400, True)
