"""Clients that have the server hold what they do not read, or do not send: one budget bounds it, others are
served, and the memory is given back."""

import contextlib
import http.client
import os
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.child import FRONTENDS
from tests.hostile import wire
from tests.hostile.conftest import MIB
from tests.hostile.siege import SERVICE, Siege, besieged, write_good_models
from tests.protocol.http2.raw import grpc_headers
from tests.serving import onnx_files
from tests.serving.onnx_files import write_model
from tests.waiting import eventually
from tpx.protocol import messages
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, Setting
from tpx.protocol.http2.hpack import encode_stateless

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

one_budget = pytest.mark.skipif(
    FRONTENDS > 1, reason="fills one budget, of which every frontend has an equal share"
)
BUDGET = 64 * MIB
BESIDE = 160 * MIB
"""What computes, what is on its way, and what the runtime keeps for its next run."""
BYSTANDER_S = 1.0
PYTHON_CONFIG = """
backend: "python" max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }] output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]
"""
PYTHON_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 2)]) for x in inputs]
"""
ANSWER = 1 << 20
"""Numbers of an answer: 4 MiB."""


@pytest.fixture(scope="module")
def frugal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """A server that holds little, and refuses soon."""
    folder = tmp_path_factory.mktemp("frugal")
    write_good_models(folder)
    write_model(folder, "other", onnx_files.doubling("batch", "n"), "max_batch_size: 8")
    model = folder / "python" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    model.write_text(PYTHON_MODEL, encoding="utf-8")
    (folder / "python" / "config.pbtxt").write_text(PYTHON_CONFIG, encoding="utf-8")
    limits = (f"--max-buffered-bytes={BUDGET}", "--max-buffered-wait-secs=1")
    with besieged(folder, *limits) as siege:
        siege.alive()
        yield siege


@contextlib.contextmanager
def bounded(siege: Siege) -> Iterator[None]:
    """Whatever happens inside takes little memory and delays nobody; in the end the memory is given back, and
    no connection is left that holds part of the budget."""
    before, descriptors = siege.forget_peak(), siege.footprint().descriptors
    with siege.bystander() as others:
        yield
    assert siege.peak() - before < BUDGET + BESIDE
    assert others.worst_s < BYSTANDER_S
    after = siege.settles(lambda now: now.resident_bytes < before + BESIDE and now.descriptors <= descriptors)
    assert after.resident_bytes < before + BESIDE
    assert after.descriptors <= descriptors


def together(count: int, port: int, request: bytes) -> list[wire.Answer]:
    """The complete answers to requests that are sent at the same time, each on its own connection."""
    with contextlib.ExitStack() as crowd:
        socks = [crowd.enter_context(wire.connect(port)) for _ in range(count)]
        for sock in socks:
            sock.settimeout(40)
            sock.sendall(request)
        with ThreadPoolExecutor(count) as readers:
            return [answer for answer in readers.map(read_or_lose, socks) if answer is not None]


def read_or_lose(sock: socket.socket) -> wire.Answer | None:
    """The answer; None where the server has dropped the rest, because it was not read for a second."""
    try:
        return wire.read_answer(sock)
    except (http.client.IncompleteRead, ConnectionError):
        return None


@pytest.mark.parametrize("output", ["shared", "json"])
@pytest.mark.parametrize("model", ["other", "python"])
def test_s14_sparse_regions_are_read_as_far_as_the_budget_goes(
    frugal: Siege, model: str, output: str
) -> None:
    size = 32 * MIB
    paths = [Path("/dev/shm") / f"{frugal.shm}-{what}" for what in ("in", "out")]
    for path in paths:
        path.touch()
        os.truncate(path, size)
        answer = wire.post(
            frugal.http,
            f"/v2/systemsharedmemory/region/{path.name}/register",
            {"key": path.name, "byte_size": size},
        )
        assert answer.status == 200
    source, target = (
        {"parameters": {"shared_memory_region": path.name, "shared_memory_byte_size": size}} for path in paths
    )
    body = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, size // 4], **source}],
        "outputs": [{"name": "y", **(target if output == "shared" else {})}],
    }
    try:
        with bounded(frugal):
            request = wire.post_request(f"/v2/models/{model}/infer", body)
            answers = together(8, frugal.http, request)
        statuses = {answer.status for answer in answers}
        # an output may fill only a quarter of the budget where the region has no pages, and as JSON it must
        # fit into that of its frontend
        assert statuses <= {200, 400, 503}
        assert 400 in statuses if output == "shared" else statuses != {503}
    finally:
        wire.post(frugal.http, "/v2/systemsharedmemory/unregister", b"")
        for path in paths:
            path.unlink()
    frugal.alive()


def test_l4_answers_that_wait_to_be_encoded_are_refused_beyond_the_budget(frugal: Siege) -> None:
    body = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [ANSWER]}]}
    with bounded(frugal):
        answers = together(150, frugal.http, wire.post_request("/v2/models/fill/infer", body))
    assert {answer.status for answer in answers} == {200, 503}
    assert any("--max-buffered-bytes" in answer.error for answer in answers if answer.status == 503)
    frugal.alive()


def unread_calls(siege: Siege, count: int) -> socket.socket:
    """A connection that asks for many large answers, and grants no window for them."""
    message = messages.ModelInferRequest(model_name="fill", raw_input_contents=[struct.pack("<q", ANSWER)])
    message.inputs.add(name="x", datatype="INT64", shape=[1])
    data = PREFACE + frames.settings_frame({Setting.INITIAL_WINDOW_SIZE: 0})
    block = encode_stateless(grpc_headers(SERVICE + "ModelInfer"))
    for stream_id in range(1, 2 * count, 2):
        data += frames.frame(HEADERS, END_HEADERS, stream_id, block)
        data += frames.frame(DATA, END_STREAM, stream_id, frame_message(message.SerializeToString()))
    sock = wire.connect(siege.grpc)
    sock.sendall(data)
    return sock


def refused(sock: socket.socket, within_s: float) -> bool:
    """Whether some call is told within a time that the server holds too much."""
    sock.settimeout(within_s)
    seen = b""
    with contextlib.suppress(TimeoutError):
        while b"--max-buffered-bytes" not in seen:
            data = sock.recv(1 << 16)
            if not data:
                return False
            seen += data
        return True
    return False


def test_l2_calls_whose_answers_nobody_reads_are_refused_beyond_the_budget(frugal: Siege) -> None:
    with bounded(frugal):
        socks = [unread_calls(frugal, 100) for _ in range(3)]
        assert any(refused(sock, 10) for sock in socks)
        for sock in socks:
            sock.close()
    frugal.alive()


def unavailable(sock: socket.socket) -> bool:
    """Whether the answer, which is left unread, says that the server holds too much."""
    with contextlib.suppress(OSError):
        return sock.recv(12, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"HTTP/1.1 503"
    return False


@one_budget
def test_l2_http_clients_that_do_not_read_are_cut_off_or_refused_beyond_the_budget(frugal: Siege) -> None:
    body = {
        "inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [ANSWER]}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
    with bounded(frugal), contextlib.ExitStack() as crowd:
        socks = [crowd.enter_context(socket.socket()) for _ in range(150)]
        for sock in socks:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", frugal.http))
            sock.sendall(wire.post_request("/v2/models/fill/infer", body))
        statistics = "/v2/models/fill/stats"

        def few_answers_are_held() -> bool:
            assert b"inference_count" in wire.get(frugal.http, statistics).body
            # an engine whose frontend does not keep up answers with errors, and these need not be cut off
            return frugal.footprint().descriptors - sum(map(unavailable, socks)) < 100

        eventually(few_answers_are_held)
    frugal.alive()


HALF = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7500000\r\n\r\n"
HALF_IF_ADMITTED = HALF.removesuffix(b"\r\n") + b"Expect: 100-continue\r\n\r\n"


@one_budget
def test_l3_a_body_waits_for_memory_and_is_refused_then(frugal: Siege) -> None:
    """Those before it hold all of the budget, and go on."""
    with bounded(frugal), contextlib.ExitStack() as crowd:
        count = 4 if FRONTENDS else 8  # a frontend has half of the budget
        holders = [crowd.enter_context(wire.connect(frugal.http)) for _ in range(count)]
        for sock in holders:
            sock.sendall(HALF_IF_ADMITTED)
            assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        late = crowd.enter_context(wire.connect(frugal.http))
        wire.send_all(late, HALF + bytes(1000))
        late.settimeout(0.1)
        answer, ends = b"", time.perf_counter() + 20
        while not answer and time.perf_counter() < ends:
            for sock in holders:
                sock.sendall(bytes(1000))
            with contextlib.suppress(TimeoutError):
                answer = late.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"--max-buffered-bytes" in answer
    frugal.alive()


@one_budget
def test_l3_bodies_that_do_not_go_on_make_room_for_one_that_does(frugal: Siege) -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [1, 1_000_000], "data": [1] * 1_000_000}
    with contextlib.ExitStack() as crowd:
        for _ in range(8):
            crowd.enter_context(wire.connect(frugal.http)).sendall(HALF + bytes(1000))
        answer = wire.post(frugal.http, "/v2/models/double/infer", {"inputs": [x]})
        assert answer.status == 200
    frugal.alive()


def test_l3_a_message_that_the_budget_has_no_room_for_is_refused(frugal: Siege) -> None:
    data = PREFACE + frames.settings_frame({})
    block = encode_stateless(grpc_headers(SERVICE + "ModelInfer"))
    for stream_id in range(1, 21, 2):
        data += frames.frame(HEADERS, END_HEADERS, stream_id, block)
        data += frames.frame(DATA, 0, stream_id, b"\0" + struct.pack(">I", 8_000_000) + bytes(1000))
    with bounded(frugal), wire.connect(frugal.grpc) as sock:
        sock.sendall(data)
        assert refused(sock, 10)
    frugal.alive()
