"""Every verb over gRPC, through grpcio."""

from typing import Any

import pytest

from tests.serving.live import Channel, floats
from tpx import __version__
from tpx.protocol import messages


def status(channel: Channel, verb: str, **fields: Any) -> tuple[str, str]:
    """The status and message that a call is refused with."""
    request = getattr(messages, f"{verb}Request")(**fields)
    return channel.error(verb, request.SerializeToString())


# verbs


def test_health(channel: Channel) -> None:
    assert channel.call("ServerLive").live
    assert channel.call("ServerReady").ready
    assert channel.call("ModelReady", name="double").ready
    assert not channel.call("ModelReady", name="nobody").ready
    assert not channel.call("ModelReady", name="double", version="7").ready
    answer = channel.send("Check", b"", "/grpc.health.v1.Health/")
    assert messages.HealthCheckResponse.FromString(answer).status == messages.HealthCheckResponse.SERVING


def test_server_metadata(channel: Channel) -> None:
    answer = channel.call("ServerMetadata")
    assert (answer.name, answer.version) == ("tpx", __version__)
    assert "binary_tensor_data" in answer.extensions


def test_model_metadata(channel: Channel) -> None:
    answer = channel.call("ModelMetadata", name="versions")
    assert (answer.name, answer.platform, list(answer.versions)) == (
        "versions",
        "onnxruntime_onnx",
        ["1", "3"],
    )
    assert [(t.name, t.datatype, list(t.shape)) for t in answer.inputs] == [("x", "FP32", [-1, 2])]
    assert [(t.name, t.datatype, list(t.shape)) for t in answer.outputs] == [("y", "FP32", [-1, 2])]
    assert list(channel.call("ModelMetadata", name="versions", version="1").versions) == ["1"]


def test_configuration_and_statistics(channel: Channel) -> None:
    config = channel.call("ModelConfig", name="two").config
    assert (config.name, config.max_batch_size, config.backend) == ("two", 8, "onnxruntime")
    before = channel.call("ModelStatistics", name="two").model_stats[0]
    channel.infer("two", {"a": floats([1, 2], [3, 4]), "b": floats([1, 1], [1, 1])})
    after = channel.call("ModelStatistics", name="two", version="1").model_stats[0]
    assert after.inference_count - before.inference_count == 2
    assert after.execution_count - before.execution_count == 1
    assert after.inference_stats.success.count - before.inference_stats.success.count == 1
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert len(channel.call("ModelStatistics").model_stats) > 5


def test_the_repository_index(channel: Channel) -> None:
    entries = channel.call("RepositoryIndex").models
    assert ("versions", "3", "READY") in [(e.name, e.version, e.state) for e in entries]
    assert status(channel, "RepositoryIndex", repository_name="r")[0] == "UNIMPLEMENTED"


@pytest.mark.parametrize("verb", ["ModelMetadata", "ModelConfig"])
def test_unknown_models_and_versions_are_not_found(channel: Channel, verb: str) -> None:
    assert status(channel, verb, name="nobody") == (
        "NOT_FOUND",
        "Request for unknown model: 'nobody' is not found",
    )
    assert status(channel, verb, name="double", version="9") == (
        "NOT_FOUND",
        "Request for unknown model: 'double' version 9 is not found",
    )
    for name in ("", "double\0", "DOUBLE", "n" * 100_000):
        assert status(channel, verb, name=name)[0] == "NOT_FOUND"


@pytest.mark.parametrize("verb", ["ModelMetadata", "ModelConfig", "ModelReady", "ModelStatistics"])
@pytest.mark.parametrize("version", ["abc", "-1", "0", "1.0", " 1", str(10**20), "1\0", "9" * 5000])
def test_versions_that_are_no_positive_number_are_invalid(channel: Channel, verb: str, version: str) -> None:
    code, message = status(channel, verb, name="double", version=version)
    assert code == "INVALID_ARGUMENT"
    assert "version should be an integral value > 0" in message


def test_statistics_of_what_is_not_there_are_an_invalid_request(channel: Channel) -> None:
    assert status(channel, "ModelStatistics", name="nobody") == (
        "INVALID_ARGUMENT",
        "requested model 'nobody' is not available",
    )
    assert status(channel, "ModelStatistics", name="double", version="9") == (
        "INVALID_ARGUMENT",
        "requested model version is not available for model 'double'",
    )


@pytest.mark.parametrize("verb", ["RepositoryModelLoad", "RepositoryModelUnload"])
def test_models_are_not_controlled_from_outside(channel: Channel, verb: str) -> None:
    assert status(channel, verb, model_name="double") == (
        "UNAVAILABLE",
        "explicit model load / unload is not allowed if polling is enabled",
    )


@pytest.mark.parametrize("verb", ["ModelInfer", "ModelMetadata", "RepositoryIndex"])
@pytest.mark.parametrize("garbage", [b"\xff" * 30, b"\x0a\xff", b"\x0a\x02\xff\xfe", b"\x08"])
def test_bytes_that_are_no_message_are_refused(channel: Channel, verb: str, garbage: bytes) -> None:
    code, message = channel.error(verb, garbage)
    assert code == "INVALID_ARGUMENT"
    assert message.startswith("Unable to parse request")
