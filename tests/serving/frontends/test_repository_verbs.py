"""The model repository over both protocols, and what only gRPC's messages can get wrong."""

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.serving.live import Channel, Live, eventually, floats, outputs_of, serving
from tests.serving.repository.controlled import times, write
from tpx.protocol import messages


class Requests:
    """Over HTTP."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def _post(self, path: str, value: Any = None) -> Any:
        answer = self._live.http("POST", "/v2/repository" + path, json.dumps(value or {}).encode())
        assert answer.status == 200, answer.body
        return answer.json if answer.body else None

    def load(self, name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        parameters = {path: base64.b64encode(data).decode() for path, data in (files or {}).items()}
        given = {"config": config, **parameters} if config else parameters
        assert self._post(f"/models/{name}/load", {"parameters": given}) is None

    def unload(self, name: str, *, dependents: bool = False) -> None:
        self._post(f"/models/{name}/unload", {"parameters": {"unload_dependents": dependents}})

    def index(self, name: str, *, ready: bool = False) -> list[tuple[str, str, str]]:
        found = [entry for entry in self._post("/index", {"ready": ready}) if entry["name"] == name]
        return [tuple(entry.get(key, "") for key in ("version", "state", "reason")) for entry in found]

    def ready(self, name: str) -> bool:
        return self._live.get(f"/v2/models/{name}/ready").status == 200

    def refusals(self, name: str, *, repository: str = "") -> set[tuple[str, str]]:
        """How load and unload are refused, and the index where a repository is named."""
        start = f"/v2/repository/{repository}" if repository else "/v2/repository"
        verbs = [f"models/{name}/load", f"models/{name}/unload", *(["index"] if repository else [])]
        answers = [self._live.http("POST", f"{start}/{verb}") for verb in verbs]
        return {(str(answer.status), answer.error) for answer in answers}


class Calls:
    """Over gRPC."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def load(self, name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        parameters: dict[str, Any] = {path: {"bytes_param": data} for path, data in (files or {}).items()}
        if config:
            parameters["config"] = {"string_param": config}
        self._channel.send("RepositoryModelLoad", message("Load", name, **parameters))

    def unload(self, name: str, *, dependents: bool = False) -> None:
        parameter = {"bool_param": dependents}
        self._channel.send("RepositoryModelUnload", message("Unload", name, unload_dependents=parameter))

    def index(self, name: str, *, ready: bool = False) -> list[tuple[str, str, str]]:
        models = self._channel.call("RepositoryIndex", ready=ready).models
        return [(model.version, model.state, model.reason) for model in models if model.name == name]

    def ready(self, name: str) -> bool:
        return bool(self._channel.call("ModelReady", name=name).ready)

    def refusals(self, name: str, *, repository: str = "") -> set[tuple[str, str]]:
        requests: dict[str, Any] = {
            "RepositoryModelLoad": messages.RepositoryModelLoadRequest(model_name=name),
            "RepositoryModelUnload": messages.RepositoryModelUnloadRequest(model_name=name),
        }
        if repository:
            requests["RepositoryIndex"] = messages.RepositoryIndexRequest()
        for request in requests.values():
            request.repository_name = repository
        return {self._channel.error(verb, each.SerializeToString()) for verb, each in requests.items()}


Transport = Requests | Calls


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


@pytest.fixture(params=["HTTP", "gRPC"])
def transport(request: pytest.FixtureRequest, live: Live, channel: Channel) -> Transport:
    return Requests(live) if request.param == "HTTP" else Calls(channel)


def factor(channel: Channel, name: str) -> float:
    """What a model multiplies with."""
    [[value, _]] = outputs_of(channel.infer(name, {"x": floats([1, 1])}))["y"]
    return float(value)


def test_a_model_is_loaded_and_unloaded(transport: Transport, channel: Channel, repository: Path) -> None:
    name = f"net-{type(transport).__name__}"
    write(repository, 2, name=name)
    assert transport.index(name) == [("", "", "")]
    assert transport.index(name, ready=True) == []
    assert not transport.ready(name)
    transport.load(name)
    assert transport.ready(name)
    assert transport.index(name) == transport.index(name, ready=True) == [("1", "READY", "")]
    assert factor(channel, name) == 2
    transport.unload(name, dependents=True)
    assert not transport.ready(name)
    eventually(lambda: transport.index(name) == [("1", "UNAVAILABLE", "unloaded")])
    assert channel.call("ServerReady").ready


def test_a_load_with_a_configuration_and_with_files(
    transport: Transport, channel: Channel, repository: Path
) -> None:
    name, new = (f"{what}-{type(transport).__name__}" for what in ("dressed", "from-nothing"))
    write(repository, 2, name=name)
    transport.load(name, json.dumps({"max_batch_size": 13}))
    assert channel.call("ModelConfig", name=name).config.max_batch_size == 13
    files = {"file:5/model.onnx": times(7).SerializeToString(), "file:labels.txt": b""}
    transport.load(name, "{}", files)
    assert factor(channel, name) == 7
    assert channel.call("ModelMetadata", name=name).versions == ["5"]
    transport.load(name)
    assert factor(channel, name) == 2
    transport.load(new, "{}", files)
    assert factor(channel, new) == 7
    assert [state for _, state, _ in transport.index(new)] == ["READY"]


def test_a_large_message_with_files_is_taken(channel: Channel) -> None:
    files = {"file:5/model.onnx": times(7).SerializeToString(), "file:5/weights": bytes(80 << 20)}
    Calls(channel).load("large", "{}", files)
    assert factor(channel, "large") == 7


def test_a_repository_by_name_is_not_supported(transport: Transport) -> None:
    [(status, why)] = transport.refusals("net", repository="mine")
    assert status in ("501", "UNIMPLEMENTED")
    assert why == "'repository_name' specification is not supported"


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_without_explicit_mode_nothing_is_loaded_on_request(tmp_path: Path, mode: str) -> None:
    write(tmp_path, 2)
    with serving(tmp_path, model_control_mode=mode) as fixed, fixed.channel() as channel:
        for each, expected in ((Requests(fixed), "503"), (Calls(channel), "UNAVAILABLE")):
            [(status, why)] = each.refusals("net")
            assert status == expected
            assert why == "explicit model load / unload is not allowed if polling is enabled"
        assert fixed.http("POST", "/v2/repository/models/net/load", b"{").status == 503
        assert Requests(fixed).index("net") == [("1", "READY", "")]


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
    assert Calls(channel).index(name) == []


def test_a_parameter_without_a_value_is_refused(channel: Channel) -> None:
    request = messages.RepositoryModelLoadRequest(model_name="n")
    request.parameters["config"].SetInParent()
    status, why = channel.error("RepositoryModelLoad", request.SerializeToString())
    assert (status, why) == (
        "INVALID_ARGUMENT",
        "invalid value type for load parameter 'config', expected string_param.",
    )


def test_unload_takes_one_parameter(channel: Channel) -> None:
    Calls(channel).unload("nobody")
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
