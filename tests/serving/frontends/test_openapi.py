"""The OpenAPI document: of exactly the routes that there are, valid, and true of the server's answers."""

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.serving.live import Live, floats
from tpx.protocol.compression import Inflater
from tpx.serving.frontends.http import HttpFrontend
from tpx.serving.frontends.http_verbs import Route, paths_of
from tpx.serving.frontends.openapi import described, description, document
from tpx.serving.frontends.overview import Overview
from tpx.serving.tracing.settings import SpanSettings, TraceSetting

FRONT = Overview(controlled=False, metrics=lambda request: request.respond(200, b""))

SAMPLES = {"model": "double", "version": "1", "region": "r", "repository": "repo"}


@pytest.fixture(scope="module")
def told(live: Live) -> Any:
    """The document as a client gets it."""
    answer = live.get("/v2/openapi.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    return answer.json


def operations(told: Any) -> dict[tuple[str, str], Any]:
    return {
        (method.upper(), path): operation
        for path, item in told["paths"].items()
        for method, operation in item.items()
    }


def sample(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: SAMPLES[match[1]], path)


# the document and the routes


def test_every_route_is_described_and_nothing_else(told: Any, live: Live) -> None:
    routes = HttpFrontend(live.server.plane, 1 << 20, Inflater(), front=FRONT).routes
    served = {
        (verb.decode(), path) for route in routes for path in paths_of(route.template) for verb in route.verbs
    }
    assert served == set(described()) == set(operations(told))


def test_every_described_path_is_answered_by_its_method_and_refused_by_others(told: Any, live: Live) -> None:
    for path, item in told["paths"].items():
        for method in ("GET", "POST", "PUT", "DELETE"):
            answer = live.http(method, sample(path), b"{}" if method == "POST" else b"")
            assert answer.status != 404 or answer.error != "Not Found", path
            assert (answer.status == 405) == (method.lower() not in item), (method, path, answer.body)


@pytest.mark.parametrize(
    ("template", "paths"),
    [
        ("/v2[/]", ["/v2"]),
        ("/m/{model}[/versions/{version}]", ["/m/{model}", "/m/{model}/versions/{version}"]),
        ("/a[/{b}]/c/{d*}/e", ["/a/c/{d}/e", "/a/{b}/c/{d}/e"]),
        ("/a.json", ["/a.json"]),
    ],
)
def test_a_template_stands_for_the_paths_that_its_route_matches(template: str, paths: list[str]) -> None:
    assert paths_of(template) == paths
    route = Route(template=template, category="metadata", verbs={})
    for path in paths:
        assert route.match(re.sub(r"\{\w+\}", "7", path))
        assert not route.match(re.sub(r"\{\w+\}", "7", path) + "x/y")
    assert not route.match("/a-json")


def test_a_route_that_nobody_described_is_still_in_the_document(live: Live) -> None:
    routes = HttpFrontend(live.server.plane, 1, Inflater()).routes
    [route] = [each for each in routes if each.template == "/v2/health/live"]
    [new] = [type(route)(template="/v2/new", category="logging", verbs=route.verbs)]
    operation = document([new], [])["paths"]["/v2/new"]["get"]
    assert (operation["operationId"], operation["tags"]) == ("get_v2_new", ["logging"])
    assert "400" in operation["responses"]


# the document itself


def test_it_is_openapi_3_1(told: Any) -> None:
    assert told["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(told).validate()


def test_every_schema_is_used_and_every_tag_told(told: Any) -> None:
    text = json.dumps(told)
    for name in told["components"]["schemas"]:
        assert f'"#/components/schemas/{name}"' in text, name
    used = {operation["tags"][0] for operation in operations(told).values()}
    assert used == {tag["name"] for tag in told["tags"]} == set(description()["tags"])


def test_operations_are_called_by_different_names(told: Any) -> None:
    names = [operation["operationId"] for operation in operations(told).values()]
    assert len(names) == len(set(names))


def test_the_models_that_are_ready_are_examples(told: Any) -> None:
    assert "double" in told["components"]["parameters"]["model"]["examples"]


# the document and the answers


def validator(told: Any, schema: str) -> Any:
    return Draft202012Validator({"$ref": f"#/components/schemas/{schema}", "components": told["components"]})


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("/v2", "ServerMetadata"),
        ("/v2/models/two", "ModelMetadata"),
        ("/v2/models/two/config", "ModelConfig"),
        ("/v2/models/stats", "Statistics"),
        ("/v2/models/two/versions/1/stats", "Statistics"),
        ("/v2/systemsharedmemory/status", "SystemRegions"),
        ("/v2/cudasharedmemory/status", "CudaRegions"),
        ("/v2/models/nobody", "Error"),
        ("/v2/trace/setting", "TraceSetting"),
        ("/v2/models/two/trace/setting", "TraceSetting"),
        ("/v2/logging", "LogSettings"),
    ],
)
def test_answers_are_as_described(live: Live, told: Any, path: str, schema: str) -> None:
    validator(told, schema).validate(live.get(path).json)


def test_the_setting_of_traces_that_become_spans_is_as_described(told: Any) -> None:
    start = TraceSetting(trace_mode="opentelemetry", spans=SpanSettings(resource=(("a", "b"),)))
    answer = {name: t if name == "trace_level" else ",".join(t) for name, t in start.as_texts().items()}
    assert answer["resource"] == "a=b"
    validator(told, "TraceSetting").validate(answer)


def test_the_index_and_inference_are_as_described(live: Live, told: Any) -> None:
    validator(told, "RepositoryIndex").validate(live.http("POST", "/v2/repository/index").json)
    request = {"id": "7", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    validator(told, "InferRequest").validate(request)
    answer = live.infer("double", request)
    validator(told, "InferResponse").validate(answer.json)
    assert answer.json["outputs"][0]["data"] == [2, 4]
    binary = live.infer_binary("double", {"x": floats([1, 2])})
    validator(told, "InferResponse").validate(binary.head)
    generated = live.http("POST", "/v2/models/bool/generate", b'{"x": true}')
    validator(told, "GenerateResponse").validate(generated.json)


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"inputs": {}},
        {"inputs": [{"name": "x"}]},
        {"inputs": [{"name": "x", "datatype": "FP33", "shape": [1], "data": [1]}]},
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1], "data": [1]}]},
        {"inputs": [{"name": 1, "datatype": "FP32", "shape": [1], "data": [1]}]},
        {"id": 7, "inputs": []},
    ],
)
def test_what_the_schema_forbids_is_refused(live: Live, told: Any, request_: Any) -> None:
    assert not validator(told, "InferRequest").is_valid(request_)
    assert live.infer("double", request_).status == 400
