import fcntl
import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tpx import examples
from tpx.errors import Code, UsageError
from tpx.examples.repository import EXAMPLES, STAGING_PREFIX

SMALL = ("mnist", "add_sub", "identity")


def tree(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow beyond `size_bytes`, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_each_small_example_is_a_model_directory_with_a_config_and_version_1(tmp_path: Path) -> None:
    written = examples.write(tmp_path / "deep" / "models", SMALL)
    assert [model.name for model in written] == list(SMALL)
    for model in written:
        assert model.path == tmp_path / "deep" / "models" / model.name
        assert (model.path / "config.pbtxt").is_file()
        assert (model.path / "1" / "model.onnx").is_file()
        assert not model.kept
        assert "\n" not in model.description
    assert sorted(p.name for p in (tmp_path / "deep" / "models").iterdir()) == sorted(SMALL)


def test_a_model_directory_can_be_read_by_others_as_the_umask_says(tmp_path: Path) -> None:
    reference = tmp_path / "made_by_mkdir"
    reference.mkdir()
    (model,) = examples.write(tmp_path / "models", ["identity"])
    assert model.path.stat().st_mode == reference.stat().st_mode


@pytest.mark.parametrize("name", examples.ALL)
def test_a_config_is_valid_and_agrees_with_its_directory_name(name: str) -> None:
    config = text_format.Parse(EXAMPLES[name].config, model_config_pb2.ModelConfig())
    assert config.name in ("", name)
    assert config.max_batch_size == {"alexnet": 0, "mnist": 16}.get(name, 8)


def test_the_configs_leave_different_things_to_be_completed() -> None:
    configs = {
        name: text_format.Parse(example.config, model_config_pb2.ModelConfig())
        for name, example in EXAMPLES.items()
        if not name.startswith(("image", "photo"))
    }
    assert {name for name, config in configs.items() if config.input} == {
        "mnist",
        "add_sub",
        "accumulator",
        "mnist_vote",
        "mnist_torch",
    }
    assert {name for name, config in configs.items() if config.HasField("dynamic_batching")} == {
        "mnist",
        "identity",
        "mnist_torch",
    }


@pytest.mark.parametrize("name", [name for name in examples.ALL if name != "alexnet"])
def test_the_announced_size_covers_what_is_written(name: str, tmp_path: Path) -> None:
    *_, model = examples.write(tmp_path, [name])
    blocks = sum(path.stat().st_blocks * 512 for path in [model.path, *model.path.rglob("*")])
    assert sum(len(data) for data in tree(model.path).values()) <= blocks <= EXAMPLES[name].size_bytes


def test_a_name_given_twice_is_written_once(tmp_path: Path) -> None:
    assert len(examples.write(tmp_path, ["identity", "identity"])) == 1


def test_an_unknown_name_is_refused_with_the_known_ones_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'alexnot' \(there are: alexnet, mnist, add_sub, identity, "):
        examples.write(tmp_path / "models", ["identity", "alexnot"])
    assert not (tmp_path / "models").exists()


def test_an_existing_model_is_left_untouched(tmp_path: Path) -> None:
    (tmp_path / "identity").mkdir()
    (tmp_path / "identity" / "mine.txt").write_text("keep")
    identity, add_sub = examples.write(tmp_path, ["identity", "add_sub"])
    assert identity.kept
    assert not add_sub.kept
    assert tree(tmp_path / "identity") == {"mine.txt": b"keep"}


def test_overwrite_replaces_the_whole_directory(tmp_path: Path) -> None:
    (model,) = examples.write(tmp_path, ["identity"])
    fresh = tree(model.path)
    (model.path / "config.pbtxt").write_text("max_batch_size: 2")
    (model.path / "2").mkdir()
    (again,) = examples.write(tmp_path, ["identity"], overwrite=True)
    assert not again.kept
    assert tree(model.path) == fresh
    assert [p.name for p in tmp_path.iterdir()] == ["identity"]


def test_overwrite_replaces_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_text("keep")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "identity").symlink_to(elsewhere)
    (model,) = examples.write(tmp_path / "models", ["identity"], overwrite=True)
    assert not model.path.is_symlink()
    assert tree(elsewhere) == {"mine.txt": b"keep"}


@pytest.mark.parametrize("kind", ["file", "broken link"])
def test_what_is_in_the_way_is_named(kind: str, tmp_path: Path) -> None:
    if kind == "file":
        (tmp_path / "identity").write_text("not a directory")
    else:
        (tmp_path / "identity").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"identity' is in the way"):
        examples.write(tmp_path, ["identity"])


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_write_that_fails_in_the_middle_leaves_what_was_there(tmp_path: Path, overwrite: bool) -> None:
    if overwrite:
        (tmp_path / "alexnet").mkdir()
        (tmp_path / "alexnet" / "mine.txt").write_text("keep")
    before = tree(tmp_path)
    with largest_file(6 << 20), pytest.raises(UsageError, match=r"alexnet \(244\.0 MB\).*File too large"):
        examples.write(tmp_path, ["alexnet"], overwrite=overwrite)
    assert tree(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == (["alexnet"] if overwrite else [])


def kill_a_writer_in_the_middle(directory: Path) -> None:
    """Another process dies of a signal while it writes alexnet, with no chance to clean up."""
    program = (
        "import resource, signal, sys; from pathlib import Path; from tpx import examples;"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0));"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, 6 << 20));"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL);"
        "examples.write(Path(sys.argv[1]), ['alexnet'])"
    )
    ended = subprocess.run([sys.executable, "-B", "-c", program, str(directory)], timeout=30, check=False)
    assert ended.returncode == -signal.SIGXFSZ


