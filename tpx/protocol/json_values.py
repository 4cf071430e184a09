"""Tensor elements as JSON values, both ways: nothing is rounded, wrapped or guessed."""

import json
import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from tpx.errors import InvalidRequest
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.json_outline import LARGE_BYTES
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
    if len(text) > LARGE_BYTES and datatype != "BYTES":
        text = _in_one_list(name, bytes(text))
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
    leaves: list[Any] = values
    for _ in range(MAX_JSON_DEPTH):
        if not any(isinstance(leaf, list) for leaf in leaves):
            return leaves
        leaves = [leaf for item in leaves for leaf in (item if isinstance(item, list) else (item,))]
    raise InvalidRequest(f"JSON nesting depth exceeds maximum allowed limit ({MAX_JSON_DEPTH})")


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
    try:
        array = np.array(flat)
        if array.size == 0:
            return np.empty(0, dtype=target)
        if array.ndim != 1:
            return _numbers(name, datatype, _flatten(values))
        if array.dtype.kind == "f" and target.kind in "iu" and all(type(value) is int for value in flat):
            array = np.array(flat, dtype=target)  # integers that only fit uint64
    except (ValueError, OverflowError) as exc:
        raise InvalidRequest(mismatch) from exc
    if array.dtype.kind not in _KINDS[target.kind] or (target.kind != "b" and bool in set(map(type, flat))):
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
    if array.dtype.kind == "f" and b"null" in text:  # NaN and Infinity, which Triton's clients read by name
        return json.dumps([float(value) for value in array]).encode()
    return text
