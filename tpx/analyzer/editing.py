"""A config.pbtxt changed as a person would: the fields that get another value, and no other text."""

import re
from collections.abc import Sequence
from typing import Any

from tpx.errors import ConfigError
from tpx.protocol import model_config
from tpx.protocol.config_text import FieldText, outer_fields

_NEXT_ELEMENT = re.compile(r"\n(?=[a-z])")
"""Between the elements of a repeated field, as protobuf prints it."""
_LINE_END = re.compile(r"[ \t]*(\r?\n|\Z)")


def edited(text: str, present: Any, wanted: Any) -> str | None:
    """`text`, which says `present`, changed so that it says `wanted`; None where that cannot be done.

    A field with another value is written anew where it first stands, one that is no longer set goes, a new
    one is appended. Comments stay, except inside of a value that is replaced.
    """
    values = {name: model_config.to_text(_only(wanted, name)) for name in _changed(present, wanted)}
    fields = [field for field in outer_fields(text) if field.name in values]
    firsts = {field.name: field for field in reversed(fields)}
    out = text
    for field in reversed(fields):
        value = values[field.name]
        if value and firsts[field.name] is field:
            spelled = [each for each in fields if each.name == field.name]
            out = out[: field.start] + _formatted(value, text, spelled) + out[field.stop :]
        else:
            out = _without(out, field)
    new = "".join(value for name, value in values.items() if name not in firsts)
    if new and out and not out.endswith("\n"):
        out += newline_of(text)
    out += new.replace("\n", newline_of(text))
    try:
        return out if model_config.parse(out, "edited") == wanted else None
    except ConfigError:
        return None


def newline_of(text: str) -> str:
    """What ends the lines of a text."""
    return "\r\n" if "\r\n" in text else "\n"


def _changed(present: Any, wanted: Any) -> list[str]:
    names = [field.name for field in wanted.DESCRIPTOR.fields]
    return [name for name in names if _only(present, name) != _only(wanted, name)]


def _only(message: Any, name: str) -> Any:
    """A message with this field alone."""
    out = type(message)()
    out.CopyFrom(message)
    for field, _ in message.ListFields():
        if field.name != name:
            out.ClearField(field.name)
    return out


def _formatted(value: str, text: str, spelled: Sequence[FieldText]) -> str:
    """A field as protobuf prints it, indented as it was, and an element a line where it was so written."""
    first = spelled[0]
    line = text[text.rfind("\n", 0, first.start) + 1 : first.start]
    indent = "" if line.strip() else line
    elements = _NEXT_ELEMENT.split(value.rstrip("\n"))
    if not any("\n" in text[field.start : field.stop] for field in spelled):
        elements = [" ".join(each.strip() for each in element.split("\n")) for element in elements]
    return "\n".join(elements).replace("\n", newline_of(text) + indent)


def _without(text: str, field: FieldText) -> str:
    """The text without a field; a line that held nothing else goes with it."""
    before, after = text[: field.start], text[field.end :]
    kept = before.rstrip(" \t")
    line_end = _LINE_END.match(after)
    if line_end is None:
        return before + after.lstrip(" \t")
    alone = not kept or kept.endswith("\n")
    return kept + after[line_end.end() if alone else line_end.start(1) :]
