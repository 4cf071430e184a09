"""What is said of a repository that somebody filled with the wrong things."""

from pathlib import Path

import pytest

from tests.serving.onnx_files import write_model
from tpx.serving.repository.layout import scan
from tpx.serving.repository.strays import stray_configs, strays


def test_a_model_file_in_the_repository_itself_has_another_place(tmp_path: Path) -> None:
    (tmp_path / "net" / "1").mkdir(parents=True)
    for name in ("digits.onnx", "export.py", "README.md", ".hidden.onnx"):
        (tmp_path / name).write_bytes(b"")
    assert strays([tmp_path]) == [
        f"'{tmp_path}/digits.onnx' is not served: its place is '{tmp_path}/digits/1/model.onnx', or "
        f"'tpx serve {tmp_path}/digits.onnx' serves it by itself"
    ]


def test_a_repository_without_models_is_told(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"")
    assert strays([tmp_path]) == [
        f"'{tmp_path}' holds no models: the file of one has a place such as '{tmp_path}/NAME/1/model.onnx'"
    ]


def test_models_and_single_files_give_no_cause(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    file = tmp_path / "net" / "model.onnx"
    file.write_bytes(b"")
    assert strays([tmp_path, file, tmp_path / "nowhere"]) == []


@pytest.mark.parametrize("name", ["config.pbtx", "Config.pbtxt", "config.pbtxt.txt", "1/config.pbtxt"])
def test_a_configuration_of_another_name_or_place_is_told(tmp_path: Path, name: str) -> None:
    directory = write_model(tmp_path, "net")
    (directory / name).write_text("max_batch_size: 4")
    assert stray_configs(scan([tmp_path])) == [
        f"'{directory}/{name}' is not read: a configuration's place is '{directory}/config.pbtxt'"
    ]


def test_other_files_of_a_model_are_no_configuration(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "net")
    for name in ("labels.txt", "README.md", "config.json"):
        (directory / name).write_text("")
    assert stray_configs(scan([tmp_path])) == []


def test_a_model_with_a_configuration_has_no_stray_one(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "net", config="")
    (directory / "config.pbtx").write_text("")
    assert stray_configs(scan([tmp_path])) == []
