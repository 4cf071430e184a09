"""Clients that have the server hold what they do not read, or do not send: one budget bounds it, others are
served, and the memory is given back."""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.e2e.child import FRONTENDS
from tests.hostile import wire
from tests.hostile.conftest import MIB
from tests.hostile.siege import SERVICE, Siege, besieged, write_good_models
from tests.protocol.http2.raw import grpc_headers
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
ANSWER = 1 << 20
"""Numbers of an answer: 4 MiB."""


@pytest.fixture(scope="module")
def frugal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """A server that holds little, and refuses soon."""
    folder = tmp_path_factory.mktemp("frugal")
    write_good_models(folder)
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


HALF = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 7500000\r\n\r\n"


@one_budget
def test_l3_a_body_waits_for_memory_and_is_refused_then(frugal: Siege) -> None:
    """Those before it hold all of the budget, and go on."""
    with bounded(frugal), contextlib.ExitStack() as crowd:
        holders = [crowd.enter_context(wire.connect(frugal.http)) for _ in range(8)]
        for sock in holders:
            sock.sendall(HALF)
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
    x = {"name": "x", "datatype": "FP32", "shape": [1, 2_000_000], "data": [1] * 2_000_000}
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
