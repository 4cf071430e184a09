"""Registering shared memory over both protocols, in Triton's words."""

import json
from pathlib import Path

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


def test_a_name_is_asked_for_before_the_body_is_looked_at(live: Live, region: Path) -> None:
    for kind, word in ((SYSTEM, "system"), (CUDA, "cuda")):
        answer = live.http("POST", kind + "/register", b"{")
        message = f"'region name' is necessary to register {word} shared memory region"
        assert (answer.status, answer.error) == (400, message)
        answer = live.http("POST", kind + "/region/r/register", b"{")
        assert (answer.status, answer.error) == (400, "shared memory region 'r' already in manager")


def test_a_region_of_the_other_kind_is_not_found_and_not_unregistered(live: Live, region: Path) -> None:
    answer = live.get(CUDA + "/region/r/status")
    message = "The region named 'r' is registered as system shared memory, not CUDA shared memory"
    assert (answer.status, answer.error) == (404, message)
    for path in ("/region/r/unregister", "/unregister"):
        assert live.http("POST", CUDA + path).status == 200
    assert [item["name"] for item in live.get(SYSTEM + "/status").json] == ["r"]


# CUDA: without a GPU


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
