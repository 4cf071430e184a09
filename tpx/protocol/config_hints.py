"""Adds hints to complaints of protobuf about a configuration: what it probably means."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile

from google.protobuf.descriptor import Descriptor

from tpx.options import nearest
from tpx.protocol import messages
from tpx.protocol.config_text import field_at

_PLACE = re.compile(r"(\d+):(\d+) : ")
_NO_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "([^"]*)"')
_NO_VALUE = re.compile(r'Enum type "([\w.]+)" has no value named ["\']?(\w+)')
_FIELDS_LISTED = re.compile(r"\s*Available Fields\(.*", re.DOTALL)
_PARAMETER = re.compile(r"parameters\[\d+\]\.value")
_PARAMETER_MEANT = ' (a parameter is written value { string_value: "..." })'
_OF_DATATYPES = "TYPE_"
_DATATYPES = {
    "BOOL": "BOOLEAN",
    "INT8": "CHAR SBYTE I8",
    "INT16": "SHORT I16",
    "INT32": "INT INTEGER I32",
    "INT64": "LONG LONGLONG LONG_LONG I64",
    "UINT8": "BYTE UBYTE UCHAR U8",
    "UINT16": "USHORT U16",
    "UINT32": "UINT U32",
    "UINT64": "ULONG ULONGLONG SIZE U64",
    "FP16": "HALF FLOAT16 F16",
    "BF16": "BFLOAT16 BFLOAT",
    "FP32": "FLOAT FLOAT32 SINGLE REAL F32",
    "FP64": "DOUBLE FLOAT64 F64",
    "STRING": "BYTES STR TEXT OBJECT UNICODE VARCHAR",
}
"""Names of datatypes in C, numpy, ONNX, PyTorch, TensorFlow and TensorRT."""
_DATATYPE_OF = {word: name for name, words in _DATATYPES.items() for word in words.split()}
_FIELDS = {
    **dict.fromkeys(("dimension", "dimensions", "dim", "shape", "shapes"), "dims"),
    **dict.fromkeys(("type", "dtype", "datatype"), "data_type"),
    "batch_size": "max_batch_size",
    "instances": "instance_group",
}
"""Fields by what they are called elsewhere."""
_FEW = 6
"""Largest number of fields of a message worth listing when none has a similar name."""


def explain(text: str, complaint: str) -> str:
    """Return the parser's complaint with the path of the field, and a suggestion if there is one."""
    place = _PLACE.match(complaint)
    path = field_at(text, int(place[1]), int(place[2])) if place is not None else ""
    bare = _PARAMETER.fullmatch(path) is not None and 'Expected "{"' in complaint
    meant = _PARAMETER_MEANT if bare else _suggest_correction(complaint)
    explained = f"{_FIELDS_LISTED.sub('', complaint).rstrip()}{meant}"
    return f"{explained} (in {path})" if path else explained


def _suggest_correction(complaint: str) -> str:
    """Return ` (did you mean 'x'?)` for an unknown field or value, or ""."""
    match = _NO_FIELD.search(complaint)
    if match is not None:
        return suggest_field(messages.message_named(match[1]), match[2])
    match = _NO_VALUE.search(complaint)
    if match is None:
        return ""
    values = list(messages.enum_named(match[1]).values_by_name)
    return f" (write {match[2]} without quotes)" if match[2] in values else suggest_value(match[2], values)


def suggest_value(word: str, values: Sequence[str]) -> str:
    """Return ` (did you mean 'x'?)` for a word that is no value of an enum, or "".

    What all values begin with makes none of them similar.
    """
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(min(values), max(values), strict=False))
    start, mark, _ = "".join(letter for letter, _ in alike).rpartition("_")
    prefix = start + mark
    bare = word.upper().removeprefix(prefix).removeprefix("DT_").removesuffix("_T").strip("_")
    if prefix == _OF_DATATYPES:
        bare = _DATATYPE_OF.get(bare) or _DATATYPE_OF.get(bare.removeprefix("K"), bare)
    if prefix + bare in values:
        return f" (did you mean '{prefix}{bare}'?)"
    near = get_close_matches(bare, [value.removeprefix(prefix) for value in values], n=1, cutoff=0.7)
    return f" (did you mean '{prefix}{near[0]}'?)" if near else ""


def suggest_field(message: Descriptor, name: str) -> str:
    """Suggest a field of the message with a similar name, or the path to a nested field with this name."""
    known: Mapping[str, object] = message.fields_by_name
    meant = _FIELDS.get(name.lower())
    near = f" (did you mean '{meant}'?)" if meant in known else nearest(name, known)
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
