"""config.pbtxt: the text form of ModelConfig, and its JSON form.

The schema is Triton's, complete. Errors name file, line and field: a reader of well-formed text locates
the field at a position, and the position of a field. It stops at the first error, which protobuf reports.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tpx.errors import ConfigError
from tpx.options import nearest
from tpx.protocol import messages
from tpx.protocol.json_values import JsonObject, JsonValue
from tpx.protocol.messages import ModelConfig, ModelInput, ModelOutput

MAX_CONFIG_BYTES = 16 << 20
_LONGEST_COMPLAINT = 1000
"""Maximum length, in characters, of a protobuf error that is reported."""
_MOST_NESTED = 100
"""Maximum nesting depth of JSON5; configuration messages are nested at most 8 deep."""
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
"""Largest number of fields of a message worth listing when none has a similar name."""
_DEPTH = 64
_SEGMENT = re.compile(r"(\w+)(?:\[([^\]]*)\])?")
_MOST_CHARACTERS = 1 << 20
"""Longer texts are not hand-written and are read by protobuf only."""


def parse(text: str, source: str) -> ModelConfig:
    """Parse a ModelConfig from protobuf text; `source` names it in errors. Raises ConfigError."""
    try:
        return text_format.Parse(text, messages.ModelConfig())
    except text_format.ParseError as exc:
        raise ConfigError(f"{source}:{explain(text, str(exc))}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{source}: nested too deeply") from exc


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

    `lenient` accepts unquoted keys, single quotes and trailing commas, like protobuf's C++ parser, with
    which Triton reads the configuration of a load request. Raises ConfigError.
    """
    try:
        value = _parse_lenient(text) if lenient else json.loads(text)
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: must be a JSON object, got {type(value).__name__}")
        return json_format.ParseDict(value, messages.ModelConfig())
    except (json_format.ParseError, ValueError) as exc:
        # protobuf quotes the invalid value, which may be the whole text
        raise ConfigError(f"{source}: {explain('', str(exc)[:_LONGEST_COMPLAINT])}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{source}: nested too deeply") from exc


def _parse_lenient(text: str | bytes) -> object:
    """Parse JSON, or else JSON5. Raises the ValueError of the JSON parser if both fail."""
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


@dataclass(slots=True)
class ConfigPart:
    """Field with its position and its path, such as `input[0].dims`, and for a message its fields."""

    path: str
    name: str
    line: int
    begins: tuple[int, int]
    """Position (line, column) of the name; for further values of a list, of the value."""
    value: str = ""
    inner: "list[ConfigPart]" = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldText:
    """Field of the outermost message, as offsets into the text."""

    name: str
    start: int
    stop: int
    """End of the value."""
    end: int
    """End of the comma or semicolon after the value, if any."""


@dataclass(slots=True)
class _Token:
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


def explain(text: str, complaint: str) -> str:
    """Return the parser's complaint with the path of the field, and a suggestion if there is one."""
    place = _PLACE.match(complaint)
    path = field_at(text, int(place[1]), int(place[2])) if place is not None else ""
    bare = _PARAMETER.fullmatch(path) is not None and 'Expected "{"' in complaint
    meant = _PARAMETER_MEANT if bare else _suggest_correction(complaint)
    explained = f"{_FIELDS_LISTED.sub('', complaint).rstrip()}{meant}"
    return f"{explained} (in {path})" if path else explained


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


def all_parts(parts: Sequence[ConfigPart]) -> Iterator[ConfigPart]:
    """Yield the fields and all fields below them."""
    for part in parts:
        yield part
        yield from all_parts(part.inner)


def _suggest_correction(complaint: str) -> str:
    """Return ` (did you mean 'x'?)` for an unknown field or value, or ""."""
    match = _NO_FIELD.search(complaint)
    if match is not None:
        return _suggest_field(messages.message_named(match[1]), match[2])
    match = _NO_VALUE.search(complaint)
    if match is None:
        return ""
    in_json = _JSON_ENUM.search(complaint)
    name = in_json[2].rstrip(".") if in_json is not None else match[1]
    if name is None:  # a JSON value that is not a word
        return ""
    values = messages.enum_named(name).values_by_name
    return f" (write {match[2]} without quotes)" if match[2] in values else nearest(match[2], values)


def _suggest_field(message: Descriptor, name: str) -> str:
    """Suggest a field of the message with a similar name, or the path to a nested field with this name."""
    known: Mapping[str, object] = message.fields_by_name
    near = nearest(name, known)
    if near:
        return near
    if message.full_name == messages.ModelConfig.DESCRIPTOR.full_name:
        place = _find_nested_field(message, name)
        return f" (did you mean '{place}'?)" if place else ""
    return f" (it has: {', '.join(known)})" if len(known) <= _FEW else ""


def _find_nested_field(message: Descriptor, name: str) -> str:
    """Return the shortest path to a field with this name below a message, or ""."""
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
