"""Options of data and sequences: what is read, and the message of every bad value."""

from pathlib import Path

import pytest

from tests.perf.parsing import message, parse
from tpx.perf.inputs.base import IdRange, InputSource, SequenceSpec


def test_data_may_be_several_files_and_directories(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("{}")
    settings = parse("--input-data", str(file), "--input-data", str(tmp_path)).inputs
    assert settings.files == (file, tmp_path)
    assert parse("--input-data", "ZERO").inputs.kind == "zero"
    assert parse().inputs.kind == "random"


def test_sources_are_those_of_single_inputs() -> None:
    config = parse("--input", "a=zero", "--input", "b:0=range:-1:2.5", "--input", "c=file:x=y.npy")
    assert config.inputs.sources == {
        "a": InputSource(name="a", kind="zero"),
        "b:0": InputSource(name="b:0", kind="range", low=-1, high=2.5),
        "c": InputSource(name="c", kind="file", path=Path("x=y.npy")),
    }
    assert [str(source) for source in config.inputs.input] == ["a=zero", "b:0=range:-1:2.5", "c=file:x=y.npy"]


def test_a_declared_input_may_have_colons_in_its_name() -> None:
    (spec,) = parse("--declare", "serving:0:fp32:-1,4").inputs.declare
    assert (spec.name, spec.datatype, spec.shape) == ("serving:0", "FP32", (-1, 4))


def test_sequences_have_perf_analyzers_defaults() -> None:
    plain = parse().sequences
    assert (plain.length, plain.fixed, plain.sequence_length_variation) == (20, False, 20.0)
    assert plain.sequence_id_range == IdRange(1, 2**32 - 1)
    words = ("--sequence-length", "5", "--sequence-length-variation", "0", "--sequence-id-range", "3:9")
    assert parse(*words).sequences == SequenceSpec(
        sequence_id_range=IdRange(3, 9), sequence_length=5, sequence_length_variation=0
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--input-data", "zero", "--input-data", "random"), "random and zero can not be combined"),
        (("--input-data", "zero", "--input-data", "."), "files and zero can not be combined"),
        (("--input", "a=zero", "--input", "a=ones"), "--input: 'a' is given more than once"),
        (("--shape", "a:1", "--shape", "a:2"), "--shape: 'a' is given more than once"),
        (("--declare", "a:FP32:1", "--declare", "a:FP32:1"), "--declare: 'a' is given more than once"),
        (("--declare", "a"), "The value 'a' does not match <name>:<datatype>:<d,d>."),
        (("--declare", "a:1,2"), "The value 'a:1,2' does not match <name>:<datatype>:<d,d>."),
        (("--declare", "a:FP31:1"), "The datatypes are BOOL, "),
        (("--declare", "a:FP32:1,b"), "The dimensions of 'a:FP32:1,b' are not numbers."),
        (("--declare", "a:FP32:0"), "The dimensions of 'a:FP32:0' must be > 0, or -1 if they are dynamic."),
        (("--output", "a", "--output", "a"), "--output: 'a' is given more than once"),
        (("--fixed-schedule",), "you must provide a dataset using `--input-data`"),
        (("--fixed-schedule", "--input-data", "zero"), "'zero' is not a file. When using `--fixed-schedule`"),
        (("--fixed-schedule", "--input-data", "."), "'.' is not a file. When using `--fixed-schedule`"),
        (("--sequence-id-range", "1:2:3"), "The value does not match <start:end>."),
        (("--sequence-id-range", "a"), "Invalid value provided: a"),
        (("--sequence-id-range", "-1"), "The range values must be >= 0."),
        (("--sequence-id-range", "0:5"), "0 is not a sequence id"),
        (("--sequence-id-range", "5:5"), "The 'end' value must be greater than 'start' value."),
        (("--sequence-id-range", f"1:{2**64}"), "The range values must be below 2^64."),
        (("--sequence-length-variation", "nan"), "The value must be >= 0.0."),
    ],
)
def test_a_bad_value_gets_its_message(words: tuple[str, ...], text: str) -> None:
    assert text in message(*words)
