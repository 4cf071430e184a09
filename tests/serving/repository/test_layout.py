"""What lies in a model repository: models, versions, labels, and everything that only looks like one."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec.structs import replace

from tests.serving.onnx_files import write_model
from tests.serving.repository.places import repositories, scan
from tpx.errors import ConfigError, LoadError, UsageError
from tpx.protocol import model_config
from tpx.serving.model_id import ModelId
from tpx.serving.repository.layout import (
    ModelSource,
    Repository,
    read_labels,
    versions_in,
    wanted_versions,
)


def config(text: str = "") -> Any:
    """A ModelConfig."""
    return model_config.parse(f'name: "net" {text}', "test")


def names(sources: list[ModelSource]) -> list[str]:
    """Names of the models."""
    return [source.name for source in sources]


def test_models_are_found_by_name_with_their_versions(tmp_path: Path) -> None:
    write_model(tmp_path, "b")
    write_model(tmp_path, "a", version="3")
    write_model(tmp_path, "a", version="12")
    found = scan([tmp_path])
    assert names(found) == ["a", "b"]
    assert dict(found[0].versions) == {3: tmp_path / "a" / "3", 12: tmp_path / "a" / "12"}
    assert not any(source.fault for source in found)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("01", "contains leading zeros"),
        ("00", "contains leading zeros"),
        ("-1", "fails to convert to integral number"),
        ("abc", "fails to convert to integral number"),
        ("1abc", "fails to convert to integral number"),
        ("1.0", "fails to convert to integral number"),
        ("\u0661", "fails to convert to integral number"),
        ("9999999999999999999", "fails to convert to integral number"),
        ("9" * 200, "fails to convert to integral number"),
    ],
)
def test_directories_that_are_no_version_are_skipped_with_a_word(
    tmp_path: Path, name: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path, "net", version="7")
    (tmp_path / "net" / name).mkdir()
    assert list(scan([tmp_path])[0].versions) == [7]
    assert f"ignore version directory '{name}' which {word}" in caplog.text


@pytest.mark.parametrize("name", ["0", "9223372036854775807"])
def test_the_smallest_and_the_largest_version_are_versions(tmp_path: Path, name: str) -> None:
    write_model(tmp_path, "net", version=name)
    assert list(scan([tmp_path])[0].versions) == [int(name)]


def test_directories_with_a_meaning_of_their_own_and_files_are_no_versions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = write_model(tmp_path, "net")
    for name in ("configs", "warmup", "initial_state", ".git"):
        (directory / name).mkdir()
    (directory / "2").write_text("a file")
    assert list(scan([tmp_path])[0].versions) == [1]
    assert not caplog.text


def test_hidden_directories_and_files_are_no_models(tmp_path: Path) -> None:
    write_model(tmp_path, "net")
    write_model(tmp_path, ".hidden")
    (tmp_path / "README.md").write_text("words")
    assert names(scan([tmp_path])) == ["net"]


def test_links_to_models_are_models_and_loops_are_not(tmp_path: Path) -> None:
    write_model(tmp_path / "elsewhere", "net")
    repository = tmp_path / "models"
    repository.mkdir()
    (repository / "linked").symlink_to(tmp_path / "elsewhere" / "net")
    (repository / "loop").symlink_to(repository / "loop")
    (repository / "dangling").symlink_to(tmp_path / "nowhere")
    (repository / "linked-to-all").symlink_to(repository)
    found = scan([repository])
    assert names(found) == ["linked", "linked-to-all"]
    assert list(found[0].versions) == [1]


def test_a_version_that_is_a_loop_is_no_version(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "net")
    (directory / "2").symlink_to(directory / "2")
    assert list(scan([tmp_path])[0].versions) == [1]


@pytest.mark.parametrize(
    "name", ["with space", "ümläut", "日本", "a%2Fb", "new\nline", "'quote\"", "x" * 200]
)
def test_any_name_that_is_text_is_a_name(tmp_path: Path, name: str) -> None:
    write_model(tmp_path, name)
    assert [(source.name, source.fault) for source in scan([tmp_path])] == [(name, "")]


def test_a_name_that_is_not_text_is_a_fault_of_that_model_only(tmp_path: Path) -> None:
    write_model(tmp_path, "net")
    os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")  # noqa: PTH102 (a Path cannot spell it)
    found = {source.name: source.fault for source in scan([tmp_path])}
    assert found["net"] == ""
    assert "is not UTF-8" in found["caf\ufffd"]


@contextmanager
def _as_nobody() -> Iterator[None]:
    """Root may read everything: look as somebody who may not."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


