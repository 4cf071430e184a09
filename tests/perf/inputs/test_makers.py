"""Inputs that are made: by the seed, in ranges, from files."""

from pathlib import Path

import numpy as np
import pytest

from tests.perf.inputs.models import all_values, made, model, model_of, spec, values
from tpx.errors import UsageError
from tpx.perf.inputs.base import InputSource, InputSpec, parse_source
from tpx.perf.inputs.dataset import open_data
from tpx.perf.inputs.steps import DataSet
from tpx.perf.inputs.values import bf16_floats
from tpx.protocol.datatypes import BY_NAME

NUMBERS = [name for name in BY_NAME if name != "BYTES"]


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize("kind", ["zero", "random"])
def test_every_datatype_gets_bytes_of_its_size(datatype: str, kind: str) -> None:
    (tensor,) = made(model(100, datatype=datatype), kind).inputs
    assert len(tensor.data) == 100 * BY_NAME[datatype].size
    assert (tensor.datatype, tensor.shape) == (datatype, (100,))
    assert any(bytes(tensor.data)) is (kind == "random")


@pytest.mark.parametrize("datatype", [name for name in NUMBERS if name != "BF16"])
def test_random_values_are_ones_a_model_can_compute_with(datatype: str) -> None:
    array = made(model(1000, datatype=datatype)).inputs[0].numpy()
    assert array.min() >= 0
    assert array.max() <= (127 if array.dtype.kind in "iu" else 1)
    assert len(np.unique(array)) > 1


def test_bf16_is_rounded_from_floats_of_the_unit_interval() -> None:
    floats = bf16_floats(made(model(100, datatype="BF16")).inputs[0].numpy())
    assert floats.min() >= 0
    assert 0.5 < floats.max() <= 1


def test_strings_are_random_of_the_given_length_also_for_zero() -> None:
    for kind in ("zero", "random"):
        strings = values(made(model(3, datatype="BYTES"), kind, string_length=9))
        assert [len(s) for s in strings] == [9, 9, 9]
        assert len(set(strings)) == 3


def test_a_given_string_fills_every_element() -> None:
    assert values(made(model(2, datatype="BYTES"), string_data="hé")) == ["hé".encode()] * 2


def test_the_seed_decides_the_values() -> None:
    def data(seed: int) -> list[float]:
        return values(made(model(50), seed=seed))

    assert data(1) == data(1)
    assert data(1) != data(2)


def test_inputs_of_the_same_kind_have_values_of_their_own() -> None:
    step = made(model_of(spec("a", 9), spec("b", 9)))
    assert values(step, 0) != values(step, 1)


def test_each_row_of_a_batch_has_values_of_its_own() -> None:
    stream = open_data(model(5), InputSpec(batch_size=3)).streams[0]
    assert len({tuple(v) for v in all_values(stream)}) == 3
    assert len(open_data(model(5), InputSpec(batch_size=3, input_data=("zero",))).streams[0]) == 1


@pytest.mark.parametrize(
    ("datatype", "text", "low", "high"),
    [
        ("INT32", "range:-5:5", -5, 5),
        ("UINT64", "range:0:18446744073709551615", 0, 2**64 - 1),
        ("FP32", "range:-2.5:-1", -2.5, -1),
        ("FP16", "range:0:1000", 0, 1000),
        ("BOOL", "range:1:1", True, True),
        ("INT8", "ones", 1, 1),
        ("FP64", "ones", 1, 1),
        ("BOOL", "zero", False, False),
    ],
)
def test_an_input_can_have_a_source_of_its_own(datatype: str, text: str, low: float, high: float) -> None:
    source = parse_source(f"x={text}")
    array = made(model(500, datatype=datatype), source=source).inputs[0].numpy()
    assert low <= array.min()
    assert array.max() <= high
    assert len(np.unique(array)) > 1 or low == high


def test_the_ends_of_a_range_of_integers_are_in_it() -> None:
    array = made(model(500, datatype="INT8"), source=parse_source("x=range:-1:1")).inputs[0].numpy()
    assert sorted(set(array.tolist())) == [-1, 0, 1]


def test_bytes_are_any_bits_as_perf_analyzers_random_data() -> None:
    array = made(model(5000), source=parse_source("x=bytes")).inputs[0].numpy()
    assert not np.isfinite(array).all()
    assert len(set(values(made(model(9, datatype="BYTES"), source=parse_source("x=bytes"))))) == 9


