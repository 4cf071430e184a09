"""`tpx quickstart DIR`: the example models, where they are wanted."""

from pathlib import Path

import pytest

from tpx.cli.main import run


def test_it_writes_what_is_asked_for_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "my models"
    assert run(["quickstart", str(directory), "--models", "add_sub,identity"]) == 0
    assert sorted(path.name for path in directory.iterdir()) == ["add_sub", "identity"]
    out = capsys.readouterr().out
    assert out.count("written") == 2
    assert f"tpx serve --model-repository '{directory}'" in out
    assert "tpx perf -m identity " in out


def test_a_model_brings_those_that_it_cannot_be_served_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["quickstart", str(tmp_path), "--models", "image_ensemble,mnist_vote"]) == 0
    steps = {"image_preprocess", "image_classification", "image_segmentation"}
    assert {path.name for path in tmp_path.iterdir()} == {*steps, "image_ensemble", "mnist", "mnist_vote"}
    assert "tpx perf -m mnist " in capsys.readouterr().out


def test_what_is_there_is_kept_unless_it_is_to_be_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tmp_path), "--models=identity"]
    assert run(["quickstart", *words]) == 0
    config = tmp_path / "identity" / "config.pbtxt"
    config.write_text("mine")
    assert run(["quickstart", *words]) == 0
    assert "kept" in capsys.readouterr().out
    assert config.read_text() == "mine"
    assert run(["quickstart", *words, "--overwrite"]) == 0
    assert config.read_text() != "mine"


def test_without_a_directory_it_is_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["quickstart", "--models=identity"]) == 0
    assert (tmp_path / "models" / "identity" / "1" / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models=resnet"], "there is no example model 'resnet'"),
        (["--model=x", "--modles=x"], "Invalid long option '--modles'"),
        (["a", "b"], "Unknown command-line argument 'b'"),
    ],
)
def test_what_it_cannot_do_is_said(
    tmp_path: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["quickstart", *words]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["quickstart", str(tmp_path / "file" / "models"), "--models=identity"]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err
