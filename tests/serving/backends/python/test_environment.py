"""Environments of Python models, and models that serve all models of a backend."""

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.serving.backends.python.asking import ask, said, say, y_of
from tests.serving.backends.python.conftest import SAY
from tests.serving.backends.python.zoo import MODELS, SAME, add
from tests.serving.live import serving
from tpx.errors import LoadError
from tpx.serving.backends.python.process import extracted

ENVIRONMENT = "parameters {{ key: 'EXECUTION_ENV_PATH' value {{ string_value: '{}' }} }}"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of its own, which finds numpy where ours is."""
    path = tmp_path_factory.mktemp("environments") / "env"
    made = [sys.executable, "-m", "venv", "--without-pip", "--copies", str(path)]
    subprocess.run(made, check=True, timeout=60)
    [packages] = (path / "lib").glob("python*/site-packages")
    (packages / "ours.pth").write_text(str(Path(np.__file__).parents[1]))
    (packages / "only_here.py").write_text("where = __file__\n")
    return path


def _prefix_model(repository: Path, value: str) -> None:
    file = add(repository, "say", config=SAY + ENVIRONMENT.format(value)) / "model.py"
    verb = "def pid(self, request, rest):\n"
    code = file.read_text().replace(verb, verb + "        return only_here.where\n")
    file.write_text("import only_here\n" + code)


@pytest.mark.parametrize("below_the_model", [False, True])
def test_a_directory_is_the_python_of_the_model(
    tmp_path: Path, environment: Path, below_the_model: bool
) -> None:
    value = "$$TRITON_MODEL_DIRECTORY/env" if below_the_model else str(environment)
    _prefix_model(tmp_path, value)
    (tmp_path / "say" / "env").symlink_to(environment)
    with serving(tmp_path) as live:
        place = tmp_path if below_the_model else environment
        assert Path(said(say(live, "pid"))).is_relative_to(place)


def test_an_archive_is_extracted_once(
    tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = tmp_path / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(environment, ".")
    repository = tmp_path / "models"
    repository.mkdir()
    _prefix_model(repository, str(archive))
    cache = tmp_path / "cache" / "tpx" / "environments"
    for _ in range(2):
        with serving(repository) as live:
            assert Path(said(say(live, "pid"))).is_relative_to(cache)
        assert len([path for path in cache.iterdir() if path.is_dir()]) == 1


UNPACK = """
import pathlib, sys
here = pathlib.Path(__file__).parents[1]
with open(here / "unpacked", "a") as file:
    file.write(f"{here}\\n")
sys.exit(sys.argv[1:] or CODE)
"""


def _packed(tmp_path: Path, environment: Path, code: str) -> Path:
    archive = tmp_path / f"packed{len(code)}.tar.gz"
    script = tmp_path / "conda-unpack"
    script.write_text(UNPACK.replace("CODE", code))
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(environment / "bin", "bin")
        tar.add(script, "bin/conda-unpack")
    return archive


def test_a_packed_environment_is_told_once_where_it_lies(tmp_path: Path, environment: Path) -> None:
    archive = _packed(tmp_path, environment, "0")
    places = [extracted(archive, tmp_path / "cache") for _ in range(2)]
    assert places[0] == places[1]
    assert (places[0] / "unpacked").read_text() == f"{places[0]}\n"


def test_an_interrupted_extraction_is_begun_again(tmp_path: Path, environment: Path) -> None:
    archive = _packed(tmp_path, environment, "0")
    place = extracted(archive, tmp_path / "cache")
    (tmp_path / "cache" / f"{place.name}.complete").unlink()
    (place / "bin" / "conda-unpack").write_text("half of it is miss")
    assert extracted(archive, tmp_path / "cache") == place
    assert (place / "unpacked").read_text() == f"{place}\n"


def test_an_environment_that_cannot_be_unpacked_says_why_and_is_not_kept(
    tmp_path: Path, environment: Path
) -> None:
    archive = _packed(tmp_path, environment, "'no such prefix'")
    with pytest.raises(LoadError, match="conda-unpack failed with status 1: no such prefix"):
        extracted(archive, tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("name", "link"),
    [("../out", ""), ("inside/../../out", ""), ("link", "../../out"), ("link", "/etc/passwd")],
)
def test_an_archive_that_leads_out_of_its_directory_is_refused(tmp_path: Path, name: str, link: str) -> None:
    archive = tmp_path / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo(name)
        if link:
            member.type, member.linkname = tarfile.SYMTYPE, link
            tar.addfile(member)
        else:
            member.size = 3
            tar.addfile(member, io.BytesIO(b"bad"))
    with pytest.raises(LoadError, match="points outside it"):
        extracted(archive, tmp_path / "a" / "cache")
    assert not list(tmp_path.rglob("out"))
    assert not [path for path in (tmp_path / "a" / "cache").iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("/nowhere", "neither a directory nor an archive"),
        ("{}", "there is no bin/python in"),
        ("{}/file", ""),
    ],
)
def test_an_environment_that_is_none_says_why(tmp_path: Path, value: str, words: str) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "file").write_text("no archive")
    add(tmp_path / "models", "double", config=SAME + ENVIRONMENT.format(value.format(empty)))
    with serving(tmp_path / "models", exit_on_error=False) as live:
        [entry] = live.http("POST", "/v2/repository/index").json
        assert "EXECUTION_ENV_PATH" in entry["reason"]
        assert words in entry["reason"]


def test_a_python_based_backend_serves_all_models_that_name_it(tmp_path: Path) -> None:
    backends, repository = tmp_path / "backends", tmp_path / "models"
    (backends / "json").mkdir(parents=True)  # a name that is importable as something else
    code = (MODELS / "double.py").read_text()
    code = code.replace("* 2", "* self.factor").replace(
        "    def execute",
        "    def initialize(self, args):\n"
        "        import json, os\n"
        "        with open(os.path.join(pb_utils.get_model_dir(), 'model.json')) as file:\n"
        "            self.factor = json.load(file)['factor']\n\n"
        "    def execute",
    )
    (backends / "json" / "model.py").write_text(code)
    for name, factor in (("three", 3), ("five", 5)):
        directory = repository / name / "1"
        directory.mkdir(parents=True)
        (directory / "model.json").write_text(json.dumps({"factor": factor}))
        (repository / name / "config.pbtxt").write_text("backend: 'json'" + SAME)
    with serving(repository, backend_directory=backends) as live:
        assert y_of(ask(live, "three", 2)) == [6]
        assert y_of(ask(live, "five", 2)) == [10]


@pytest.mark.parametrize("name", ["nobody", "../backends/json", "."])
def test_a_backend_that_is_not_there_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "backends" / "json").mkdir(parents=True)
    (tmp_path / "backends" / "json" / "model.py").write_text("")
    directory = tmp_path / "models" / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(f"backend: '{name}'" + SAME)
    with serving(tmp_path / "models", backend_directory=tmp_path / "backends", exit_on_error=False) as live:
        [entry] = live.http("POST", "/v2/repository/index").json
        assert "unable to find backend library" in entry["reason"]
