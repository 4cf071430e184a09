"""`tpx serve --frontends 2`: one answer, whichever process gives it, and processes that end."""

import http.client
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from tests.e2e.child import Child, serve
from tests.serving.live import SERVICE, floats, infer_message, outputs_of
from tests.serving.onnx_files import doubling, write_model
from tests.waiting import eventually
from tpx.protocol import messages
from tpx.serving.transport.memory import reserve_memory

COUNT = 2
WAITS = """
max_batch_size: 8
dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 60000000 }
"""
BIG = 300_000
"""Elements of a tensor that needs a block of its own."""


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "double", doubling("batch", "n"))
    write_model(repository, "waits", doubling(), WAITS)
    models = ("--model-control-mode=explicit", "--load-model=double", "--load-model=waits")
    words = (*models, "--exit-timeout-secs=2")
    with serve("--model-repository", repository, f"--frontends={COUNT}", *words) as running:
        yield running.ready()


def ask(child: Child, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Status and answer of a request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", child.port("HTTPService"), timeout=20)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None
    finally:
        connection.close()


def request(*values: float) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, len(values)], "data": values}]}


def infer(child: Child, values: list[float], model: str = "double") -> tuple[int, Any]:
    status, answer = ask(child, "POST", f"/v2/models/{model}/infer", request(*values))
    return status, answer["outputs"][0]["data"] if status == 200 else answer["error"]


def frontends(child: Child) -> list[psutil.Process]:
    """The processes that accept connections, oldest first."""
    engine = child.engine
    return sorted((p for p in child.processes if p != engine), key=lambda each: each.create_time())


def test_every_connection_gets_the_same_answers(child: Child) -> None:
    for number in range(20):
        assert infer(child, [number, 1]) == (200, [2 * number, 2])
    assert infer(child, [1.0] * BIG)[1] == [2.0] * BIG


def test_statistics_are_those_of_all_frontends(child: Child) -> None:
    def count() -> int:
        return int(ask(child, "GET", "/v2/models/double/stats")[1]["model_stats"][0]["inference_count"])

    before = count()
    for _ in range(10):
        infer(child, [1, 2])
    assert count() == before + 10


def test_every_frontend_reports_the_requests_of_the_whole_server(child: Child) -> None:
    def report() -> str:
        connection = http.client.HTTPConnection("127.0.0.1", child.port("HTTPService"), timeout=20)
        with closing(connection):
            headers = {"endpoint-load-metrics-format": "text"}
            connection.request("POST", "/v2/models/double/infer", json.dumps(request(1, 2)), headers)
            return str(connection.getresponse().headers["endpoint-load-metrics"])

    with ExitStack() as waiting:
        for _ in range(3):
            connection = http.client.HTTPConnection("127.0.0.1", child.port("HTTPService"), timeout=20)
            waiting.enter_context(closing(connection))
            connection.request("POST", "/v2/models/waits/infer", json.dumps(request(1, 2)))
        for _ in range(8):
            eventually(lambda: report().endswith("requests_in_flight=3, named_metrics.pending_requests=3"))
    eventually(lambda: report().endswith("requests_in_flight=0, named_metrics.pending_requests=0"))


def test_a_model_that_one_frontend_unloads_is_gone_for_all(child: Child) -> None:
    assert ask(child, "POST", "/v2/repository/models/double/unload")[0] == 200
    for _ in range(8):
        status, error = infer(child, [1, 2])
        assert (status, "double" in error) == (404, True)
    assert ask(child, "POST", "/v2/repository/models/double/load")[0] == 200
    for _ in range(8):
        assert infer(child, [1, 2]) == (200, [2, 4])


def test_a_mistake_is_told_in_the_same_words_as_by_one_process(child: Child) -> None:
    tensor = {"name": "x", "datatype": "INT8", "shape": [1, 2], "data": [1, 2]}
    status, answer = ask(child, "POST", "/v2/models/double/infer", {"inputs": [tensor]})
    assert status == 400
    assert answer["error"] == (
        "[request id: <id_unknown>] inference input 'x' data-type is 'INT8', but model 'double' expects "
        "'FP32'"
    )
    assert ask(child, "POST", "/v2/models/none/infer", {"inputs": [tensor]}) == (
        404,
        {"error": "Request for unknown model: 'none' is not found"},
    )


def test_a_frontend_that_is_killed_is_back_and_the_others_go_on(child: Child) -> None:
    before = frontends(child)
    assert len(before) == COUNT
    connections = [grpc.insecure_channel(f"127.0.0.1:{child.port('GRPCInferenceService')}") for _ in range(4)]
    before[0].kill()
    eventually(lambda: len(frontends(child)) == COUNT and before[0] not in frontends(child))
    assert before[1] in frontends(child)
    for connection in connections:
        with connection:
            message = infer_message("double", {"x": floats([1, 2])})
            call = connection.unary_unary(SERVICE + "ModelInfer")
            answer = messages.ModelInferResponse.FromString(call(message, timeout=20, wait_for_ready=True))
            assert outputs_of(answer)["y"] == [[2, 4]]
    for _ in range(8):
        assert infer(child, [1, 2]) == (200, [2, 4])
    assert "frontend 0 has ended by signal 9: restarting it" in child.text


