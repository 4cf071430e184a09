"""Whether a change of files is seen, and told from what is none."""

import os
from pathlib import Path

import pytest

from tests.serving.onnx_files import write_model
from tests.serving.repository.places import repositories, scan
from tpx.serving.model_id import ModelId
from tpx.serving.repository.discovery import Stamps, stamps_of


def stamps(path: Path, config_name: str = "") -> Stamps:
    """Of the model `net`."""
    source = repositories(path, config_name=config_name).find(ModelId("net"))
    assert source is not None
    return stamps_of(source)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The directory of a model with two versions."""
    directory = write_model(tmp_path, "net", config="max_batch_size: 4")
    write_model(tmp_path, "net", version="2")
    (directory / "labels.txt").write_text("cat\n")
    return directory


def test_untouched_files_have_equal_stamps(model: Path) -> None:
    assert stamps(model.parent) == stamps(model.parent)


def test_a_changed_version_changes_its_own_stamp_only(model: Path) -> None:
    before = stamps(model.parent)
    (model / "2" / "model.onnx").write_bytes(b"other")
    after = stamps(model.parent)
    assert (after.config, after.shared, after.versions[1]) == (
        before.config,
        before.shared,
        before.versions[1],
    )
    assert after.versions[2] != before.versions[2]


def test_a_new_version_changes_no_other(model: Path) -> None:
    before = stamps(model.parent)
    write_model(model.parent, "net", version="7")
    after = stamps(model.parent)
    assert {v: after.versions[v] for v in (1, 2)} == before.versions
    assert (after.shared, after.config) == (before.shared, before.config)


def test_labels_are_shared_and_the_configuration_is_apart(model: Path) -> None:
    before = stamps(model.parent)
    (model / "labels.txt").write_text("dog\n")
    labelled = stamps(model.parent)
    assert labelled.shared != before.shared
    assert labelled.versions == before.versions
    (model / "config.pbtxt").write_text("max_batch_size: 2")
    assert stamps(model.parent).config != labelled.config
    assert stamps(model.parent).shared == labelled.shared


def test_a_file_of_the_same_size_and_time_that_was_moved_there_is_another(model: Path) -> None:
    path = model / "1" / "model.onnx"
    before, found = stamps(model.parent), path.stat()
    other = model / "1" / "other"
    other.write_bytes(bytes(found.st_size))
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(path)
    assert stamps(model.parent).versions[1] != before.versions[1]


def test_what_loading_leaves_behind_is_no_change(model: Path) -> None:
    before = stamps(model.parent)
    for place in (model, model / "1"):
        for name in ("__pycache__", ".nfs"):
            (place / name).mkdir()
            (place / name / "x").write_text("x")
        (place / ".lock").write_text("x")
    assert stamps(model.parent) == before


def test_the_configuration_is_the_one_that_counts(model: Path) -> None:
    before = stamps(model.parent, "big")
    (model / "configs").mkdir()
    (model / "configs" / "small.pbtxt").write_text("max_batch_size: 1")
    assert stamps(model.parent, "big") == before
    (model / "configs" / "big.pbtxt").write_text("max_batch_size: 64")
    assert stamps(model.parent, "big").config != before.config


def test_loops_and_dangling_links_end(model: Path) -> None:
    before = stamps(model.parent)
    (model / "1" / "loop").symlink_to(model)
    (model / "1" / "nowhere").symlink_to("nowhere")
    assert stamps(model.parent).versions[1] != before.versions[1]


def test_a_single_file_has_its_own_stamp(tmp_path: Path) -> None:
    path = write_model(tmp_path, "net") / "1" / "model.onnx"
    [source] = scan([path])
    before = stamps_of(source)
    (path.parent / "beside").write_text("x")
    assert stamps_of(source) == before
    path.write_bytes(b"other")
    assert stamps_of(source) != before
