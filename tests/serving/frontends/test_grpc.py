"""What only gRPC can be asked: names and versions that fit in no path, bytes that are no message, health."""

import pytest

from tests.serving.live import Channel
from tpx.protocol import messages


def test_the_health_service_answers(channel: Channel) -> None:
    assert channel.call("ServerLive").live
    answer = channel.send("Check", b"", "/grpc.health.v1.Health/")
    assert messages.HealthCheckResponse.FromString(answer).status == messages.HealthCheckResponse.SERVING


@pytest.mark.parametrize("verb", ["ModelMetadata", "ModelConfig"])
@pytest.mark.parametrize("name", ["", "double\0", "n" * 100_000])
def test_names_that_no_model_has_are_not_found(channel: Channel, verb: str, name: str) -> None:
    request = getattr(messages, f"{verb}Request")(name=name)
    assert channel.outcome(verb, request.SerializeToString()) == "NOT_FOUND"


@pytest.mark.parametrize("verb", ["ModelMetadata", "ModelConfig", "ModelReady", "ModelStatistics"])
@pytest.mark.parametrize("version", ["abc", "-1", "0", "1.0", " 1", str(10**20), "1\0", "9" * 5000])
def test_versions_that_are_no_positive_number_are_invalid(channel: Channel, verb: str, version: str) -> None:
    request = getattr(messages, f"{verb}Request")(name="double", version=version)
    code, message = channel.error(verb, request.SerializeToString())
    assert code == "INVALID_ARGUMENT"
    assert "version should be an integral value > 0" in message


@pytest.mark.parametrize("verb", ["ModelInfer", "ModelMetadata", "RepositoryIndex"])
@pytest.mark.parametrize("garbage", [b"\xff" * 30, b"\x0a\xff", b"\x0a\x02\xff\xfe", b"\x08"])
def test_bytes_that_are_no_message_are_refused(channel: Channel, verb: str, garbage: bytes) -> None:
    code, message = channel.error(verb, garbage)
    assert code == "INVALID_ARGUMENT"
    assert message.startswith("Unable to parse request")
