"""Registering shared memory over both protocols, in Triton's words."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.serving.frontends.shared_memory.requests import (
    CUDA,
    SIZE,
    SYSTEM,
    in_region,
    register,
    request,
)
from tests.serving.live import Channel, Live, serving
from tests.serving.onnx_files import write_model
from tpx.protocol import messages

HANDLE = base64.b64encode(bytes(64)).decode()


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