def test_a_directory_that_cannot_be_read_is_a_fault_of_that_model_only() -> None:
    with TemporaryDirectory() as name:
        repository = Path(name)
        repository.chmod(0o755)
        secret = write_model(repository, "secret")
        write_model(repository, "net")
        secret.chmod(0)
        with _as_nobody():
            found = {source.name: source.fault for source in scan([repository])}
        secret.chmod(0o700)
    assert found == {"net": "", "secret": f"cannot read '{secret}': Permission denied"}


def test_several_repositories_are_one_list(tmp_path: Path) -> None:
    write_model(tmp_path / "one", "b")
    write_model(tmp_path / "two", "a")
    assert names(scan([tmp_path / "one", tmp_path / "two"])) == ["a", "b"]


def test_a_name_in_two_repositories_belongs_to_neither(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for repository in ("one", "two"):
        write_model(tmp_path / repository, "net")
    write_model(tmp_path / "two", "other")
    found = scan([tmp_path / "one", tmp_path / "two"])
    assert names(found) == ["net", "other"]
    assert found[0].fault.startswith("model appears in two or more repositories")
    assert str(tmp_path / "one" / "net") in found[0].fault
    assert "failed to poll model 'net': not unique across all model repositories" in caplog.text


class Bucket:
    """A repository elsewhere with one model."""

    def __init__(self, place: str, *, readable: bool = True) -> None:
        self._place = place
        self._readable = readable

    def __str__(self) -> str:
        return self._place

    @property
    def key(self) -> str:
        return self._place

    def scan(self) -> list[ModelSource]:
        found = self.find("net")
        return [] if found is None else [found]

    def find(self, name: str) -> ModelSource | None:
        if not self._readable:
            raise UsageError(f"cannot read '{self._place}'")
        return ModelSource(name=name, directory=Path(name)) if name == "net" else None

    def names(self) -> dict[str, str]:
        return {source.name: source.location for source in self.scan()}

    def misplaced(self) -> list[str]:
        return []


def test_as_namespaces_repositories_may_have_the_same_names(tmp_path: Path) -> None:
    write_model(tmp_path / "one", "net")
    write_model(tmp_path / "one", "other")
    file = write_model(tmp_path / "apart", "net") / "1" / "model.onnx"
    file = file.rename(tmp_path / "net.onnx")
    places: list[Path | Repository] = [tmp_path / "one", file, Bucket("s3://models/net")]
    every = [ModelId("net", str(place)) for place in places]
    found = scan(places, namespaces=True)
    assert {source.model_id for source in found} == {*every, ModelId("other", str(tmp_path / "one"))}
    assert not any(source.fault for source in found)
    there = repositories(*places, namespaces=True)
    assert set(there.names()) == {source.model_id for source in found}
    assert sorted(there.find_all("net")) == sorted(every)
    for model in every:
        one = there.find(model)
        assert one is not None
        assert (one.model_id, one.fault) == (model, "")
    assert there.find(ModelId("other", "s3://models/net")) is None


def test_a_repository_that_cannot_be_read_hides_no_model_of_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path, "net")
    there = repositories(Bucket("s3://gone", readable=False), tmp_path, namespaces=True)
    assert there.find_all("net") == [ModelId("net", str(tmp_path))]
    assert "failed to look for model 's3://gone::net': cannot read 's3://gone'" in caplog.text


def test_a_repository_given_twice_counts_once(tmp_path: Path) -> None:
    write_model(tmp_path, "net")
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    found = scan([tmp_path, Path(f"{tmp_path}/"), link, tmp_path / "net" / ".."])
    assert [(source.name, source.fault) for source in found] == [("net", "")]


def test_a_single_file_is_a_model_of_its_name(tmp_path: Path) -> None:
    path = write_model(tmp_path, "net") / "1" / "model.onnx"
    path = path.rename(tmp_path / "resnet50.v2.onnx")
    [source] = scan([path])
    assert (source.name, dict(source.versions)) == ("resnet50.v2", {1: tmp_path})
    assert source.has_config
    read = source.read_config()
    assert (read.backend, read.platform, read.default_model_filename) == (
        "onnxruntime",
        "onnxruntime_onnx",
        "resnet50.v2.onnx",
    )


def test_two_files_of_one_name_are_not_unique(tmp_path: Path) -> None:
    files = [write_model(tmp_path, name) / "1" / "model.onnx" for name in ("a", "b")]
    [source] = scan(files)
    assert source.fault.startswith("model appears in two or more repositories")
    assert all(str(path) in source.fault for path in files)