def test_a_killed_writer_leaves_no_model_and_the_next_write_clears_its_rest(tmp_path: Path) -> None:
    kill_a_writer_in_the_middle(tmp_path)
    (rest,) = tmp_path.iterdir()
    assert rest.name.startswith(STAGING_PREFIX)
    examples.write(tmp_path, ["identity"])
    assert [p.name for p in tmp_path.iterdir()] == ["identity"]


def test_a_write_does_not_clear_what_a_living_writer_builds(tmp_path: Path) -> None:
    others = tmp_path / f"{STAGING_PREFIX}other"
    others.mkdir()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        examples.write(tmp_path, ["identity"])
        assert others.is_dir()
    finally:
        os.close(descriptor)
    examples.write(tmp_path, ["add_sub"])
    assert not others.exists()


def test_of_many_writers_at_once_one_wins_and_all_succeed(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda _: examples.write(tmp_path, ["add_sub"])[0], range(8)))
    assert [model.kept for model in written].count(False) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["add_sub"]


def test_many_writers_that_overwrite_leave_one_whole_model(tmp_path: Path) -> None:
    (model,) = examples.write(tmp_path, ["add_sub"])
    fresh = tree(model.path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: examples.write(tmp_path, ["add_sub"], overwrite=True), range(32)))
    assert tree(model.path) == fresh
    assert [p.name for p in tmp_path.iterdir()] == ["add_sub"]


def test_without_the_onnx_package_the_error_names_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"add_sub, identity needs.*pip install 'tpx\[onnx\]'"):
        examples.write(tmp_path / "models", SMALL)
    assert not (tmp_path / "models").exists()


def test_the_trained_model_needs_no_onnx_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    (model,) = examples.write(tmp_path, ["mnist"])
    labels = (model.path / "labels.txt").read_text().splitlines()
    assert labels == ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def test_examples_that_are_there_need_no_onnx_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples.write(tmp_path, SMALL)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert all(model.kept for model in examples.write(tmp_path, SMALL))


def test_too_little_disk_is_said_with_the_size_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=12_300_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UsageError, match=r"12\.3 MB free, 244\.\d MB needed") as caught:
        examples.write(tmp_path)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "reason"), [("file/models", "Not a directory"), ("x" * 300, "name too long")]
)
def test_a_directory_that_cannot_be_made_is_a_usage_error(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=rf"cannot write the example models identity .*{reason}"):
        examples.write(tmp_path / name, ["identity"])


def test_the_default_directory_is_in_the_xdg_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert examples.default_directory() == tmp_path / "tpx" / "models"


@pytest.mark.parametrize("value", [None, "", "relative/cache"])
def test_the_default_directory_is_in_the_home_where_xdg_says_nothing_valid(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if value is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert examples.default_directory() == tmp_path / ".cache" / "tpx" / "models"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    with pytest.raises(UsageError, match="set XDG_CACHE_HOME"):
        examples.default_directory()


def test_importing_the_examples_imports_no_onnx() -> None:
    program = "import sys, tpx.examples; sys.exit('onnx' in sys.modules or 'onnxruntime' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0
