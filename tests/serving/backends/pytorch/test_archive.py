"""What a file is, by what is in it."""

import zipfile
from pathlib import Path

import pytest
import torch

from tests.serving.backends.pytorch import zoo
from tests.serving.backends.pytorch.opening import QUIET_JIT, check, config
from tpx.errors import Code, ConfigError, LoadError
from tpx.serving.backends.contract import ModelFiles
from tpx.serving.backends.pytorch.program import Format, source_of

pytestmark = pytest.mark.filterwarnings(QUIET_JIT)


def kind(directory: Path, text: str = "") -> Format:
    return source_of(ModelFiles(model_name="net", version=1, directory=directory), config(text)).format


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.pt", "model.pt2"])
def test_what_a_file_is_called_does_not_say_what_it_is(tmp_path: Path, name: str) -> None:
    zoo.save_script(zoo.Identity(), tmp_path / "script" / name)
    zoo.save_exported(torch.export.export(zoo.Identity(), (torch.ones(1),)), tmp_path / "a.pt2")
    (tmp_path / "program").mkdir()
    (tmp_path / "a.pt2").rename(tmp_path / "program" / name)
    assert kind(tmp_path / "script") is Format.TORCHSCRIPT
    assert kind(tmp_path / "program") is Format.EXPORTED
    assert check(tmp_path / "program").default_model_filename == name


def test_a_package_with_code_and_its_program_is_the_code(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        archive.writestr("net/models/model.json", "{}")
        archive.writestr("net/data/aotinductor/model/c.wrapper.so", "")
    assert kind(tmp_path) is Format.INDUCTOR


@pytest.mark.slow
def test_the_platform_says_which_of_two_archives(tmp_path: Path) -> None:
    zoo.save_script(zoo.Identity(), tmp_path / "model.pt")
    zoo.save_exported(torch.export.export(zoo.Identity(), (torch.ones(1),)), tmp_path / "model.pt2")
    assert kind(tmp_path) is Format.TORCHSCRIPT
    assert kind(tmp_path, "platform: 'torch_aoti'") is Format.EXPORTED


def test_a_runtime_says_that_the_class_counts(tmp_path: Path) -> None:
    zoo.save_script(zoo.Identity(), tmp_path / "model.pt")
    (tmp_path / "model.py").write_text("")
    assert kind(tmp_path) is Format.TORCHSCRIPT
    assert kind(tmp_path, "runtime: 'model.py'") is Format.MODULE


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"unable to find '.*model\.pt' for model 'net'") as caught:
        kind(tmp_path)
    assert caught.value.code is Code.NOT_FOUND


def test_a_file_outside_the_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="default_model_filename"):
        kind(tmp_path, "default_model_filename: '../model.pt'")


def test_weights_without_a_class_are_told_what_they_lack(tmp_path: Path) -> None:
    torch.save(zoo.Affine().state_dict(), tmp_path / "model.pt")
    with pytest.raises(LoadError, match="contains weights but no model: put the model's class beside them"):
        kind(tmp_path)


@pytest.mark.parametrize("data", [b"", b"hello", b"PK\x03\x04 cut"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.pt").write_bytes(data)
    with pytest.raises(LoadError, match="is not an archive written by PyTorch"):
        kind(tmp_path)


def test_another_kind_of_archive_is_refused_with_what_is_in_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        archive.writestr("a/readme.txt", "")
    with pytest.raises(LoadError, match=r"not of a PyTorch model \(it has: \['readme.txt'\]\)"):
        kind(tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["model.pt", "model.pt2"])
def test_a_damaged_archive_is_refused(tmp_path: Path, name: str) -> None:
    whole = tmp_path / "whole"
    if name == "model.pt":
        zoo.save_script(zoo.Identity(), whole)
    else:
        zoo.save_exported(torch.export.export(zoo.Identity(), (torch.ones(1),)), tmp_path / "whole.pt2")
        (tmp_path / "whole.pt2").rename(whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(tmp_path / name, "w") as target:
        for each in source.namelist():
            target.writestr(each, b"rubbish" if each.endswith((".pkl", "model.json")) else source.read(each))
    with pytest.raises(LoadError, match="failed to load model 'net'"):
        check(tmp_path)
