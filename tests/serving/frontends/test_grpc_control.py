"""The model repository over gRPC."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.serving.live import Channel, Live, serving
from tests.serving.repository.controlled import times, write
from tpx.protocol import messages
from tpx.protocol.tensors import Tensor


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models of this module lie."""
    return tmp_path_factory.mktemp("control")


@pytest.fixture(scope="module")
def live(repository: Path) -> Iterator[Live]:
    """A server whose models are loaded on request."""
    with serving(repository, model_control_mode="explicit") as running:
        yield running


def message(verb: str, name: str, **parameters: Any) -> bytes:
    """A load or unload request; a parameter is given as {choice: value}."""
    request = getattr(messages, f"RepositoryModel{verb}Request")(model_name=name)
    for key, choice in parameters.items():
        [(field, value)] = choice.items()
        setattr(request.parameters[key], field, value)
    data: bytes = request.SerializeToString()
    return data


def load(channel: Channel, name: str, **parameters: Any) -> None:
    channel.send("RepositoryModelLoad", message("Load", name, **parameters))


def unload(channel: Channel, name: str, **parameters: Any) -> None:
    channel.send("RepositoryModelUnload", message("Unload", name, **parameters))


def index(channel: Channel, name: str, **fields: Any) -> list[tuple[str, str, str]]:
    models = channel.call("RepositoryIndex", **fields).models
    return [(model.version, model.state, model.reason) for model in models if model.name == name]


def factor(channel: Channel, name: str) -> float:
    """What a model multiplies with."""
    answer = channel.infer(name, {"x": np.ones((1, 2), dtype=np.float32)})
    return float(Tensor("y", "FP32", (1, 2), answer.raw_output_contents[0]).numpy()[0, 0])


def ready(channel: Channel, name: str) -> bool:
    return bool(channel.call("ModelReady", name=name).ready)


def test_a_model_is_loaded_and_unloaded(channel: Channel, repository: Path) -> None:
    write(repository, 2, name="net")
    assert index(channel, "net") == [("", "", "")]
    assert not ready(channel, "net")
    load(channel, "net")
    assert ready(channel, "net")
    assert index(channel, "net") == index(channel, "net", ready=True) == [("1", "READY", "")]
    assert factor(channel, "net") == 2
    unload(channel, "net", unload_dependents={"bool_param": True})
    assert not ready(channel, "net")
    for _ in range(5000):
        if index(channel, "net") == [("1", "UNAVAILABLE", "unloaded")]:
            break
    assert index(channel, "net") == [("1", "UNAVAILABLE", "unloaded")]


def test_a_load_with_a_configuration_and_with_files(channel: Channel, repository: Path) -> None:
    write(repository, 2, name="dressed")
    load(channel, "dressed", config={"string_param": json.dumps({"max_batch_size": 13})})
    assert channel.call("ModelConfig", name="dressed").config.max_batch_size == 13
    files = {"file:5/model.onnx": {"bytes_param": times(7).SerializeToString()}}
    load(channel, "dressed", config={"string_param": "{}"}, **files)
    assert factor(channel, "dressed") == 7
    padding = {"file:5/weights": {"bytes_param": bytes(80 << 20)}}
    load(channel, "from-nothing", config={"string_param": "{}"}, **files, **padding)
    assert factor(channel, "from-nothing") == 7
    load(channel, "dressed")
    assert factor(channel, "dressed") == 2


@pytest.mark.parametrize(
    ("name", "parameters", "why"),
    [
        ("..", {}, "invalid model name '..', model name must not contain path traversal characters"),
        ("../etc", {}, "invalid model name '../etc', model name must not contain path traversal characters"),
        ("", {}, "Model name cannot be empty. Please enter a valid name to deploy."),
        ("a\0b", {}, "failed to load 'a\0b', failed to poll from model repository"),
        ("nobody", {}, "failed to load 'nobody', failed to poll from model repository"),
        ("n", {"what": {"string_param": ""}}, "unrecognized load parameter 'what'."),
        (
            "n",
            {"config": {"bytes_param": b"{}"}},
            "invalid value type for load parameter 'config', expected string_param.",
        ),
        (
            "n",
            {"config": {"string_param": "{}"}, "file:1/x": {"string_param": ""}},
            "invalid value type for load parameter 'file:1/x', expected bytes_param.",
        ),
        (
            "n",
            {"file:1/x": {"bytes_param": b""}},
            "failed to load 'n', failed to poll from model repository: Load parameter 'config' must be "
            "specified for model file override",
        ),
        (
            "n",
            {"config": {"string_param": "{}"}, "file:..": {"bytes_param": b""}},
            "Invalid file parameter 'file:..' with normalized path '..' must stay within model directory.",
        ),
        *(
            (
                name,
                {"config": {"string_param": "{}"}, "file:1/x": {"bytes_param": b""}},
                f"invalid model name {name[:100]!r}, a model that comes with its files needs a name of at "
                "most 255 bytes, all of it printable, that does not begin with a dot",
            )
            for name in ("a\nb", ".hidden", ".", "x" * 300)
        ),
    ],
)
def test_a_load_that_cannot_be_meant_says_why(
    channel: Channel, name: str, parameters: dict[str, Any], why: str
) -> None:
    error = channel.error("RepositoryModelLoad", message("Load", name, **parameters))
    assert error == ("INVALID_ARGUMENT", why)
    assert index(channel, name) == []


def test_a_parameter_without_a_value_is_refused(channel: Channel) -> None:
    request = messages.RepositoryModelLoadRequest(model_name="n")
    request.parameters["config"].SetInParent()
    status, why = channel.error("RepositoryModelLoad", request.SerializeToString())
    assert (status, why) == (
        "INVALID_ARGUMENT",
        "invalid value type for load parameter 'config', expected string_param.",
    )


def test_unload_takes_one_parameter(channel: Channel) -> None:
    unload(channel, "nobody")
    for key, parameter, why in [
        ("unload_dependents", {"int64_param": 1}, "invalid value type for 'unload_dependents' parameter"),
        ("what", {"bool_param": True}, "unrecognized unload parameter 'what'."),
    ]:
        status, text = channel.error("RepositoryModelUnload", message("Unload", "net", **{key: parameter}))
        assert status == "INVALID_ARGUMENT"
        assert text.startswith(why)


@pytest.mark.parametrize("verb", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
def test_a_repository_by_name_is_not_supported(channel: Channel, verb: str) -> None:
    request = getattr(messages, f"{verb}Request")(repository_name="mine").SerializeToString()
    assert channel.error(verb, request) == (
        "UNIMPLEMENTED",
        "'repository_name' specification is not supported",
    )


@pytest.mark.parametrize("verb", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
def test_bytes_that_are_no_message_are_refused(channel: Channel, verb: str) -> None:
    for data in (b"\xff", b"\xff" * 100_000):
        status, why = channel.error(verb, data)
        assert status == "INVALID_ARGUMENT"
        assert why == f"Unable to parse request: it is not a {verb}Request"


def test_without_explicit_mode_nothing_is_loaded_on_request(tmp_path: Path) -> None:
    write(tmp_path, 2)
    with serving(tmp_path, model_control_mode="poll") as polling, polling.channel() as channel:
        for verb in ("Load", "Unload"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.send(f"RepositoryModel{verb}", message(verb, "net"))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert caught.value.details() == (
                "explicit model load / unload is not allowed if polling is enabled"
            )
        assert factor(channel, "net") == 2
