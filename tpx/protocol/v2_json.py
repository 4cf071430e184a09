"""The v2 protocol over HTTP: a JSON head, and tensors in it or as raw bytes after it (binary data)."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NoReturn

import msgspec

from tpx.errors import InvalidRequest
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.json_outline import LARGE_BYTES, MAX_JSON_DEPTH, check_request, cut_lists, mark_of
from tpx.protocol.json_values import (
    JsonObject,
    JsonValue,
    check_at_most,
    check_count,
    checked_parameter,
    checked_text,
    encode_list,
    encode_values,
    json_values,
)
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import (
    SHARED_MEMORY_PARAMETERS,
    DecodedRequest,
    Parameter,
    RequestedOutput,
    SharedMemoryRange,
    check_string_count,
    shared_memory_range,
)

MAX_ELEMENTS = 2**63 - 1
MAX_DIMENSIONS = 4096
"""Maximum number of dimensions: computing the product of a hundred thousand would take seconds."""


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: JsonValue = None
    parameters: JsonObject = {}


class _DeferredInput(_Input):
    data: msgspec.Raw = msgspec.Raw()


class _Output(msgspec.Struct):
    name: str
    parameters: JsonObject = {}


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    parameters: JsonObject = {}
    outputs: list[_Output] = []


class _DeferredRequest(_Request):
    inputs: list[_DeferredInput]  # type: ignore[assignment]


_decode = msgspec.json.Decoder(_DeferredRequest).decode


def decode_infer_request(
    model: str, body: Buffer, head_size: int | None, max_bytes: int, max_strings: int = MAX_ELEMENTS
) -> DecodedRequest:
    """Decode a request whose first `head_size` bytes are JSON (None: all of them).

    Tensors sent as bytes are views of `body`. Raises InvalidRequest, with Triton's wording if it has
    one.
    """
    head = body if head_size is None else body[:head_size]
    request, lists = _parse_request(head)
    decoded = DecodedRequest(model_name=model, request_id=checked_text("id", request.id))
    default_binary = _read_bool(request.parameters, "binary_data_output")
    decoded.parameters = _read_parameters(request.parameters)
    _check_known_parameters(decoded.parameters)
    decoded.default_binary = default_binary
    offset = len(head)
    all_raw = True
    for item in request.inputs:
        source = _find_source(item, has_tail=head_size is not None)
        place = _read_memory_range(item)
        count = _check_size(item, max_bytes if place is None else MAX_ELEMENTS)
        data: Buffer = b""
        if source == "binary_data_size":
            size = item.parameters["binary_data_size"]
            if type(size) is not int or not 0 <= size <= MAX_ELEMENTS:
                raise InvalidRequest(
                    f"Unable to parse 'binary_data_size': {_describe_mismatch('unsigned-integer')}"
                )
            missing = offset + size - len(body)
            if missing > 0:
                raise InvalidRequest(
                    f"unexpected size for input '{item.name}', expecting {missing} additional bytes "
                    f"for model '{model}'"
                )
            data = memoryview(body)[offset : offset + size]
            offset += size
        elif source == "data":
            if item.datatype == "BYTES":
                check_string_count(item.name, count, max_strings)
            data = _read_data(item, count, lists)
        tensor = Tensor(item.name, item.datatype, item.shape, data)
        if place is not None:
            decoded.shared_inputs.append((tensor, place))
        all_raw = all_raw and source == "binary_data_size"
        decoded.inputs.append(tensor)
    if offset != len(body):
        raise InvalidRequest(f"unexpected additional input data for model '{model}'")
    decoded.outputs = [_read_output(item) for item in request.outputs]
    if all_raw and head_size is not None:
        decoded.tensor_offset = head_size
    return decoded


def _parse_request(head: Buffer) -> tuple[_Request, Sequence[Buffer]]:
    """Parse the JSON of a request. Returns it with the long lists that were cut out."""
    lists: Sequence[Buffer] = ()
    if len(head) > LARGE_BYTES:
        head, lists = cut_lists(head)
        if len(head) > LARGE_BYTES:
            check_request(head)
    try:
        try:
            return _decode(head), lists
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            # the standard lacks NaN and Infinity, but Triton accepts them
            text = bytes(head)
            if b"NaN" not in text and b"Infinity" not in text:
                raise
            return msgspec.convert(json.loads(text), _Request), lists
    except RecursionError:
        raise InvalidRequest(f"JSON nesting depth exceeds maximum allowed limit ({MAX_JSON_DEPTH})") from None
    except msgspec.ValidationError as exc:
        raise InvalidRequest(_translate_error(str(exc))) from exc
    except (msgspec.DecodeError, ValueError) as exc:
        raise InvalidRequest(f"failed to parse the request JSON buffer: {exc}") from exc


def _translate_error(detail: str) -> str:
    """Translate "Expected `str`, got `int` - at `$.inputs[0].name`" into Triton's wording."""
    path = detail.rpartition("`$")[2].rstrip("`").replace("[...]", "") if "`$" in detail else ""
    name = path.rpartition(".")[2].partition("[")[0]
    if not detail.startswith(("Expected", "Object")):  # a number out of any range
        return f"Unable to parse '{name or 'request'}': {detail}"
    expected = detail.split("`")[1]
    if path == ".parameters":
        return "failed to get request params.: attempt to get members for non-object"
    if name == "parameters":
        return f"Unable to parse '{name}': attempt to get members for non-object"
    if expected in _JSON_WORDS:
        return f"Unable to parse '{name}': {_describe_mismatch(_JSON_WORDS[expected])}"
    # a member is missing, or the object that should have it
    missing = expected if "missing required field" in detail else "name" if path else "inputs"
    return f"Unable to parse '{missing}': attempt to access non-existing object member '{missing}'"


