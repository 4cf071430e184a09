"""What load requests bring: what is taken, what is refused, and where files are written."""

import os
import tempfile
from pathlib import Path

import pytest

from tpx.errors import InvalidRequest, TpxError
from tpx.protocol.v2 import LoadParameter
from tpx.serving.repository.discovery import (
    Override,
    override_of,
    private_files,
    relative_paths,
)

CONFIG = '{"max_batch_size": 3}'
UNREAD = "failed to load 'net', failed to poll from model repository: "


def refusal(parameters: dict[str, LoadParameter]) -> str:
    """Why they are refused."""
    with pytest.raises(InvalidRequest) as caught:
        override_of(parameters, "net")
    return caught.value.message


def files(*paths: str) -> Override:
    """The override of a request with these files."""
    override = override_of({"config": CONFIG, **{f"file:{path}": path.encode() for path in paths}}, "net")
    assert override is not None
    return override


def test_without_parameters_there_is_no_override() -> None:
    assert override_of({}, "net") is None


def test_a_configuration_is_read_from_its_json() -> None:
    override = override_of({"config": CONFIG}, "net")
    assert override is not None
    assert override.config.max_batch_size == 3
    assert override.files == {}


def test_paths_are_resolved() -> None:
    override = files("/1/model.onnx", "1/./sub//x", "2/../labels.txt")
    assert set(override.files) == {"1/model.onnx", "1/sub/x", "labels.txt"}


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"config": 3}, "invalid value type for load parameter 'config', expected string_param."),
        ({"config": b"{}"}, "invalid value type for load parameter 'config', expected string_param."),
        (
            {"config": CONFIG, "file:1/x": "text"},
            "invalid value type for load parameter 'file:1/x', expected bytes_param.",
        ),
        ({"what": "x"}, "unrecognized load parameter 'what'."),
        ({"file:1/x": b""}, f"{UNREAD}Load parameter 'config' must be specified for model file override"),
        ({"config": ""}, f"{UNREAD}Invalid config override: "),
        ({"config": "{"}, f"{UNREAD}Invalid config override: "),
        ({"config": "[]"}, f"{UNREAD}Invalid config override: "),
        ({"config": "null"}, f"{UNREAD}Invalid config override: "),
        ({"config": '{"what": 1}'}, f"{UNREAD}Invalid config override: "),
        ({"config": '{"max_batch_size": 1e100}'}, f"{UNREAD}Invalid config override: "),
        ({"config": "[" * 100_000}, f"{UNREAD}Invalid config override: "),
        ({"config": '{"a":' * 100_000}, f"{UNREAD}Invalid config override: "),
        ({"config": '{"name": "\\ud800"}'}, f"{UNREAD}Invalid config override: "),
        ({"config": " " * (17 << 20)}, f"{UNREAD}Invalid config override: longer than"),
    ],
)
def test_what_cannot_be_meant_is_refused(parameters: dict[str, LoadParameter], why: str) -> None:
    assert refusal(parameters).startswith(why)


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("..", ".."),
        ("../x", "../x"),
        ("../../etc/passwd", "../../etc/passwd"),
        ("1/../../x", "../x"),
        ("//../etc/passwd", "../etc/passwd"),
        ("/", "."),
        ("", "."),
        (".", "."),
        ("1/..", "."),
        ("1/model.onnx/", "1/model.onnx"),
        ("1/x\0y", "1/x\0y"),
    ],
)
def test_a_path_that_leads_out_of_the_model_is_refused(path: str, normal: str) -> None:
    assert refusal({"config": CONFIG, f"file:{path}": b"x"}) == (
        f"Invalid file parameter 'file:{path}' with normalized path '{normal}' must stay within model "
        "directory."
    )


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("1/" + "x" * 300, "a path has at most 12 parts of 255 bytes"),
        ("ü" * 128, "a path has at most 12 parts of 255 bytes"),
        ("a/" * 1000 + "x", "a path has at most 12 parts of 255 bytes"),
        ("1/\ud800", "the name is not UTF-8 text"),
    ],
)
def test_a_path_that_no_file_can_have_is_refused(path: str, why: str) -> None:
    assert why in refusal({"config": CONFIG, f"file:{path}": b"x"})


def test_two_names_of_one_file_are_refused() -> None:
    assert "names a file that another one names" in refusal(
        {"config": CONFIG, "file:1/x": b"", "file:1/./x": b""}
    )


def test_files_are_written_for_nobody_else(temporary: Path) -> None:
    made = private_files(files("1/model.onnx", "labels.txt", "/".join(["x" * 255] * 12)).files)
    assert made.parent == temporary
    assert (made / "1" / "model.onnx").read_bytes() == b"1/model.onnx"
    assert (made / "labels.txt").stat().st_mode & 0o077 == 0
    assert made.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("paths", [("a", "a/b"), ("a/b", "a"), ("a/b/c", "a/b")])
def test_a_file_that_is_a_directory_is_refused_and_nothing_stays(
    temporary: Path, paths: tuple[str, str]
) -> None:
    with pytest.raises(InvalidRequest, match="it would be a file and a directory"):
        private_files(files(*paths).files)
    assert list(temporary.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_no_fault_of_the_client(temporary: Path) -> None:
    temporary.rmdir()
    with pytest.raises(TpxError) as caught:
        private_files(files("1/x").files)
    assert not isinstance(caught.value, InvalidRequest)
    assert os.strerror(2) in caught.value.message


@pytest.mark.parametrize("parent", [tempfile.gettempdir(), "/mnt/models", "/some place/tmp"])
def test_paths_in_private_directories_become_relative_and_others_stay(
    parent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if " " in parent:
        monkeypatch.setattr(tempfile, "tempdir", parent)
    inside, agent = f"{parent}/tpx-model-ab_12cd9", f"{parent}/tpx-agent-abcdefgh"
    text = f"File \"{inside}/1/model.py\", line 3: no '{inside}' nor '{agent}/x': see {parent}/tpx-models/a"
    shown = relative_paths(text)
    assert shown == f"File \"1/model.py\", line 3: no '.' nor 'x': see {parent}/tpx-models/a"


def test_a_long_word_without_a_path_is_searched_once() -> None:
    text = "[" + "1," * 1_000_000 + "]"  # the shape in the error about a configuration with that many dims
    assert relative_paths(text) == text
