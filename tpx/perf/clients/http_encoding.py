"""Inference requests over HTTP, encoded once before they are sent: JSON head, raw tensors, templates."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from tpx.errors import UsageError
from tpx.perf.clients.base import RequestFields
from tpx.perf.clients.told import brief
from tpx.protocol.json_values import json_data
from tpx.protocol.tensors import Buffer, Tensor, decode_bytes
from tpx.protocol.v2 import RequestedOutput, SharedMemoryRange

log = logging.getLogger(__name__)
ANY_SEQUENCE = 2**64 - 1
"""Stands for the sequence in a template: the longest number, which no generated sequence has."""
JOIN_BELOW_BYTES = 64 << 10
"""Smaller requests are copied into one run of bytes, which costs less than a write of several."""


def infer_body(
    tensors: Sequence[Tensor], fields: RequestFields, *, input_binary: bool, output_binary: bool
) -> tuple[bytes, list[Buffer]]:
    """The JSON head of a request, and the raw tensors behind it.

    Raises UsageError for a tensor that JSON cannot hold.
    """
    head: dict[str, Any] = {"id": fields.id} if fields.id else {}
    parameters = fields.all_parameters
    if output_binary and not fields.outputs:
        parameters = {"binary_data_output": True} | parameters
    if parameters:
        head["parameters"] = parameters
    tail: list[Buffer] = []
    head["inputs"] = [_input(tensor, fields, tail, binary=input_binary) for tensor in tensors]
    if fields.outputs:
        head["outputs"] = [_output(output, binary=output_binary) for output in fields.outputs]
    words = orjson.dumps(head)
    log.debug("request: %s, %d bytes of tensors behind it", brief(words), sum(map(len, tail)))
    return words, tail


def _input(tensor: Tensor, fields: RequestFields, tail: list[Buffer], *, binary: bool) -> dict[str, Any]:
    item: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    place = fields.shared_inputs.get(tensor.name)
    if place is not None:
        item["parameters"] = _place(place)
    elif binary:
        item["parameters"] = {"binary_data_size": len(tensor.data)}
        tail.append(tensor.data)
    else:
        item["data"] = orjson.Fragment(_json(tensor))
    return item


def _json(tensor: Tensor) -> bytes:
    what = f"--input-tensor-format json: input '{tensor.name}'"
    if tensor.datatype in ("FP16", "BF16"):
        raise UsageError(
            f"{what} is {tensor.datatype}, which the v2 protocol has no JSON form for; use binary"
        )
    if tensor.datatype == "BYTES":
        try:
            for element in decode_bytes(tensor.data, math.prod(tensor.shape)):
                element.decode()
        except UnicodeDecodeError as exc:
            raise UsageError(f"{what} holds bytes that are not text, which JSON cannot carry") from exc
    return json_data(tensor)


def _output(output: RequestedOutput, *, binary: bool) -> dict[str, Any]:
    parameters: dict[str, Any] = dict(output.parameters)
    if output.classification:
        parameters["classification"] = output.classification
    if output.shared_memory is not None:
        parameters |= _place(output.shared_memory)
    else:
        parameters["binary_data"] = binary and output.binary
    return {"name": output.name, "parameters": parameters}


def _place(place: SharedMemoryRange) -> dict[str, Any]:
    out: dict[str, Any] = {"shared_memory_region": place.region, "shared_memory_byte_size": place.byte_size}
    return out | ({"shared_memory_offset": place.offset} if place.offset else {})


class HttpTemplate:
    """Implements Template: the number is padded with blanks, so that no length ever changes."""

    __slots__ = ("_before", "_behind", "_small")

    def __init__(self, before: bytes, behind: list[Buffer]) -> None:
        self._before = before
        self._small = sum(len(part) for part in behind) < JOIN_BELOW_BYTES
        self._behind: list[Buffer] = [b"".join(behind)] if self._small else behind

    def fill(self, sequence: int) -> Buffer | list[Buffer]:
        before = b"%b%-20d" % (self._before, sequence)
        return b"".join((before, *self._behind)) if self._small else [before, *self._behind]


def of_any_sequence(fields: RequestFields) -> RequestFields:
    """The same fields with the number that a template has in the place of the sequence."""
    return replace(fields, sequence=ANY_SEQUENCE)


def cut_template(request: Sequence[Buffer]) -> HttpTemplate:
    """The template of an encoded request for `of_any_sequence`."""
    number = b"%d" % ANY_SEQUENCE
    for i, part in enumerate(request):
        before, found, behind = bytes(part).partition(b'"sequence_id":' + number)
        if found:
            parts = [*request[:i], before + b'"sequence_id":']
            return HttpTemplate(b"".join(parts), [behind, *request[i + 1 :]])
    raise UsageError("a request without a sequence has no template")
