"""Every verb over HTTP that is not inference: status, body, order of keys, and what is refused."""

import json
from typing import Any

import pytest

from tests.serving.live import Live, floats
from tpx import __version__

EXTENSIONS = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
]


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


def test_the_root_leads_to_the_page_about_the_api(live: Live) -> None:
    answer = live.get("/")
    assert (answer.status, answer.headers["location"]) == (302, "/v2/docs")
    assert live.get(answer.headers["location"]).status == 200


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_server_metadata(live: Live, path: str) -> None:
    answer = live.get(path)
    assert answer.status == 200
    assert list(answer.json.items()) == [
        ("name", "tpx"),
        ("version", __version__),
        ("extensions", EXTENSIONS),
    ]


def test_model_metadata(live: Live) -> None:
    answer = live.get("/v2/models/two")
    assert answer.status == 200
    assert list(answer.json.items()) == [
        ("name", "two"),
        ("versions", ["1"]),
        ("platform", "onnxruntime_onnx"),
        (
            "inputs",
            [
                {"name": "a", "datatype": "FP32", "shape": [-1, 2]},
                {"name": "b", "datatype": "FP32", "shape": [-1, 2]},
            ],
        ),
        (
            "outputs",
            [
                {"name": "sum", "datatype": "FP32", "shape": [-1, 2]},
                {"name": "difference", "datatype": "FP32", "shape": [-1, 2]},
            ],
        ),
    ]


@pytest.mark.parametrize(
    ("path", "versions"),
    [
        ("/v2/models/versions", ["1", "3"]),
        ("/v2/models/versions/versions/1", ["1"]),
        ("/v2/models/versions/versions/3", ["3"]),
    ],
)
def test_metadata_names_all_versions_or_the_one_asked_for(live: Live, path: str, versions: list[str]) -> None:
    assert live.get(path).json["versions"] == versions


def test_types_and_shapes_in_the_metadata_are_the_protocols(live: Live) -> None:
    assert live.get("/v2/models/words").json["inputs"] == [
        {"name": "x", "datatype": "BYTES", "shape": [-1, -1]}
    ]
    assert live.get("/v2/models/flat").json["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]


def test_configuration_is_complete_and_its_numbers_are_numbers(live: Live) -> None:
    config = live.get("/v2/models/two/config").json
    assert config["name"] == "two"
    assert config["max_batch_size"] == 8
    assert config["input"][0]["dims"] == [2]
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert config["input"][0]["optional"] is False
    assert config["instance_group"][0]["name"] == "two"
    assert config["instance_group"][0]["kind"] == "KIND_CPU"
    assert config["instance_group"][0]["count"] == 2
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["dynamic_batching"]["preferred_batch_size"] == [8]
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 0
    assert config["optimization"]["input_pinned_memory"] == {"enable": True}
    assert live.get("/v2/models/two/versions/1/config").json == config


def test_a_name_may_be_escaped(live: Live) -> None:
    assert live.get("/v2/models/with%20space%20%C3%BC").json["name"] == "with space ü"
    assert live.get("/v2/models/%64ouble").json["name"] == "double"


UNKNOWN = [
    ("/v2/models/nobody", 404, "Request for unknown model: 'nobody' is not found"),
    ("/v2/models/nobody/config", 404, "Request for unknown model: 'nobody' is not found"),
    ("/v2/models/double/versions/9", 404, "Request for unknown model: 'double' version 9 is not found"),
    (
        "/v2/models/double/versions/9/config",
        404,
        "Request for unknown model: 'double' version 9 is not found",
    ),
    ("/v2/models/nobody/stats", 400, "requested model 'nobody' is not available"),
    (
        "/v2/models/double/versions/9/stats",
        400,
        "requested model version is not available for model 'double'",
    ),
    (
        "/v2/models/double/versions/0",
        400,
        "invalid model version specified '0' , version should be an integral value > 0",
    ),
    (
        f"/v2/models/double/versions/{10**20}",
        400,
        f"failed to get model version from specified version string '{10**20}' (details: stol), "
        "version should be an integral value > 0",
    ),
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
    ("/v2/models/DOUBLE", 404, "Request for unknown model: 'DOUBLE' is not found"),
]


@pytest.mark.parametrize(("path", "status", "message"), UNKNOWN, ids=[path for path, _, _ in UNKNOWN])
def test_what_is_not_there_is_refused_in_tritons_words(
    live: Live, path: str, status: int, message: str
) -> None:
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


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/mine/index"),
    ],
)
def test_what_this_version_does_not_do_is_a_501(live: Live, method: str, path: str) -> None:
    answer = live.http(method, path)
    assert answer.status == 501
    assert "support" in answer.error
    assert "accept-encoding" not in answer.headers


def test_the_repository_index_lists_every_version(live: Live) -> None:
    answer = live.http("POST", "/v2/repository/index")
    assert answer.status == 200
    entries = answer.json
    assert {"name": "versions", "version": "1", "state": "READY"} in entries
    assert {"name": "versions", "version": "3", "state": "READY"} in entries
    assert [list(entry) for entry in entries] == [["name", "version", "state"]] * len(entries)
    assert live.http("POST", "/v2/repository/index", b'{"ready":true}').json == entries


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


@pytest.mark.parametrize("verb", ["load", "unload"])
def test_models_are_not_controlled_from_outside(live: Live, verb: str) -> None:
    answer = live.http("POST", f"/v2/repository/models/double/{verb}")
    assert answer.status == 503
    assert answer.error == "explicit model load / unload is not allowed if polling is enabled"


# statistics


def statistics(live: Live, path: str) -> Any:
    """The members of model_stats."""
    return live.get(path).json["model_stats"]


def test_statistics_have_every_member_in_the_protocols_order(live: Live) -> None:
    assert live.infer_binary("tagged", {"x": floats([1, 2])}).status == 200
    [stats] = statistics(live, "/v2/models/tagged/stats")
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


def test_statistics_count_rows_executions_and_requests(live: Live) -> None:
    [before] = statistics(live, "/v2/models/label/stats")
    for rows in (1, 3, 3):
        live.infer_binary("label", {"x": floats(*[[1, 2, 3]] * rows)})
    [after] = statistics(live, "/v2/models/label/versions/1/stats")
    assert after["inference_count"] - before["inference_count"] == 7
    assert after["execution_count"] - before["execution_count"] == 3
    success = after["inference_stats"]["success"]
    assert success["count"] - before["inference_stats"]["success"]["count"] == 3
    assert after["inference_stats"]["queue"]["count"] == success["count"]
    sizes = {entry["batch_size"]: entry["compute_infer"]["count"] for entry in after["batch_stats"]}
    assert {1, 3} <= set(sizes)
    assert after["last_inference"] > 1_600_000_000_000


def test_statistics_of_all_models_list_every_version(live: Live) -> None:
    listed = [(stats["name"], stats["version"]) for stats in statistics(live, "/v2/models/stats")]
    assert ("versions", "1") in listed
    assert ("versions", "3") in listed
    assert listed == sorted(listed)
    assert [s["version"] for s in statistics(live, "/v2/models/versions/stats")] == ["1", "3"]


def test_answers_are_json_and_say_so(live: Live) -> None:
    for path in ("/v2", "/v2/models/double", "/v2/models/double/config", "/v2/models/stats"):
        answer = live.get(path)
        assert answer.headers["content-type"] == "application/json"
        assert int(answer.headers["content-length"]) == len(answer.body)
        assert json.loads(answer.body)
