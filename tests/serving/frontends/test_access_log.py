"""One line for each request while the log is verbose, and none otherwise."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.frontends.streams import stream
from tests.serving.live import SERVICE, Live, floats, in_one_process, infer_message, reset, serving
from tests.serving.onnx_files import busy, doubling, write_model
from tests.waiting import eventually

pytestmark = in_one_process
X = {"x": floats([1, 2])}
NAME = "tpx.serving.frontends.access_log"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "net", doubling())
    write_model(repository, "busy", busy(rounds=10))
    with serving(repository) as running:
        yield running


@pytest.fixture(autouse=True)
def _verbose(server: Live, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    verbosity(server, 1)
    caplog.set_level(logging.DEBUG, NAME)
    yield
    verbosity(server, 0)


def verbosity(server: Live, level: int) -> None:
    body = json.dumps({"log_verbose_level": level}).encode()
    assert server.http("POST", "/v2/logging", body).status == 200


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, without times and addresses, which must be there."""
    out = []
    for record in caplog.records:
        if record.name == NAME and "/v2/logging" not in record.getMessage():
            line = re.fullmatch(r"(.*) \d+ us 127\.0\.0\.1:\d+", record.getMessage())
            assert line is not None, record.getMessage()
            assert record.levelno == logging.DEBUG
            out.append(line[1])
    return out


def test_http_requests_are_told_with_method_path_and_status(
    server: Live, caplog: pytest.LogCaptureFixture
) -> None:
    server.get("/v2/health/ready")
    server.infer_binary("net", X)
    server.infer("nope", {"inputs": []})
    server.get("/nowhere")
    assert lines(caplog) == [
        "HTTP request: GET /v2/health/ready 200",
        "HTTP request: POST /v2/models/net/infer 200",
        "HTTP request: POST /v2/models/nope/infer 404",
        "HTTP request: GET /nowhere 404",
    ]


def test_calls_are_told_with_method_and_status(server: Live, caplog: pytest.LogCaptureFixture) -> None:
    with server.channel() as channel:
        channel.send("ServerLive", b"")
        channel.infer("net", X)
        assert channel.outcome("ModelInfer", b"garbage") != "OK"
        assert channel.outcome("NoSuchMethod", b"") == "UNIMPLEMENTED"
    with stream(server) as calls:
        calls.half_close()
        calls.rest()
    service = f"GRPC request: {SERVICE}"
    assert lines(caplog) == [
        f"{service}ServerLive OK",
        f"{service}ModelInfer OK",
        f"{service}ModelInfer INVALID_ARGUMENT",
        f"{service}NoSuchMethod UNIMPLEMENTED",
        f"{service}ModelStreamInfer OK",
    ]


def test_clients_that_go_away_are_told_too(server: Live, caplog: pytest.LogCaptureFixture) -> None:
    with server.raw_grpc() as channel:
        call = channel.unary_unary(SERVICE + "ModelInfer").future(infer_message("busy", X))
        eventually(lambda: any(model.in_flight for model in server.server.plane.served()))
        call.cancel()
        eventually(lambda: lines(caplog) == [f"GRPC request: {SERVICE}ModelInfer CANCELLED"])
    eventually(lambda: not any(model.in_flight for model in server.server.plane.served()))
    item = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    leaves = server.begin("/v2/models/busy/infer", {"inputs": [item]})
    eventually(lambda: any(model.in_flight for model in server.server.plane.served()))
    reset(leaves)
    eventually(lambda: lines(caplog)[1:] == ["HTTP request: POST /v2/models/busy/infer 499"])


def test_a_path_is_told_as_it_came_so_that_the_formatter_can_escape_it(
    server: Live, caplog: pytest.LogCaptureFixture
) -> None:
    server.get("/v2/models/%0AE1120/ready")
    assert lines(caplog) == ["HTTP request: GET /v2/models/%0AE1120/ready 400"]


def test_the_line_can_be_switched_off_while_it_serves(
    server: Live, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    verbosity(server, 0)
    assert [listener.observer for listener, _ in server.server.endpoints.listeners] == [None] * 3
    server.get("/v2/health/ready")
    assert lines(caplog) == []
