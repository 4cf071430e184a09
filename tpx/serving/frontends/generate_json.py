"""The flat JSON of the generate extension: an object as tensors and parameters, outputs as an object."""

import json
import math
from dataclasses import dataclass
from typing import Any

import orjson

from tpx.errors import InvalidRequest
from tpx.protocol.json_outline import LARGE_BYTES, check_flat
from tpx.protocol.json_values import checked_text, encode_values, json_data
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.request import InferResponse, RequestHead, TensorSpec
from tpx.serving.signature import Signature


def decode(body: Buffer, signature: Signature) -> DecodedRequest:
    """The request in a flat JSON object: a member that names an input of the model is a tensor, any other a
    parameter. Raises InvalidRequest."""
    request = DecodedRequest()
    for key, value in _parse(body).members:
        if key == "id" and key not in signature.inputs:
            if not isinstance(value, str):
                raise InvalidRequest("Unable to parse 'id': attempt to access JSON non-string as string")
            request.request_id = request.request_id or checked_text("id", value)  # the first counts
        elif key == "parameters":
            _take_nested(request, signature, value)
        else:
            _take(request, signature, key, value)
    return request


@dataclass(frozen=True, slots=True)
class _Object:
    """A JSON object with repeated members, of which Python's keep only the last."""

    members: list[tuple[str, Any]]


class _NotAParameter(InvalidRequest):
    """A value that no request parameter can have."""


def _parse(body: Buffer) -> _Object:
    if len(body) > LARGE_BYTES:
        check_flat(body)
    try:
        value = json.loads(bytes(body).decode(), object_pairs_hook=_Object)
    except RecursionError:
        raise InvalidRequest("JSON nesting depth exceeds maximum allowed limit (100)") from None
    except ValueError as exc:
        raise InvalidRequest(f"failed to parse the request JSON buffer: {exc}") from exc
    if not isinstance(value, _Object):
        raise InvalidRequest("attempt to get members for non-object")
    return value


def _take_nested(request: DecodedRequest, signature: Signature, value: Any) -> None:
    if "parameters" in signature.inputs:
        raise InvalidRequest("Keyword 'parameters' for nested schema also given as input tensor name")
    if not isinstance(value, _Object):
        raise InvalidRequest(
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"
        )
    for key, nested in value.members:
        try:
            _take(request, signature, key, nested)
        except _NotAParameter as exc:
            raise InvalidRequest(f"Converting keyword: 'parameters': {exc.message}") from exc


def _take(request: DecodedRequest, signature: Signature, key: str, value: Any) -> None:
    spec = signature.inputs.get(key)
    if spec is not None:
        request.inputs.append(_tensor(spec, value, batched=signature.max_batch_size > 0))
    elif isinstance(value, str | int | float):
        request.parameters[checked_text("parameters", key)] = (
            checked_text(key, value) if isinstance(value, str) else value
        )
    else:
        raise _NotAParameter(
            f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )


def _tensor(spec: TensorSpec, value: Any, *, batched: bool) -> Tensor:
    """A scalar or list as the tensor of an input: the innermost variable dimension takes the count."""
    flat = value if isinstance(value, list) else [value]
    shape = list(spec.dims)
    rest = math.prod(max(1, dim) for dim in shape)
    free = [index for index, dim in enumerate(shape) if dim == -1]
    for index in free:
        shape[index] = len(flat) // rest if index == free[-1] else 1
    count = math.prod(shape)
    if count != len(flat):
        raise InvalidRequest(f"The schema can not convert input '{spec.name}' to tensor with proper shape")
    data = encode_values(spec.name, spec.datatype, count, flat)
    return Tensor(spec.name, spec.datatype, [1, *shape] if batched else shape, data)


def encode(head: RequestHead, response: InferResponse) -> bytes:
    """The answer as one flat object of tensors and parameters, its members in the order of their names, as
    Triton has them; a tensor of one element is that element. Raises InvalidRequest for a datatype that JSON
    cannot show."""
    answer: dict[str, Any] = dict(response.parameters or {})
    answer |= {"model_name": head.model.name, "model_version": str(head.model.version)}
    if head.request_id:
        answer["id"] = head.request_id
    for tensor in response.outputs:
        data = json_data(tensor)
        one = math.prod(tensor.shape) == 1
        answer[tensor.name] = orjson.Fragment(data[1:-1] if one else data)
    return orjson.dumps(answer, option=orjson.OPT_SORT_KEYS)
