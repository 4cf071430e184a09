"""The agent that decrypts the files of a model."""

import asyncio
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.serving.repository.agents.journal import asks_for
from tests.serving.repository.controlled import controlled, write
from tpx.errors import ConfigError, LoadError
from tpx.protocol import messages
from tpx.serving.repository.agents.base import AgentAction, AgentModel
from tpx.serving.repository.agents.ownership import agent

KEY = Fernet.generate_key()


def decrypted(location: Path, **parameters: str) -> AgentModel:
    """A model after the agent has loaded it."""
    model = AgentModel("net", messages.ModelConfig(), parameters, location, None)
    agent("decrypt", Path("/nowhere")).act(AgentAction.LOAD, model)
    return model


def encrypt(path: Path, key: bytes = KEY) -> None:
    """In place, with the ending."""
    path.with_name(path.name + ".fernet").write_bytes(Fernet(key).encrypt(path.read_bytes()))
    path.unlink()


@pytest.fixture
def location(tmp_path: Path, temporary: Path) -> Path:
    """A model with an encrypted file of two, and a link to a directory."""
    directory = tmp_path / "net"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "weights").write_bytes(b"secret")
    encrypt(directory / "1" / "weights")
    (directory / "labels.txt").write_text("cat")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "table").write_bytes(b"table")
    encrypt(tmp_path / "shared" / "table")
    (directory / "2").symlink_to(tmp_path / "shared")
    (directory / "2" / "round").symlink_to(directory)
    return directory


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    (tmp_path / "key").write_bytes(KEY + b"\n")
    return str(tmp_path / "key")


def test_encrypted_files_are_plain_and_private_and_the_others_are_linked(
    location: Path, key_file: str
) -> None:
    model = decrypted(location, key_file=key_file)
    made = model.location
    assert made != location
    assert (made / "1" / "weights").read_bytes() == b"secret"
    assert (made / "1" / "weights").stat().st_mode & 0o077 == 0
    assert made.stat().st_mode & 0o077 == 0
    assert (made / "2" / "table").read_bytes() == b"table"
    assert (made / "labels.txt").readlink() == location / "labels.txt"
    assert sorted(path.name for path in made.rglob("*.fernet")) == []
    model.release()
    assert not made.exists()
    assert (location / "labels.txt").read_text() == "cat"


def test_the_key_may_be_in_the_environment(location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY.decode())
    assert (decrypted(location, key_environment="MODEL_KEY").location / "1/weights").read_bytes() == b"secret"


def test_keys_are_changed_by_giving_both(location: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(Fernet.generate_key() + b"\n" + KEY)
    made = decrypted(location, key_file=str(tmp_path / "keys")).location
    assert (made / "1" / "weights").read_bytes() == b"secret"


def test_an_encrypted_file_stands_for_a_plain_one_of_its_name(location: Path, key_file: str) -> None:
    (location / "1" / "weights").write_bytes(b"decoy")
    made = decrypted(location, key_file=key_file).location
    assert (made / "1" / "weights").read_bytes() == b"secret"


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({}, "it needs one parameter, key_environment or key_file"),
        ({"key_file": "/a", "key_environment": "B"}, "it needs one parameter"),
        ({"keyfile": "/a"}, r"unknown parameter 'keyfile' .*did you mean 'key_file'"),
    ],
)
def test_a_parameter_that_cannot_be_is_told(location: Path, parameters: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        decrypted(location, **parameters)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot read the key file '.*': No such file"),
        (b"", "contains no key"),
        (b"short", "contains no Fernet key: 32 bytes in URL-safe base64"),
        (b"\xff\xfe", "contains no Fernet key: it is not text"),
        pytest.param(
            Fernet.generate_key(),
            "'.*weights.fernet' was not encrypted with this key, or is damaged",
            id="another key",
        ),
    ],
)
def test_a_key_that_does_not_fit_is_told_and_never_shown(
    location: Path, tmp_path: Path, content: bytes | None, why: str
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(LoadError, match=why) as caught:
        decrypted(location, key_file=str(tmp_path / "key"))
    assert not content or content.decode("latin-1") not in caught.value.message


def test_a_variable_that_is_not_set_is_named(location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODEL_KEY", raising=False)
    with pytest.raises(LoadError, match="'MODEL_KEY', which should hold the key, is not set"):
        decrypted(location, key_environment="MODEL_KEY")


def test_a_model_without_encrypted_files_is_refused(tmp_path: Path, temporary: Path, key_file: str) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(LoadError, match=r"there is no file that ends in '\.fernet' in"):
        decrypted(tmp_path / "plain", key_file=key_file)


def test_an_encrypted_model_and_its_configuration_are_served(
    tmp_path: Path, temporary: Path, key_file: str
) -> None:
    path = write(tmp_path / "models", 3)
    asks_for(tmp_path / "models" / "net", rest="max_batch_size: 6")
    encrypt(tmp_path / "models" / "net" / "config.pbtxt")
    asks_for(
        tmp_path / "models" / "net",
        f'name: "decrypt" parameters {{ key: "key_file" value: "{key_file}" }}',
    )
    encrypt(path)

    async def scene() -> None:
        async with controlled(tmp_path / "models") as it:
            await it.load()
            assert await it.factor() == 3
            assert it.repository.get("net").config.max_batch_size == 6

    asyncio.run(scene())
    assert list(temporary.iterdir()) == []
