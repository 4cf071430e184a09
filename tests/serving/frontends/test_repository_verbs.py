"""The model repository over both protocols, and what only gRPC's messages can get wrong."""

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.serving.live import Channel, Live, serving
from tests.serving.repository.controlled import times, write
from tests.serving.transports import TRANSPORTS, Given, OverGrpc, Refused, Transport, connected
from tests.waiting import eventually
from tpx.protocol import messages


def message(verb: str, name: str, **parameters: Any) -> bytes:
    """A load or unload request; a parameter is given as {choice: value}."""
    request = getattr(messages, f"RepositoryModel{verb}Request")(model_name=name)
    for key, choice in parameters.items():
        [(field, value)] = choice.items()
        setattr(request.parameters[key], field, value)
    data: bytes = request.SerializeToString()
    return data


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models of this module lie."""
    return tmp_path_factory.mktemp("control")


@pytest.fixture(scope="module")
def live(repository: Path) -> Iterator[Live]:
    """A server whose models are loaded on request."""
    with serving(repository, model_control_mode="explicit") as running:
        yield running


def load(transport: Transport, name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    parameters = ({"config": config} if config else {}) | dict(files or {})
    assert transport.call("RepositoryModelLoad", name, parameters=parameters) is None


def unload(transport: Transport, name: str, *, dependents: bool = False) -> None:
    transport.call("RepositoryModelUnload", name, parameters={"unload_dependents": dependents})


def index(transport: Transport, name: str, *, ready: bool = False) -> list[tuple[str, str, str]]:
    """Version, state and reason of each version of a model."""
    found = [entry for entry in transport.call("RepositoryIndex", ready=ready) if entry["name"] == name]
    return [tuple(entry.get(key, "") for key in ("version", "state", "reason")) for entry in found]


def factor(transport: Transport, name: str) -> float:
    """What a model multiplies with."""
    return float(transport.infer(name, Given(values=[1, 1])).values["y"][0][0])


def test_a_model_is_loaded_and_unloaded(transport: Transport, repository: Path) -> None:
    name = f"net-{transport.name}"
    write(repository, 2, name=name)
    assert index(transport, name) == [("", "", "")]
    assert index(transport, name, ready=True) == []
    assert not transport.ready(name)
    load(transport, name)
    assert transport.ready(name)
    assert index(transport, name) == index(transport, name, ready=True) == [("1", "READY", "")]
    assert factor(transport, name) == 2
    unload(transport, name, dependents=True)
    assert not transport.ready(name)
    eventually(lambda: index(transport, name) == [("1", "UNAVAILABLE", "unloaded")])
    assert transport.ready()


def test_a_load_with_a_configuration_and_with_files(transport: Transport, repository: Path) -> None:
    name, new = (f"{what}-{transport.name}" for what in ("dressed", "from-nothing"))
    write(repository, 2, name=name)
    load(transport, name, json.dumps({"max_batch_size": 13}))
    assert transport.call("ModelConfig", name)["max_batch_size"] == 13
    files = {"file:5/model.onnx": times(7).SerializeToString(), "file:labels.txt": b""}
    load(transport, name, "{}", files)
    assert factor(transport, name) == 7
    assert transport.call("ModelMetadata", name)["versions"] == ["5"]
    load(transport, name)
    assert factor(transport, name) == 2
    load(transport, new, "{}", files)
    assert factor(transport, new) == 7
    assert [state for _, state, _ in index(transport, new)] == ["READY"]


def test_a_large_message_with_files_is_taken(channel: Channel) -> None:
    files = {"file:5/model.onnx": times(7).SerializeToString(), "file:5/weights": bytes(80 << 20)}
    load(OverGrpc(channel), "large", "{}", files)
    assert factor(OverGrpc(channel), "large") == 7


@pytest.mark.parametrize(("verb", "model"), [("Index", ""), ("ModelLoad", "net"), ("ModelUnload", "net")])
def test_a_repository_by_name_is_not_supported(transport: Transport, verb: str, model: str) -> None:
    with pytest.raises(Refused) as caught:
        transport.call(f"Repository{verb}", model, repository_name="mine")
    assert caught.value.code == "UNIMPLEMENTED"
    assert caught.value.message == "'repository_name' specification is not supported"


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_without_explicit_mode_nothing_is_loaded_on_request(tmp_path: Path, mode: str) -> None:
    write(tmp_path, 2)
    why = "explicit model load / unload is not allowed if polling is enabled"
    with serving(tmp_path, model_control_mode=mode) as fixed:
        for name, verb in itertools.product(TRANSPORTS, ("Load", "Unload")):
            with connected(fixed, name) as transport:
                with pytest.raises(Refused) as caught:
                    transport.call(f"RepositoryModel{verb}", "net")
                assert (caught.value.code, caught.value.message) == ("UNAVAILABLE", why)
                assert index(transport, "net") == [("1", "READY", "")]
        assert fixed.http("POST", "/v2/repository/models/net/load", b"{").status == 503


@pytest.mark.parametrize(
    ("name", "parameters", "why"),
    [
        ("a\0b", {}, "failed to load 'a\0b', failed to poll from model repository"),
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
        ("x" * 8193, {}, "a model name has at most 8192 characters, got 8193"),
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
    assert index(OverGrpc(channel), name) == []


def test_a_parameter_without_a_value_is_refused(channel: Channel) -> None:
    request = messages.RepositoryModelLoadRequest(model_name="n")
    request.parameters["config"].SetInParent()
    status, why = channel.error("RepositoryModelLoad", request.SerializeToString())
    assert (status, why) == (
        "INVALID_ARGUMENT",
        "invalid value type for load parameter 'config', expected string_param.",
    )


def test_unload_takes_one_parameter(channel: Channel) -> None:
    unload(OverGrpc(channel), "nobody")
    for key, parameter, why in [
        ("unload_dependents", {"int64_param": 1}, "invalid value type for 'unload_dependents' parameter"),
        ("what", {"bool_param": True}, "unrecognized unload parameter 'what'."),
    ]:
        status, text = channel.error("RepositoryModelUnload", message("Unload", "net", **{key: parameter}))
        assert status == "INVALID_ARGUMENT"
        assert text.startswith(why)


@pytest.mark.parametrize("verb", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
def test_bytes_that_are_no_message_are_refused(channel: Channel, verb: str) -> None:
    for data in (b"\xff", b"\xff" * 100_000):
        status, why = channel.error(verb, data)
        assert status == "INVALID_ARGUMENT"
        assert why == f"Unable to parse request: it is not a {verb}Request"
