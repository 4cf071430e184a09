"""Conversion of users' tensor values, from JSON or arrays, to raw bytes; only floats are rounded, to
their datatype's precision, and nothing wraps around.
"""

import base64
import binascii
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tpx.errors import InvalidRequest, UsageError
from tpx.perf.clients.model import TensorDescription
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.json_values import JsonValue
from tpx.protocol.tensors import Array, Buffer, Tensor, decode_bytes, encode_bytes, raw_bytes

MAX_DEPTH = 32

_TYPES: Mapping[str, tuple[type, ...]] = {"f": (int, float), "i": (int,), "u": (int,), "b": (bool, int)}
_KINDS = {"f": "iuf", "i": "iu", "u": "iu", "b": "biu"}


def tensor_of_json(spec: TensorDescription, value: JsonValue, dims: Sequence[int], where: str) -> Tensor:
    """Convert a JSON value to a tensor: a flat or nested list, `{"content": list, "shape": dims}`, or
    raw bytes as `{"b64": text}`, also as the content.

    `dims` is the shape if the value has none; -1 is a dynamic dimension, determined from the value.
    Raises UsageError that starts with `where`.
    """
    where = f"{where}, tensor '{spec.name}'"
    if isinstance(value, dict):
        unknown = set(value) - {"content", "b64", "shape"}
        if unknown:
            raise UsageError(f"{where}: unknown key '{min(unknown)}' (known: content, b64, shape)")
        if ("content" in value) == ("b64" in value):
            raise UsageError(f"{where}: missing content field: either content or b64 is required")
        if "shape" in value:
            dims = value["shape"]
            if not isinstance(dims, list) or any(type(dim) is not int or dim < 0 for dim in dims):
                raise UsageError(f"{where}: shape values must be integers, got {shown(dims)}")
            check_fit(spec, dims, where)
        value = value if "b64" in value else value["content"]
    if isinstance(value, dict):
        if not isinstance(value.get("b64"), str):
            raise UsageError(f"{where}: the value of b64 field should be of type string")
        return tensor_of_raw(spec, _decode_base64(value["b64"], where), dims, where)
    flat, nested = _flatten_lists(value, where)
    return Tensor(
        spec.name,
        spec.datatype,
        _complete_shape(dims, len(flat), nested, where),
        encode_values(flat, spec.datatype, where),
    )


def tensor_of_raw(spec: TensorDescription, data: Buffer, dims: Sequence[int], where: str) -> Tensor:
    """Return the tensor of raw bytes in wire format: row-major, little-endian. Raises UsageError."""
    shape = _complete_shape(dims, element_count(spec.datatype, data, where), (), where)
    return Tensor(spec.name, spec.datatype, shape, data)


def element_count(datatype: str, data: Buffer, where: str) -> int:
    """Return the number of elements in raw bytes. Raises UsageError if it is not a whole number."""
    if datatype == "BYTES":
        try:
            return len(decode_strings(data))
        except InvalidRequest as exc:
            raise UsageError(
                f"{where}: raw BYTES need the length of each element in four bytes before it: {exc.message}"
            ) from exc
    size = BY_NAME[datatype].size
    if len(data) % size:
        raise UsageError(f"{where}: {len(data)} bytes are not a whole number of {datatype} elements")
    return len(data) // size


def encode_values(flat: Sequence[JsonValue], datatype: str, where: str) -> Buffer:
    """Encode JSON values as raw bytes. Raises UsageError for a value that is not of the datatype."""
    if datatype == "BYTES":
        return encode_bytes([_encode_element(value, where) for value in flat])
    target = BF16_SOURCE if datatype == "BF16" else BY_NAME[datatype].numpy
    allowed = _TYPES[target.kind]
    if not set(map(type, flat)) <= set(allowed):
        wrong = next(value for value in flat if type(value) not in allowed)
        raise UsageError(f"{where}: {shown(wrong)} is not {datatype}")
    if not flat:
        return b""
    if target.kind in "iu":
        limits = np.iinfo(target)
        if min(flat) < limits.min or max(flat) > limits.max:
            wrong = next(value for value in flat if not limits.min <= value <= limits.max)
            raise UsageError(f"{where}: {wrong} is out of range for {datatype}")
        return raw_bytes(np.array(flat, dtype=target))
    try:
        return encode_array(np.array(flat, dtype=np.float64 if target.kind == "f" else None), datatype, where)
    except OverflowError as exc:
        raise UsageError(f"{where}: a number is out of range for {datatype}") from exc


BF16_SOURCE = np.dtype(np.float32)


