"""How `tpx serve` ends: on signals, with requests in flight, with connections that only linger."""

import json
import signal
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.e2e.child import Child, serve
from tests.serving.frontends.streams import eventually
from tests.serving.live import SERVICE, floats, infer_message, outputs_of
from tests.serving.onnx_files import busy, doubling, slow_to_load, write_model
from tpx.protocol import messages
from tpx.protocol.http2 import frames
from tpx.protocol.http2.hpack import encode_stateless

pytestmark = pytest.mark.e2e

DELAY_S = 2.0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model that answers at once, one that waits for its delay, one that computes each
    request alone, for many seconds."""
    path = tmp_path_factory.mktemp("models")
    write_model(path, "net", doubling())
    delay = f"dynamic_batching {{ max_queue_delay_microseconds: {int(DELAY_S * 1e6)} }}"
    write_model(path, "patient", doubling(), f"max_batch_size: 8 {delay}")
    write_model(
        path, "endless", busy(rounds=400, width=1500), "max_batch_size: 1 instance_group [{ count: 1 }]"
    )
    return path


@pytest.fixture
def child(repository: Path) -> Iterator[Child]:
    """A server that is ready."""
    with serve("--model-repository", repository) as running:
        yield running.ready()


def post(child: Child, model: str, timeout_s: float = 20) -> tuple[int, dict[str, object]]:
    """Status and answer of one request over HTTP."""
    item = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    request = urllib.request.Request(
        f"http://127.0.0.1:{child.port('HTTPService')}/v2/models/{model}/infer",
        data=json.dumps({"inputs": [item]}).encode(),
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return response.status, json.loads(response.read())


def until_waiting(child: Child, model: str, count: int) -> None:
    """So many requests to a model have come, and no instance has begun them."""
    address = f"http://127.0.0.1:{child.port('Metrics Service')}/metrics"
    line = f'nv_inference_pending_request_count{{model="{model}",version="1"}} {count}'

    def there() -> bool:
        with urllib.request.urlopen(address, timeout=10) as page:
            return line in page.read().decode().splitlines()

    eventually(there)


def connect(child: Child, service: str = "HTTPService") -> socket.socket:
    """A connection that only lies there."""
    return socket.create_connection(("127.0.0.1", child.port(service)), timeout=10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_and_well(child: Child, number: signal.Signals) -> None:
    post(child, "net")
    child.send(number)
    assert child.ended(25) == 0
    lines = [
        f"Signal ({int(number)}) received. Another one ends the server at once.",
        "Waiting for in-flight requests to complete.",
        "All models are stopped, unloading models",
        "successfully unloaded 'net' version 1",
    ]
    at = [next(i for i, line in enumerate(child.out) if words in line) for words in lines]
    assert at == sorted(at)
    assert child.err == []


def test_requests_in_flight_are_answered_and_new_ones_refused(child: Child) -> None:
    address = f"127.0.0.1:{child.port('GRPCInferenceService')}"
    with ThreadPoolExecutor(4) as pool, grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(SERVICE + "ModelInfer", None, None)
        over_grpc = call.future(infer_message("patient", {"x": floats([3, 4])}), timeout=20)
        over_http = [pool.submit(post, child, "patient") for _ in range(3)]
        until_waiting(child, "patient", 4)
        child.send(signal.SIGTERM)
        child.wait_for("Waiting for in-flight")
        with pytest.raises(OSError, match="refused"):
            connect(child)
        for answer in over_http:
            status, body = answer.result()
            assert (status, body["outputs"][0]["data"]) == (200, [2, 4])  # type: ignore[index]
        response = messages.ModelInferResponse.FromString(over_grpc.result())
        assert outputs_of(response) == {"y": [[6, 8]]}
    assert child.ended(25) == 0


def test_idle_connections_do_not_hold_it_up(child: Child) -> None:
    idle = [connect(child, service) for service in ("HTTPService", "GRPCInferenceService", "Metrics Service")]
    kept_alive = connect(child)
    kept_alive.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b" 200 " in kept_alive.recv(1000)
    with grpc.insecure_channel(f"127.0.0.1:{child.port('GRPCInferenceService')}") as channel:
        channel.unary_unary(SERVICE + "ServerLive", None, None)(b"", timeout=5)
        assert child.stop() == 0
    for connection in (*idle, kept_alive):
        connection.close()


POST = b"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\n"
HALF_SENT = (
    POST[:-5],
    POST + b"Content-Length: 100\r\n\r\n{",
    POST + b"Content-Length: 9000000\r\n\r\n" + bytes(70_000),
    POST + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
)


def half_a_call() -> bytes:
    """The beginning of a gRPC connection, a call, and a part of its message."""
    headers = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", (SERVICE + "ModelInfer").encode()),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
    message = struct.pack(">BI", 0, 1000) + bytes(10)
    return (
        frames.PREFACE
        + frames.settings_frame({})
        + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, encode_stateless(headers))
        + frames.frame(frames.DATA, 0, 1, message)
    )


def test_requests_that_were_half_sent_do_not_hold_it_up(child: Child) -> None:
    connections = []
    for sent in HALF_SENT:
        connections += [connect(child) for _ in range(2)]
        connections[-1].sendall(sent)
        connections[-2].sendall(sent)
    connections.append(connect(child, "GRPCInferenceService"))
    connections[-1].sendall(half_a_call())
    time.sleep(0.2)
    assert child.stop() == 0
    for connection in connections:
        connection.close()


def test_a_client_that_does_not_read_its_answer_does_not_hold_it_up_forever(repository: Path) -> None:
    with serve("--model-repository", repository, "--exit-timeout-secs", "4") as child:
        child.ready()
        connection = connect(child)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        giant = b"x" * 40_000_000
        head = b'{"id":"' + giant + b'","inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
        connection.sendall(
            b"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
            % (len(head), head)
        )
        time.sleep(0.3)
        assert child.stop() == 0
        connection.close()


def test_requests_that_do_not_end_in_time_end_with_status_1(repository: Path) -> None:
    with serve("--model-repository", repository, "--exit-timeout-secs", "1") as child:
        child.ready()
        failed = threading.Event()

        def ask() -> None:
            try:
                post(child, "endless")
            except OSError:
                failed.set()

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for each in asking:
            each.start()
        until_waiting(child, "endless", 1)
        began = time.perf_counter()
        child.send(signal.SIGTERM)
        assert child.ended(20) == 1
        assert time.perf_counter() - began > 0.9
        for each in asking:
            each.join(10)
        assert failed.is_set()
        assert "Exit timeout expired. Exiting immediately." in "\n".join(child.err)
        assert "Timeout 1: Found 1 model versions that have in-flight inferences" in child.text


def test_a_second_signal_ends_it_at_once(child: Child) -> None:
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(post, child, "endless") for _ in range(2)]
        until_waiting(child, "endless", 1)
        child.send(signal.SIGTERM)
        child.wait_for("Waiting for in-flight")
        child.send(signal.SIGTERM)
        assert child.ended(20) == -signal.SIGTERM
        for each in asking:
            with pytest.raises(OSError, match=r"."):
                each.result()


def test_a_signal_while_models_are_loading_ends_it_at_once(tmp_path: Path) -> None:
    write_model(tmp_path, "slow", slow_to_load())
    with serve("--model-repository", tmp_path) as child:
        child.wait_for("loading: slow:1")
        time.sleep(0.3)
        child.send(signal.SIGTERM)
        assert child.ended(25) == 0, child.text
        assert "stopped while models were loading" in child.text
        assert "is ready" not in child.text
