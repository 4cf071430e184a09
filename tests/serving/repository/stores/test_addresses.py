"""What words of the command line mean as places of repositories."""

from pathlib import Path

import pytest

from tpx.argv import from_argv
from tpx.errors import UsageError
from tpx.serving.options import ServeConfig
from tpx.serving.repository.stores.addresses import StoreAddress, address_of


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("models", Path("models")),
        ("/a/s3:/b", Path("/a/s3:/b")),
        ("s3://bucket", StoreAddress(scheme="s3", bucket="bucket")),
        ("s3://bucket/a/b/", StoreAddress(scheme="s3", bucket="bucket", path="a/b")),
        ("s3://bucket//a///b", StoreAddress(scheme="s3", bucket="bucket", path="a/b")),
        (
            "s3://https://host:9000/bucket/a",
            StoreAddress(scheme="s3", bucket="bucket", path="a", endpoint="https://host:9000"),
        ),
        (
            "s3://http://127.0.0.1:9000/bucket",
            StoreAddress(scheme="s3", bucket="bucket", endpoint="http://127.0.0.1:9000"),
        ),
        (
            "s3://host:9000/bucket/a",
            StoreAddress(scheme="s3", bucket="bucket", path="a", endpoint="https://host:9000"),
        ),
        ("gs://bucket/a", StoreAddress(scheme="gs", bucket="bucket", path="a")),
        ("as://me/box/a/b", StoreAddress(scheme="as", bucket="box", path="a/b", account="me")),
        ("as://me.blob.core.windows.net/box", StoreAddress(scheme="as", bucket="box", account="me")),
    ],
)
def test_a_word_means_a_place(text: str, address: object) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://", "expected s3://bucket/path"),
        ("s3://https://host:1", "expected s3://bucket/path"),
        ("as://account", "expected as://account/container/path"),
        ("s4://bucket", "expected a directory, s3://, gs:// or as://"),
        ("http://host/bucket", "expected a directory"),
        ("gs://bucket/../other", "without '.', '..'"),
        ("gs://bucket/a\nb", "without '.', '..'"),
    ],
)
def test_what_is_no_place_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        address_of(text)
    assert expected in str(caught.value)


def test_the_command_line_takes_places_and_says_what_it_expected() -> None:
    words = ["--model-repository=s3://http://h:1/b/p", "--model-store", "local", "gs://bucket"]
    config = from_argv(ServeConfig, words)
    assert [str(address) for address in config.repository.model_repository] == [
        "s3://http://h:1/b/p",
        "local",
    ]
    assert config.repository.models == (StoreAddress(scheme="gs", bucket="bucket"),)
    with pytest.raises(UsageError, match=r"Failed to parse --model-repository.*expected as://account"):
        from_argv(ServeConfig, ["--model-repository=as://account"])


def test_a_place_is_written_as_it_was_meant() -> None:
    for text in ("s3://b/p/q", "s3://https://h:1/b/p", "gs://b", "as://me/box/p"):
        assert str(address_of(text)) == text
