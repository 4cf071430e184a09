"""config.pbtxt: the text form of ModelConfig, and the JSON form that clients read.

The schema is Triton's, complete. An error names the file, the line and the field.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor

from tpx.errors import ConfigError
from tpx.protocol import config_text, messages
from tpx.protocol.json_values import JsonObject, JsonValue
from tpx.protocol.messages import ModelConfig, ModelInput, ModelOutput

MAX_CONFIG_BYTES = 16 << 20
_LONGEST_COMPLAINT = 1000
"""Characters of a complaint of protobuf's that are told."""
_MOST_NESTED = 100
"""Levels of JSON5; messages of a configuration are nested 8 deep at most."""


def parse(text: str, source: str) -> ModelConfig:
    """A ModelConfig message from protobuf text; `source` names it in errors."""
    try:
        return text_format.Parse(text, messages.ModelConfig())
    except text_format.ParseError as exc:
        raise ConfigError(f"{source}:{config_text.explain(text, str(exc))}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{source}: nested too deeply") from exc


def read(path: Path) -> ModelConfig:
    """The ModelConfig of a config.pbtxt file."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(
                f"{path}: larger than {MAX_CONFIG_BYTES} bytes, which no model configuration is"
            )
        text = path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise ConfigError(f"failed to open text file for read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8 text at byte {exc.start}") from exc
    return parse(text, str(path))


def to_text(config: ModelConfig) -> str:
    """The config as config.pbtxt holds it, one field a line."""
    text: str = text_format.MessageToString(config)
    return text


TensorConfig = ModelInput | ModelOutput


def inputs_and_outputs(config: ModelConfig) -> list[TensorConfig]:
    """Return all tensors of a configuration, the inputs first."""
    return [*config.input, *config.output]


def from_json(
    text: str | bytes, source: str = "model configuration", *, lenient: bool = False
) -> ModelConfig:
    """A ModelConfig message from its JSON form (a load request's `config` parameter, a /config answer).

    `lenient`: keys without quotes, single quotes and trailing commas are taken, as protobuf's C++ parser
    does, through which Triton reads the configuration of a load request.
    """
    try:
        value = _lenient_value(text) if lenient else json.loads(text)
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: must be a JSON object, got {type(value).__name__}")
        return json_format.ParseDict(value, messages.ModelConfig())
    except (json_format.ParseError, ValueError) as exc:
        # protobuf repeats the value that it cannot take, which may be the whole text
        raise ConfigError(f"{source}: {config_text.explain('', str(exc)[:_LONGEST_COMPLAINT])}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{source}: nested too deeply") from exc


def _lenient_value(text: str | bytes) -> object:
    """Return what JSON says, or else JSON5. Raises ValueError in the words about JSON."""
    try:
        return json.loads(text)
    except ValueError:
        from pyjson5 import Json5Exception, decode

        try:
            return decode(text if isinstance(text, str) else text.decode(), _MOST_NESTED)
        except Json5Exception:
            pass
        raise


def to_json(config: ModelConfig, *, defaults: bool = True) -> JsonObject:
    """The config as clients read it: proto field names, defaults printed, 64-bit integers as numbers.

    Without `defaults` it has no fields that a server with an older schema lacks, unless they are set.
    """
    out = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=defaults
    )
    return _members(out, messages.message_named("inference.ModelConfig").fields)


def _members(values: JsonObject, fields: Sequence[FieldDescriptor]) -> JsonObject:
    """The members of a message in the order of its fields, which is the order that Triton prints."""
    named = [field for field in fields if field.name in values]
    return {field.name: _with_numbers(values[field.name], field) for field in named}


def _with_numbers(value: JsonValue, field: FieldDescriptor) -> JsonValue:
    """Protobuf's JSON writes 64-bit integers as strings; clients read numbers (map keys stay strings)."""
    if isinstance(value, list):
        return [_with_numbers(item, field) for item in value]
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return {k: _with_numbers(v, kind.fields_by_name["value"]) for k, v in value.items()}
    if kind is not None:
        return _members(value, kind.fields)
    if isinstance(value, str) and field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
        return int(value)
    return value
