"""Who we are to object stores: the environment, profiles, and the file that names credentials by address."""

import json
from pathlib import Path
from typing import Any

import pytest

from tpx.errors import UsageError
from tpx.serving.repository.stores.addresses import StoreAddress, address_of, settings_of

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


def settings(url: str, environment: dict[str, str], home: Path = Path("/nowhere")) -> dict[str, Any]:
    address = address_of(url)
    assert isinstance(address, StoreAddress)
    return settings_of(address, environment, home)


def profiles(home: Path) -> Path:
    (home / ".aws").mkdir()
    (home / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = d\naws_secret_access_key = ds\n"
        "[other]\naws_access_key_id = o\naws_secret_access_key = os\naws_session_token = ot\n"
    )
    (home / ".aws" / "config").write_text(
        "[profile other]\nregion = mars-1\n[profile sso]\nsso_session = x\n"
    )
    return home


def test_keys_of_the_environment_are_taken() -> None:
    more = {"AWS_SESSION_TOKEN": "token", "AWS_DEFAULT_REGION": "eu-1"}
    assert settings("s3://b", KEYS | more) == {
        "access_key_id": "id",
        "secret_access_key": "secret",
        "session_token": "token",
        "region": "eu-1",
        "virtual_hosted_style_request": True,
    }


def test_another_server_is_asked_by_path() -> None:
    found = settings("s3://http://h:1/b", KEYS)
    assert found["endpoint"] == "http://h:1"
    assert found["virtual_hosted_style_request"] is False


def test_a_profile_goes_before_keys_and_the_default_one_behind_them(tmp_path: Path) -> None:
    home = profiles(tmp_path)
    chosen = settings("s3://b", KEYS | {"AWS_PROFILE": "other"}, home)
    assert chosen["access_key_id"] == "o"
    assert chosen["session_token"] == "ot"
    assert chosen["region"] == "mars-1"
    assert settings("s3://b", KEYS, home)["access_key_id"] == "id"
    default = settings("s3://b", {"AWS_DEFAULT_REGION": "eu-1"}, home)
    assert default["access_key_id"] == "d"
    assert default["region"] == "eu-1"


def test_a_profile_without_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="profile 'sso' of AWS_PROFILE has no aws_access_key_id"):
        settings("s3://b", {"AWS_PROFILE": "sso"}, profiles(tmp_path))


def test_without_any_keys_the_machine_is_asked_who_it_is() -> None:
    assert settings("s3://b", {}) == {"virtual_hosted_style_request": True}
    assert settings("gs://b", {}) == {}


def test_google_reads_the_file_that_the_environment_names() -> None:
    assert settings("gs://b", {"GOOGLE_APPLICATION_CREDENTIALS": "/k.json"}) == {
        "application_credentials": "/k.json"
    }


def test_azure_takes_a_key_or_an_identity() -> None:
    key = {"AZURE_STORAGE_ACCOUNT": "me", "AZURE_STORAGE_KEY": "key"}
    assert settings("as://a/c/p", key) == {"account_name": "me", "account_key": "key"}
    assert settings("as://a/c/p", {"AZURE_STORAGE_KEY": "key"})["account_name"] == "a"
    managed = key | {"AZURE_STORAGE_AUTH_TYPE": "managed_identity", "AZURE_STORAGE_CLIENT_ID": "c"}
    assert settings("as://a/c/p", managed) == {
        "account_name": "me",
        "client_id": "c",
        "credential_type": "managed_identity",
    }
    with pytest.raises(UsageError, match="AZURE_STORAGE_AUTH_TYPE must be"):
        settings("as://a/c/p", {"AZURE_STORAGE_AUTH_TYPE": "hope"})


def test_of_the_file_of_credentials_the_longest_beginning_counts(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    entry = {"secret_key": "s", "key_id": "k", "region": "r", "session_token": "", "profile": ""}
    entries = {
        "gs": {"": "/all.json", "gs://one": "/one.json", "gs://one/deep": "/deep.json"},
        "s3": {"": entry, "s3://special": entry | {"key_id": "k2"}},
        "as": {"as://me": {"account_str": "you", "account_key": "yours"}},
    }
    file.write_text(json.dumps(entries))
    environment = KEYS | {"TRITON_CLOUD_CREDENTIAL_PATH": str(file), "AZURE_STORAGE_KEY": "mine"}
    for url, expected in (
        ("gs://other/x", "/all.json"),
        ("gs://one", "/one.json"),
        ("gs://one/x", "/one.json"),
        ("gs://one-more/x", "/all.json"),
        ("gs://one/deep/x", "/deep.json"),
    ):
        assert settings(url, environment) == {"application_credentials": expected}
    assert settings("s3://bucket/x", environment)["access_key_id"] == "k"
    assert settings("s3://special/x", environment)["access_key_id"] == "k2"
    assert settings("as://me/c/p", environment)["account_key"] == "yours"
    assert settings("as://them/c/p", environment)["account_key"] == "mine"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot read"),
        ("[]", "expected an object with the members gs, s3, as"),
        ('{"s4": {}}', "expected an object with the members gs, s3, as"),
        ('{"s3": []}', "'s3' must be an object"),
        ('{"s3": {"": "x"}}', "expected an object with the members key_id"),
        ('{"s3": {"": {"key": "x"}}}', "expected an object with the members key_id"),
        ('{"s3": {"": {"key_id": 1}}}', "must be strings"),
    ],
)
def test_a_file_of_credentials_that_is_wrong_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        settings("s3://b", {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)})
    assert why in caught.value.message


def test_what_is_set_is_what_obstore_knows() -> None:
    """The names of settings are those of the library: it refuses others."""
    from obstore.store import AzureStore, GCSStore, S3Store

    every = KEYS | {"AWS_SESSION_TOKEN": "t", "AWS_DEFAULT_REGION": "r"}
    s3 = S3Store("b", **settings("s3://http://h:1/b", every))
    assert s3.config["access_key_id"] == "id"
    azure = {"AZURE_STORAGE_AUTH_TYPE": "managed_identity", "AZURE_STORAGE_CLIENT_ID": "c"}
    store = AzureStore("c", **settings("as://me/c/p", azure))
    assert store.config["credential_type"] == "managed_identity"
    assert (
        AzureStore("c", **settings("as://me/c", {"AZURE_STORAGE_KEY": "a2V5"})).config["account_name"] == "me"
    )
    with pytest.raises(Exception, match="/none"):
        GCSStore("b", **settings("gs://b", {"GOOGLE_APPLICATION_CREDENTIALS": "/none"}))
