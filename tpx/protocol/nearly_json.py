"""JSON, and texts that are nearly JSON, as protobuf's C++ parser takes them.

They have single quotes, keys without quotes, trailing commas, line breaks in strings, or needless escapes.
"""

import json
import re
from collections.abc import Callable
from typing import NoReturn

from tpx.protocol.json_values import JsonValue

MAX_NEARLY_JSON = 1 << 18
"""Characters of a text that is not JSON: longer ones are not hand-written."""
_MOST_NESTED = 100
"""Nesting depth of JSON; configuration messages are nested at most 8 deep."""
_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[dD][89abAB]..\\u....|u.{0,4}|.)", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?(?![\w.])", re.ASCII)
_WORD = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_CONSTANTS = {"true": True, "false": False, "null": None}


class Pairs(list[tuple[str, JsonValue]]):
    """Members of a JSON object, in order; a key may be there twice."""


def parse(text: str, *, lenient: bool) -> object:
    """Parse JSON, or with `lenient` what is nearly JSON, with objects as Pairs. Raises ValueError."""
    try:
        return json.loads(text, object_pairs_hook=Pairs, parse_constant=_refuse_constant, strict=not lenient)
    except ValueError:
        if not lenient or len(text) > MAX_NEARLY_JSON:
            raise
    return _NearlyJson(text).document()


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


class _NearlyJson:
    """Parses one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> object:
        value = self._value(0)
        self._skip()
        if self._at < len(self._text):
            raise self._wrong("expected the end")
        return value

    def _wrong(self, fault: str) -> ValueError:
        before = self._text[: self._at]
        line, column = before.count("\n") + 1, self._at - (before.rfind("\n") + 1) + 1
        rest = self._text[self._at : self._at + 20]
        return ValueError(f"{fault} at {rest!r}: line {line} column {column}")

    def _skip(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _take(self, mark: str) -> bool:
        self._skip()
        found = self._text.startswith(mark, self._at)
        self._at += found
        return found

    def _value(self, depth: int) -> object:
        if depth > _MOST_NESTED:
            raise ValueError("nested too deeply")
        if self._take("{"):
            return Pairs(self._items("}", lambda: self._pair(depth)))
        if self._take("["):
            return self._items("]", lambda: self._value(depth + 1))
        string = self._string()
        if string is not None:
            return string
        number = _NUMBER.match(self._text, self._at)
        if number is not None:
            self._at = number.end()
            digits = number[0] + "0" if number[0].endswith(".") else number[0]
            return float(digits) if number[1] is not None or number[2] is not None else int(digits)
        word = _WORD.match(self._text, self._at)
        if word is None or word[0] not in _CONSTANTS:
            raise self._wrong("expected a value")
        self._at = word.end()
        return _CONSTANTS[word[0]]

    def _items(self, end: str, item: Callable[[], JsonValue]) -> list[JsonValue]:
        """Read up to the end of an object or a list; a comma may stand before it."""
        items: list[JsonValue] = []
        while not self._take(end):
            items.append(item())
            if not self._take(","):
                if not self._take(end):
                    raise self._wrong(f"expected , or {end}")
                break
        return items

    def _pair(self, depth: int) -> tuple[str, object]:
        self._skip()
        key = self._string()
        if key is None:
            word = _WORD.match(self._text, self._at)
            if word is None:
                raise self._wrong("expected a key")
            self._at = word.end()
            key = word[0]
        if not self._take(":"):
            raise self._wrong("expected :")
        return key, self._value(depth + 1)

    def _string(self) -> str | None:
        match = _STRING.match(self._text, self._at)
        if match is None:
            return None
        inner = match[1] if match[1] is not None else match[2]
        if "\\" in inner:
            inner = _ESCAPE.sub(self._unescape, inner)
        self._at = match.end()
        return inner

    def _unescape(self, match: re.Match[str]) -> str:
        escape = match[1]
        if escape[0] != "u":
            return _ESCAPED.get(escape, escape)
        try:
            units = [int(each, 16) for each in escape[1:].split("\\u")]
            if not all(len(each) == 4 for each in escape[1:].split("\\u")):
                raise ValueError
            return b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be")
        except ValueError as exc:  # UnicodeDecodeError is one
            raise self._wrong(f"invalid escape \\{escape}") from exc