def encode_array(array: Array, datatype: str, where: str) -> Buffer:
    """Encode an array's elements as raw bytes of a datatype; BF16 is rounded from floats, or taken from
    uint16 bits.

    Raises UsageError if the array's type does not match the datatype, or a value is out of range.
    """
    if datatype == "BYTES":
        if array.dtype.kind not in "SUO":
            raise UsageError(f"{where}: an array of {array.dtype} cannot hold BYTES")
        return raw_bytes(array)
    if datatype == "BF16":
        return raw_bytes(
            array if array.dtype == np.uint16 else bf16_bits(_convert_array(array, "FP32", where))
        )
    return raw_bytes(_convert_array(array, datatype, where))


def _convert_array(array: Array, datatype: str, where: str) -> Array:
    target = BY_NAME[datatype].numpy
    if array.dtype.kind not in _KINDS[target.kind]:
        raise UsageError(f"{where}: an array of {array.dtype} cannot hold {datatype}")
    if not array.size or array.dtype == target:
        return array.astype(target, copy=False)
    if target.kind in "iub":
        low, high = (0, 1) if target.kind == "b" else (np.iinfo(target).min, np.iinfo(target).max)
        if int(array.min()) < low or int(array.max()) > high:
            raise UsageError(f"{where}: a value is out of range for {datatype}")
        return array.astype(target)
    with np.errstate(over="ignore"):
        out = array.astype(target)
    if np.isinf(out).any() and not np.array_equal(np.isinf(out), np.isinf(array)):
        raise UsageError(f"{where}: a value is out of range for {datatype}")
    return out


def bf16_bits(array: Array) -> npt.NDArray[np.uint16]:
    """Round FP32 values to the nearest BF16, ties to even, and return its bits."""
    bits = np.ascontiguousarray(array, dtype="<f4").view(np.uint32)
    # add just under half of the last kept bit, or exactly half if that bit is set: ties to even
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # rounding could turn a NaN into infinity; 0x40 keeps its mantissa nonzero
    return np.where(np.isnan(array), (bits >> 16) | 0x40, rounded).astype("<u2")


def bf16_floats(bits: Array) -> npt.NDArray[np.float32]:
    """Convert BF16 bits to FP32 values."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def check_fit(spec: TensorDescription, dims: Sequence[int], where: str) -> None:
    """Raise UsageError if dimensions contradict the model's."""
    same = len(dims) == len(spec.shape)
    if not same or any(m not in (-1, d) for m, d in zip(spec.shape, dims, strict=True)):
        raise UsageError(
            f"{where}: the shape {list(dims)} does not fit the model's {list(spec.shape)}, both without the "
            "batch dimension"
        )


def _decode_base64(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise UsageError(f"{where}: b64 is not base64 text: {exc}") from exc


def decode_strings(data: Buffer) -> list[bytes]:
    """Return all elements of a BYTES tensor. Raises InvalidRequest."""
    count, at = 0, 0
    while at < len(data):
        at += 4 + int.from_bytes(data[at : at + 4], "little")
        count += 1
    return decode_bytes(data, count)


def _encode_element(value: JsonValue, where: str) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str):
        return _decode_base64(value["b64"], where)
    raise UsageError(f"{where}: {shown(value)} is not a string")


def _flatten_lists(value: JsonValue, where: str) -> tuple[list[JsonValue], tuple[int, ...]]:
    """Return the leaves of nested lists and the shape of the nesting, which is empty for a single value."""
    if not isinstance(value, list):
        return [value], ()
    shape, leaves = [len(value)], value
    for _ in range(MAX_DEPTH):
        if not leaves or not isinstance(leaves[0], list):
            break
        width = len(leaves[0])
        if any(not isinstance(item, list) or len(item) != width for item in leaves):
            raise UsageError(f"{where}: the nested lists are not all of the same length")
        shape.append(width)
        leaves = [leaf for item in leaves for leaf in item]
    return leaves, tuple(shape)


def _complete_shape(dims: Sequence[int], count: int, nested: Sequence[int], where: str) -> tuple[int, ...]:
    """Return the shape of `count` elements; dynamic dimensions follow from the nesting, or from the count."""
    if len(nested) == len(dims) and all(d in (-1, n) for d, n in zip(dims, nested, strict=True)):
        return tuple(nested)
    known = math.prod(d for d in dims if d >= 0)
    unknown = sum(d < 0 for d in dims)
    if unknown == 1 and known and count % known == 0:
        return tuple(count // known if d < 0 else d for d in dims)
    if unknown:
        raise UsageError(
            f"{where}: {count} elements do not determine the dynamic dimensions {list(dims)}; give "
            '{"content": [...], "shape": [...]} or --shape'
        )
    if known != count:
        raise UsageError(f"{where}: the shape {list(dims)} has {known} elements, the data {count}")
    return tuple(dims)


def shown(value: JsonValue) -> str:
    """Return a value as text for a message, truncated to 60 characters."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else text[:57] + "..."
