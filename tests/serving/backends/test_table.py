"""Finding a backend by its name."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.installed import install
from tpx.errors import LoadError
from tpx.serving.backends.contract import Describes
from tpx.serving.backends.table import BACKENDS, backend, locate_code


def test_onnxruntime_is_there() -> None:
    assert backend("onnxruntime").default_filename == "model.onnx"


@pytest.mark.parametrize("name", ["onnxrutime", "unknown", "", "../x", "fortran"])
def test_an_unknown_backend_is_named_with_those_there_are(name: str) -> None:
    with pytest.raises(LoadError) as caught:
        backend(name)
    assert caught.value.message.startswith(
        f"unable to find backend library for backend '{name}', try specifying runtime on the model "
        "configuration. (tpx has: onnxruntime"
    )


def test_a_slip_of_the_pen_is_told_the_right_name() -> None:
    with pytest.raises(LoadError, match=r"did you mean 'onnxruntime'\?"):
        backend("onnx_runtime")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("onnx", r"did you mean 'onnxruntime'\?"),
        ("libtorch", r"did you mean 'pytorch'\?"),
        ("onnxruntime_onnx", r"did you mean 'onnxruntime'\?"),
        ("tensorrtllm", r"one of Triton's that tpx does not have \(tpx has: onnxruntime.*tensorrt\)$"),
        ("ensemble", r'it is platform: "ensemble" with ensemble_scheduling'),
        ("mlflow", r"a python-based backend would be '/backends/mlflow/model\.py'"),
    ],
)
def test_names_that_people_bring_are_answered_with_the_way_out(name: str, words: str) -> None:
    with pytest.raises(LoadError, match=words):
        backend(name, Path("/backends"))


def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(LoadError, match=r"needs the package onnxruntime: pip install 'tpx\[onnx\]'"):
        backend("onnxruntime")


def test_a_package_that_fails_to_import_is_told_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = "tpx.serving.backends.onnxruntime"
    for module in ("onnxruntime", *(name for name in list(sys.modules) if name.startswith(ours))):
        monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "onnxruntime.py").write_text("raise OSError('libcublas.so.12: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LoadError) as caught:
        backend("onnxruntime")
    assert caught.value.message == (
        "backend 'onnxruntime' cannot be used, its package onnxruntime fails to import (`tpx doctor` shows "
        "more): OSError: libcublas.so.12: cannot open"
    )


_BACKEND = """
class Mine:
    default_filename = "model.mine"

    def open(self, files, config): ...
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine_backend", None)


def _add(site: Path, source: str, target: str = "mine_backend:Mine", name: str = "mine") -> None:
    install(site, "mine-backend", source, {BACKENDS.group: {name: target}})


def test_a_package_adds_a_backend(site: Path) -> None:
    _add(site, _BACKEND)
    assert backend("mine").default_filename == "model.mine"
    assert locate_code("mine") == "mine_backend"


def test_a_package_is_not_looked_at_for_a_backend_of_the_table(site: Path) -> None:
    _add(site, "raise RuntimeError", name="identity")
    assert type(backend("identity")).__module__ == "tpx.serving.backends.models_in_code"
    assert locate_code("identity") == "tpx.serving.backends.models_in_code"


def test_a_python_based_backend_stands_before_a_package(site: Path, tmp_path: Path) -> None:
    _add(site, "raise RuntimeError")
    runtime = tmp_path / "backends" / "mine" / "model.py"
    runtime.parent.mkdir(parents=True)
    runtime.write_text("")
    assert type(backend("mine", tmp_path / "backends")).__name__ == "PythonBackend"
    assert locate_code("mine", tmp_path / "backends") == str(runtime)


def test_backends_of_packages_are_among_those_there_are(site: Path) -> None:
    _add(site, _BACKEND)
    with pytest.raises(LoadError, match=r"repeat, .*mine\) \(did you mean 'mine'\?\)"):
        backend("mime")
    assert locate_code("mime") == ""


@pytest.mark.parametrize(
    ("source", "target", "cause"),
    [
        ("import libmine", "mine_backend:Mine", "cannot be imported: ModuleNotFoundError: No module named"),
        ("", "mine_backend:Mine", "cannot be imported: AttributeError: module 'mine_backend' has no"),
        ("Mine = 3", "mine_backend:Mine", "is not a class"),
        ("class Mine:\n    def __init__(self, x): ...", "mine_backend:Mine", "cannot be made: TypeError: "),
        ("class Mine:\n    def open(self): ...", "mine_backend:Mine", "has no default_filename"),
    ],
)
def test_a_broken_package_is_named_with_its_cause(site: Path, source: str, target: str, cause: str) -> None:
    _add(site, source, target)
    with pytest.raises(LoadError) as caught:
        backend("mine")
    assert caught.value.message.startswith(
        f"backend 'mine' is added by the package mine-backend 1.0 (entry point {target}), which {cause}"
    )


@pytest.mark.parametrize("name", ["onnxruntime", "python", "pytorch", "openvino"])
def test_a_backend_with_a_package_of_its_own_describes_itself(name: str) -> None:
    found = backend(name)
    assert isinstance(found, Describes)
    description = found.describe()
    assert re.match(r"\d+\.\d+", description.version)
    assert description.providers or description.devices
    assert not description.lacks
