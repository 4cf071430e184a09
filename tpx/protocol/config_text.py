"""Positions of fields in the text of a config.pbtxt.

A reader of well-formed text finds the field at a position, and the position of a field. It stops at the
first error, which protobuf reports.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tpx.protocol import messages

_TOKEN = re.compile(
    r"""(?P<space>[\s]+|\#[^\n]*)|(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<word>[A-Za-z0-9_.+-]+)|(?P<mark>[{}\[\]<>:,;])""",
    re.DOTALL,
)
_DEPTH = 64
_SEGMENT = re.compile(r"(\w+)(?:\[([^\]]*)\])?")
_MOST_CHARACTERS = 1 << 20
"""Longer texts are not hand-written and are read by protobuf only."""


class ConfigPart(msgspec.Struct):
    """Field with its position and its path, such as `input[0].dims`, and for a message its fields."""

    path: str
    name: str
    line: int
    begins: tuple[int, int]
    """Position (line, column) of the name; for further values of a list, of the value."""
    value: str = ""
    inner: "list[ConfigPart]" = msgspec.field(default_factory=list)


class FieldText(msgspec.Struct, frozen=True, kw_only=True):
    """Field of the outermost message, as offsets into the text."""

    name: str
    start: int
    stop: int
    """End of the value."""
    end: int
    """End of the comma or semicolon after the value, if any."""


class _Token(msgspec.Struct):
    kind: str
    text: str
    offset: int

    @property
    def end(self) -> int:
        return self.offset + len(self.text)


class _TextReader:
    """Reads fields as long as they are well formed."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokenize(text))
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._at = 0

    def message(self, path: str, descriptor: Any, depth: int) -> list[ConfigPart]:
        """Return the fields up to the end of the message, or to the first error."""
        out: list[ConfigPart] = []
        counts: dict[str, int] = {}
        while depth < _DEPTH:
            token = self._peek()
            if token is None or token.kind != "word":
                break
            self._at += 1
            kind = descriptor.fields_by_name.get(token.text) if descriptor is not None else None
            self._skip_mark(":")
            if not self._skip_mark("["):
                out.append(self._read_value(path, token, (kind, counts), depth, listed=False))
            else:
                first = len(out)
                while (following := self._peek()) is not None and following.text != "]":
                    out.append(self._read_value(path, token, (kind, counts), depth, listed=True))
                    self._skip_mark(",")
                if len(out) > first:
                    out[first].begins = self._find_position(token.offset)
                self._skip_mark("]")
            self._skip_mark(",")
            self._skip_mark(";")
        return out

    def _read_value(
        self, path: str, named: _Token, known: tuple[Any, dict[str, int]], depth: int, *, listed: bool
    ) -> ConfigPart:
        """Return one value of a field. Its position is that of the name; for a message in a list, its own."""
        kind, counts = known
        number = counts.get(named.text, 0)
        counts[named.text] = number + 1
        below = f"{path}.{named.text}" if path else named.text
        repeated = kind is not None and kind.message_type is not None and is_repeated(kind)
        below += f"[{number}]" if repeated else ""
        token = self._peek()
        where = token if listed and token is not None and token.text in "{<" else named
        place = self._find_position(where.offset)
        part = ConfigPart(below, named.text, place[0], place)
        if token is None:
            return part
        self._at += 1
        if token.text in "{<":
            part.inner = self.message(below, None if kind is None else kind.message_type, depth + 1)
            while (rest := self._peek()) is not None and rest.text not in "}>":
                self._at += 1
            self._at += 1
        elif token.kind == "string":
            part.value = token.text[1:-1]
            while (following := self._peek()) is not None and following.kind == "string":
                part.value += following.text[1:-1]  # adjacent strings are one value
                self._at += 1
        else:
            part.value = token.text
        return part

    def _find_position(self, offset: int) -> tuple[int, int]:
        """Return line and column, counted from 1 like protobuf's parser."""
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _skip_mark(self, mark: str) -> bool:
        token = self._peek()
        if token is None or token.text != mark or token.kind != "mark":
            return False
        self._at += 1
        return True


def read_parts(text: str) -> list[ConfigPart]:
    """Return the fields of a ModelConfig's text, including nested ones."""
    if len(text) > _MOST_CHARACTERS:
        return []
    return _TextReader(text).message("", messages.ModelConfig.DESCRIPTOR, 0)


def outer_fields(text: str) -> list[FieldText]:
    """Return the fields of the outermost message in order, one for each occurrence of a name."""
    tokens = list(_tokenize(text)) if len(text) <= _MOST_CHARACTERS else []
    out: list[FieldText] = []
    at = 0
    while at < len(tokens) and tokens[at].kind == "word":
        named = tokens[at]
        at, depth = at + 1, 0
        while at < len(tokens):
            token = tokens[at]
            at += 1
            if token.kind == "mark":
                depth += (token.text in "{[<") - (token.text in "}]>")
            # adjacent strings are one value
            goes_on = token.kind == "string" and at < len(tokens) and tokens[at].kind == "string"
            if depth <= 0 and token.text != ":" and not goes_on:
                break
        stop = tokens[at - 1].end
        at += at < len(tokens) and tokens[at].text in (",", ";")
        out.append(FieldText(name=named.text, start=named.offset, stop=stop, end=tokens[at - 1].end))
    return out


def field_at(text: str, line: int, column: int) -> str:
    """Return the path of the field at a position, or "" if there is none."""
    best = ""
    for part in all_parts(read_parts(text)):
        if part.begins <= (line, column):
            best = part.path
    return best


def position_of(text: str, field: str) -> tuple[int, str] | None:
    """Return the line and the path of a ConfigError's field, or of the nearest field around it, if the text
    has one.
    """
    parts, line, path = read_parts(text), 0, ""
    for name, index in _SEGMENT.findall(field):
        named = [part for part in parts if part.name == name]
        keyed = {inner.value: part for part in named for inner in part.inner if inner.name == "key"}
        if keyed:
            named = [keyed[index]] if index in keyed else named if not index else []
        elif index:
            named = named[int(index) :] if index.isdecimal() else []
        if not named:
            break
        part = named[0]
        line, path = part.line, f"{path}.{name}" if path else name
        path += f"[{index}]" if index else ""
        values = [inner for inner in part.inner if inner.name == "value"] if keyed else []
        parts = values[0].inner if values else part.inner
    return (line, path) if line else None


def find_repeated_key(text: str) -> tuple[ConfigPart, ConfigPart] | None:
    """Return the first two entries of a map that have one key: protobuf keeps the last one silently."""
    parts = read_parts(text) if text.count("key") > 1 else []
    for inner in (parts, *(part.inner for part in all_parts(parts))):
        seen: dict[tuple[str, str], ConfigPart] = {}
        for part in inner:
            for key in (each.value for each in part.inner if each.name == "key"):
                other = seen.setdefault((part.name, key), part)
                if other is not part:
                    return other, part
    return None


def all_parts(parts: Sequence[ConfigPart]) -> Iterator[ConfigPart]:
    """Yield the fields and all fields below them."""
    for part in parts:
        yield part
        yield from all_parts(part.inner)


def is_repeated(kind: Any) -> bool:
    """Return True for a list or map field; older protobuf versions mark it with a label."""
    return bool(kind.is_repeated if hasattr(kind, "is_repeated") else kind.label == kind.LABEL_REPEATED)


def _tokenize(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            return
        at = match.end()
        if match.lastgroup != "space":
            yield _Token(str(match.lastgroup), match[0], match.start())
