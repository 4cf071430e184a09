"""Broken configurations: each reason names the file, the line, the field and what was meant."""

import asyncio
from pathlib import Path

import pytest

from tests.serving.onnx_files import write_model
from tests.serving.repository.composed import chain, model
from tests.serving.repository.controlled import controlled

IO = """input [
  { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
]
output [
  { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
]
"""

UNPARSABLE = [
    ("max_batch_sizes: 4", 1, "max_batch_sizes", "did you mean 'max_batch_size'?"),
    ("\n# words\ninput [ { name: 'x'\n data_typ: TYPE_FP32 } ]", 4, "input[0].data_typ", "'data_type'?"),
    ("input [ { name: 'x' }, {\n data_type: TYPE_FP23 } ]", 2, "input[1].data_type", "'TYPE_FP32'?"),
    ("instance_group [ {\n kind: KIND_CPUS } ]", 2, "instance_group[0].kind", "'KIND_CPU'?"),
    (
        "parameters {\n key: 'a'\n value: { string_val: 'x' } }",
        3,
        "parameters[0].value.string_val",
        "string_value",
    ),
    ("dynamic_batching {\n preferred_batch_size: [ 4, y ] }", 2, "dynamic_batching.preferred_batch_size", ""),
    ("max_batch_size: many", 1, "max_batch_size", "Couldn't parse integer"),
    ("backend: onnx", 1, "backend", "Expected string"),
    ("version_policy {\n all { }\n latest { } }", 3, "version_policy.latest", "another member of oneof"),
    ("input [\n { name: 'x'\n", 2, "input[0].name", 'Expected "}"'),
    ("max_batch_size: 4\ninputs [ { name: 'x' } ]", 2, "inputs", "did you mean 'input'?"),
    ("rate_limiter { priority: 3 }", 1, "rate_limiter", "did you mean 'instance_group.rate_limiter'?"),
    (
        "ensemble_scheduling { step {\n output_map { name: 'x' } } }",
        2,
        "ensemble_scheduling.step[0].output_map[0].name",
        "it has: key, value",
    ),
    ("input { data_type: 'TYPE_FP32' }", 1, "input[0].data_type", "write TYPE_FP32 without quotes"),
    ("parameters { key: 'a' value: '4' }", 1, "parameters[0].value", 'value { string_value: "..." }'),
    ("max_batch_size: 4\nmax_batch_size: 5", 2, "max_batch_size", "multiple"),
]


@pytest.mark.parametrize(("text", "line", "path", "hint"), UNPARSABLE)
def test_what_cannot_be_parsed_is_told_with_line_and_field(
    tmp_path: Path, text: str, line: int, path: str, hint: str
) -> None:
    why = reason(tmp_path, text)
    file = tmp_path / "net" / "config.pbtxt"
    assert f"{file}:{line}:" in why or f"{file}:{line + 1}:" in why, why
    assert f"(in {path})" in why
    assert hint in why


WARMUP = (
    "model_warmup { name: 'dynamic_batching' batch_size: %s\n"
    " inputs { key: 'x' value { data_type: TYPE_FP32\n  %s } } }\n"
)
TWICE = [
    (
        "parameters { key: 'a' value { string_value: '1' } }\n"
        "parameters { key: 'b' value { string_value: '1' } }\n"
        "parameters [ {\n key: 'a' value { string_value: '2' } } ]",
        3,
        "parameters",
        "a",
        1,
    ),
    (
        "dynamic_batching { priority_queue_policy { key: 1 value { } }\n priority_queue_policy { key: 1 } }",
        2,
        "priority_queue_policy",
        "1",
        1,
    ),
    (
        "metric_tags { key: 'a' 'b' value: 'x' }\nmetric_tags { key: 'ab' value: 'y' }",
        2,
        "metric_tags",
        "ab",
        1,
    ),
    (
        "platform: 'ensemble' ensemble_scheduling { step { model_name: 'm' } step { model_name: 'm'\n"
        " input_map { key: 'x' value: 'x' }\n input_map { key: 'x' value: 'y' } } }",
        3,
        "input_map",
        "x",
        2,
    ),
]


@pytest.mark.parametrize(("text", "line", "field", "key", "first"), TWICE)
def test_a_key_given_twice_is_refused_with_both_lines(
    tmp_path: Path, text: str, line: int, field: str, key: str, first: int
) -> None:
    file = tmp_path / "net" / "config.pbtxt"
    assert f"{file}:{line}: {field} has the key '{key}' twice, first in line {first}" in reason(
        tmp_path, text
    )