_JSON_WORDS = {"str": "string", "int": "unsigned-integer", "array": "array"}


def _describe_mismatch(word: str) -> str:
    return f"attempt to access JSON non-{word} as {word}"


def _read_data(item: _Input, count: int, lists: Sequence[Buffer]) -> Buffer:
    """Return the raw bytes of an input whose elements are in the JSON or in a list cut out of it."""
    mark = mark_of(item.data) if lists else None
    if mark is None or mark >= len(lists):
        return encode_values(item.name, item.datatype, count, json_values(item.name, item.data))
    got, data = encode_list(item.name, item.datatype, lists[mark], partial(check_at_most, item.name, count))
    check_count(item.name, got, count)
    return data


def _check_size(item: _Input, max_bytes: int) -> int:
    """Return the number of elements of an input. Raises InvalidRequest before memory is allocated."""
    name = checked_text("name", item.name)
    try:
        count = element_count(name, item.shape)
    except InvalidRequest as exc:
        if all(0 <= dim < 2**64 for dim in item.shape):
            raise
        raise InvalidRequest(f"Unable to parse 'shape': {_describe_mismatch('unsigned-integer')}") from exc
    datatype = BY_NAME.get(item.datatype)
    if datatype is None:
        raise InvalidRequest(f"invalid datatype for input {name}")
    size = count * max(1, datatype.size)
    if size > max_bytes:
        raise InvalidRequest(
            f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
            f"{max_bytes} bytes. Use --http-max-input-size to increase the limit."
        )
    return count


def _find_source(item: _Input, *, has_tail: bool) -> str:
    """Return the source of an input's data. Raises InvalidRequest unless there is exactly one."""
    deferred = isinstance(item, _DeferredInput)
    sources = []
    if len(item.data) > 0 if deferred else item.data is not None:
        sources.append("data")
    sources += [key for key in ("binary_data_size", "shared_memory_region") if key in item.parameters]
    if len(sources) != 1:
        named = " ".join(f"'{source}'" for source in sources)
        raise InvalidRequest(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            "'shared_memory_region' in 'parameters'. But "
            + (f"set {named}" if sources else "no field is set")
        )
    if sources[0] == "binary_data_size" and not has_tail:
        raise InvalidRequest(
            "must specify valid 'Infer-Header-Content-Length' in request header and 'binary_data_size' "
            "when passing inputs in binary data format"
        )
    return sources[0]


