"""Many clients, many requests, many names: what they cost is bounded, and they leave nothing behind."""

import os
import random
from collections.abc import Callable
from contextlib import ExitStack

import grpc
import pytest

from tests.e2e.child import FRONTENDS
from tests.hostile import wire
from tests.hostile.conftest import MIB
from tests.hostile.siege import GOOD, SERVICE, Siege
from tests.hostile.test_http2 import attack, inference
from tests.protocol.http2.raw import grpc_headers
from tests.serving.live import reset
from tests.waiting import eventually
from tpx.protocol.grpc.framing import frame_message
from tpx.protocol.grpc.status import Status
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE
from tpx.protocol.http2.hpack import encode_stateless

pytestmark = [pytest.mark.e2e]

INFER_PATH = "/v2/models/double/infer"
CALL = frames.frame(
    HEADERS, END_HEADERS, 1, encode_stateless(grpc_headers(SERVICE + "ModelInfer"))
) + frames.frame(DATA, END_STREAM, 1, frame_message(inference()))


def test_p1_a_thousand_idle_sockets_cost_little_and_hold_up_nobody(siege: Siege) -> None:
    before = siege.footprint()
    with ExitStack() as crowd:
        for port in (siege.http, siege.grpc) * 500:
            crowd.enter_context(wire.connect(port))
        siege.alive()
        # more than before by 1000 is not certain: then, a connection of the last test may not yet have ended
        held = siege.settles(lambda now: now.descriptors > 1000)
        assert held.descriptors > 1000
        assert held.resident_bytes - before.resident_bytes < 32 * MIB
    after = siege.settles(lambda now: now.descriptors <= before.descriptors and now.threads <= before.threads)
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads


BEGINNINGS: dict[str, Callable[[Siege], tuple[int, bytes]]] = {
    "nothing": lambda siege: (siege.http, b""),
    "half a head": lambda siege: (siege.http, b"POST " + INFER_PATH.encode() + b" HTTP/1.1\r\nHo"),
    "half a body": lambda siege: (siege.http, wire.post_request(INFER_PATH, GOOD)[:-9]),
    "a request": lambda siege: (siege.http, wire.post_request("/v2/models/patient/infer", GOOD)),
    "a stream of events": lambda siege: (
        siege.http,
        wire.post_request(
            "/v2/models/repeat/generate_stream", {"IN": [1] * 50, "DELAY": [5] * 50, "WAIT": 0}
        ),
    ),
    "a large body": lambda siege: (
        siege.http,
        b"POST /v2 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n",
    ),
    "half a preface": lambda siege: (siege.grpc, PREFACE[:9]),
    "half a frame": lambda siege: (siege.grpc, PREFACE + frames.settings_frame({}) + CALL[:50]),
    "a call": lambda siege: (siege.grpc, PREFACE + frames.settings_frame({}) + CALL),
}


def test_p2_a_storm_of_resets_leaves_nothing_behind(siege: Siege) -> None:
    before = siege.footprint()
    pick = random.Random(2)
    for _ in range(25):
        socks = []
        for begin in BEGINNINGS.values():
            port, data = begin(siege)
            sock = wire.connect(port)
            wire.send_all(sock, data)
            socks.append(sock)
        pick.shuffle(socks)
        for sock in socks:
            reset(sock)
    siege.alive()
    after = siege.settles(lambda now: now.descriptors <= before.descriptors and now.threads <= before.threads)
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads
    assert after.resident_bytes - before.resident_bytes < 16 * MIB
    eventually(lambda: not pending(siege))