INVALID = [
    ("max_batch_size: -1\n", 1, "max_batch_size"),
    (IO.replace("dims: [ 2 ] }\n]\noutput", "dims: [ 0 ] }\n]\noutput"), 2, "input[0].dims"),
    (IO.replace("data_type: TYPE_FP32 ", "", 1) + "max_batch_size: 0", 2, "input[0]"),
    (
        "\n" + IO.replace('"y" data_type: TYPE_FP32', '"y"\n data_type: TYPE_INVALID'),
        7,
        "output[0].data_type",
    ),
    (IO.replace("dims: [ 2 ] }", "dims: [ 2 ]\n    reshape { shape: [ 3 ] } }", 1), 3, "input[0].reshape"),
    (
        "\n\ninstance_group [ { count: 1 },\n { name: 'b'\n  kind: KIND_CPU gpus: [ 0 ] } ]",
        5,
        "instance_group[1].gpus",
    ),
    (
        IO + "\ndynamic_batching {\n  preferred_batch_size: [ 0 ]\n}\nmax_batch_size: 8",
        9,
        "dynamic_batching.preferred_batch_size",
    ),
    ("max_batch_size: 8\n" + IO.replace("dims: [ 2 ]", "dims: [ 3 ]", 1), 3, "input[0].dims"),
    ("backend: 'onnxruntime'\nplatform: 'pytorch_libtorch'", 2, "platform"),
    (
        IO + "response_cache {\n enable: true }\nmodel_operations {\n op_library_filename: 'x' }",
        10,
        "model_operations.op_library_filename",
    ),
    (
        "instance_group [ { rate_limiter { priority: 2 } } ]\n"
        "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
        2,
        "dynamic_batching.preserve_ordering",
    ),
    # what the message mentions is elsewhere, too
    (
        "max_batch_size: 8\n"
        + WARMUP % ("1", "dims: [ 2 ] zero_data: true")
        + "dynamic_batching {\n  preferred_batch_size: [ 9 ] }",
        6,
        "dynamic_batching.preferred_batch_size",
    ),
    ("max_batch_size: 8\n" + WARMUP % ("9", "dims: [ 2 ] zero_data: true"), 2, "model_warmup[0].batch_size"),
    (
        "max_batch_size: 8\n" + WARMUP % ("1", "dims: [ -1 ] zero_data: true"),
        4,
        "model_warmup[0].inputs[x].dims",
    ),
    ("max_batch_size: 8\n" + WARMUP % ("1", "dims: [ 2 ]"), 3, "model_warmup[0].inputs[x]"),
    (
        "platform: 'ensemble' ensemble_scheduling { step { model_name: 'other'\n"
        " input_map { key: 'x' value: 'x' } output_map { key: 'y' value: 'y' } } }\nname: 'other'\n" + IO,
        3,
        "name",
    ),
    (
        "platform: 'ensemble' ensemble_scheduling { step {\n model_name: 'part'\n"
        " input_map { key: 'x' value: 'x' }\noutput_map { key: 'y' value: 'y' }\n"
        " output_map { key: 'z' value: 'unused' } } }\n" + IO,
        5,
        "ensemble_scheduling.step[0].output_map[z]",
    ),
    (
        "platform: 'ensemble' ensemble_scheduling {\n step { input_map { key: 'x' value: 'x' } } }\n" + IO,
        2,
        "ensemble_scheduling.step[0]",
    ),
    (
        "parameters { key: 'inter_op_thread_count' value { string_value: '1' } }\n"
        "parameters { key: 'intra_op_thread_count' value {\n string_value: 'many' } }",
        2,
        "parameters[intra_op_thread_count]",
    ),
    (
        "max_batch_size: 4 dynamic_batching { priority_levels: 2 default_priority_level: 1\n"
        " priority_queue_policy { key: 1 value { timeout_action: DELAY } }\n"
        " priority_queue_policy { key: 3 value { timeout_action: DELAY } } }",
        3,
        "dynamic_batching.priority_queue_policy[3]",
    ),
    (
        "max_batch_size: 4 sequence_batching { control_input { name: 'START'\n"
        " control { kind: CONTROL_SEQUENCE_START\n int32_false_true: [ 0, 1, 2 ] } } }",
        3,
        "sequence_batching.control_input[0].control[0].int32_false_true",
    ),
    (
        "\nparameters { key: 'TRITON_BATCH_STRATEGY_PATH' value { string_value: 'x.so' } }",
        2,
        "parameters[TRITON_BATCH_STRATEGY_PATH]",
    ),
    (
        "model_metrics { metric_control { metric_identifier { family: 'f' } histogram_options {\n"
        " buckets: [ 2, 1 ] } } }",
        2,
        "model_metrics.metric_control[0].histogram_options.buckets",
    ),
]


@pytest.mark.parametrize(("text", "line", "path"), INVALID)
def test_what_is_wrong_is_told_with_line_and_field(tmp_path: Path, text: str, line: int, path: str) -> None:
    assert f"({tmp_path / 'net' / 'config.pbtxt'}:{line}: {path})" in reason(tmp_path, text)


def reason(repository: Path, text: str) -> str:
    """Why a model with this configuration is not loaded."""
    write_model(repository, "net", config=text)
    return _why(repository)


def test_an_error_that_names_no_field_is_left_as_it_is(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "net", config="max_batch_size: 4")
    (directory / "1" / "model.onnx").write_bytes(b"broken")
    assert ".pbtxt" not in _why(tmp_path)


def _why(repository: Path) -> str:
    async def refusal() -> str:
        async with controlled(repository) as it:
            return await it.refusal(it.load())

    return asyncio.run(refusal())


async def test_a_configuration_of_a_request_has_the_field_alone(tmp_path: Path) -> None:
    write_model(tmp_path, "net")
    async with controlled(tmp_path) as it:
        why = await it.refusal(it.load(config='{"input": [{"name": "x", "dims": [0]}]}'))
        assert why.rstrip(";\n").endswith("for net (in input[0].dims)")


async def test_a_step_that_does_not_fit_its_model_is_told_with_its_line(tmp_path: Path) -> None:
    model(tmp_path, "two", 2)
    (tmp_path / "e" / "1").mkdir(parents=True)
    (tmp_path / "e" / "config.pbtxt").write_text(
        chain("two").replace("input_map { key: 'x'", "\ninput_map { key: 'q'")
    )
    async with controlled(tmp_path) as it:
        why = await it.refusal(it.load("e"))
        assert f"{tmp_path}/e/config.pbtxt:2: ensemble_scheduling.step[0].input_map[q])" in why
