"""What a server says about a model, as the load generator reads it."""

from typing import Any

import pytest

from tpx.errors import MeasurementError, UsageError
from tpx.perf.clients.control import model_path
from tpx.perf.clients.endpoint import Protocol, parse_address
from tpx.perf.clients.model import ModelKey, model_counters, model_description, server_description

METADATA: dict[str, Any] = {
    "name": "net",
    "versions": ["1"],
    "platform": "onnxruntime_onnx",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}],
}


def test_the_batch_dimension_of_a_batching_model_is_left_out() -> None:
    assert model_description(METADATA, {"max_batch_size": 8}).inputs[0].shape == (16,)
    assert model_description(METADATA, {"max_batch_size": 0}).inputs[0].shape == (-1, 16)


def test_a_server_without_configurations_is_taken_not_to_batch() -> None:
    model = model_description(METADATA, None)
    assert (model.max_batch_size, model.scheduler, model.decoupled) == (0, "none", False)


def test_64_bit_numbers_may_be_text() -> None:
    metadata = METADATA | {"inputs": [{"name": "x", "datatype": "FP32", "shape": ["-1", "16"]}]}
    assert model_description(metadata, {"max_batch_size": 8}).inputs[0].shape == (16,)


@pytest.mark.parametrize(
    ("config", "scheduler"),
    [
        ({"dynamic_batching": {}}, "dynamic"),
        ({"sequence_batching": {}}, "sequence"),
        ({"ensemble_scheduling": {"step": []}}, "ensemble"),
        ({}, "none"),
    ],
)
def test_the_scheduler_is_the_one_that_is_configured(config: dict[str, Any], scheduler: str) -> None:
    assert model_description(METADATA, config).scheduler == scheduler


def test_flags_and_steps_come_from_the_configuration() -> None:
    config = {
        "input": [{"name": "x", "optional": True}],
        "model_transaction_policy": {"decoupled": True},
        "response_cache": {"enable": True},
        "ensemble_scheduling": {
            "step": [
                {"model_name": "a", "model_version": -1},
                {"model_name": "b", "model_version": "2"},
                {"model_name": "a", "model_version": "-1"},
                {"model_name": "c", "model_version": 0},
                {"model_name": "d"},
            ]
        },
    }
    model = model_description(METADATA, config)
    assert model.inputs[0].optional
    assert model.decoupled
    assert model.response_cache
    assert model.steps == (ModelKey("a"), ModelKey("b", "2"), ModelKey("c"), ModelKey("d"))


def test_an_unknown_datatype_names_the_input() -> None:
    metadata = METADATA | {"inputs": [{"name": "x", "datatype": "FP8", "shape": [1]}]}
    with pytest.raises(MeasurementError, match="input 'x' of model 'net' has the datatype 'FP8'"):
        model_description(metadata, None)


@pytest.mark.parametrize(
    ("url", "protocol", "address"),
    [
        ("localhost:8000", "http", ("localhost", 8000)),
        ("somewhere", "http", ("somewhere", 8000)),
        ("somewhere", "grpc", ("somewhere", 8001)),
        ("http://h:9/", "http", ("h", 9)),
        ("grpc://h:9", "grpc", ("h", 9)),
        ("[::1]:9", "http", ("::1", 9)),
        ("[::1]", "http", ("::1", 8000)),
    ],
)
def test_an_address_is_host_and_port(url: str, protocol: Protocol, address: tuple[str, int]) -> None:
    found = parse_address(url, protocol)
    assert (found.host, found.port) == address


@pytest.mark.parametrize("url", ["h:x", "h:0", "h:70000", ":8000", "h:1/path", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="expected host:port"):
        parse_address(url, "http")


def test_a_scheme_says_whether_there_is_tls() -> None:
    assert parse_address("https://h:1", "http").secure
    assert parse_address("https://h:1", "grpc").secure
    assert parse_address("grpcs://h:1", "grpc").secure
    assert not parse_address("http://h:1", "http").secure


@pytest.mark.parametrize(("url", "protocol"), [("ftp://h:1", "http"), ("grpc://h:1", "http")])
def test_a_scheme_of_something_else_is_refused(url: str, protocol: Protocol) -> None:
    with pytest.raises(UsageError, match="does not go with"):
        parse_address(url, protocol)


def test_each_kind_of_service_has_its_port() -> None:
    assert parse_address("h", "http", "torchserve").port == 8080
    assert parse_address("h", "grpc", "tfserving").port == 8500


def test_names_in_paths_are_quoted() -> None:
    assert model_path(ModelKey("net"), "infer") == "/v2/models/net/infer"
    assert model_path(ModelKey("a/b c", "1"), "stats") == "/v2/models/a%2Fb%20c/versions/1/stats"


STRANGE = {
    "an input without a datatype": {"name": "net", "inputs": [{"name": "x", "shape": [1]}]},
    "a shape in words": {"name": "net", "inputs": [{"name": "x", "datatype": "FP32", "shape": ["many"]}]},
    "inputs by name": {"name": "net", "inputs": {"x": "FP32"}},
}


@pytest.mark.parametrize("metadata", STRANGE.values(), ids=STRANGE)
def test_metadata_of_another_form_is_an_error_that_names_the_model(metadata: dict[str, Any]) -> None:
    with pytest.raises(MeasurementError, match="description of model 'net' cannot be parsed"):
        model_description(metadata, None)


def test_members_that_are_null_are_none() -> None:
    assert server_description({"name": "s", "extensions": None}).extensions == frozenset()
    assert model_description({"name": "net", "inputs": None, "versions": None}, None).inputs == ()
    assert model_counters({"model_stats": None}) == {}


def test_statistics_of_another_form_are_an_error() -> None:
    with pytest.raises(MeasurementError, match="statistics cannot be parsed"):
        model_counters({"model_stats": [{"inference_stats": {"queue": 3}}]})
