"""Where things are in the text of a config.pbtxt: which field a place is in, and where a field is.

It reads what is well formed and stops where it is not: what is wrong there is told by protobuf's parser.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from google.protobuf.descriptor import Descriptor

from tpx.options import nearest
from tpx.protocol import messages

_TOKEN = re.compile(
    r"""(?P<space>[\s]+|\#[^\n]*)|(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<word>[A-Za-z0-9_.+-]+)|(?P<mark>[{}\[\]<>:,;])""",
    re.DOTALL,
)
_PLACE = re.compile(r"(\d+):(\d+) : ")
_NO_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "([^"]*)"')
_NO_VALUE = re.compile(r'(?:Enum type "([\w.]+)" has no value named|Invalid enum value) ["\']?(\w+)')
_JSON_ENUM = re.compile(r"Invalid enum value (\w+) for enum type ([\w.]+)")
_FIELDS_LISTED = re.compile(r"\s*Available Fields\(.*", re.DOTALL)
_PARAMETER = re.compile(r"parameters\[\d+\]\.value")
_PARAMETER_MEANT = ' (a parameter is written value { string_value: "..." })'
_FEW = 6
"""So many fields of a message are worth telling where none is near."""
_DEPTH = 64
_OTHER_WORDS = {
    "dimension": "dims",
    "dimensions": "dims",
    "preferred": "preferred_batch_size",
    "warmup": "model_warmup",
}
_MOST_CHARACTERS = 1 << 20
"""Longer texts are read by protobuf alone: nobody wrote them."""


@dataclass(slots=True)
class ConfigPart:
    """A field where it stands: its path, `input[0].dims` say, and for a message what is in it."""

    path: str
    name: str
    line: int
    column: int
    begins: tuple[int, int]
    """Where its name stands; of a further value of a list, the value."""
    value: str = ""
    inner: "list[ConfigPart]" = field(default_factory=list)

    def walk(self) -> "Iterator[ConfigPart]":
        """This one and all below."""
        yield self
        for part in self.inner:
            yield from part.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldText:
    """A field of the outermost message as it is written, by offsets into the text."""

    name: str
    start: int
    stop: int
    """Behind its value."""
    end: int
    """Behind the comma or semicolon that may follow the value."""


@dataclass(slots=True)
class _Token:
    kind: str
    text: str
    offset: int

    @property
    def end(self) -> int:
        return self.offset + len(self.text)


class _TextReader:
    """Reads fields as far as they are well formed."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._at = 0

    def message(self, path: str, descriptor: Any, depth: int) -> list[ConfigPart]:
        """The fields up to what closes the message, or cannot be read."""
        out: list[ConfigPart] = []
        counts: dict[str, int] = {}
        while depth < _DEPTH:
            token = self._peek()
            if token is None or token.kind != "word":
                break
            self._at += 1
            kind = descriptor.fields_by_name.get(token.text) if descriptor is not None else None
            self._skip(":")
            if not self._skip("["):
                out.append(self._value(path, token, (kind, counts), depth, listed=False))
            else:
                first = len(out)
                while (following := self._peek()) is not None and following.text != "]":
                    out.append(self._value(path, token, (kind, counts), depth, listed=True))
                    self._skip(",")
                if len(out) > first:
                    out[first].begins = self._place(token.offset)
                self._skip("]")
            self._skip(",")
            self._skip(";")
        return out

    def _value(
        self, path: str, named: _Token, known: tuple[Any, dict[str, int]], depth: int, *, listed: bool
    ) -> ConfigPart:
        """One value of a field, whose place is that of the name, and of a message in a list its own."""
        kind, counts = known
        number = counts.get(named.text, 0)
        counts[named.text] = number + 1
        below = f"{path}.{named.text}" if path else named.text
        repeated = kind is not None and kind.message_type is not None and is_repeated(kind)
        below += f"[{number}]" if repeated else ""
        token = self._peek()
        where = token if listed and token is not None and token.text in "{<" else named
        place = self._place(where.offset)
        part = ConfigPart(below, named.text, *place, begins=place)
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
        else:
            part.value = token.text
        return part

    def _place(self, offset: int) -> tuple[int, int]:
        """Line and column, counted from 1 as protobuf's parser does."""
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _skip(self, mark: str) -> bool:
        token = self._peek()
        if token is None or token.text != mark or token.kind != "mark":
            return False
        self._at += 1
        return True


def read_parts(text: str) -> list[ConfigPart]:
    """The fields of a ModelConfig's text, with those of the messages in them."""
    if len(text) > _MOST_CHARACTERS:
        return []
    return _TextReader(text).message("", messages.ModelConfig.DESCRIPTOR, 0)


def outer_fields(text: str) -> list[FieldText]:
    """The fields of the outermost message in their order, one for each time that a name is written."""
    tokens = list(_tokens(text)) if len(text) <= _MOST_CHARACTERS else []
    out: list[FieldText] = []
    at = 0
    while at < len(tokens) and tokens[at].kind == "word":
        named = tokens[at]
        at = _behind_value(tokens, at + 1)
        stop = tokens[at - 1].end
        at += at < len(tokens) and tokens[at].text in (",", ";")
        out.append(FieldText(name=named.text, start=named.offset, stop=stop, end=tokens[at - 1].end))
    return out


