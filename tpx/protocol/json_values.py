"""Tensor elements as JSON values, both ways: nothing is rounded, wrapped or guessed."""

import math
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from tpx.errors import InvalidRequest
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.json_outline import LARGE_BYTES, texts_in_one_list
from tpx.protocol.tensors import Buffer, Tensor, as_array, encode_bytes

MAX_JSON_DEPTH = 100


def checked_text(what: str, text: str) -> str:
    """A string of JSON that can be passed on as text. Raises InvalidRequest."""
    if "\0" in text:
        raise InvalidRequest(f"Unable to parse '{what}': it contains a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as exc:  # half a surrogate pair is JSON, but no text
        raise InvalidRequest(f"Unable to parse '{what}': it is not Unicode text") from exc
    return text


_BLANK = bytes.maketrans(b"[]", b"  ")


def json_values(name: str, data: Any, datatype: str = "BYTES") -> Any:
    """The Python value of an input's `data`."""
    if not isinstance(data, msgspec.Raw):
        return data
    text: Buffer = memoryview(data)
    if len(text) > LARGE_BYTES:
        text = bytes(text)
        text = texts_in_one_list(text) if datatype == "BYTES" else _in_one_list(name, text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        if "ecursion" in str(exc):
            raise InvalidRequest(
                f"JSON nesting depth exceeds maximum allowed limit ({MAX_JSON_DEPTH})"
            ) from exc
        raise InvalidRequest(f"Unable to parse 'data' of input '{name}': {exc}") from exc


def _in_one_list(name: str, text: bytes) -> bytes:
    """Numbers in nested lists as one list: a list for each few of them takes twenty times their size."""
    if b"{" in text:
        raise InvalidRequest(
            f"Unable to parse 'data': attempt to access JSON object as array (input '{name}')"
        )
    if text.count(b"[") != text.count(b"]") or not text.startswith(b"["):
        return text  # no JSON, or no list: that is told as always
    return b"[" + text.translate(_BLANK) + b"]"


def encode_values(name: str, datatype: str, count: int, values: Any) -> Buffer:
    """JSON values as the raw bytes of `count` elements."""
    if datatype in ("FP16", "BF16"):
        raise InvalidRequest(
            f"receiving {datatype} data via JSON is not supported. "
            f"Please use the binary data format for input {name}"
        )
    flat = _flatten(values) if datatype == "BYTES" else _numbers(name, datatype, values)
    if len(flat) > count:
        raise InvalidRequest("Unable to parse 'data': Shape does not match true shape of 'data' field")
    if len(flat) < count:
        raise InvalidRequest("Failed to parse 'data' field: shape does not match true shape")
    if datatype != "BYTES":
        return flat.data.cast("B") if len(flat) else b""  # type: ignore[union-attr]
    if any(not isinstance(value, str) for value in flat):
        raise InvalidRequest(
            f"Unable to parse JSON bytes array: attempt to access JSON non-string as string (input '{name}')"
        )
    try:
        return encode_bytes([value.encode() for value in flat])
    except UnicodeEncodeError as exc:  # half a surrogate pair is JSON, but no text
        raise InvalidRequest("Unable to parse 'data': a string is not Unicode text") from exc


def _flatten(values: Any) -> list[Any]:
    """The leaves of nested lists, row-major."""
    if not isinstance(values, list):
        raise InvalidRequest("Unable to parse 'data': attempt to access JSON non-array as array")
    leaves: list[Any] = []
    _collect(values, leaves, MAX_JSON_DEPTH)
    return leaves


def _collect(values: list[Any], leaves: list[Any], depth: int) -> None:
    """Add the leaves of lists that are at most `depth` deep. Each value is looked at once, however deep
    another one is."""
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
            _collect(value, leaves, depth - 1)
        else:
            leaves.append(value)


_KINDS = {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}
_TYPE_WORDS = {
    "f": "number as double",
    "i": "signed-integer as signed-integer",
    "u": "unsigned-integer as unsigned-integer",
}


def _numbers(name: str, datatype: str, values: Any) -> npt.NDArray[Any]:
    """A flat array of the datatype; nothing is rounded, wrapped or guessed."""
    target = BY_NAME[datatype].numpy
    flat = (
        values
        if isinstance(values, list) and values and not isinstance(values[0], list)
        else _flatten(values)
    )
    word = _TYPE_WORDS.get(target.kind, "boolean as boolean")
    mismatch = f"Unable to parse 'data': attempt to access JSON non-{word} (input '{name}')"
    kinds = set(map(type, flat))
    if not kinds <= {int, float, bool}:  # of a text among numbers numpy makes texts, all as long as it
        raise InvalidRequest(mismatch)
    try:
        array = np.array(flat)
        if array.size == 0:
            return np.empty(0, dtype=target)
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


def json_data(tensor: Tensor) -> bytes:
    """A tensor's elements as a flat JSON array."""
    if tensor.datatype in ("FP16", "BF16"):
        raise InvalidRequest(
            f"sending {tensor.datatype} data via JSON is not supported. "
            "Please use the binary data format for output"
        )
    array = as_array(tensor.data, tensor.datatype, (math.prod(tensor.shape),))
    if tensor.datatype == "BYTES":
        return orjson.dumps([element.decode("utf-8", "replace") for element in array])
    text = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    if array.dtype.kind == "f" and b"null" in text:
        return _with_words(text, array)
    return text


def _with_words(text: bytes, array: npt.NDArray[Any]) -> bytes:
    """NaN and Infinity, which Triton's clients read by name, in the place of the nulls."""
    odd = array[~np.isfinite(array)].tolist()
    words = [b"NaN" if value != value else b"Infinity" if value > 0 else b"-Infinity" for value in odd]
    pieces = text.split(b"null")
    return b"".join([*chain.from_iterable(zip(pieces, words, strict=False)), pieces[-1]])
