"""config.pbtxt, its text and its JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2

from tpx.errors import ConfigError
from tpx.protocol import messages, model_config

TEXT = """
name: "net"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] reshape { shape: [ 3, 1, -1 ] } } ]
output { name: "y" data_type: TYPE_STRING dims: 10 label_filename: "labels.txt" }
version_policy: { specific { versions: [ 1, 9223372036854775807 ] } }
instance_group [ { count: 2 kind: KIND_CPU }, { count: 1 kind: KIND_GPU gpus: [ 0, 1 ] } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 18446744073709551615
  priority_levels: 2 priority_queue_policy { key: 1 value { max_queue_size: 5 } } }
parameters { key: "k" value { string_value: "v" } }
metric_tags { key: "team" value: "a" }
sequence_batching { max_sequence_idle_microseconds: 1 direct { } }
"""


def test_text_is_read_completely() -> None:
    text = TEXT.replace("sequence_batching { max_sequence_idle_microseconds: 1 direct { } }\n", "")
    config = model_config.parse(text, "config.pbtxt")
    assert (config.name, config.max_batch_size) == ("net", 8)
    assert list(config.input[0].reshape.shape) == [3, 1, -1]
    assert list(config.version_policy.specific.versions) == [1, 2**63 - 1]
    assert config.dynamic_batching.max_queue_delay_microseconds == 2**64 - 1
    assert config.dynamic_batching.priority_queue_policy[1].max_queue_size == 5
    assert config.parameters["k"].string_value == "v"
    assert model_config.parse(model_config.to_text(config), "again") == config


def test_a_choice_made_twice_is_refused_as_protobuf_does() -> None:
    with pytest.raises(ConfigError, match="scheduling_choice"):
        model_config.parse(TEXT, "config.pbtxt")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nmae: 'x'", r"config.pbtxt:1:1 .*nmae"),
        ("name: 'x'\nmax_batch_size: many", r"config.pbtxt:2:"),
        ("input { data_type: TYPE_FP33 }", "TYPE_FP33"),
        ("input {", "config.pbtxt:"),
        ("max_batch_size: 99999999999", "config.pbtxt:1:"),
        ("name: 'x' name: 'y'", "name"),
        ("\0", "config.pbtxt:"),
    ],
)
def test_an_error_names_the_file_the_line_and_the_field(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        model_config.parse(text, "config.pbtxt")


def test_files_that_are_no_configuration_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    with pytest.raises(ConfigError, match="failed to open text file for read"):
        model_config.read(path)
    path.write_bytes(b"name: '\xff'")
    with pytest.raises(ConfigError, match="not UTF-8 text at byte 7"):
        model_config.read(path)
    path.write_bytes(b"#" * (model_config.MAX_CONFIG_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        model_config.read(path)
    for mark in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(mark + b"name: 'ok'")
        assert model_config.read(path).name == "ok"
    with pytest.raises(ConfigError, match="failed to open"):
        model_config.read(tmp_path)


def test_the_json_has_every_field_of_triton_and_numbers_are_numbers() -> None:
    text = TEXT.replace("sequence_batching { max_sequence_idle_microseconds: 1 direct { } }\n", "")
    out = json.loads(json.dumps(model_config.to_json(model_config.parse(text, ""))))
    assert out["version_policy"]["specific"]["versions"] == [1, 2**63 - 1]
    assert out["dynamic_batching"]["max_queue_delay_microseconds"] == 2**64 - 1
    assert out["dynamic_batching"]["priority_queue_policy"]["1"]["max_queue_size"] == 5
    assert out["input"][0]["dims"] == [3, -1]
    assert out["output"][0]["data_type"] == "TYPE_STRING"
    assert out["instance_group"][0]["kind"] == "KIND_CPU"
    assert out["cc_model_filenames"] == {}
    assert out["model_warmup"] == []


def theirs(config: Any) -> dict[str, Any]:
    """The JSON that a client makes of the message with tritonclient's schema."""
    message = model_config_pb2.ModelConfig.FromString(config.SerializeToString())
    out: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return out


def with_texts(value: Any) -> Any:
    """Protobuf writes 64-bit numbers as text; so that the two can be compared, all numbers become text."""
    if isinstance(value, dict):
        return {key: with_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_texts(item) for item in value]
    return str(value)


@pytest.mark.parametrize(
    "scheduling",
    [
        "",
        "sequence_batching { max_sequence_idle_microseconds: 5 oldest { max_candidate_sequences: 4 } }",
        "ensemble_scheduling { step { model_name: 'a' input_map { key: 'x' value: 'y' } } }",
    ],
)
def test_the_json_is_what_a_client_would_make_of_the_message(scheduling: str) -> None:
    config = model_config.parse(f"name: 'm' {scheduling} model_transaction_policy {{ decoupled: true }}", "")
    assert with_texts(model_config.to_json(config)) == with_texts(theirs(config))
    assert model_config.from_json(json.dumps(model_config.to_json(config))) == config


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"nmae": "x"}',
        '{"max_batch_size": "many"}',
        '{"max_batch_size": 1e99}',
        '{"input": [{"dims": [1.5]}]}',
        b"\xff",
        "[" * 100_000,
        '{"parameters": ' * 500 + "1" + "}" * 500,
    ],
    ids=range(11),
)
def test_json_that_is_no_configuration_is_refused(text: str | bytes) -> None:
    with pytest.raises(ConfigError, match="model configuration"):
        model_config.from_json(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "m", "input": [{"name": "x", "dims": [2, 3,]},],}',
        '{name: "m", input: [{name: "x", dims: [2, 3]}]}',
        "{'name': 'm', 'input': [{'name': 'x', 'dims': [2, 3]}]}",
        '{"name": "m", "input": [{"name": "x", "dims": [2., 3]}]}',
        b'{name: "m", input: [{name: "x", dims: [2, 3]}]}',
    ],
)
def test_what_is_nearly_json_is_read_where_that_is_asked_for(text: str | bytes) -> None:
    config = model_config.parse("name: 'm' input { name: 'x' dims: [ 2, 3 ] }", "test")
    assert model_config.from_json(text, lenient=True) == config
    with pytest.raises(ConfigError, match="model configuration"):
        model_config.from_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{name 'm'}",
        "{name: 'm' max_batch_size: 1}",
        "{name: 'm',, max_batch_size: 1}",
        "{name: 'm'} {}",
        "{name: m}",
        "{max_batch_size: 1e999}",
        "name: 'm'",
        "['m',]",
        "{parameters: " * 50_000,
        b"\xff",
    ],
    ids=range(12),
)
def test_what_is_not_even_nearly_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ConfigError, match="model configuration"):
        model_config.from_json(text, lenient=True)


def test_a_value_that_cannot_be_is_not_repeated_at_length() -> None:
    with pytest.raises(ConfigError) as caught:
        model_config.from_json(json.dumps({"parameters": "x" * 1_000_000}))
    assert len(caught.value.message) < 2000


def test_the_default_of_every_message_is_printable() -> None:
    assert model_config.to_json(messages.ModelConfig())["max_batch_size"] == 0


def test_a_long_text_that_is_nearly_json_is_not_parsed() -> None:
    text = "{'name': '" + "x" * (1 << 18) + "'}"
    with pytest.raises(ConfigError, match="Expecting property name"):
        model_config.from_json(text, lenient=True)


def test_a_value_of_an_enumeration_that_is_no_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="KIN>C_PU"):
        model_config.from_json(b'{"instance_group": [{"count": 1, "kind": "KIN>C_PU"}]}')
