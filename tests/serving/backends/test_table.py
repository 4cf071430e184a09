"""Finding a backend by its name."""

import sys

import pytest

from tpx.errors import LoadError
from tpx.serving.backends.table import backend


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


def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(LoadError, match=r"needs the package onnxruntime: pip install 'tpx\[onnx\]'"):
        backend("onnxruntime")
