"""What is said of a repository that somebody filled with the wrong things."""

from pathlib import Path

from tpx.serving.repository.strays import strays


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