def test_a_frontend_that_has_served_is_started_again_without_a_pause(child: Child) -> None:
    for _ in range(6):  # pauses would grow to half a minute: longer than a connection waits
        newest = frontends(child)[-1]
        newest.kill()
        eventually(lambda newest=newest: len(frontends(child)) == COUNT and newest not in frontends(child))  # type: ignore[misc]
        for _ in range(10):  # some of these connections come to the new one
            assert infer(child, [1, 2]) == (200, [2, 4])


def test_a_frontend_that_sends_nonsense_is_dropped_and_the_others_go_on(child: Child) -> None:
    before = frontends(child)
    found = {each.laddr for each in child.engine.net_connections("unix") if str(each.laddr).startswith("@")}
    [address] = found
    descriptors = [reserve_memory()[0] for _ in range(2)]
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect("\0" + str(address)[1:])
        socket.send_fds(stranger, [b"\7"], descriptors)
        stranger.sendall(bytes([27, 0, 0, 0, 1]) + b"\xff" * 27)
        stranger.settimeout(20)
        while stranger.recv(4096):  # the state, and then the end
            pass
    for descriptor in descriptors:
        os.close(descriptor)
    eventually(lambda: "frontend 7: its messages cannot be read" in child.text)
    assert all(infer(child, [1, 2]) == (200, [2, 4]) for _ in range(8))
    assert frontends(child) == before


def test_an_engine_that_is_killed_is_back_with_its_models(child: Child) -> None:
    engine, before = child.engine, frontends(child)
    child.send(signal.SIGSTOP)  # the supervisor starts nothing meanwhile
    engine.kill()
    eventually(lambda: infer(child, [1, 2])[0] == 503)
    for verb in ("/v2/health/ready", "/v2/models/double/config"):
        assert ask(child, "GET", verb)[0] == 503
    with grpc.insecure_channel(f"127.0.0.1:{child.port('GRPCInferenceService')}") as channel:
        with pytest.raises(grpc.RpcError) as failure:
            channel.unary_unary(SERVICE + "ModelInfer")(infer_message("double", {"x": floats([1, 2])}))
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    child.send(signal.SIGCONT)
    eventually(lambda: infer(child, [1, 2]) == (200, [2, 4]))
    assert set(before) <= set(psutil.Process(child.pid).children())
    assert "the engine has ended by signal 9: restarting it" in child.text


def test_a_supervisor_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    write_model(tmp_path, "double", doubling())
    with serve("--model-repository", tmp_path, f"--frontends={COUNT}") as child:
        processes = psutil.Process(child.ready().pid).children(recursive=True)
        assert len(processes) == COUNT + 1
        os.kill(child.pid, signal.SIGKILL)
        assert not psutil.wait_procs(processes, timeout=20)[1]


def test_a_port_that_is_in_use_is_refused(child: Child, tmp_path: Path) -> None:
    write_model(tmp_path, "double", doubling())
    words = (f"--http-port={child.port('HTTPService')}", "--grpc-port=0", "--metrics-port=0", "--frontends=2")
    with serve("--model-repository", tmp_path, *words, ports=False) as other:
        assert other.ended(20) == 1, other.text[-800:]
        assert re.search(r"Socket '127.0.0.1:\d+' already in use", other.text)


def test_models_that_cannot_be_loaded_end_all_processes(tmp_path: Path) -> None:
    folder = tmp_path / "broken" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"nothing")
    with serve("--model-repository", tmp_path, "--frontends=2") as child:
        assert child.ended(30) == 1
        assert "failed to load 1 of " in child.text


def test_one_page_of_metrics_counts_all_connections_and_requests(child: Child) -> None:
    def value(line: str) -> float:
        connection = http.client.HTTPConnection("127.0.0.1", child.port("Metrics Service"), timeout=20)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        connection.close()
        return sum(float(each.rsplit(" ", 1)[1]) for each in page.splitlines() if each.startswith(line))

    before = value("nv_inference_request_success")
    connections = [http.client.HTTPConnection("127.0.0.1", child.port("HTTPService")) for _ in range(8)]
    for connection in connections:
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
    eventually(lambda: value("tpx_frontend_connections") == len(connections))
    for connection in connections:
        connection.close()
    for _ in range(5):
        infer(child, [1, 2])
    assert value("nv_inference_request_success") == before + 5


def test_the_access_log_of_all_frontends_is_switched_on_by_one_request(child: Child) -> None:
    def every_frontend_logs() -> bool:
        assert infer(child, [1, 2]) == (200, [2, 4])
        pids = re.findall(
            r" (\d+) access_log.py:\d+\] \"HTTP request: POST /v2/models/double/infer 200", child.text
        )
        return {each.pid for each in frontends(child)} <= set(map(int, pids))

    assert not every_frontend_logs()
    assert ask(child, "POST", "/v2/logging", {"log_verbose_level": 1})[0] == 200
    eventually(every_frontend_logs)
    assert ask(child, "POST", "/v2/logging", {"log_verbose_level": 0})[0] == 200
