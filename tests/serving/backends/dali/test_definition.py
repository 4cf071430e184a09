"""What serialized pipelines say of themselves, and how Python files become one."""

from pathlib import Path

import pytest

pytest.importorskip("nvidia.dali", reason="pip install 'tpx[dali]', or run make test-frameworks")

import nvidia.dali as dali
from nvidia.dali import fn, types

from tests.serving.backends.dali.pipelines import DECODE
from tpx.errors import LoadError
from tpx.serving.backends.dali import definition
from tpx.serving.backends.dali.definition import PipelineTensor, read_definition, serialize


@dali.pipeline_def(batch_size=5, num_threads=1, device_id=None, output_dtype=[None, types.FLOAT16])
def two_in_two_out():  # type: ignore[no-untyped-def]
    first = fn.external_source(name="first", device="cpu", dtype=types.INT16, ndim=2)
    second = fn.external_source(name="second", device="cpu")
    return first, fn.cast(second, dtype=types.FLOAT16)


def test_inputs_and_outputs_are_those_that_the_pipeline_declares(tmp_path: Path) -> None:
    path = tmp_path / "model.dali"
    two_in_two_out().serialize(filename=str(path))
    found = read_definition(path)
    assert found.batch_size == 5
    assert found.inputs == (
        PipelineTensor(name="first", datatype="INT16", ndim=2),
        PipelineTensor(name="second"),
    )
    assert [(output.datatype, output.ndim) for output in found.outputs] == [("", None), ("FP16", None)]


def test_the_numbers_of_datatypes_are_those_of_dali() -> None:
    names = {"FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "FLOAT64"}
    for number, name in enumerate(definition._DATATYPES):
        assert types.DALIDataType(number).name == names.get(name, name)


@pytest.mark.parametrize("content", [b"no pipeline", b"", b"\x08\x01"])
def test_what_is_no_pipeline_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.dali"
    path.write_bytes(content)
    with pytest.raises(LoadError, match="not a serialized DALI pipeline"):
        read_definition(path)


def test_a_python_file_serializes_itself_and_says_why_where_it_cannot(tmp_path: Path) -> None:
    module, target = tmp_path / "dali.py", tmp_path / "model.dali"
    module.write_text(DECODE)
    serialize(module, target)
    assert read_definition(target).inputs == (PipelineTensor(name="encoded", datatype="UINT8", ndim=1),)
    module.write_text("import missing_package")
    with pytest.raises(LoadError, match=r"cannot be serialized: .*missing_package"):
        serialize(module, tmp_path / "other.dali")
    module.write_text("x = 1")
    with pytest.raises(LoadError, match="Precisely one autoserialize function must exist"):
        serialize(module, tmp_path / "other.dali")


def test_a_python_file_may_be_named_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    version = Path("models/decode/1")
    version.mkdir(parents=True)
    (version / "dali.py").write_text(DECODE)
    serialize(version / "dali.py", Path("model.dali"))
    assert read_definition(Path("model.dali")).inputs[0].name == "encoded"
