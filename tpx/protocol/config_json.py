"""ModelConfig from JSON, in the forms that protobuf's C++ parser takes, with which Triton reads the
configuration of a load request.

It takes one element for a list, strings for numbers and booleans, enums by number or in lower case, and null
for what is not given; in the text also single quotes, keys without quotes, and trailing commas. Unlike
there, no key may be given twice. Errors have the path of the field.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast

from google.protobuf.descriptor import Descriptor, EnumValueDescriptor, FieldDescriptor
from google.protobuf.message import Message

from tpx.errors import ConfigError
from tpx.protocol.config_hints import suggest_field, suggest_value
from tpx.protocol.config_text import is_repeated
from tpx.protocol.json_values import JsonValue
from tpx.protocol.nearly_json import Pairs

_MOST_SHOWN = 60
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]+\.?[0-9a-fA-F]*([pP][+-]?[0-9]+)?", re.ASCII)
_NOT_NUMBERS = ("NaN", "Infinity", "-Infinity")
_TRUE, _FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
_EXAMPLES = {"ModelParameter": {"string_value": "VALUE"}}
_MAX_FLOAT = 3.4028235677973366e38

_F = FieldDescriptor
_BITS = {_F.CPPTYPE_INT32: (-31, 31), _F.CPPTYPE_INT64: (-63, 63)}
_BITS |= {_F.CPPTYPE_UINT32: (0, 32), _F.CPPTYPE_UINT64: (0, 64)}


def fill(message: Message, members: Pairs, path: str = "") -> None:
    """Set the fields of a message from the members of a JSON object. Raises ConfigError."""
    descriptor = cast("Descriptor", message.DESCRIPTOR)
    named = {field.json_name: field for field in descriptor.fields}
    seen: set[str] = set()
    for key, value in members:
        field = descriptor.fields_by_name.get(key) or named.get(key)
        if field is None:
            where = path or "a model configuration"
            raise ConfigError(f"{where} has no field '{key}'{suggest_field(descriptor, key)}", field=path)
        below = f"{path}.{field.name}" if path else field.name
        if field.name in seen:
            raise ConfigError(f"{below} is given twice", field=below)
        seen.add(field.name)
        if value is None:
            continue
        choice = field.containing_oneof
        other = message.WhichOneof(choice.name) if choice is not None else None
        if other is not None:
            raise ConfigError(f"{field.name} and {other} exclude each other (in {below})", field=below)
        _fill_field(message, field, value, below)


def _fill_field(message: Message, field: FieldDescriptor, value: JsonValue, path: str) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _fill_map(message, field, value, path)
    elif is_repeated(field):
        _fill_list(message, field, value, path)
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        fill(inner, _as_object(value, field.message_type.name, path), path)
    else:
        setattr(message, field.name, _scalar(field, value, path))


def _fill_list(message: Message, field: FieldDescriptor, value: JsonValue, path: str) -> None:
    """Add one element, or all of a list; nested lists are flattened, and null is no element."""
    items = getattr(message, field.name)
    if isinstance(value, list) and not isinstance(value, Pairs):
        if field.cpp_type in _BITS and set(map(type, value)) == {int}:
            with suppress(ValueError):  # below, it is told which one is too large
                items.extend(value)
                return
        for each in value:
            _fill_list(message, field, each, path)
    elif value is None:
        return
    elif field.message_type is not None:
        where = f"{path}[{len(items)}]"
        fill(items.add(), _as_object(value, field.message_type.name, where), where)
    else:
        items.append(_scalar(field, value, path))


def _fill_map(message: Message, field: FieldDescriptor, value: JsonValue, path: str) -> None:
    items, entry = getattr(message, field.name), cast("Descriptor", field.message_type)
    key_field, value_field = entry.fields_by_name["key"], entry.fields_by_name["value"]
    value_type = value_field.message_type
    if not isinstance(value, Pairs) or (value_type is not None and _key_of_entry(value)):
        written = _key_of_entry(value)
        form = json.dumps(
            {written or "KEY": "VALUE" if value_type is None else _EXAMPLES.get(value_type.name, {})}
        )
        what = "entries with key and value" if written else shown(value)
        raise ConfigError(f"{path} must be a map such as {form}, got {what}", field=path)
    for text, each in value:
        where = f"{path}[{text}]"
        key = _scalar(key_field, text, where)
        if key in items:
            raise ConfigError(f"{path} has the key '{text}' twice", field=path)
        if value_type is None:
            items[key] = "" if each is None else _scalar(value_field, each, where)
        else:
            inner = items[key]  # creates it
            if each is not None:
                fill(inner, _as_object(each, value_type.name, where), where)


def _key_of_entry(value: JsonValue) -> str:
    """Return the key if a map is written as in config.pbtxt, as entries with key and value, or ""."""
    first = value[:1] if isinstance(value, list) and not isinstance(value, Pairs) else [value]
    members = dict(first[0]) if first and isinstance(first[0], Pairs) else {}
    key = members.get("key") if members.keys() == {"key", "value"} else None
    return key if isinstance(key, str) else ""


def _as_object(value: JsonValue, kind: str, path: str) -> Pairs:
    if isinstance(value, Pairs):
        return value
    hint = ""
    if kind == "ModelParameter" and isinstance(value, str | int | float) and not isinstance(value, bool):
        hint = f': write {{"string_value": {json.dumps(str(value)[:_MOST_SHOWN])}}}'
    raise ConfigError(f"{path} must be an object, got {shown(value)}{hint}", field=path)


def _scalar(field: FieldDescriptor, value: JsonValue, path: str) -> str | float:
    read: str | float | None
    if field.cpp_type == field.CPPTYPE_STRING:
        read, expected = _text(value), "a string"
    elif field.cpp_type == field.CPPTYPE_BOOL:
        read, expected = _boolean(value), "true or false"
    elif field.enum_type is not None:
        names: Sequence[str] = list(field.enum_type.values_by_name)
        read, expected = _enum(field.enum_type.values_by_name, value), f"one of {', '.join(names)}"
    elif field.cpp_type in _BITS:
        low, high = _BITS[field.cpp_type]
        least, most = -(2**-low) if low else 0, 2**high - 1
        read, expected = _integer(value, least, most), f"an integer from {least} to {most}"
    else:
        read, expected = _number(value), "a number"
    if read is None:
        is_word = field.enum_type is not None and isinstance(value, str)
        meant = suggest_value(value, names) if is_word else ""
        raise ConfigError(f"{path} must be {expected}, got {shown(value)}{meant}", field=path)
    return read


def _text(value: JsonValue) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a character
        return None
    return value


def _boolean(value: JsonValue) -> bool | None:
    if isinstance(value, str):
        word = value.lower()
        return word in _TRUE if word in (*_TRUE, *_FALSE) else None
    return value if isinstance(value, bool) else None


def _enum(values: Mapping[str, EnumValueDescriptor], value: JsonValue) -> int | None:
    if not isinstance(value, str):
        return _integer(value, -(2**31), 2**31 - 1)
    known = values.get(value) or values.get(value.upper().replace("-", "_"))
    if known is not None:
        return int(known.number)
    number = _integer(value, -(2**31), 2**31 - 1)
    return number if any(each.number == number for each in values.values()) else None


def _integer(value: JsonValue, least: int, most: int) -> int | None:
    if isinstance(value, str):
        number = int(value) if _INTEGER.fullmatch(value) else None
    elif isinstance(value, float):
        number = int(value) if value.is_integer() else None
    else:
        number = value if isinstance(value, int) and not isinstance(value, bool) else None
    return number if number is not None and least <= number <= most else None


def _number(value: JsonValue) -> float | None:
    if isinstance(value, str):
        if _DECIMAL.fullmatch(value) or value in _NOT_NUMBERS:
            value = float(value)
        elif _HEXADECIMAL.fullmatch(value):
            value = float.fromhex(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= _MAX_FLOAT or not math.isfinite(value) else None


def shown(value: JsonValue) -> str:
    """Describe a JSON value in a message."""
    if isinstance(value, Pairs):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value) if not isinstance(value, str) else json.dumps(value[: _MOST_SHOWN + 1])
    return text if len(text) <= _MOST_SHOWN + 2 else f"{text[:_MOST_SHOWN]}..."
