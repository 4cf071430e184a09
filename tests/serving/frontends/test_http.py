"""What only HTTP has to show: status, headers, order of keys, paths and methods that lead nowhere."""

import json

import pytest

from tests.serving.live import Live, floats


@pytest.mark.parametrize(
    "path",
    [
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/double/ready",
        "/v2/models/versions/versions/1/ready",
    ],
)
def test_health_is_an_empty_200(live: Live, path: str) -> None:
    for method in ("GET", "HEAD"):
        answer = live.http(method, path)
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["content-length"] == "0"


@pytest.mark.parametrize("path", ["/v2/models/nobody/ready", "/v2/models/double/versions/9/ready"])
def test_a_model_that_is_not_there_is_not_ready(live: Live, path: str) -> None:
    answer = live.get(path)
    assert (answer.status, answer.body) == (400, b'{"error":"Model version not ready"}')
    assert answer.headers["content-type"] == "application/json"


def test_a_name_may_be_escaped(live: Live) -> None:
    assert live.get("/v2/models/with%20space%20%C3%BC").json["name"] == "with space ü"
    assert live.get("/v2/models/%64ouble").json["name"] == "double"


UNKNOWN = [
    ("/v2/models/double/versions/-1", 404, "Not Found"),
    ("/v2/models/double/versions/abc", 404, "Not Found"),
    ("/v2/models/..", 404, "Request for unknown model: '..' is not found"),
    ("/v2/models/..%2f..%2fetc", 404, "Not Found"),
    ("/v2/models/../../etc", 404, "Not Found"),
    ("/v2/models/%00double", 404, "Not Found"),
    ("/v2/models/double%00", 404, "Not Found"),
    ("/v2/models/%ff", 404, "Not Found"),
    ("/v2/models/double/", 404, "Not Found"),
    ("/v2/models//", 404, "Not Found"),
    ("/v2/models", 404, "Not Found"),
    ("/v2/nothing", 404, "Not Found"),
    ("//v2", 404, "Not Found"),
    ("/V2", 404, "Not Found"),
    ("/v3", 404, "Not Found"),
    ("/v2/models/double/versions/1/trace/setting", 404, "Not Found"),
]


@pytest.mark.parametrize(("path", "status", "message"), UNKNOWN, ids=[path for path, _, _ in UNKNOWN])
def test_a_path_that_leads_nowhere_is_not_found(live: Live, path: str, status: int, message: str) -> None:
    answer = live.get(path)
    assert (answer.status, answer.json) == (status, {"error": message})
    assert answer.headers["content-type"] == "application/json"


METHODS = [
    ("POST", "/v2", "GET"),
    ("POST", "/v2/health/live", "GET"),
    ("DELETE", "/v2/health/ready", "GET"),
    ("PUT", "/v2/models/double", "GET"),
    ("POST", "/v2/models/double/config", "GET"),
    ("POST", "/v2/models/double/stats", "GET"),
    ("POST", "/v2/models/stats", "GET"),
    ("POST", "/v2/models/double/ready", "GET"),
    ("GET", "/v2/models/double/infer", "POST"),
    ("HEAD", "/v2/models/double/infer", "POST"),
    ("GET", "/v2/repository/index", "POST"),
    ("GET", "/v2/repository/models/double/load", "POST"),
]


@pytest.mark.parametrize(("method", "path", "allowed"), METHODS)
def test_a_wrong_method_is_told_the_right_one(live: Live, method: str, path: str, allowed: str) -> None:
    answer = live.http(method, path)
    assert answer.status == 405
    assert answer.headers["allow"] == allowed
    assert answer.body == (b"" if method == "HEAD" else b'{"error":"Method Not Allowed"}')


def test_a_verb_that_is_not_supported_is_a_501_without_encodings(live: Live) -> None:
    answer = live.http("POST", "/v2/repository/mine/index")
    assert answer.status == 501
    assert "accept-encoding" not in answer.headers


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"ready":1}', "Invalid value for 'ready': expected a boolean"),
        (b'{"ready":"true"}', "Invalid value for 'ready': expected a boolean"),
        (b"[]", "the request body must be a JSON object"),
        (b"{", "failed to parse the request JSON buffer"),
        (b"\xff", "failed to parse the request JSON buffer"),
        (b"[" * 250_000, "failed to parse the request JSON buffer"),
        (b'{"a":' * 250_000, "failed to parse the request JSON buffer"),
    ],
    ids=["number", "string", "array", "cut", "bytes", "deep", "deeper"],
)
def test_a_malformed_index_request_is_refused(live: Live, body: bytes, message: str) -> None:
    answer = live.http("POST", "/v2/repository/index", body)
    assert answer.status == 400
    assert answer.error.startswith(message)


# statistics


def test_statistics_have_every_member_in_the_protocols_order(live: Live) -> None:
    assert live.infer_binary("tagged", {"x": floats([1, 2])}).status == 200
    [stats] = live.get("/v2/models/tagged/stats").json["model_stats"]
    assert list(stats) == [
        "name",
        "version",
        "last_inference",
        "inference_count",
        "execution_count",
        "inference_stats",
        "response_stats",
        "batch_stats",
        "memory_usage",
    ]
    assert list(stats["inference_stats"]) == [
        "success",
        "fail",
        "queue",
        "compute_input",
        "compute_infer",
        "compute_output",
        "cache_hit",
        "cache_miss",
    ]
    assert all(list(member) == ["count", "ns"] for member in stats["inference_stats"].values())
    assert [list(entry) for entry in stats["batch_stats"]] == [
        ["batch_size", "compute_input", "compute_infer", "compute_output"]
    ]


def test_answers_are_json_and_say_so(live: Live) -> None:
    for path in ("/v2", "/v2/models/double", "/v2/models/double/config", "/v2/models/stats"):
        answer = live.get(path)
        assert answer.headers["content-type"] == "application/json"
        assert int(answer.headers["content-length"]) == len(answer.body)
        assert json.loads(answer.body)
    assert live.get("/v2/").body == live.get("/v2").body
    entries = live.http("POST", "/v2/repository/index").json
    assert {tuple(entry) for entry in entries} == {("name", "version", "state")}