def test_a_file_of_another_kind_is_refused_with_the_kinds_there_are(tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    path.write_bytes(b"")
    with pytest.raises(UsageError, match=r"'.*model\.h5' is neither a model file that tpx knows \(.*\.onnx"):
        scan([path])


def test_a_repository_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read model repository '.*nowhere': No such file"):
        scan([tmp_path / "nowhere"])


def test_a_model_given_as_a_repository_is_refused_with_the_way_out(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "net", config="")
    with pytest.raises(UsageError, match="is a model, and not a repository of models: name the directory"):
        scan([directory])


def test_a_version_given_as_a_repository_is_refused_with_the_way_out(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "net") / "1"
    with pytest.raises(
        UsageError, match=r"is a version of a model, .* or '.*model\.onnx' to serve it by itself"
    ):
        scan([directory])


def test_an_empty_repository_has_no_models(tmp_path: Path) -> None:
    assert scan([tmp_path]) == []


# versions


PRESENT = {version: Path(str(version)) for version in (1, 2, 3, 10)}


def having(versions: Mapping[int, Path]) -> ModelSource:
    """A model of these versions."""
    return ModelSource(name="net", directory=Path("net"), versions=versions)


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("", [10]),
        ("version_policy { latest { num_versions: 1 } }", [10]),
        ("version_policy { latest { num_versions: 2 } }", [3, 10]),
        ("version_policy { latest { num_versions: 9 } }", [1, 2, 3, 10]),
        ("version_policy { all { } }", [1, 2, 3, 10]),
        ("version_policy { specific { versions: [ 2 ] } }", [2]),
        ("version_policy { specific { versions: [ 10, 1, 1 ] } }", [1, 10]),
        ("version_policy { specific { versions: [ 2, 77 ] } }", [2]),
    ],
)
def test_the_policy_chooses_versions(text: str, versions: list[int]) -> None:
    assert wanted_versions(config(text), having(PRESENT)) == versions


def test_a_specific_version_that_is_not_there_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    wanted_versions(config("version_policy { specific { versions: [ 2, 77 ] } }"), having(PRESENT))
    assert "version 77 is specified for model 'net', but the version directory is not present" in caplog.text


def test_the_latest_0_versions_are_none() -> None:
    with pytest.raises(LoadError, match="at least one version must be available under the version policy"):
        wanted_versions(config("version_policy { latest { } }"), having(PRESENT))


@pytest.mark.parametrize("text", ["", "version_policy { all { } }", "version_policy { specific { } }"])
def test_a_model_without_a_usable_version_is_refused(text: str) -> None:
    present = PRESENT if "specific" in text else {}
    with pytest.raises(LoadError, match="at least one version must be available under the version policy"):
        wanted_versions(config(text), having(present))


@pytest.mark.parametrize(
    ("files", "hint"),
    [
        (["model.onnx"], "'{0}/model.onnx' belongs in a version directory: '{0}/1/model.onnx'"),
        (["v1/model.onnx"], "'{0}' has no directory of a version, such as '{0}/1'"),
        (["3/model.onnx", "7/model.onnx"], "'{0}' has: 3, 7"),
    ],
)
def test_a_model_without_a_version_says_where_one_would_be(
    tmp_path: Path, files: list[str], hint: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    source = replace(having(versions_in(tmp_path)), directory=tmp_path)
    with pytest.raises(LoadError, match=re.escape(hint.format(tmp_path))):
        wanted_versions(config("version_policy { specific { versions: [ 9 ] } }"), source)


# labels


def labelled(name: str) -> Any:
    """A configuration with one output that has labels."""
    return config(f"output [{{ name: 'y' data_type: TYPE_FP32 dims: [ 3 ] label_filename: '{name}' }}]")


def test_labels_are_lines(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\r\nsea\u2028lion\n\nrotkehlchen\n", encoding="utf-8")
    labels = read_labels(labelled("labels.txt"), tmp_path)
    assert labels == {"y": ("cat", "dog", "sea\u2028lion", "", "rotkehlchen")}


def test_labels_may_lie_in_a_directory_and_be_links(tmp_path: Path) -> None:
    (tmp_path / "net" / "text").mkdir(parents=True)
    (tmp_path / "shared.txt").write_text("cat")
    (tmp_path / "net" / "text" / "l.txt").symlink_to(tmp_path / "shared.txt")
    assert read_labels(labelled("text/l.txt"), tmp_path / "net") == {"y": ("cat",)}


@pytest.mark.parametrize("name", ["../shared.txt", "/etc/passwd", "a/../../shared.txt", "x\\000y"])
def test_labels_cannot_lie_outside_the_model(tmp_path: Path, name: str) -> None:
    (tmp_path / "shared.txt").write_text("secret")
    (tmp_path / "net").mkdir()
    with pytest.raises(ConfigError, match=r"label_filename '.*' is outside"):
        read_labels(labelled(name), tmp_path / "net")


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_labels_that_cannot_be_read_are_a_load_error(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "l.txt").write_bytes(content)
    with pytest.raises(LoadError, match=r"^cannot read label file '[^']*l\.txt' of model 'net': [^\[\]/]*$"):
        read_labels(labelled("l.txt"), tmp_path)
