"""config.pbtxt: the text form of ModelConfig, and its JSON form.

The schema is Triton's, complete. Errors name file, line and field.
"""

from collections.abc import Sequence
from pathlib import Path

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tpx.errors import ConfigError
from tpx.protocol import messages
from tpx.protocol.config_text import find_repeated_key, is_repeated
from tpx.protocol.json_values import JsonObject, JsonValue
from tpx.protocol.messages import ModelConfig, ModelInput, ModelOutput

MAX_CONFIG_BYTES = 16 << 20


def parse(text: str, source: str) -> ModelConfig:
    """Parse a ModelConfig from protobuf text; `source` names it in errors. Raises ConfigError."""
    try:
        config = text_format.Parse(text, messages.ModelConfig())
    except text_format.ParseError as exc:
        from tpx.protocol.config_hints import explain  # late: most configurations are correct

        raise ConfigError(f"{source}:{explain(text, str(exc))}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{source}: nested too deeply") from exc
    twice = find_repeated_key(text)
    if twice is not None:
        first, second = twice
        key = next(part.value for part in second.inner if part.name == "key")
        raise ConfigError(
            f"{source}:{second.line}: {second.name} has the key '{key}' twice, first in line {first.line}"
        )
    return config


def read(path: Path) -> ModelConfig:
    """Read the ModelConfig in a config.pbtxt file. Raises ConfigError."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(
                f"{path}: larger than {MAX_CONFIG_BYTES} bytes, the limit for a model configuration"
            )
        text = path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise ConfigError(f"failed to open text file for read {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8 text at byte {exc.start}") from exc
    return parse(text, str(path))


def to_text(config: ModelConfig) -> str:
    """Format the config as config.pbtxt, one field per line."""
    text: str = text_format.MessageToString(config)
    return text


TensorConfig = ModelInput | ModelOutput


def inputs_and_outputs(config: ModelConfig) -> list[TensorConfig]:
    """Return all tensors of a configuration, inputs first."""
    return [*config.input, *config.output]


def from_json(
    text: str | bytes, source: str = "model configuration", *, lenient: bool = False
) -> ModelConfig:
    """Parse a ModelConfig from JSON (a load request's `config` parameter, a /config response).

    `lenient` accepts unquoted keys, single quotes and trailing commas. Raises ConfigError.
    """
    from tpx.protocol import config_json, nearly_json  # late: most configurations are text

    try:
        value = nearly_json.parse(text if isinstance(text, str) else text.decode(), lenient=lenient)
        if not isinstance(value, nearly_json.Pairs):
            raise ConfigError(f"must be a JSON object, got {config_json.shown(value)}")
        config = messages.ModelConfig()
        config_json.fill(config, value)
    except ConfigError as exc:
        raise ConfigError(f"{source}: {exc.message}", field=exc.field) from exc
    except ValueError as exc:
        raise ConfigError(f"{source}: {exc}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{source}: nested too deeply") from exc
    return config


def to_json(config: ModelConfig, *, defaults: bool = True) -> JsonObject:
    """Return the config as clients read it: proto field names, defaults printed, 64-bit integers as
    numbers.

    Without `defaults`, fields that are not set are omitted, since a server with an older schema may
    lack them.
    """
    out = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=defaults
    )
    return _order_members(out, messages.message_named("inference.ModelConfig").fields)


def _order_members(values: JsonObject, fields: Sequence[FieldDescriptor]) -> JsonObject:
    """Order the members of a message like its fields, as Triton prints them."""
    named = [field for field in fields if field.name in values]
    return {field.name: _convert_integers(values[field.name], field) for field in named}


def _convert_integers(value: JsonValue, field: FieldDescriptor) -> JsonValue:
    """Convert 64-bit integers, strings in protobuf's JSON, to numbers (map keys stay strings)."""
    if isinstance(value, list):
        return [_convert_integers(item, field) for item in value]
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return {k: _convert_integers(v, kind.fields_by_name["value"]) for k, v in value.items()}
    if kind is not None:
        return _order_members(value, kind.fields)
    if isinstance(value, str) and field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
        return int(value)
    return value


def path_of(config: Message, part: Message, field: str = "") -> str:
    """Return the path of a field of `part`, a message somewhere inside `config`."""
    for kind, value in config.ListFields():
        if kind.message_type is None:
            continue
        if not is_repeated(kind):
            inner = [(kind.name, value)]
        elif kind.message_type.GetOptions().map_entry:
            with_messages = kind.message_type.fields_by_name["value"].message_type is not None
            inner = [(f"{kind.name}[{key}]", value[key]) for key in value] if with_messages else []
        else:
            inner = [(f"{kind.name}[{index}]", each) for index, each in enumerate(value)]
        for path, each in inner:
            if each is part:
                return f"{path}.{field}" if field else path
            below = path_of(each, part, field)
            if below:
                return f"{path}.{below}"
    return ""
