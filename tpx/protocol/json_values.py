"""Tensor elements to and from JSON values, without rounding, wrapping or guessing."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import orjson

from tpx.errors import Code, InvalidRequest, Overloaded
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.json_outline import MAX_JSON_DEPTH, flat_list, pieces
from tpx.protocol.tensors import Array, Buffer, Tensor, as_array, decode_in_pieces, encode_bytes

JsonValue = Any
"""JSON value as returned by a parser; its type must be checked at run time."""
JsonObject = dict[str, Any]
"""JSON object with any members."""
NOT_IN_JSON = ("FP16", "BF16")
"""Datatypes without a JSON form in the protocol: their tensors are sent as bytes."""

_ELEMENTS_AT_ONCE = 16 << 10
"""Number of elements encoded before other threads may run."""


def checked_text(what: str, text: str) -> str:
    """Return a JSON string if it can be forwarded as text. Raises InvalidRequest otherwise."""
    if "\0" in text:
        raise InvalidRequest(f"Unable to parse '{what}': it contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as exc:  # half a surrogate pair is JSON, but no text
        raise InvalidRequest(f"Unable to parse '{what}': it is not Unicode text") from exc
    return text


def parse_json(text: Buffer) -> JsonValue:
    """Parse JSON from a stranger. Raises ValueError, also for values that are nested too deep to parse."""
    try:
        return json.loads(bytes(text))
    except RecursionError as exc:
        raise ValueError(f"it is nested more than {MAX_JSON_DEPTH} deep") from exc


class NotAParameter(InvalidRequest):
    """Raised for a value that cannot be a request parameter."""


def checked_parameter(key: str, value: JsonValue) -> str | int | float:
    """Return the value of a request parameter. Raises NotAParameter, InvalidRequest."""
    if not isinstance(value, str | int | float):
        raise NotAParameter(
            f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )
    return checked_text(key, value) if isinstance(value, str) else value


def json_values(name: str, data: JsonValue) -> JsonValue:
    """Parse the `data` of an input if it is raw JSON. Raises InvalidRequest."""
    if not isinstance(data, msgspec.Raw):
        return data
    try:
        return orjson.loads(memoryview(data))
    except orjson.JSONDecodeError as exc:
        if "ecursion" in str(exc):
            raise InvalidRequest(
                f"JSON nesting depth exceeds maximum allowed limit ({MAX_JSON_DEPTH})"
            ) from exc
        raise _not_json(name, exc) from exc


def _not_json(name: str, exc: ValueError) -> InvalidRequest:
    return InvalidRequest(f"Unable to parse 'data' of input '{name}': {exc}")


def encode_list(name: str, datatype: str, text: Buffer, check: Callable[[int], None]) -> tuple[int, Buffer]:
    """Encode a long JSON list, nested or not. Returns the count and the raw bytes of its elements;
    `check` is called with the running count to limit it.

    Parsing in pieces lets other threads take the interpreter lock in between, and only one piece at a
    time exists as Python objects.
    """
    _check_json_type(name, datatype)
    count = 0
    parts: list[Buffer] = []
    for piece in pieces(text):
        values = _parse_piece(name, flat_list(name, piece))
        if not values:
            raise InvalidRequest(f"Unable to parse 'data' of input '{name}': a value is missing")
        count += len(values)
        check(count)
        parts.append(_encode_elements(name, datatype, values))
    return count, b"".join(parts)


def _parse_piece(name: str, piece: bytes) -> list[JsonValue]:
    try:
        values = orjson.loads(piece)
    except orjson.JSONDecodeError as exc:
        if b"NaN" not in piece and b"Infinity" not in piece:
            raise _not_json(name, exc) from exc
        try:
            values = json.loads(piece)
        except ValueError as other:
            raise _not_json(name, other) from other
    return list(values)


def check_at_most(name: str, most: int, count: int) -> None:
    """Raise InvalidRequest for a list with more elements than its shape."""
    if count > most:
        raise InvalidRequest(
            "Unable to parse 'data': Shape does not match true shape of 'data' field: "
            f"input '{name}' has more values than the {most} of its shape"
        )


def check_count(name: str, count: int, expected: int) -> None:
    """Raise InvalidRequest if the number of elements differs from the shape's."""
    check_at_most(name, expected, count)
    if count < expected:
        raise InvalidRequest(
            "Failed to parse 'data' field: shape does not match true shape: "
            f"input '{name}' has {count} values, its shape {expected}"
        )


def _check_json_type(name: str, datatype: str) -> None:
    if datatype in NOT_IN_JSON:
        raise InvalidRequest(
            f"receiving {datatype} data via JSON is not supported. "
            f"Please use the binary data format for input {name}"
        )


def encode_values(name: str, datatype: str, count: int, values: JsonValue) -> Buffer:
    """Return the raw bytes of `count` elements given as JSON values. Raises InvalidRequest."""
    _check_json_type(name, datatype)
    if not isinstance(values, list):
        raise InvalidRequest("Unable to parse 'data': attempt to access JSON non-array as array")
    flat = values
    if datatype == "BYTES" or not values or isinstance(values[0], list):
        flat = []
        _collect_leaves(values, flat, MAX_JSON_DEPTH)
    check_count(name, len(flat), count)
    return _encode_elements(name, datatype, flat)