@pytest.mark.parametrize(
    ("datatype", "source", "text"),
    [
        ("BYTES", "x=range:0:1", "BYTES, which has no range"),
        ("INT8", "x=range:0:128", r"does not fit into INT8 \(-128 to 127\)"),
        ("INT8", "x=range:0.5:1", "the bounds of INT8 must be integers"),
        ("FP32", "z=ones", r"--input z: model 'net' has no such input .*has: x"),
    ],
)
def test_a_source_that_does_not_fit_the_input_is_refused(datatype: str, source: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        made(model(2, datatype=datatype), source=parse_source(source))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "does not match <name>=<source>"),
        ("=zero", "does not match <name>=<source>"),
        ("x=range:1", "does not match <name>=range:<low>:<high>"),
        ("x=range:2:1", "its low end not above its high one"),
        ("x=range:0:inf", "must be finite"),
        ("x=file:", "Unsupported source provided: 'file:'"),
        ("x=gauss", "Unsupported source provided: 'gauss'"),
    ],
)
def test_a_source_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_source(text)


def test_generated_data_needs_the_users_values_for_a_shape_tensor() -> None:
    description = model_of(spec("x", 2, datatype="INT32", shape_tensor=True))
    with pytest.raises(UsageError, match="can not generate data for shape tensor 'x'"):
        made(description)
    assert values(made(description, source=parse_source("x=range:4:4"))) == [4, 4]


def from_file(path: Path, *shape: int, datatype: str = "FP32") -> DataSet:
    source = InputSource(name="x", kind="file", path=path)
    return open_data(model(*shape, datatype=datatype), InputSpec(input=(source,)))


def test_the_rows_of_an_array_are_steps(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=np.int64).reshape(3, 2))
    assert all_values(from_file(path, 2).streams[0]) == [[0, 1], [2, 3], [4, 5]]


def test_an_array_of_the_inputs_shape_is_one_step(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.asfortranarray(np.arange(6, dtype=">f8").reshape(3, 2)))
    (row,) = all_values(from_file(path, -1, 2).streams[0])
    assert row == [0, 1, 2, 3, 4, 5]


def test_a_file_without_a_suffix_is_raw_bytes_or_lines(tmp_path: Path) -> None:
    raw, lines = tmp_path / "raw", tmp_path / "lines"
    raw.write_bytes(np.array([1.5, 2.5], "<f4").tobytes())
    lines.write_bytes(b"one\r\ntwo words\n")
    assert all_values(from_file(raw, 2).streams[0]) == [[1.5, 2.5]]
    assert all_values(from_file(lines, 2, datatype="BYTES").streams[0]) == [[b"one", b"two words"]]


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((2, 3)), "does not fit"),
        (np.zeros((0, 2)), "the array has no rows"),
        (np.array(["a", "b"]), "cannot hold FP32"),
        (np.array([1e300, 0]), "out of range for FP32"),
        (np.array([{}, {}]), "without pickle"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(tmp_path: Path, array: object, text: str) -> None:
    path = tmp_path / "x.npy"
    np.save(path, array, allow_pickle=True)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=text):
        from_file(path, 2)


def test_files_of_different_lengths_are_refused(tmp_path: Path) -> None:
    for name, rows in (("a", 2), ("b", 3)):
        np.save(tmp_path / f"{name}.npy", np.zeros((rows, 1), np.float32))
    sources = tuple(InputSource(name=n, kind="file", path=tmp_path / f"{n}.npy") for n in "ab")
    with pytest.raises(UsageError, match=r"different numbers of rows: \[2, 3\]"):
        open_data(model_of(spec("a", 1), spec("b", 1)), InputSpec(input=sources))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tensor 'x': cannot read .*nope: No such file"):
        from_file(tmp_path / "nope", 2)


@pytest.mark.parametrize(
    ("datatype", "dims"), [("FP32", (10**13,)), ("BYTES", (3, 10**15)), ("INT8", (10**30,))]
)
def test_a_tensor_that_the_machine_cannot_hold_is_refused(datatype: str, dims: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"input 'x' of shape .* would take .* MiB of memory"):
        made(model(*dims, datatype=datatype, max_batch_size=0))
