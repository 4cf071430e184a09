"""Libraries of custom operators, with a real one: that of onnxruntime-extensions."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.serving import onnx_files
from tests.serving.backends.onnxruntime.opening import executors, opened
from tests.serving.live import serving
from tests.serving.onnx_files import node, value
from tpx.errors import ConfigError, LoadError

WORDS = np.array([[b"abc", b"De"]], dtype=object)


@pytest.fixture
def library() -> Path:
    """A library of operators. Its package is not imported: that tells protobuf, in this process and its
    children, to do without its compiled half."""
    found = find_spec("onnxruntime_extensions")
    if found is None or not found.submodule_search_locations:
        pytest.skip("pip install onnxruntime-extensions")
    [path] = Path(found.submodule_search_locations[0]).glob("_extensions_pydll*.so")
    return path


def upper() -> Any:
    """y = x in capitals, by an operator that ONNX Runtime does not have."""
    made = helper.make_graph(
        [node("StringUpper", ["x"], ["y"], domain="ai.onnx.contrib")],
        "net",
        [value("x", "BYTES", "batch", 2)],
        [value("y", "BYTES", "batch", 2)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.contrib", 1)]
    return helper.make_model(made, ir_version=8, opset_imports=opsets)


def model(repository: Path) -> Path:
    """The directory of a version of the model."""
    onnx_files.write_model(repository, "net", upper())
    return repository / "net" / "1"


def operations(name: str | Path) -> str:
    return f"model_operations {{ op_library_filename: '{name}' }} "


def test_without_the_library_the_operator_is_missing(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"ai\.onnx\.contrib"):
        opened(model(tmp_path))


@pytest.mark.parametrize("above", [False, True])
def test_a_library_lies_beside_the_version_or_beside_the_model(
    tmp_path: Path, library: Path, above: bool
) -> None:
    directory = model(tmp_path)
    (directory.parent if above else directory).joinpath("libops.so").symlink_to(library)
    [executor] = executors(directory, operations("libops.so"))
    assert executor.execute({"x": WORDS.copy()})["y"].tolist() == [[b"ABC", b"DE"]]


@pytest.mark.parametrize("absolute", [False, True])
def test_a_library_lies_where_the_command_line_allows_it(
    tmp_path: Path, library: Path, absolute: bool
) -> None:
    allowed = tmp_path / "ops" / "deeper"
    allowed.mkdir(parents=True)
    (allowed / "libops.so").symlink_to(library)
    settings = {"op-library-directories": f"/nowhere:{tmp_path / 'ops'}"}
    name = str(allowed / "libops.so") if absolute else "deeper/libops.so"
    [executor] = executors(model(tmp_path / "models"), operations(name), settings)
    assert executor.execute({"x": WORDS.copy()})["y"][0, 0] == b"ABC"


def test_a_library_elsewhere_is_refused_with_how_to_allow_it(tmp_path: Path, library: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        opened(model(tmp_path), operations(library))
    assert caught.value.message == (
        f"model_operations.op_library_filename '{library}' of model 'net' is outside of the model's "
        "directory: put it there, or start with "
        f"--backend-config=onnxruntime,op-library-directories={library.parent}"
    )


@pytest.mark.parametrize("name", ["../../libops.so", "{root}/ops/../libops.so", "{root}/libops.so"])
def test_no_path_leads_out_of_the_directories(tmp_path: Path, library: Path, name: str) -> None:
    directory = model(tmp_path)
    (tmp_path / "libops.so").symlink_to(library)
    (tmp_path / "ops").mkdir()
    settings = {"op-library-directories": str(tmp_path / "ops")}
    with pytest.raises(ConfigError, match="is outside"):
        opened(directory, operations(name.format(root=tmp_path)), settings)


def test_a_library_that_is_not_there_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    directory = model(tmp_path)
    with pytest.raises(ConfigError) as caught:
        opened(directory, operations("libops.so"))
    assert caught.value.message == (
        "model 'net' has no library of operators 'libops.so' (model_operations.op_library_filename); looked "
        f"for {directory / 'libops.so'}, {directory.parent / 'libops.so'}"
    )


def test_a_file_that_is_no_library_is_named(tmp_path: Path) -> None:
    directory = model(tmp_path)
    (directory / "libops.so").write_text("no library")
    with pytest.raises(
        LoadError, match=r"library of operators '.*/libops\.so' .* cannot be used: .*libops\.so"
    ):
        opened(directory, operations("libops.so"))


def test_a_server_answers_with_a_custom_operator(tmp_path: Path, library: Path) -> None:
    directory = model(tmp_path)
    (directory / "libops.so").symlink_to(library)
    (tmp_path / "net" / "config.pbtxt").write_text(operations("libops.so"))
    with serving(tmp_path) as live:
        tensor = {"name": "x", "datatype": "BYTES", "shape": [1, 2], "data": ["abc", "D"]}
        assert live.infer("net", {"inputs": [tensor]}).json["outputs"][0]["data"] == ["ABC", "D"]