def _encode_elements(name: str, datatype: str, flat: list[JsonValue]) -> Buffer:
    """Return the raw bytes of a flat list of elements."""
    if datatype != "BYTES":
        return _convert_numbers(name, datatype, flat).data.cast("B") if flat else b""
    if not set(map(type, flat)) <= {str}:
        raise InvalidRequest(
            f"Unable to parse JSON bytes array: attempt to access JSON non-string as string (input '{name}')"
        )
    try:
        return encode_bytes(list(map(str.encode, flat)))
    except UnicodeEncodeError as exc:  # half a surrogate pair is JSON, but no text
        raise InvalidRequest("Unable to parse 'data': a string is not Unicode text") from exc


def _collect_leaves(values: list[JsonValue], leaves: list[JsonValue], depth: int) -> None:
    """Append the leaves of lists up to `depth` deep. Visits each value once, whatever the depth of others."""
    kinds = set(map(type, values))
    while kinds == {list} and depth > 1:
        values = list(chain.from_iterable(values))
        kinds = set(map(type, values))
        depth -= 1
    if list not in kinds:
        leaves += values
        return
    if depth == 1:
        raise InvalidRequest(f"JSON nesting depth exceeds maximum allowed limit ({MAX_JSON_DEPTH})")
    for value in values:
        if type(value) is list:
            _collect_leaves(value, leaves, depth - 1)
        else:
            leaves.append(value)


_KINDS = {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}
_TYPE_WORDS = {
    "f": "number as double",
    "i": "signed-integer as signed-integer",
    "u": "unsigned-integer as unsigned-integer",
}


def _convert_numbers(name: str, datatype: str, flat: list[JsonValue]) -> Array:
    """Return a flat array of the datatype. Raises InvalidRequest instead of rounding, wrapping, guessing."""
    target = BY_NAME[datatype].numpy
    word = _TYPE_WORDS.get(target.kind, "boolean as boolean")
    mismatch = f"Unable to parse 'data': attempt to access JSON non-{word} (input '{name}')"
    kinds = set(map(type, flat))
    # numpy would turn numbers among strings into strings as long as the longest
    if not kinds <= {int, float, bool}:
        raise InvalidRequest(mismatch)
    try:
        array = np.array(flat)
        if array.dtype.kind == "f" and target.kind in "iu" and kinds == {int}:
            array = np.array(flat, dtype=target)  # integers that only fit uint64
    except (ValueError, OverflowError) as exc:
        raise InvalidRequest(mismatch) from exc
    if array.dtype.kind not in _KINDS[target.kind] or (target.kind != "b" and bool in kinds):
        raise InvalidRequest(mismatch)
    if target.kind in "iu":
        limits = np.iinfo(target)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise InvalidRequest(
                f"Unable to parse 'data' of input '{name}': value out of range for {datatype}"
            )
    try:
        with np.errstate(over="raise"):
            return array.astype(target, copy=False)
    except FloatingPointError as exc:
        raise InvalidRequest(
            f"Unable to parse 'data' of input '{name}': value out of range for {datatype}"
        ) from exc


def json_data(tensor: Tensor, limit_bytes: int = sys.maxsize) -> bytes:
    """Return a tensor's elements as a flat JSON array. Raises as `json_parts`."""
    return b"".join(json_parts(tensor, limit_bytes))


def json_parts(tensor: Tensor, limit_bytes: int = sys.maxsize) -> list[bytes]:
    """Return a tensor's elements as a flat JSON array, cut into pieces, which are not copied again.

    Raises InvalidRequest for a datatype without a JSON form, and Overloaded if they have more than
    `limit_bytes`.
    """
    parts, size = [b"["], 0
    for piece in json_pieces(tensor):
        size += len(piece)
        if size > limit_bytes:
            raise Overloaded(
                f"output '{tensor.name}' has more than {limit_bytes} bytes as JSON, which is all that the "
                "server may hold (--max-buffered-bytes); request it as binary data",
                code=Code.RESOURCE_EXHAUSTED,
            )
        if len(parts) > 1:
            parts.append(b",")
        parts.append(piece)
    parts.append(b"]")
    return parts


def json_pieces(tensor: Tensor) -> Iterator[bytes]:
    """Yield a tensor's elements as JSON, some thousands at a time."""
    if tensor.datatype in NOT_IN_JSON:
        raise InvalidRequest(
            f"sending {tensor.datatype} data via JSON is not supported. "
            "Please use the binary data format for output"
        )
    count = math.prod(tensor.shape)
    if tensor.datatype == "BYTES":
        for elements in decode_in_pieces(tensor.data, count, _ELEMENTS_AT_ONCE):
            yield orjson.dumps([element.decode("utf-8", "replace") for element in elements])[1:-1]
        return
    array = as_array(tensor.data, tensor.datatype, (count,))
    for at in range(0, count, _ELEMENTS_AT_ONCE):
        piece = array[at : at + _ELEMENTS_AT_ONCE]
        text = orjson.dumps(piece, option=orjson.OPT_SERIALIZE_NUMPY)
        yield (_replace_nulls(text, piece) if piece.dtype.kind == "f" and b"null" in text else text)[1:-1]


def _replace_nulls(text: bytes, array: Array) -> bytes:
    """Replace nulls with NaN and Infinity, which Triton's clients read."""
    odd = array[~np.isfinite(array)].tolist()
    words = [b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity" for value in odd]
    pieces = text.split(b"null")
    return b"".join([*chain.from_iterable(zip(pieces, words, strict=False)), pieces[-1]])
