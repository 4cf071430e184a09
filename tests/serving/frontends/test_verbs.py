"""Every verb that is not inference, over both transports."""

from typing import Any

import pytest

from tests.serving.transports import Given, Refused, Transport
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


def tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


def test_a_server_and_the_models_that_it_has_are_ready(transport: Transport) -> None:
    assert transport.ready()
    assert transport.ready("double")
    assert transport.ready("versions", "1")
    assert not transport.ready("nobody")
    assert not transport.ready("double", "7")


def test_server_metadata(transport: Transport) -> None:
    assert list(transport.call("ServerMetadata").items()) == [
        ("name", "triton"),
        ("version", __version__),
        ("extensions", EXTENSIONS),
    ]


def test_model_metadata(transport: Transport) -> None:
    assert list(transport.call("ModelMetadata", "two").items()) == [
        ("name", "two"),
        ("versions", ["1"]),
        ("platform", "onnxruntime_onnx"),
        ("inputs", [tensor("a", "FP32", -1, 2), tensor("b", "FP32", -1, 2)]),
        ("outputs", [tensor("sum", "FP32", -1, 2), tensor("difference", "FP32", -1, 2)]),
    ]


@pytest.mark.parametrize(("version", "versions"), [("", ["1", "3"]), ("1", ["1"]), ("3", ["3"])])
def test_metadata_names_all_versions_or_the_one_asked_for(
    transport: Transport, version: str, versions: list[str]
) -> None:
    assert transport.call("ModelMetadata", "versions", version)["versions"] == versions


def test_types_and_shapes_in_the_metadata_are_the_protocols(transport: Transport) -> None:
    assert transport.call("ModelMetadata", "words")["inputs"] == [tensor("x", "BYTES", -1, -1)]
    assert transport.call("ModelMetadata", "flat")["inputs"] == [tensor("x", "FP32", -1)]


def test_configuration_is_complete_and_its_numbers_are_numbers(transport: Transport) -> None:
    config = transport.call("ModelConfig", "two")
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("two", "onnxruntime", 8)
    assert config["input"][0]["dims"] == [2]
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert config["input"][0]["optional"] is False
    [group] = config["instance_group"]
    assert (group["name"], group["kind"], group["count"]) == ("two", "KIND_CPU", 2)
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["dynamic_batching"]["preferred_batch_size"] == [8]
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 0
    assert config["optimization"]["input_pinned_memory"] == {"enable": True}
    assert transport.call("ModelConfig", "two", "1") == config


def test_statistics_count_rows_executions_and_requests(transport: Transport) -> None:
    [before] = transport.call("ModelStatistics", "label")["model_stats"]
    for rows in (1, 3, 3):
        transport.infer("label", Given(shape=(rows, 3), values=[1, 2, 3] * rows))
    [after] = transport.call("ModelStatistics", "label", "1")["model_stats"]
    assert after["inference_count"] - before["inference_count"] == 7
    assert after["execution_count"] - before["execution_count"] == 3
    success = after["inference_stats"]["success"]
    assert success["count"] - before["inference_stats"]["success"]["count"] == 3
    assert success["ns"] > before["inference_stats"]["success"]["ns"]
    assert after["inference_stats"]["queue"]["count"] == success["count"]
    assert {1, 3} <= {entry["batch_size"] for entry in after["batch_stats"]}
    assert after["last_inference"] > 1_600_000_000_000


def test_statistics_of_all_models_list_every_version(transport: Transport) -> None:
    listed = [(each["name"], each["version"]) for each in transport.call("ModelStatistics")["model_stats"]]
    assert {("versions", "1"), ("versions", "3")} <= set(listed)
    assert listed == sorted(listed)
    of_one = transport.call("ModelStatistics", "versions")["model_stats"]
    assert [each["version"] for each in of_one] == ["1", "3"]


def test_the_repository_index_lists_every_version(transport: Transport) -> None:
    entries = [(each["name"], each["version"], each["state"]) for each in transport.call("RepositoryIndex")]
    assert {("versions", "1", "READY"), ("versions", "3", "READY")} <= set(entries)
    ready = transport.call("RepositoryIndex", ready=True)
    assert [(each["name"], each["version"], each["state"]) for each in ready] == entries


@pytest.mark.parametrize(
    ("verb", "setting", "value"),
    [("LogSettings", "log_format", "x" * (1 << 20)), ("TraceSetting", "trace_level", ["OFF"] * 300_000)],
)
def test_the_event_loop_reads_no_large_settings(
    transport: Transport, verb: str, setting: str, value: Any
) -> None:
    with pytest.raises(Refused, match="takes at most 1048576 bytes, got ") as caught:
        transport.settings(verb, **{setting: value})
    assert caught.value.code == "INVALID_ARGUMENT"
