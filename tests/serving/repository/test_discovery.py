"""Misplaced files in a repository, and what polls and starts load of what was found."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.serving.onnx_files import write_model
from tests.serving.repository.places import repositories, scan
from tpx.errors import UsageError
from tpx.serving.model_id import ModelId
from tpx.serving.repository.discovery import (
    Stamps,
    misplaced_configs,
    plan_poll,
    plan_start,
)
from tpx.serving.repository.options import ModelSpec

A, B = ModelId("a"), ModelId("b")
NEW, CHANGED, SAME, GONE = (ModelId(name) for name in ("new", "changed", "same", "gone"))


def test_a_model_file_in_the_repository_itself_has_another_place(tmp_path: Path) -> None:
    (tmp_path / "net" / "1").mkdir(parents=True)
    for name in ("digits.onnx", "export.py", "README.md", ".hidden.onnx"):
        (tmp_path / name).write_bytes(b"")
    assert repositories(tmp_path).misplaced() == [
        f"'{tmp_path}/digits.onnx' is not served: its place is '{tmp_path}/digits/1/model.onnx', or "
        f"'tpx serve {tmp_path}/digits.onnx' serves it by itself"
    ]


def test_a_repository_without_models_is_told(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"")
    assert repositories(tmp_path).misplaced() == [
        f"'{tmp_path}' holds no models: the file of one has a place such as '{tmp_path}/NAME/1/model.onnx'"
    ]


def test_models_and_single_files_give_no_cause(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    file = tmp_path / "net" / "model.onnx"
    file.write_bytes(b"")
    assert repositories(tmp_path, file, tmp_path / "nowhere").misplaced() == []


@pytest.mark.parametrize("name", ["config.pbtx", "Config.pbtxt", "config.pbtxt.txt", "1/config.pbtxt"])
def test_a_configuration_of_another_name_or_place_is_told(tmp_path: Path, name: str) -> None:
    directory = write_model(tmp_path, "net")
    (directory / name).write_text("max_batch_size: 4")
    assert misplaced_configs(scan([tmp_path])) == [
        f"'{directory}/{name}' is not read: a configuration's place is '{directory}/config.pbtxt'"
    ]


def test_other_files_of_a_model_are_no_configuration(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "net")
    for name in ("labels.txt", "README.md", "config.json"):
        (directory / name).write_text("")
    assert misplaced_configs(scan([tmp_path])) == []


def test_a_model_with_a_configuration_has_no_stray_one(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "net", config="")
    (directory / "config.pbtx").write_text("")
    assert misplaced_configs(scan([tmp_path])) == []


def stamps(text: str) -> Stamps:
    """Those of some files."""
    return Stamps(config=text, shared="", versions={})


def test_a_poll_loads_what_is_new_or_changed_and_unloads_what_is_gone() -> None:
    found = {NEW: stamps("1"), CHANGED: stamps("2"), SAME: stamps("1")}
    known = {CHANGED: stamps("1"), SAME: stamps("1"), GONE: stamps("1")}
    changes = plan_poll(found, known)
    assert changes == ([CHANGED, NEW], [GONE])


def test_a_poll_leaves_alone_what_is_there_but_cannot_be_told() -> None:
    changes = plan_poll({SAME: None, NEW: None}, {SAME: stamps("1")})
    assert changes == ([], [])


def test_a_poll_tries_again_what_failed() -> None:
    assert plan_poll({SAME: stamps("1")}, {SAME: None})[0] == [SAME]


def start(mode: Any, names: tuple[str, ...], found: Iterable[ModelId]) -> list[ModelId]:
    return plan_start(ModelSpec(model_control_mode=mode, load_model=names), found)


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_unless_explicit_everything_is_loaded_at_startup(mode: str) -> None:
    assert start(mode, (), [B, A]) == [A, B]


def test_explicit_mode_loads_at_startup_what_it_is_told() -> None:
    assert start("explicit", (), [A, B]) == []
    assert start("explicit", ("b", "absent", "b"), [A, B]) == [B, ModelId("absent")]
    assert start("explicit", ("*",), [B, A]) == [A, B]
    here, there = ModelId("a", "/here"), ModelId("a", "/there")
    assert start("explicit", ("a",), [there, B, here]) == [here, there]


def test_startup_models_and_modes_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(UsageError, match=r"'\*' must be the ONLY startup model if specified at all"):
        start("explicit", ("*", "a"), [A])
    for mode in ("none", "poll"):
        with pytest.raises(UsageError, match="requires setting '--model-control-mode=explicit' as well"):
            start(mode, ("a",), [A])
