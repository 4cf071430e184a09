"""How `tpx serve` ends: on signals, with requests in flight, with connections that only linger."""

import http.client
import json
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.e2e.child import FRONTENDS, Child, serve, until_waiting
from tests.serving.live import SERVICE, binary_request, floats, infer_message, outputs_of
from tests.serving.onnx_files import busy, doubling, slow_to_load, write_model
from tests.waiting import eventually
from tpx.protocol import messages

pytestmark = pytest.mark.e2e

DELAY_S = 2.0
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
ensemble_scheduling { step { model_name: "net"
  input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model that answers at once, one that waits for its delay, one that computes each
    request alone, for many seconds, and one of sequences that nobody ends."""
    path = tmp_path_factory.mktemp("models")
    write_model(path, "net", doubling())
    write_model(path, "large", doubling(10_000_000))
    delay = f"dynamic_batching {{ max_queue_delay_microseconds: {int(DELAY_S * 1e6)} }}"
    write_model(path, "patient", doubling(), f"max_batch_size: 8 {delay}")
    write_model(
        path, "endless", busy(rounds=400, width=1500), "max_batch_size: 1 instance_group [{ count: 1 }]"
    )
    idle = "sequence_batching { max_sequence_idle_microseconds: 600000000 }"
    write_model(path, "talk", doubling(), f"max_batch_size: 1 {idle}")
    (path / "whole" / "1").mkdir(parents=True)
    (path / "whole" / "config.pbtxt").write_text(ENSEMBLE)
    return path


@pytest.fixture
def child(repository: Path) -> Iterator[Child]:
    """A server that is ready."""
    with serve("--model-repository", repository) as running:
        yield running.ready()


def post(
    child: Child, model: str, timeout_s: float = 20, parameters: Mapping[str, object] | None = None
) -> tuple[int, Any]:
    """Status and answer of one request over HTTP."""
    item = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    body = json.dumps({"inputs": [item], "parameters": dict(parameters or {})}).encode()
    return fetch(child, f"/v2/models/{model}/infer", body, timeout_s)


def fetch(child: Child, path: str, body: bytes | None = None, timeout_s: float = 20) -> tuple[int, Any]:
    """Status and answer, on a connection of its own."""
    asked = urllib.request.Request(f"http://127.0.0.1:{child.port('HTTPService')}{path}", data=body)
    try:
        with urllib.request.urlopen(asked, timeout=timeout_s) as response:
            answer = response.status, response.read()
    except urllib.error.HTTPError as exc:
        with exc:
            answer = exc.code, exc.read()
    return answer[0], json.loads(answer[1] or b"null")


def is_cut_off(ask: Callable[[], tuple[int, Any]]) -> bool:
    """Return whether a request ends with the process that computes, or is refused by its frontend."""
    try:
        return ask()[0] == 503 and FRONTENDS > 0
    except OSError:
        return True


def begin_sequence(child: Child, number: int) -> tuple[int, Any]:
    """Send the first request of a sequence."""
    return post(child, "talk", parameters={"sequence_id": number, "sequence_start": True})


def continue_sequence(child: Child, number: int, *, end: bool = False) -> tuple[int, Any]:
    """Send a further request of a sequence."""
    return post(child, "talk", parameters={"sequence_id": number, "sequence_end": end})


def success_count(child: Child, model: str) -> int:
    """Return how many requests to a model were answered."""
    [statistics] = fetch(child, f"/v2/models/{model}/stats")[1]["model_stats"]
    return int(statistics["inference_stats"]["success"]["count"])


def connect(child: Child, service: str = "HTTPService") -> socket.socket:
    """A connection that only lies there."""
    return socket.create_connection(("127.0.0.1", child.port(service)), timeout=10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_and_well(child: Child, number: signal.Signals) -> None:
    post(child, "net")
    child.send(number)
    assert child.ended(25) == 0
    lines = [
        f"Signal ({int(number)}) received.",
        "Waiting for in-flight requests to complete.",
        "All models are stopped, unloading models",
        "successfully unloaded 'net' version 1",
    ]
    at = [next(i for i, line in enumerate(child.out) if words in line) for words in lines]
    assert at == sorted(at)
    assert child.err == []


STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


def test_requests_in_flight_are_answered_and_new_ones_refused(child: Child) -> None:
    address = f"127.0.0.1:{child.port('GRPCInferenceService')}"
    with ThreadPoolExecutor(4) as pool, grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(SERVICE + "ModelInfer", None, None)
        over_grpc = call.future(infer_message("patient", {"x": floats([3, 4])}), timeout=20)
        over_http = [pool.submit(post, child, "patient") for _ in range(3)]
        until_waiting(child, "patient", 4)
        child.send(signal.SIGTERM)
        child.wait_for("Waiting for in-flight")
        words = f"[request id: <id_unknown>] {STOPPING}"
        assert post(child, "net") == (503, {"error": words})
        assert post(child, "whole") == (503, {"error": f"in ensemble 'whole', {words}"})
        with pytest.raises(grpc.RpcError) as refused:
            call(infer_message("net", {"x": floats([3, 4])}), timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.value.details() == words
        for answer in over_http:
            status, body = answer.result()
            assert (status, body["outputs"][0]["data"]) == (200, [2, 4])
        response = messages.ModelInferResponse.FromString(over_grpc.result())
        assert outputs_of(response) == {"y": [[6, 8]]}
    assert child.ended(25) == 0


def test_sequences_that_have_begun_go_on_and_others_do_not_begin(child: Child) -> None:
    assert begin_sequence(child, 7)[0] == 200
    child.send(signal.SIGTERM)
    child.wait_for(r"Model 'talk' \(version 1\) has 1 in-flight inferences")
    assert continue_sequence(child, 7)[0] == 200
    assert begin_sequence(child, 8) == (503, {"error": STOPPING})
    assert begin_sequence(child, 7) == (503, {"error": STOPPING}), "that would be another sequence"
    assert child.ended(0.3) is None, "it waits for the end of the sequence"
    assert continue_sequence(child, 7, end=True)[0] == 200
    assert child.ended(25) == 0


def test_a_sequence_that_nobody_ends_is_given_up_after_the_exit_timeout(repository: Path) -> None:
    with serve("--model-repository", repository, "--exit-timeout-secs", "1") as child:
        assert begin_sequence(child.ready(), 7)[0] == 200
        assert child.stop() == 0
        assert "successfully unloaded 'talk' version 1" in child.text


def is_ready_over_grpc(channel: grpc.Channel) -> tuple[bool, bytes]:
    """ServerReady, and the status of grpc.health."""
    answer = channel.unary_unary(SERVICE + "ServerReady", None, None)(b"", timeout=20)
    health = channel.unary_unary("/grpc.health.v1.Health/Check", None, None)(b"", timeout=20)
    return messages.ServerReadyResponse.FromString(answer).ready, health


def test_while_it_stops_it_says_so_on_connections_old_and_new(child: Child) -> None:
    assert begin_sequence(child, 7)[0] == 200
    kept = http.client.HTTPConnection("127.0.0.1", child.port("HTTPService"), timeout=20)
    kept.connect()
    socket_before = kept.sock
    with (
        grpc.insecure_channel(f"127.0.0.1:{child.port('GRPCInferenceService')}") as channel,
        closing(kept),
    ):
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch", None, None)(b"", timeout=30)
        assert next(watch) == SERVING
        child.send(signal.SIGTERM)
        child.wait_for("Waiting for in-flight")
        assert next(watch) == NOT_SERVING
        assert is_ready_over_grpc(channel) == (False, NOT_SERVING)
        for path, expected in (
            ("/v2/health/ready", 503),
            ("/v2/models/net/ready", 400),
            ("/v2/health/live", 200),
        ):
            assert fetch(child, path)[0] == expected
            kept.request("GET", path)
            answer = kept.getresponse()
            assert (answer.status, answer.getheader("Connection")) == (expected, None)
            answer.read()
        assert kept.sock is socket_before
        metrics = f"http://127.0.0.1:{child.port('Metrics Service')}/metrics"
        with urllib.request.urlopen(metrics, timeout=20) as page:
            assert b"nv_inference_request_success" in page.read()
        continue_sequence(child, 7, end=True)
        assert list(watch) == [], "it ends with the server"
        assert child.ended(25) == 0


def test_for_the_drain_it_serves_everything_and_then_has_clients_leave(repository: Path) -> None:
    with serve("--model-repository", repository, "--drain-secs", "4") as child:
        child.ready()
        with (
            grpc.insecure_channel(f"127.0.0.1:{child.port('GRPCInferenceService')}") as channel,
            closing(http.client.HTTPConnection("127.0.0.1", child.port("HTTPService"), timeout=20)) as kept,
        ):
            call = channel.unary_unary(SERVICE + "ModelInfer", None, None)
            child.send(signal.SIGTERM)
            child.wait_for("Draining")
            assert fetch(child, "/v2/health/ready")[0] == 503
            assert is_ready_over_grpc(channel) == (False, NOT_SERVING)
            asked: list[str | None] = []
            while "Waiting for in-flight" not in child.text and "close" not in asked:
                kept.request("GET", "/v2/models/net")
                answer = kept.getresponse()
                assert (answer.status, answer.read()[:7]) == (200, b'{"name"')
                asked.append(answer.getheader("Connection"))
                assert post(child, "net")[0] == 200
                assert call(infer_message("net", {"x": floats([3, 4])}), timeout=20)
                assert begin_sequence(child, 7)[0] == continue_sequence(child, 7, end=True)[0] == 200
            assert asked[0] is None
            assert asked[-1] == "close"
        assert child.ended(25) == 0


def test_a_client_that_does_not_read_its_answer_does_not_hold_it_up_forever(repository: Path) -> None:
    giant = np.zeros(10_000_000, np.float32)
    with (
        serve("--model-repository", repository, "--exit-timeout-secs", "1") as child,
        connect(child.ready()) as connection,
    ):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(binary_request("large", {"x": giant}))
        eventually(lambda: success_count(child, "large") == 1)
        assert child.stop() == 0


def test_requests_that_do_not_end_in_time_are_cut_off(repository: Path) -> None:
    with serve("--model-repository", repository, "--exit-timeout-secs", "1") as child:
        child.ready()
        failed = threading.Event()

        def ask() -> None:
            if is_cut_off(lambda: post(child, "endless")):
                failed.set()

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for each in asking:
            each.start()
        until_waiting(child, "endless", 1)
        child.send(signal.SIGTERM)
        assert child.ended(20) == 0
        for each in asking:
            each.join(10)
        assert failed.is_set()
        assert "Exit timeout expired. Exiting immediately." in "\n".join(child.err)
        assert "Timeout 1: Found 1 model versions that have in-flight inferences" in child.text


def test_a_second_interrupt_ends_it_at_once(child: Child) -> None:
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(post, child, "endless") for _ in range(2)]
        until_waiting(child, "endless", 1)
        child.send(signal.SIGINT)
        child.wait_for("Waiting for in-flight")
        child.send(signal.SIGTERM)  # a supervisor joins in: that changes nothing
        assert child.ended(0.3) is None
        child.send(signal.SIGINT)
        assert child.ended(20) == -signal.SIGINT
        assert all(is_cut_off(each.result) for each in asking)


def test_further_signals_of_a_supervisor_change_nothing(child: Child) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, child, "patient")
        until_waiting(child, "patient", 1)
        for _ in range(3):
            child.send(signal.SIGTERM)
            assert child.ended(0.15) is None
        assert answer.result()[0] == 200
    assert child.ended(20) == 0
    assert child.err == []


def test_a_signal_while_models_are_loading_ends_it_at_once(tmp_path: Path) -> None:
    write_model(tmp_path, "slow", slow_to_load())
    with serve("--model-repository", tmp_path) as child:
        child.wait_for("loading: slow:1")
        child.send(signal.SIGTERM)
        assert child.ended(25) == 0, child.text
        assert "stopped while models were loading" in child.text
        assert "is ready" not in child.text
