"""Flat JSON of the generate extension: one object holds tensors and parameters, another the outputs."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import orjson

from tpx.errors import InvalidRequest
from tpx.protocol.json_outline import LARGE_BYTES, check_flat, cut_lists, mark_of
from tpx.protocol.json_values import (
    JsonObject,
    JsonValue,
    NotAParameter,
    checked_parameter,
    checked_text,
    encode_list,
    encode_values,
    json_data,
)
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest, check_string_count
from tpx.protocol.v2_json import MAX_ELEMENTS
from tpx.serving.request import InferResponse, RequestHead, TensorSpec
from tpx.serving.signature import Signature

_LENGTH_BYTES = 4
"""Length of a string, before it in its tensor."""
_LONGEST_ESCAPE = 6
"""Bytes of JSON for a byte of text, at most."""


def decode(body: Buffer, signature: Signature, max_strings: int) -> DecodedRequest:
    """Decode a flat JSON object: members named like model inputs become tensors, all others parameters.
    Raises InvalidRequest.
    """
    return _Decoding(signature, max_strings).decode(body)


class _Object(msgspec.Struct, frozen=True):
    """A JSON object that keeps repeated members; a Python dict would keep only the last."""

    members: list[tuple[str, JsonValue]]


class _Decoding:
    """State of decoding one request."""

    def __init__(self, signature: Signature, max_strings: int) -> None:
        self._signature = signature
        self._max_strings = max_strings
        self._request = DecodedRequest()
        self._lists: Sequence[Buffer] = ()

    def decode(self, body: Buffer) -> DecodedRequest:
        request = self._request
        for key, value in self._parse(body).members:
            if key == "id" and key not in self._signature.inputs:
                if not isinstance(value, str):
                    raise InvalidRequest("Unable to parse 'id': attempt to access JSON non-string as string")
                request.request_id = request.request_id or checked_text("id", value)  # the first id wins
            elif key == "parameters":
                self._take_nested_members(value)
            else:
                self._take_member(key, value)
        return request

    def _parse(self, body: Buffer) -> _Object:
        text = bytes(body)
        if len(text) > LARGE_BYTES:
            text, self._lists = cut_lists(text)
            check_flat(text)
        try:
            value = json.loads(text.decode(), object_pairs_hook=_Object)
        except RecursionError:
            raise InvalidRequest("JSON nesting depth exceeds maximum allowed limit (100)") from None
        except ValueError as exc:
            raise InvalidRequest(f"failed to parse the request JSON buffer: {exc}") from exc
        if not isinstance(value, _Object):
            raise InvalidRequest("attempt to get members for non-object")
        return value

    def _take_nested_members(self, value: JsonValue) -> None:
        if "parameters" in self._signature.inputs:
            raise InvalidRequest("Keyword 'parameters' for nested schema also given as input tensor name")
        if not isinstance(value, _Object):
            raise InvalidRequest(
                "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"
            )
        for key, nested in value.members:
            try:
                self._take_member(key, nested)
            except NotAParameter as exc:
                raise InvalidRequest(f"Converting keyword: 'parameters': {exc.message}") from exc

    def _take_member(self, key: str, value: JsonValue) -> None:
        request, spec = self._request, self._signature.inputs.get(key)
        if spec is not None:
            request.inputs.append(self._convert_tensor(spec, value))
        else:
            request.parameters[checked_text("parameters", key)] = checked_parameter(key, value)

    def _convert_tensor(self, spec: TensorSpec, value: JsonValue) -> Tensor:
        """Convert a scalar or list to an input tensor; its innermost variable dimension takes the count."""
        most = self._max_strings if spec.datatype == "BYTES" else MAX_ELEMENTS
        check = partial(check_string_count, spec.name, most=most)
        cut = mark_of(dict(value.members)) if isinstance(value, _Object) else None
        if cut is not None and cut < len(self._lists):
            count, data = encode_list(spec.name, spec.datatype, self._lists[cut], check)
            shape = _compute_shape(spec, count)
        else:
            flat = value if isinstance(value, list) else [value]
            check(len(flat))
            shape = _compute_shape(spec, len(flat))
            data = encode_values(spec.name, spec.datatype, len(flat), flat)
        return Tensor(
            spec.name, spec.datatype, [1, *shape] if self._signature.max_batch_size else shape, data
        )


def _compute_shape(spec: TensorSpec, count: int) -> list[int]:
    """Return the shape for a number of elements. Raises InvalidRequest."""
    shape = list(spec.dims)
    rest = math.prod(max(1, dim) for dim in shape)
    free = [index for index, dim in enumerate(shape) if dim == -1]
    for index in free:
        shape[index] = count // rest if index == free[-1] else 1
    if math.prod(shape) != count:
        raise InvalidRequest(f"The schema can not convert input '{spec.name}' to tensor with proper shape")
    return shape


def encode(head: RequestHead, response: InferResponse, limit_bytes: int) -> bytes:
    """Encode a response as one flat object of tensors and parameters, sorted by name as in Triton. A
    tensor of one element becomes a scalar. Raises InvalidRequest for a datatype that JSON cannot
    represent, Overloaded for a tensor with more than `limit_bytes` of JSON.
    """
    values = {tensor.name: _json_value(tensor, limit_bytes) for tensor in response.outputs}
    return _join(head, response.parameters or {}, values)


def encoder_of_data(head: RequestHead, like: Tensor, limit_bytes: int) -> Callable[[bytes], bytes]:
    """Return what encodes responses without parameters, by the data of their only tensor, which is otherwise
    `like` another. It raises as `encode`.
    """
    before, _, behind = _join(head, {}, {like.name: b"\0"}).partition(b"\0")  # never in JSON
    one_string = like.datatype == "BYTES" and math.prod(like.shape) == 1

    def encode_data(data: bytes) -> bytes:
        text = data[_LENGTH_BYTES:]
        whole = one_string and int.from_bytes(data[:_LENGTH_BYTES], "little") == len(text)
        if whole and _LONGEST_ESCAPE * len(data) < limit_bytes:
            value = orjson.dumps(text.decode(errors="replace"))
        else:
            value = _json_value(Tensor(like.name, like.datatype, like.shape, data), limit_bytes)
        return b"%b%b%b" % (before, value, behind)

    return encode_data


def _json_value(tensor: Tensor, limit_bytes: int) -> bytes:
    """Return a tensor as JSON, a scalar if it has one element. Raises as `encode`."""
    data = json_data(tensor, limit_bytes)
    return data[1:-1] if math.prod(tensor.shape) == 1 else data


def _join(head: RequestHead, parameters: JsonObject, values: Mapping[str, bytes]) -> bytes:
    answer = {**parameters, "model_name": head.model.name, "model_version": str(head.model.version)}
    if head.request_id:
        answer["id"] = head.request_id
    for name, value in values.items():
        answer[name] = orjson.Fragment(value)
    return orjson.dumps(answer, option=orjson.OPT_SORT_KEYS)
