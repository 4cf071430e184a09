"""SageMaker's and Vertex AI's endpoints, by the requests that the platforms document."""

import http.client
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.protocol.v2_requests import encode_infer_request
from tests.serving import onnx_files
from tests.serving.live import Live, floats, serving
from tests.serving.onnx_files import write_model
from tpx.errors import UsageError
from tpx.options import build
from tpx.protocol.tensors import Tensor
from tpx.serving.endpoints import check_ports
from tpx.serving.frontends.hosted import sagemaker, vertex_ai
from tpx.serving.options import ServeConfig

SAGEMAKER, VERTEX = "Sagemaker HTTPService", "Vertex AI HTTPService"
BINARY = "application/vnd.{}-triton.binary+json;json-header-size={}"
ROUTES = {"AIP_HEALTH_ROUTE": "/health", "AIP_PREDICT_ROUTE": "/predict"}
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}).encode()


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with both endpoints and two models."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "net", onnx_files.doubling())
    write_model(repository, "other", onnx_files.identity("FP32", "batch", 2))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (*ROUTES.items(), ("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "net")):
            patch.setenv(name, value)
        ports: dict[str, Any] = {"sagemaker_port": 0, "vertex_ai_port": 0}
        options = {
            "allow_sagemaker": True,
            "allow_vertex_ai": True,
            "vertex_ai_default_model": "net",
            **ports,
        }
        with serving(repository, http_restricted_api=("statistics:key=value",), **options) as live:
            yield live


def send(
    live: Live,
    service: str,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and body of one request to an endpoint."""
    connection = http.client.HTTPConnection("127.0.0.1", live.ports[service], timeout=20)
    try:
        connection.request(method, path, body or None, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("service", "health", "predict", "platform"),
    [(SAGEMAKER, "/ping", "/invocations", "sagemaker"), (VERTEX, "/health", "/predict", "vertex-ai")],
)
def test_a_platform_sends_tensors_as_json_and_as_bytes(
    hosted: Live, service: str, health: str, predict: str, platform: str
) -> None:
    assert send(hosted, service, "GET", health)[0] == 200
    status, headers, body = send(hosted, service, "POST", predict, BODY)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body)["outputs"][0]["data"] == [2, 4]
    head, tail = encode_infer_request([Tensor.from_numpy("x", floats([3, 4]))])
    content = {"Content-Type": BINARY.format(platform, len(head))}
    for _ in range(3):
        status, headers, body = send(hosted, service, "POST", predict, head + b"".join(tail), content)
        kind, _, size = headers["content-type"].rpartition("=")
        assert (status, f"{kind}=") == (200, BINARY.format(platform, ""))
        assert np.frombuffer(body[int(size) :], np.float32).tolist() == [6, 8]
        assert "inference-header-content-length" not in headers


@pytest.mark.parametrize("content", ["x{}=3", "{}", "{}=", "{}=x", "{}=3;a=b"])
def test_a_media_type_without_a_size_is_refused(hosted: Live, content: str) -> None:
    kind = content.format("application/vnd.sagemaker-triton.binary+json;json-header-size")
    status, _, body = send(hosted, SAGEMAKER, "POST", "/invocations", BODY, {"Content-Type": kind})
    assert status == 400
    assert json.loads(body)["error"].startswith("expect MIME type for binary data 'application/vnd.sagemaker")


def test_sagemaker_asks_for_health_and_answers_by_its_paths(hosted: Live) -> None:
    for method, path, status in (
        ("POST", "/ping", 405),
        ("GET", "/invocations", 405),
        ("GET", "/v2/health/ready", 404),
        ("GET", "/models", 404),
    ):
        assert send(hosted, SAGEMAKER, method, path)[0] == status
    redirect = {"X-Vertex-Ai-Triton-Redirect": "v2/models/other/infer"}
    answer = send(hosted, SAGEMAKER, "POST", "/invocations", BODY, redirect)
    assert json.loads(answer[2])["model_name"] == "net"


def test_vertex_ai_reaches_the_default_model_and_every_verb(hosted: Live) -> None:
    def redirected(to: str, body: bytes = b"", method: str = "POST") -> tuple[int, Any]:
        answer = send(hosted, VERTEX, method, "/predict", body, {"X-Vertex-Ai-Triton-Redirect": to})
        return answer[0], json.loads(answer[2]) if answer[2] else None

    status, body = redirected("v2/models/other/infer", BODY)
    assert (status, body["model_name"], body["outputs"][0]["data"]) == (200, "other", [1, 2])
    assert redirected("v2/models/other")[1]["name"] == "other"
    assert redirected("v2/models/other/ready") == (200, None)
    assert redirected("v2/health/live") == (200, None)
    assert {entry["name"] for entry in redirected("v2/repository/index")[1]} == {"net", "other"}
    assert redirected("/v2")[1]["name"] == "triton"
    assert redirected("v2/models/stats")[0] == 403, "restricted over HTTP, too"
    assert redirected("elsewhere")[0] == 404
    assert redirected("v2", method="GET")[0] == 405
    assert send(hosted, VERTEX, "GET", "/v2")[0] == 404


def test_the_only_model_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path, "mine", onnx_files.doubling())
    monkeypatch.delenv("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", raising=False)
    monkeypatch.setenv("SAGEMAKER_TRITON_INFERENCE_TYPE", "generate")
    options: dict[str, Any] = {"allow_sagemaker": True, "sagemaker_port": 0, "model_control_mode": "explicit"}
    with serving(tmp_path, load_model=("mine",), **options) as live:
        status, _, body = send(live, SAGEMAKER, "POST", "/invocations", b'{"x": [1, 2]}')
        assert (status, json.loads(body)["y"]) == (200, [2, 4])
        assert live.http("POST", "/v2/repository/models/mine/unload").status == 200
        status, _, body = send(live, SAGEMAKER, "POST", "/invocations", b'{"y": [1, 2]}', {"A": "b"})
        assert (status, json.loads(body)["error"]) == (
            400,
            "Expect the model repository contains only a single model if default model is not specified",
        )


def test_the_default_follows_the_only_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine", "yours"):
        write_model(tmp_path, name, onnx_files.doubling())
    monkeypatch.delenv("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", raising=False)
    options: dict[str, Any] = {"allow_sagemaker": True, "sagemaker_port": 0, "model_control_mode": "explicit"}
    with serving(tmp_path, load_model=("mine",), **options) as live:
        for name, other in (("mine", "yours"), ("yours", "mine")):
            for _ in range(2):
                answer = send(live, SAGEMAKER, "POST", "/invocations", BODY)
                assert json.loads(answer[2])["model_name"] == name
            assert live.http("POST", f"/v2/repository/models/{other}/load").status == 200
            assert live.http("POST", f"/v2/repository/models/{name}/unload").status == 200


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"SAGEMAKER_TRITON_INFERENCE_TYPE": "guess"}, "must be one of infer, generate, generate_stream"),
        ({"SAGEMAKER_TRITON_PING_MODE": "alive"}, "must be one of ready, live, got 'alive'"),
    ],
)
def test_what_sagemaker_cannot_mean_is_refused(environment: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        sagemaker(environment)


@pytest.mark.parametrize("name", ["AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"])
def test_vertex_ai_needs_its_routes(name: str) -> None:
    environment = {key: value for key, value in ROUTES.items() if key != name}
    with pytest.raises(UsageError, match=f"{name} is not defined for Vertex AI endpoint"):
        vertex_ai(environment, "")


def test_ports_outside_the_safe_range_are_refused() -> None:
    ports = {"http_port": 9000, "grpc_port": 9001, "metrics_port": 9002, "sagemaker_port": 8080}
    options = {"allow_sagemaker": True, "sagemaker_safe_port_range": "9000-9001", **ports}
    with pytest.raises(UsageError, match="port 9002 of Metrics Service is not in the range 9000-9001"):
        check_ports(build(ServeConfig, options))
    check_ports(build(ServeConfig, {**options, "sagemaker_safe_port_range": "9000-9002"}))
    with pytest.raises(UsageError, match="needs --frontends 0"):
        check_ports(build(ServeConfig, {"allow_sagemaker": True, "frontends": 2}))


def test_vertex_ai_is_served_where_its_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIP_MODE", "PREDICTION")
    monkeypatch.setenv("AIP_HTTP_PORT", "7070")
    [where] = [service for service in ServeConfig().services if service.hosted]
    assert (where.flag, where.address, where.port) == ("vertex-ai", "0.0.0.0", 7070)
    chosen = build(ServeConfig, {"allow_vertex_ai": False})
    assert not any(service.hosted for service in chosen.services)
