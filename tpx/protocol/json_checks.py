"""Checks of JSON from clients, with the path of the field at fault, and limits on JSON schemas.

Schemas become grammars, which expand repetitions: a short schema could take any amount of memory.
"""

import re
from collections.abc import Callable, Mapping
from typing import cast

import orjson

from tpx.errors import InvalidRequest
from tpx.protocol.json_values import JsonObject

_MAX_SCHEMA_BYTES = 64 << 10
_MAX_SCHEMA_DEPTH = 24
MAX_SCHEMA_COUNT = 1000
"""Largest minItems, maxLength and so on, and product of the repetitions of a pattern: they are expanded."""
_MAX_PATTERN_CHARACTERS = 512

_PARAM = re.compile(r"([a-z_][a-z_0-9]*(?:\[\d+\]|\.[A-Za-z0-9_$-]+)*): ")

Check = Callable[[str, object], None]
"""Raises FieldRefused for a value at a path."""


class FieldRefused(InvalidRequest):
    """A field of a request is unknown, unsupported or wrong; `param` is its path."""

    def __init__(self, param: str, why: str) -> None:
        super().__init__(f"{param}: {why}")
        self.param = param


def param_of(message: str) -> str | None:
    """Return the path of the field that a message begins with."""
    found = _PARAM.match(message)
    return found[1] if found is not None else None


def printable(text: str) -> str:
    """Shorten a client's text for a message."""
    return text if len(text) <= 64 and text.isprintable() else f"{text[:64]!a}"


def kind_of(kind: type | tuple[type, ...], words: str) -> Check:
    """Return the check for values of a kind, which `words` name; a boolean is no number."""

    def check(path: str, value: object) -> None:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise FieldRefused(path, f"must be {words}")

    return check


flag, text_of = kind_of(bool, "true or false"), kind_of(str, "a string")
list_of, object_of = kind_of(list, "a list"), kind_of(dict, "an object")


def whole(least: int, most: int) -> Check:
    """Return the check for whole numbers within limits."""
    return _between(least, most, kind_of(int, "a whole number"))


def real(least: float, most: float) -> Check:
    """Return the check for numbers within limits."""
    return _between(least, most, kind_of((int, float), "a number"))


def _between(least: float, most: float, kind: Check) -> Check:
    def check(path: str, value: object) -> None:
        kind(path, value)
        if not least <= cast("float", value) <= most:
            raise FieldRefused(path, f"must be from {least} to {most}, got {value}")

    return check


def only(*allowed: object) -> Check:
    """Return the check for one of a few values."""

    def check(path: str, value: object) -> None:
        if not any(value == each and type(value) is type(each) for each in allowed):
            words = ", ".join(orjson.dumps(each).decode() for each in allowed)
            raise FieldRefused(path, f"only {words} is supported")

    return check


def check_members(
    path: str, value: object, table: Mapping[str, Check], required: tuple[str, ...] = ()
) -> None:
    """Check the members of an object that are not null; others than those in the table are refused."""
    object_of(path, value)
    members = cast("JsonObject", value)
    for name, given in members.items():
        if given is None:
            continue
        check = table.get(name)
        if check is None:
            raise FieldRefused(f"{path}.{printable(name)}", "unknown or unsupported field")
        check(f"{path}.{name}", given)
    for name in required:
        if members.get(name) is None:
            raise FieldRefused(f"{path}.{name}", "this field is required")


def check_each(path: str, value: object, most: int, check: Check) -> None:
    """Check the elements of a list that has 1 to `most`."""
    list_of(path, value)
    values = cast("list[object]", value)
    if not 1 <= len(values) <= most:
        raise FieldRefused(path, f"must have 1 to {most} elements, got {len(values)}")
    for index, each in enumerate(values):
        check(f"{path}[{index}]", each)


def check_data_url(path: str, value: object) -> None:
    """Refuse a URL of anything that is not in the request itself: nothing is fetched."""
    if not isinstance(value, str) or not value.startswith("data:"):
        raise FieldRefused(path, "only data: URLs are supported, nothing is fetched")


def check_schema(path: str, value: object) -> None:
    """Refuse schemas whose grammar would take much memory or time, and references to other documents."""
    object_of(path, value)
    if len(orjson.dumps(value)) > _MAX_SCHEMA_BYTES:
        raise FieldRefused(path, f"has more than {_MAX_SCHEMA_BYTES} bytes of JSON")
    level: list[object] = [value]
    for _ in range(_MAX_SCHEMA_DEPTH):
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                _check_keywords(path, each)
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        if not inner:
            return
        level = inner
    raise FieldRefused(path, f"is nested deeper than {_MAX_SCHEMA_DEPTH} levels")


def _check_keywords(path: str, schema: JsonObject) -> None:
    for key in ("minItems", "maxItems", "minLength", "maxLength"):
        count = schema.get(key)
        if isinstance(count, int | float) and count > MAX_SCHEMA_COUNT:
            raise FieldRefused(f"{path}.{key}", f"must be at most {MAX_SCHEMA_COUNT}")
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise FieldRefused(f"{path}.$ref", "only references into the schema itself are supported")
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        expanded = 1
        for number in re.findall(r"\{(?:\d{0,9},)?(\d{1,9}),?\}", pattern):
            expanded *= max(1, int(number))
        if len(pattern) > _MAX_PATTERN_CHARACTERS or expanded > MAX_SCHEMA_COUNT:
            raise FieldRefused(f"{path}.pattern", "is too long, or repeats too much")