def explain(text: str, complaint: str) -> str:
    """Return what protobuf's parser complains of, with the field it is in, and what may have been meant."""
    place = _PLACE.match(complaint)
    path = field_at(text, int(place[1]), int(place[2])) if place is not None else ""
    bare = _PARAMETER.fullmatch(path) is not None and 'Expected "{"' in complaint
    meant = _PARAMETER_MEANT if bare else _meant(complaint)
    said = f"{_FIELDS_LISTED.sub('', complaint).rstrip()}{meant}"
    return f"{said} (in {path})" if path else said


def field_at(text: str, line: int, column: int) -> str:
    """The path of the field that a place belongs to, "" for none."""
    best = ""
    for part in _all(read_parts(text)):
        if part.begins <= (line, column):
            best = part.path
    return best


def locate(text: str, complaint: str) -> ConfigPart | None:
    """The field that a message about a configuration means, as far as its words tell.

    In the part whose name the message quotes if there is one, otherwise anywhere: the field that the message
    speaks of.
    """
    parts = read_parts(text)
    words = _fields_in(complaint)
    quoted = set(re.findall(r"'([^']*)'", complaint)) | set(re.findall(r"[\w.-]+", complaint))
    named = [part for part in _all(parts) if _name_of(part) in quoted and part.name in words]
    if named:
        return _spoken_of(named[-1].inner, words) or named[-1]
    return _spoken_of(parts, words)


def _spoken_of(parts: Sequence[ConfigPart], words: set[str]) -> ConfigPart | None:
    """The deepest field that a message names, the last of several."""
    found = [part for part in _all(parts) if part.name in words - {"name", "input", "output"}]
    return max(reversed(found), key=lambda part: part.path.count("."), default=None)


def _fields_in(complaint: str) -> set[str]:
    """The fields that a message speaks of, by their names or by words of its own."""
    words = re.findall(r"[a-z_]{3,}", complaint)
    pairs = {f"{one}_{other}" for one, other in pairwise(words)}
    tensors = {"input", "output"} if "tensor" in words else set()
    return {*words, *pairs, *tensors, *(_OTHER_WORDS[word] for word in words if word in _OTHER_WORDS)}


def _name_of(part: ConfigPart) -> str | None:
    names = [inner.value for inner in part.inner if inner.name in ("name", "key", "model_name")]
    return names[0] if names else None


def _all(parts: Sequence[ConfigPart]) -> Iterator[ConfigPart]:
    for part in parts:
        yield from part.walk()


def _meant(complaint: str) -> str:
    """` (did you mean 'x'?)` for a field or a value that there is not."""
    match = _NO_FIELD.search(complaint)
    if match is not None:
        return _field_meant(messages.message_named(match[1]), match[2])
    match = _NO_VALUE.search(complaint)
    if match is None:
        return ""
    in_json = _JSON_ENUM.search(complaint)
    name = in_json[2].rstrip(".") if in_json is not None else match[1]
    if name is None:  # a value in JSON that is no word
        return ""
    values = messages.enum_named(name).values_by_name
    return f" (write {match[2]} without quotes)" if match[2] in values else nearest(match[2], values)


def _field_meant(message: Descriptor, name: str) -> str:
    """The field of a message that is called nearly so, or where in a configuration one of the name is."""
    known: Mapping[str, object] = message.fields_by_name
    near = nearest(name, known)
    if near:
        return near
    if message.full_name == messages.ModelConfig.DESCRIPTOR.full_name:
        place = _place_of(message, name)
        return f" (did you mean '{place}'?)" if place else ""
    return f" (it has: {', '.join(known)})" if len(known) <= _FEW else ""


def _place_of(message: Descriptor, name: str) -> str:
    """The shortest path to a field of a name below a message, "" where there is none."""
    level, seen = [("", message)], {message.full_name}
    while level:
        below = []
        for path, one in level:
            if path and name in one.fields_by_name:
                return f"{path}.{name}"
            for kind in one.fields:
                if kind.message_type is not None and kind.message_type.full_name not in seen:
                    seen.add(kind.message_type.full_name)
                    below.append((f"{path}.{kind.name}" if path else kind.name, kind.message_type))
        level = below
    return ""


def is_repeated(kind: Any) -> bool:
    """Return whether a field holds a list, or a map; older versions of protobuf say it by its label."""
    return bool(kind.is_repeated if hasattr(kind, "is_repeated") else kind.label == kind.LABEL_REPEATED)


def _behind_value(tokens: Sequence[_Token], at: int) -> int:
    """The number of the token that follows a value; strings side by side are one value."""
    depth = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token.kind == "mark":
            depth += (token.text in "{[<") - (token.text in "}]>")
        goes_on = token.kind == "string" and at < len(tokens) and tokens[at].kind == "string"
        if depth <= 0 and token.text != ":" and not goes_on:
            break
    return at


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            return
        at = match.end()
        if match.lastgroup != "space":
            yield _Token(str(match.lastgroup), match[0], match.start())