def pending(siege: Siege) -> float:
    """Requests that wait or compute, of all models."""
    page = wire.get(siege.metrics, "/metrics").body.decode()
    lines = [line for line in page.splitlines() if line.startswith("nv_inference_pending_request_count{")]
    assert lines
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_p3_requests_in_a_pipeline_are_answered_in_their_order(siege: Siege) -> None:
    count = 2000
    requests = b"".join(
        wire.post_request(INFER_PATH, {"id": str(n), **GOOD})
        if n % 3
        else b"GET /v2/x%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % n
        for n in range(count)
    )
    with wire.connect(siege.http) as sock:
        sock.sendall(requests + b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        everything = wire.read_rest(sock)
    assert everything is not None
    assert everything.count(b"HTTP/1.1 ") == count + 1
    places = [everything.find(b'"id":"%d"' % n) for n in range(count) if n % 3]
    assert min(places) > 0
    assert places == sorted(places)
    assert everything.count(b"HTTP/1.1 404") == len(range(0, count, 3))


def test_p4_bodies_that_were_announced_and_never_sent_hold_up_nobody(siege: Siege) -> None:
    before = siege.forget_peak()
    head = f"POST {INFER_PATH} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    head += "Content-Length: 8000000\r\n\r\n"
    socks = [wire.connect(siege.http) for _ in range(200)]
    for sock in socks:
        sock.sendall(head.encode())
    for sock in socks:
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    siege.alive()
    assert siege.peak() - before < 32 * MIB  # what was announced is not held before it comes
    for sock in socks:
        sock.close()


@pytest.mark.slow
async def test_p6_names_of_models_that_are_not_there_are_forgotten(siege: Siege) -> None:
    """20 000 over HTTP and 5000 over gRPC: no memory, and no series in the metrics."""
    names_before = len(wire.get(siege.metrics, "/metrics").body.splitlines())
    before = siege.footprint()
    # a frontend asks the engine for each, and a connection's requests are answered one after the other
    for begin in range(0, 12_000 if FRONTENDS else 20_000, 4000):
        batch = b"".join(
            b"POST /v2/models/nobody_%d/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\n" % n
            + b'{"inputs":[]}'
            for n in range(begin, begin + 4000)
        )
        with wire.connect(siege.http) as sock:
            sock.sendall(batch + b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answers = wire.read_rest(sock)
        assert answers is not None
        assert answers.count(b"HTTP/1.1 404") == 4000
    async with attack(siege) as peer:
        block = encode_stateless(grpc_headers(SERVICE + "ModelInfer"))
        for number in range(5000):
            stream_id = 2 * number + 1
            peer.send(HEADERS, END_HEADERS, stream_id, block)
            message = inference(f"nobody_{number}_{os.getpid()}")
            peer.send(DATA, END_STREAM, stream_id, frame_message(message))
            if number % 500 == 499:
                assert (await peer.answer(stream_id)).status == Status.NOT_FOUND
                peer.answers.clear()
                peer.seen.clear()
    assert len(wire.get(siege.metrics, "/metrics").body.splitlines()) <= names_before
    assert siege.footprint().resident_bytes - before.resident_bytes < 4 * MIB


def test_connections_come_and_go_without_a_trace(siege: Siege) -> None:
    before = siege.footprint()
    for _ in range(300):
        for port in (siege.http, siege.grpc, siege.metrics):
            wire.connect(port).close()
    after = siege.settles(lambda now: now.descriptors <= before.descriptors)
    assert after.descriptors <= before.descriptors
    assert after.resident_bytes - before.resident_bytes < 8 * MIB


QUESTIONS: dict[str, bytes] = {
    "statistics": b"GET /v2/models/stats HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "index": b"POST /v2/repository/index HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
    "ready": b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "document": b"GET /v2/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "metrics": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
CROWD = 40
IN_PIPELINE = 5


@pytest.mark.parametrize("question", QUESTIONS)
def test_p17_a_crowd_that_asks_about_all_models_holds_up_nobody(siege: Siege, question: str) -> None:
    port = siege.metrics if question == "metrics" else siege.http
    with siege.bystander() as others, ExitStack() as crowd:
        socks = [crowd.enter_context(wire.connect(port)) for _ in range(CROWD)]
        for sock in socks:
            last = QUESTIONS[question].replace(b"Host: localhost", b"Host: localhost\r\nConnection: close")
            sock.sendall(QUESTIONS[question] * (IN_PIPELINE - 1) + last)
        for sock in socks:
            assert (wire.read_rest(sock) or b"").count(b"HTTP/1.1 200 OK") == IN_PIPELINE
    assert others.worst_s < 1
    siege.alive()


@pytest.mark.parametrize("verb", ["ModelStatistics", "RepositoryIndex"])
def test_p17_calls_about_all_models_hold_up_nobody(siege: Siege, verb: str) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{siege.grpc}") as channel, siege.bystander() as others:
        method = channel.unary_unary(SERVICE + verb)
        calls = [method.future(b"", timeout=wire.PATIENCE_S) for _ in range(CROWD * IN_PIPELINE)]
        assert len({call.result() for call in calls}) >= 1
    assert others.worst_s < 1
    siege.alive()
