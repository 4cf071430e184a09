"""Clients that go away, at any moment: nobody else notices, nothing is left behind, no answer goes astray."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from tests.serving.gated import GATE, installed
from tests.serving.live import (
    SERVICE,
    Live,
    binary_request,
    floats,
    infer_message,
    outputs_of,
    post_request,
    reset,
    serving,
    write_models,
)
from tests.serving.onnx_files import write_model
from tests.serving.repository.composed import gated
from tests.waiting import eventually
from tpx.protocol import messages

DELAY_S = 0.6


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a model that collects requests for some time, and one that waits for its gate."""
    repository = tmp_path_factory.mktemp("models")
    write_models(repository)
    delay = f"max_queue_delay_microseconds: {int(DELAY_S * 1e6)}"
    write_model(repository, "patient", config=f"max_batch_size: 8 dynamic_batching {{ {delay} }}")
    gated(repository, "gated")
    with installed(tmp_path_factory.mktemp("site")), serving(repository) as running:
        yield running


def counters(live: Live, model: str) -> tuple[int, int, int]:
    """Requests that succeeded, that were cancelled, and that are in flight."""
    [served] = [served for served in live.server.plane.served() if served.name == model]
    statistics = served.statistics
    return statistics.durations()["success"].count, statistics.failures["CANCELED"], served.in_flight


def http_request(model: str, *rows: Any, close: bool = False) -> bytes:
    """A whole request with binary tensors, as bytes."""
    return binary_request(model, {"x": floats(*rows)}, "Connection: close\r\n" if close else "")


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_an_http_client_that_goes_while_its_request_waits_cancels_it_and_nothing_else(patient: Live) -> None:
    success, cancelled, _ = counters(patient, "patient")
    gone, stays = patient.raw_http(), patient.raw_http()
    gone.sendall(http_request("patient", [7, 7]))
    stays.sendall(http_request("patient", [1, 2], close=True))
    eventually(lambda: counters(patient, "patient")[2] == 2)
    reset(gone)
    answer = read_all(stays)
    stays.close()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(floats([2, 4]).tobytes())
    assert counters(patient, "patient") == (success + 1, cancelled + 1, 0)


def test_a_grpc_call_that_is_cancelled_while_it_waits_cancels_its_request(patient: Live) -> None:
    success, cancelled, _ = counters(patient, "patient")
    with patient.raw_grpc() as channel:
        call = channel.unary_unary(SERVICE + "ModelInfer", None, None)
        gone = call.future(infer_message("patient", {"x": floats([7, 7])}))
        stays = call.future(infer_message("patient", {"x": floats([1, 2])}))
        eventually(lambda: counters(patient, "patient")[2] == 2)
        gone.cancel()
        answer = messages.ModelInferResponse.FromString(stays.result(timeout=5))
    assert outputs_of(answer) == {"y": [[2, 4]]}
    assert counters(patient, "patient") == (success + 1, cancelled + 1, 0)


def test_a_grpc_deadline_that_passes_while_it_waits_cancels_its_request(patient: Live) -> None:
    success, cancelled, _ = counters(patient, "patient")
    with patient.raw_grpc() as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        call = channel.unary_unary(SERVICE + "ModelInfer", None, None)
        with pytest.raises(grpc.RpcError) as caught:
            call(infer_message("patient", {"x": floats([7, 7])}), timeout=DELAY_S / 2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: counters(patient, "patient") == (success, cancelled + 1, 0))


def test_clients_that_go_while_their_batch_is_computed_leave_the_others_their_answers(patient: Live) -> None:
    first = patient.raw_http()
    connections = [patient.raw_http() for _ in range(6)]
    GATE.close()
    first.sendall(http_request("gated", [0, 0]))
    eventually(lambda: counters(patient, "gated")[2] == 1)
    for n, connection in enumerate(connections):
        connection.sendall(http_request("gated", [n, -n], close=True))
    eventually(lambda: counters(patient, "gated")[2] == 7)
    reset(first)
    for connection in connections[1::2]:
        reset(connection)
    GATE.open()
    for n, connection in list(enumerate(connections))[0::2]:
        assert read_all(connection).endswith(floats([n, -n]).tobytes())
        connection.close()
    eventually(lambda: counters(patient, "gated")[2] == 0)


