"""The agent that compares files with the sums in the configuration."""

import hashlib
from pathlib import Path

import pytest

from tests.serving.repository.agents.journal import asks_for
from tests.serving.repository.controlled import controlled, write
from tpx.errors import ConfigError, LoadError
from tpx.protocol import messages
from tpx.serving.repository.agents.base import AgentAction, AgentModel
from tpx.serving.repository.agents.ownership import agent


def sums(**parameters: str) -> str:
    """The words of a configuration for the agent."""
    return 'name: "checksum" ' + " ".join(
        f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items()
    )


def check(directory: Path, key: str, value: str) -> None:
    parameters = {key: value} if key else {}
    model = AgentModel("net", messages.ModelConfig(), parameters, directory, None)
    agent("checksum", Path("/nowhere")).act(AgentAction.LOAD, model)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "weights").write_bytes(b"weights")
    return tmp_path


@pytest.mark.parametrize("name", ["MD5", "md5", "SHA1", "SHA256", "sha512"])
def test_a_file_that_is_what_was_meant_is_loaded(directory: Path, name: str) -> None:
    digest = hashlib.new(name, b"weights").hexdigest()
    check(directory, f"{name}:1/weights", digest)
    check(directory, f"{name}:1/weights", f" {digest.upper()}\n")


def test_a_file_that_is_another_one_is_refused_in_tritons_words(directory: Path) -> None:
    with pytest.raises(LoadError) as caught:
        check(directory, "MD5:1/weights", "d726e132f91f16ebee703d96f6f73cb1")
    assert caught.value.message == (
        "Mismatched MD5 hash for file 1/weights, expect: d726e132f91f16ebee703d96f6f73cb1, got: "
        f"{hashlib.md5(b'weights', usedforsecurity=False).hexdigest()}"
    )


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("", "", "it has no parameters and would check nothing"),
        ("1/weights", "0" * 32, "must be <algorithm>:<path> with one of MD5, SHA1, SHA256, SHA512"),
        ("SHA265:1/weights", "0" * 64, r"\(did you mean 'SHA256'\?\)"),
        ("SHA256:1/weights", "0" * 32, "must be 64 hexadecimal digits"),
        ("MD5:1/weights", "x" * 32, "must be 32 hexadecimal digits"),
        ("MD5:", "0" * 32, "is outside"),
        ("MD5:../other", "0" * 32, "is outside"),
        ("MD5:/etc/passwd", "0" * 32, "is outside"),
        ("MD5:1/w\0", "0" * 32, "is outside"),
    ],
)
def test_a_parameter_that_cannot_be_is_told(directory: Path, key: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check(directory, key, value)


@pytest.mark.parametrize(("name", "why"), [("2/weights", "No such file"), ("1", "Is a directory")])
def test_a_file_that_cannot_be_read_is_named(directory: Path, name: str, why: str) -> None:
    with pytest.raises(LoadError, match=f"cannot read '{name}' to compute its checksum: {why}"):
        check(directory, f"SHA256:{name}", "0" * 64)


def test_only_loading_is_checked(directory: Path) -> None:
    model = AgentModel("net", messages.ModelConfig(), {}, directory, None)
    for action in set(AgentAction) - {AgentAction.LOAD}:
        agent("checksum", Path("/nowhere")).act(action, model)


async def test_a_damaged_model_is_not_served_and_the_whole_one_is(tmp_path: Path) -> None:
    path = write(tmp_path, 2)
    whole = path.read_bytes()
    asks_for(tmp_path / "net", sums(**{"SHA256:1/model.onnx": hashlib.sha256(whole).hexdigest()}))
    path.write_bytes(whole + b" ")
    async with controlled(tmp_path) as it:
        reason = await it.refusal(it.load())
        assert "Invalid argument: repository agent 'checksum' of model 'net': Mismatched SHA256" in reason
        path.write_bytes(whole)
        await it.load()
        assert await it.factor() == 2
        path.write_bytes(b"")
        await it.refusal(it.load())
        assert await it.factor() == 2


async def test_a_wrong_parameter_is_told_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, 2)
    asks_for(tmp_path / "net", sums(MD4="0"))
    async with controlled(tmp_path) as it:
        reason = await it.refusal(it.load())
        assert reason.endswith(f"({tmp_path}/net/config.pbtxt:2: model_repository_agents.agents[0])")
