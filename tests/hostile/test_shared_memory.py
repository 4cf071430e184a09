"""Shared memory that changes behind our back: regions that fail, shrink, or are given up while in use."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import wire
from tests.hostile.conftest import MIB
from tests.hostile.siege import Siege
from tests.hostile.test_http2 import attack
from tests.protocol.http2.raw import grpc_headers
from tpx.protocol import messages
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS
from tpx.protocol.http2.hpack import encode_stateless

pytestmark = [pytest.mark.e2e]

SIZE = 8192
REGISTER = "/inference.GRPCInferenceService/SystemSharedMemoryRegister"


@contextmanager
def region(siege: Siege, name: str) -> Iterator[Path]:
    """A registered region of SIZE bytes, ones as FP32, and the file that it is."""
    path = Path("/dev/shm") / f"{siege.shm}-{name}"
    path.write_bytes(b"\x00\x00\x80\x3f" * (SIZE // 4))
    try:
        answer = _manage(siege, f"{name}/register", {"key": path.name, "byte_size": SIZE})
        assert answer.status == 200, answer
        yield path
        assert _manage(siege, f"{name}/unregister", {}).status == 200
    finally:
        path.unlink()


def _manage(siege: Siege, what: str, body: Any) -> wire.Answer:
    return wire.post(siege.http, f"/v2/systemsharedmemory/region/{what}", body)


def place(name: str, offset: int = 0) -> dict[str, Any]:
    """Parameters of a tensor of two numbers in a region."""
    return {
        "shared_memory_region": name,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": 8,
    }


def request(**tensors: dict[str, Any]) -> dict[str, Any]:
    """An inference with its input or output, by name, in shared memory."""
    source: dict[str, Any] = {"parameters": tensors["x"]} if "x" in tensors else {"data": [1, 1]}
    out: dict[str, Any] = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], **source}]}
    if "y" in tensors:
        out["outputs"] = [{"name": "y", "parameters": tensors["y"]}]
    return out


def infer(siege: Siege, body: dict[str, Any], model: str = "double") -> wire.Answer:
    return wire.post(siege.http, f"/v2/models/{model}/infer", body)


FAILING: dict[str, dict[str, Any]] = {
    "nobody": {"key": "/tpx_nobody", "byte_size": 4096},
    "too large": {"key": "$file", "byte_size": 1 << 40},
    "a directory": {"key": "$directory", "byte_size": 4096},
    "a link": {"key": "$link", "byte_size": 4096},
    "reserved": {"key": "triton_python_backend_shm_region_x", "byte_size": 4096},
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FAILING)
def test_s6_10_000_failing_registrations_hold_no_descriptor(siege: Siege, what: str) -> None:
    body = {**FAILING[what], "key": FAILING[what]["key"].replace("$", f"{siege.shm}-")}
    before = siege.footprint()
    one = wire.post_request("/v2/systemsharedmemory/region/r/register", body)
    with wire.connect(siege.http) as sock:
        sock.sendall(one * 2000 + b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answers = wire.read_rest(sock)
    assert answers is not None
    assert answers.count(b"HTTP/1.1 400 ") == 2000
    after = siege.settles(lambda now: now.descriptors <= before.descriptors)
    assert after.descriptors <= before.descriptors
    assert after.resident_bytes - before.resident_bytes < 8 * MIB


async def test_f5_2000_failing_registrations_over_grpc_hold_no_descriptor(siege: Siege) -> None:
    before = siege.footprint()
    message = messages.SystemSharedMemoryRegisterRequest(
        name="r", key=f"{siege.shm}-file", byte_size=1 << 40
    ).SerializeToString()
    block = encode_stateless(grpc_headers(REGISTER))
    async with attack(siege) as peer:
        for stream_id in range(1, 4001, 2):
            peer.send(HEADERS, END_HEADERS, stream_id, block)
            peer.send(DATA, END_STREAM, stream_id, frame_message(message))
        for stream_id in range(1, 4001, 2):
            assert (await peer.answer(stream_id)).status == Status.INVALID_ARGUMENT
    after = siege.settles(lambda now: now.descriptors <= before.descriptors)
    assert after.descriptors <= before.descriptors


@pytest.mark.parametrize("left", [0, 4, 4096])
def test_s8_a_file_that_was_truncated_is_an_error_of_its_requests(siege: Siege, left: int) -> None:
    with region(siege, "shrinking") as path:
        assert b"[2.0,2.0]" in infer(siege, request(x=place("shrinking", 4096))).body
        os.truncate(path, left)
        for body in (
            request(x=place("shrinking", 4096)),
            request(y=place("shrinking", 4096)),
        ):
            answer = infer(siege, body)
            assert answer.status == 400
            assert "is shorter than when it was registered" in answer.error
        assert path.stat().st_size == left
        siege.alive()
        os.truncate(path, SIZE)
        assert b"[0.0,0.0]" in infer(siege, request(x=place("shrinking", 4096))).body


def test_s8_a_file_that_was_deleted_is_still_the_region(siege: Siege) -> None:
    with region(siege, "deleted") as path:
        path.unlink()
        assert b"[2.0,2.0]" in infer(siege, request(x=place("deleted"))).body
        path.touch()


def test_s9_a_region_in_use_is_unregistered_after_it_takes_the_output(siege: Siege) -> None:
    with region(siege, "given-up") as path:
        body = request(x=place("given-up", 0), y=place("given-up", 4096))
        with wire.connect(siege.http) as sock:
            sock.sendall(wire.post_request("/v2/models/patient/infer", body))
            _wait_until_pending(siege)
            assert _manage(siege, "given-up/unregister", {}).status == 200
            assert wire.read_answer(sock).status == 200
            assert infer(siege, body).status == 404
        assert path.read_bytes()[4096:4104] == b"\x00\x00\x00\x40" * 2
    siege.alive()


def _wait_until_pending(siege: Siege) -> None:
    """A request sees its region when it comes, and may be computed much later."""
    for _ in range(200):
        statistics = json.loads(wire.get(siege.http, "/v2/models/patient/stats").body)["model_stats"]
        page = wire.get(siege.metrics, "/metrics").body
        if b'nv_inference_pending_request_count{model="patient",version="1"} 1' in page:
            return
        assert statistics
    raise AssertionError("no request is pending")