def test_requests_in_a_pipeline_are_answered_in_their_order(patient: Live) -> None:
    wanted = [("double", n) if n % 2 else ("words", n) for n in range(40)]
    last = http_request("double", [0, 0], close=True)
    sent = []
    for model, n in wanted:
        if model == "double":
            sent.append(http_request("double", [n, n]))
        else:
            item = {"name": "x", "datatype": "BYTES", "shape": [1, 1], "data": [f"word {n}"]}
            sent.append(post_request("/v2/models/words/infer", {"inputs": [item]}))
    with patient.raw_http() as connection:
        connection.sendall(b"".join([*sent, last]))
        answers = read_all(connection)
    at = 0
    for model, n in wanted:
        mark = floats([2 * n, 2 * n]).tobytes() if model == "double" else b'"word %d"' % n
        found = answers.find(mark, at)
        assert found > at
        at = found
    assert answers.count(b"HTTP/1.1 200 OK") == 41


def test_a_body_that_never_comes_holds_up_nobody(patient: Live) -> None:
    whole = http_request("double", [1, 2])
    halves = [patient.raw_http() for _ in range(20)]
    for connection in halves:
        connection.sendall(whole[:-3])
    for n in range(20):
        answer = patient.infer_binary("double", {"x": floats([n, n])})
        assert answer.tail == floats([2 * n, 2 * n]).tobytes()
    for connection in halves:
        connection.close()
    assert counters(patient, "double")[2] == 0


def test_duplicate_ids_in_flight_are_two_requests(patient: Live) -> None:
    with patient.channel() as channel, ThreadPoolExecutor(2) as pool:
        asked = [floats([n, n]) for n in (1, 2)]
        answers = list(pool.map(lambda x: channel.infer("patient", {"x": x}, id="same"), asked))
    assert [outputs_of(answer) for answer in answers] == [{"y": [[2, 2]]}, {"y": [[4, 4]]}]
    assert [answer.id for answer in answers] == ["same", "same"]


# everybody at once


def _http_worker(live: Live, seed: int, count: int) -> int:
    """Requests over HTTP, each with data of its own; some clients slam the door."""
    random = np.random.default_rng(seed)
    wrong = 0
    for n in range(count):
        rows, width = int(random.integers(1, 5)), int(random.integers(1, 40))
        x = random.random((rows, width), dtype=np.float32)
        if n % 10 == 9:
            with live.raw_http() as connection:
                connection.sendall(http_request("double", *x))
            continue
        fields = {"request_id": f"{seed}-{n}"} if n % 3 else {}
        answer = live.infer_binary("double", {"x": x}, **fields)
        right = answer.status == 200 and answer.tail == (x * 2).tobytes()
        wrong += not right or answer.head.get("id", "") != fields.get("request_id", "")
    return wrong


def _grpc_worker(live: Live, seed: int, count: int) -> int:
    """Requests over gRPC, each with data of its own; some are cancelled."""
    random = np.random.default_rng(seed)
    wrong = 0
    with live.raw_grpc() as channel:
        call = channel.unary_unary(SERVICE + "ModelInfer", None, None)
        for n in range(count):
            x = random.random((int(random.integers(1, 5)), int(random.integers(1, 40))), dtype=np.float32)
            request_id = f"{seed}-{n}" if n % 3 else ""
            future = call.future(infer_message("double", {"x": x}, id=request_id))
            if n % 10 == 9:
                future.cancel()
                continue
            answer = messages.ModelInferResponse.FromString(future.result(timeout=20))
            wrong += answer.id != request_id or answer.raw_output_contents[0] != (x * 2).tobytes()
    return wrong


@pytest.mark.slow
def test_of_many_clients_at_once_everyone_gets_the_own_answer(patient: Live) -> None:
    threads = threading.active_count()
    with ThreadPoolExecutor(8) as pool:
        http_work = [pool.submit(_http_worker, patient, seed, 150) for seed in range(4)]
        grpc_work = [pool.submit(_grpc_worker, patient, seed, 150) for seed in range(4, 8)]
        assert [work.result() for work in http_work + grpc_work] == [0] * 8
    eventually(lambda: counters(patient, "double")[2] == 0)
    eventually(lambda: threading.active_count() <= threads + 8)