def element_count(name: str, shape: Sequence[int]) -> int:
    """Return the number of elements of a tensor. Raises InvalidRequest for an impossible shape."""
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidRequest(
            f"invalid shape for input '{name}': a tensor has at most {MAX_DIMENSIONS} dimensions, got "
            f"{len(shape)}"
        )
    count = math.prod(shape)
    if count * 8 > MAX_ELEMENTS or min(shape, default=0) < 0:
        _refuse_shape(name, shape)
    if not count and math.prod(filter(None, shape)) * 8 > MAX_ELEMENTS:
        _refuse_shape(name, shape)  # empty, but of a shape that no array can have
    return count


def _refuse_shape(name: str, shape: Sequence[int]) -> NoReturn:
    """Raise InvalidRequest with the reason that a shape is impossible."""
    count = 1
    what = f"invalid shape for input '{name}': shape {str(list(shape)).replace(' ', '')}"
    for dim in shape:
        if dim < 0:
            raise InvalidRequest(f"{what} contains one or more invalid dimensions")
        count *= dim
        if count > MAX_ELEMENTS:
            raise InvalidRequest(
                f"{what} causes total element count to exceed maximum size of {MAX_ELEMENTS}"
            )
    raise InvalidRequest(f"byte size overflow for input '{name}'")


def _read_output(item: _Output) -> RequestedOutput:
    parameters = dict(item.parameters)
    binary = _read_bool(parameters, "binary_data")
    parameters.pop("binary_data", None)
    classes = parameters.pop("classification", 0)
    if type(classes) is not int or not 0 <= classes < 1 << 64:
        raise InvalidRequest(f"Unable to set 'classification': {_describe_mismatch('unsigned-integer')}")
    place = _read_memory_range(item)
    if place is not None:
        other = "classification" if classes else "binary_data" if binary else ""
        if other:
            raise InvalidRequest(f"Output can't set both 'shared_memory_region' and '{other}'")
        for key in SHARED_MEMORY_PARAMETERS:
            parameters.pop(key, None)
    output = RequestedOutput(
        name=checked_text("name", item.name), binary=binary, classification=classes, shared_memory=place
    )
    output.parameters = _read_parameters(parameters)
    return output


def _read_memory_range(item: _Input | _Output) -> SharedMemoryRange | None:
    """Return the shared memory range of a tensor, or None. Its numbers must be unsigned."""
    return shared_memory_range(item.name, item.parameters, _make_type_error, range(1 << 64))


def _make_type_error(_: str, key: str, kind: type) -> InvalidRequest:
    word = "string" if kind is str else "unsigned-integer"
    return InvalidRequest(f"Unable to parse '{key}': {_describe_mismatch(word)}")


def _read_bool(parameters: Mapping[str, object], key: str) -> bool:
    value = parameters.get(key, False)
    if not isinstance(value, bool):
        raise InvalidRequest(f"Unable to parse '{key}': {_describe_mismatch('boolean')}")
    return value


def _read_parameters(raw: JsonObject) -> dict[str, Parameter]:
    return {
        checked_text("parameters", key): checked_parameter(key, value)
        for key, value in raw.items()
        if key != "binary_data_output"
    }


def _check_known_parameters(parameters: Mapping[str, Parameter]) -> None:
    """Raise InvalidRequest if a parameter that the server interprets has the wrong type."""
    for key in ("sequence_id", "priority", "timeout"):
        value = parameters.get(key, 0)
        is_unsigned = type(value) is int and 0 <= value < 2**64
        if key == "sequence_id" and not (is_unsigned or isinstance(value, str)):
            raise InvalidRequest(f"Unable to parse '{key}': {_describe_mismatch('string')}")
        if key != "sequence_id" and not is_unsigned:
            raise InvalidRequest(f"Unable to parse '{key}': {_describe_mismatch('unsigned-integer')}")
    for key in ("sequence_start", "sequence_end"):
        _read_bool(parameters, key)
