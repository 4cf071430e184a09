"""Data in JSON files: every form of the grammar, and what is wrong with a file is said by its place."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.perf.inputs.models import all_values, data_of, model, model_of, spec, values
from tpx.errors import UsageError
from tpx.perf.clients.model import ModelDescription
from tpx.perf.inputs.base import parse_source
from tpx.perf.inputs.steps import DataSet
from tpx.perf.inputs.values import bf16_floats
from tpx.perf.settings import Shape

TWO = model(2)


def written(directory: Path, document: Any, name: str = "data.json") -> Path:
    path = directory / name
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def read(directory: Path, document: Any, description: ModelDescription = TWO, **more: Any) -> DataSet:
    return data_of(description, written(directory, document), **more)


def one(directory: Path, value: Any, description: ModelDescription = TWO, **more: Any) -> list[Any]:
    return values(read(directory, {"data": [{"x": value}]}, description, **more).streams[0][0])


def raw(*numbers: float, dtype: str = "<f4") -> str:
    return base64.b64encode(np.array(numbers, dtype).tobytes()).decode()


def test_a_list_of_steps_is_one_stream(tmp_path: Path) -> None:
    data = read(tmp_path, {"data": [{"x": [1, 2]}, {"x": [3, 4]}]})
    assert [all_values(stream) for stream in data.streams] == [[[1, 2], [3, 4]]]


def test_lists_of_steps_are_streams_and_plain_models_go_through_all_of_them(tmp_path: Path) -> None:
    data = read(tmp_path, {"data": [[{"x": [1, 2]}], [{"x": [3, 4]}, {"x": [5, 6]}]]})
    assert [len(stream) for stream in data.streams] == [1, 2]
    assert all_values(data.steps) == [[1, 2], [3, 4], [5, 6]]


def test_files_go_on_where_the_one_before_ended(tmp_path: Path) -> None:
    flat = [written(tmp_path, {"data": [{"x": [i, i]}]}, f"{i}.json") for i in range(3)]
    assert all_values(data_of(TWO, *flat).streams[0]) == [[0, 0], [1, 1], [2, 2]]
    nested = [written(tmp_path, {"data": [[{"x": [i, i]}]]}, f"n{i}.json") for i in range(2)]
    assert len(data_of(TWO, *nested).streams) == 2


@pytest.mark.parametrize(
    "value",
    [
        [1, 2.0],
        [[1, 2]],
        {"content": [1.0, 2]},
        {"content": [1, 2], "shape": [2]},
        {"b64": raw(1, 2)},
        {"b64": raw(1, 2), "shape": [2]},
        {"content": {"b64": raw(1, 2)}, "shape": [2]},
    ],
)
def test_a_value_has_many_forms(tmp_path: Path, value: Any) -> None:
    assert one(tmp_path, value) == [1, 2]


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ([1, 2, 3, 4], (2, 2)),
        ([[1, 2], [3, 4], [5, 6]], (3, 2)),
        ({"content": [1, 2], "shape": [1, 2]}, (1, 2)),
        ({"b64": raw(1, 2, 3, 4, 5, 6)}, (3, 2)),
    ],
)
def test_a_dynamic_dimension_follows_from_the_value(
    tmp_path: Path, value: Any, shape: tuple[int, ...]
) -> None:
    step = read(tmp_path, {"data": [{"x": value}]}, model(-1, 2)).streams[0][0]
    assert step.inputs[0].shape == shape


def test_shapes_of_the_command_line_hold_where_the_value_has_none(tmp_path: Path) -> None:
    document = {"data": [{"x": [1, 2, 3, 4]}, {"x": {"content": [1, 2], "shape": [2, 1]}}]}
    stream = read(tmp_path, document, model(-1, -1), shapes=(Shape("x", (4, 1)),)).streams[0]
    assert [stream[i].inputs[0].shape for i in range(2)] == [(4, 1), (2, 1)]


def test_nan_and_infinity_are_numbers(tmp_path: Path) -> None:
    a, b = one(tmp_path, [float("nan"), float("-inf")])
    assert a != a
    assert b == float("-inf")


def test_half_floats_are_written_as_numbers(tmp_path: Path) -> None:
    assert one(tmp_path, [0.5, 65504], model(2, datatype="FP16")) == [0.5, 65504]
    bits = np.array(one(tmp_path, [1.0, 0.1], model(2, datatype="BF16")), np.uint16)
    assert bf16_floats(bits).tolist() == [1.0, 0.10009765625]


def test_bf16_is_rounded_to_the_nearest_and_ties_to_even(tmp_path: Path) -> None:
    tie_down, tie_up, nan = 1 + 2**-8, 1 + 3 * 2**-8, float("nan")
    bits = one(tmp_path, [tie_down, tie_up, nan, float("inf")], model(4, datatype="BF16"))
    floats = bf16_floats(np.array(bits, np.uint16))
    assert floats[:2].tolist() == [1.0, 1 + 2**-6]
    assert np.isnan(floats[2])
    assert np.isinf(floats[3])


@pytest.mark.parametrize(
    ("datatype", "value", "expected"),
    [
        ("BOOL", [True, False], [True, False]),
        ("BOOL", [1, 0], [True, False]),
        ("INT8", [-128, 127], [-128, 127]),
        ("UINT64", [2**64 - 1, 0], [2**64 - 1, 0]),
        ("INT64", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
        ("FP64", [1, 0.1], [1, 0.1]),
        ("BYTES", ["é", ""], ["é".encode(), b""]),
        ("BYTES", ["a", {"b64": "/wA="}], [b"a", b"\xff\x00"]),
        ("BYTES", {"b64": base64.b64encode(b"\1\0\0\0a\0\0\0\0").decode()}, [b"a", b""]),
    ],
)
def test_every_datatype_has_its_values(
    tmp_path: Path, datatype: str, value: Any, expected: list[Any]
) -> None:
    assert one(tmp_path, value, model(2, datatype=datatype)) == expected


@pytest.mark.parametrize(
    ("datatype", "value", "text"),
    [
        ("FP32", [1, "2"], "'2' is not FP32"),
        ("FP32", [1, None], "None is not FP32"),
        ("FP32", [True, 1.0], "True is not FP32"),
        ("FP32", [1e39, 1], "a value is out of range for FP32"),
        ("FP16", [1e6, 1], "a value is out of range for FP16"),
        ("INT32", [1.0, 2], "1.0 is not INT32"),
        ("UINT8", [256, 0], "256 is out of range for UINT8"),
        ("BOOL", [2, 0], "out of range for BOOL"),
        ("BYTES", ["a", 1], "1 is not a string"),
        ("BYTES", {"b64": "YWJj"}, "the length of each element in four bytes before it"),
        ("FP32", {"b64": "YWJj"}, "3 bytes are not a whole number of FP32 elements"),
        ("FP32", {"b64": "?"}, "b64 is not base64 text"),
        ("FP32", {"b64": 3}, "the value of b64 field should be of type string"),
        ("FP32", {"shape": [2]}, "missing content field"),
        ("FP32", {"content": [1, 2], "shapes": [2]}, "unknown key 'shapes'"),
        ("FP32", {"content": [1, 2], "shape": ["2"]}, "shape values must be integers"),
        ("FP32", {"content": [1, 2], "shape": [1, 2]}, "does not fit the model's"),
        ("FP32", [1, 2, 3], r"the shape \[2\] has 2 elements, the data 3"),
        ("FP32", [[1, 2], [3]], "not all of the same length"),
    ],
)
def test_a_wrong_value_is_named_by_file_stream_step_and_tensor(
    tmp_path: Path, datatype: str, value: Any, text: str
) -> None:
    good = [True, False] if datatype == "BOOL" else ["", ""] if datatype == "BYTES" else [0, 0]
    document = {"data": [[{"x": good}, {"x": value}]]}
    data = read(tmp_path, document, model(2, datatype=datatype))
    with pytest.raises(UsageError, match=rf"data.json: stream 0, step 1, tensor 'x': .*{text}"):
        data.streams[0][1]


def test_what_cannot_be_found_out_about_a_shape_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="4 elements do not determine"):
        one(tmp_path, [1, 2, 3, 4], model(-1, -1))


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("{", "failed to parse the specified json file"),
        ("[]", "expected an object with a field 'data'"),
        ({"dataa": []}, "The json file doesn't contain data field"),
        ({"data": {}}, "'data' must be a list"),
        ({"data": []}, "The dataset provided is empty"),
        ({"data": [[]]}, "The dataset provided is empty"),
        ({"data": [[{"x": [1, 2]}], {"x": [1, 2]}]}, "a combination of objects and arrays"),
        ({"data": [{"x": [1, 2]}, [{"x": [1, 2]}]]}, "a combination of objects and arrays"),
        ({"data": [{"x": [1, 2]}], "validation_data": []}, "doesn't align"),
        ({"data": [[{"x": [1, 2]}]], "validation_data": [[]]}, "doesn't align"),
        ({"data": [[{"x": [1, 2]}]], "validation_data": [{}]}, "doesn't align"),
        ({"data": [{"x": [1, 2]}], "validation_data": {}}, "doesn't align"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, document: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        read(tmp_path, document)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ({}, "missing tensor x"),
        ({"x": [1, 2], "z": [1]}, "'z' is not found in the model configuration .*has: x"),
        ({"x": [1, 2], "timestamp": [-1]}, "a timestamp is a number of milliseconds"),
        ({"x": [1, 2], "payload": [{}]}, "'payload' is for services that take JSON"),
        (3, "a step must be an object"),
    ],
)
def test_a_step_that_is_wrong_is_named(tmp_path: Path, step: Any, text: str) -> None:
    data = read(tmp_path, {"data": [{"x": [1, 2]}, step]})
    with pytest.raises(UsageError, match=rf"stream 0, step 1: .*{text}"):
        data.streams[0][1]


def test_the_model_is_not_read_and_timestamps_are_milliseconds(tmp_path: Path) -> None:
    document = {"data": [{"x": [1, 2], "model": "m", "timestamp": [1.5]}, {"x": [1, 2], "timestamp": 3}]}
    stream = read(tmp_path, document).streams[0]
    assert [stream[i].timestamp_ns for i in range(2)] == [1_500_000, 3_000_000]


def test_an_input_may_be_called_as_something_else_is(tmp_path: Path) -> None:
    data = read(tmp_path, {"data": [{"timestamp": [7]}]}, model_of(spec("timestamp", 1)))
    assert values(data.streams[0][0]) == [7]
    assert data.streams[0][0].timestamp_ns is None


def test_a_payload_is_the_text_of_its_object(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user"}]}
    data = read(tmp_path, {"data": [{"payload": [chat]}]}, model_of(spec("payload", 1, datatype="BYTES")))
    (text,) = values(data.streams[0][0])
    assert json.loads(text) == chat


def test_optional_inputs_may_be_missing(tmp_path: Path) -> None:
    description = model_of(spec("x", 2), spec("z", 1, optional=True))
    stream = read(tmp_path, {"data": [{"x": [1, 2]}, {"x": [1, 2], "z": [3]}]}, description).streams[0]
    assert [[t.name for t in stream[i].inputs] for i in range(2)] == [["x"], ["x", "z"]]


def test_an_input_may_come_from_elsewhere_but_not_twice(tmp_path: Path) -> None:
    description = model_of(spec("x", 2), spec("z", 1))
    sources = (parse_source("z=ones"),)
    step = read(tmp_path, {"data": [{"x": [1, 2]}]}, description, input=sources).streams[0][0]
    assert [values(step, 0), values(step, 1)] == [[1, 2], [1]]
    with pytest.raises(UsageError, match="given here and by --input"):
        read(tmp_path, {"data": [{"x": [1, 2], "z": [3]}]}, description, input=sources).streams[0][0]


def test_expected_outputs_stand_beside_their_steps(tmp_path: Path) -> None:
    document = {
        "data": [[{"x": [1, 2]}, {"x": [3, 4]}]],
        "validation_data": [[{"y": [5, 6]}, {}]],
    }
    stream = read(tmp_path, document).streams[0]
    assert [[t.numpy().tolist() for t in stream[i].expected] for i in range(2)] == [[[5, 6]], []]


def test_other_fields_of_a_file_are_told(tmp_path: Path) -> None:
    (notice,) = read(tmp_path, {"data": [{"x": [1, 2]}], "comment": "x"}).notices
    assert "the field 'comment' is not read" in notice


def test_a_file_with_an_object_a_line_is_a_stream(tmp_path: Path) -> None:
    path = written(tmp_path, '{"x": [1, 2]}\n\n{"x": [NaN, 4]}\n', "data.jsonl")
    (first, second) = all_values(data_of(TWO, path).streams[0])
    assert first == [1, 2]
    assert second[1] == 4


def test_a_directory_has_a_file_for_each_tensor(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(np.array([1, 2], "<f4").tobytes())
    (tmp_path / "y").write_bytes(np.array([3, 4], "<f4").tobytes())
    (stream,) = data_of(TWO, tmp_path).streams
    step = stream[0]
    assert (len(stream), values(step)) == (1, [1, 2])
    assert step.expected[0].numpy().tolist() == [3, 4]


def test_a_directory_of_arrays_has_as_many_steps_as_they_have_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6).reshape(3, 2))
    np.save(tmp_path / "y.npy", np.arange(6).reshape(3, 2) * 2.0)
    (stream,) = data_of(TWO, tmp_path).streams
    assert all_values(stream) == [[0, 1], [2, 3], [4, 5]]
    assert stream[2].expected[0].numpy().tolist() == [8, 10]


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"x": b"12345678", "z": b"1"}, "Provided data file 'z' does not correspond to a valid model input"),
        ({"y": b"12345678"}, "missing tensor x"),
        ({"x": b""}, "is empty"),
        ({"x": b"1234"}, r"the shape \[2\] has 2 elements, the data 1"),
    ],
)
def test_a_directory_that_does_not_fit_is_refused(tmp_path: Path, files: dict[str, bytes], text: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=text):
        data_of(TWO, tmp_path)
