"""Inference requests over gRPC, encoded once before they are sent: messages, calls, sequences' templates."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tpx.perf.clients.base import RequestFields
from tpx.perf.clients.endpoint import Endpoint
from tpx.perf.clients.model import ModelKey
from tpx.perf.clients.told import brief
from tpx.protocol import messages
from tpx.protocol.compression import deflate
from tpx.protocol.grpc.client_call import PreparedCall
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.grpc.metadata import request_block
from tpx.protocol.protobuf_contents import encode_varint
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import Parameter, SharedMemoryRange
from tpx.protocol.v2_protobuf import set_parameters

log = logging.getLogger(__name__)
SERVICE = "/inference.GRPCInferenceService/"
_PARAMETERS_TAG = bytes((4 << 3 | 2,))
_SEQUENCE_KEY = b"\x0a\x0bsequence_id\x12"
_INT64_TAG = bytes((2 << 3,))


def infer_message(
    model: ModelKey, tensors: Sequence[Tensor], fields: RequestFields, parameters: Mapping[str, Parameter]
) -> bytes:
    """A serialized ModelInferRequest; `parameters` stand for those of `fields`."""
    message = messages.ModelInferRequest(model_name=model.name, model_version=model.version, id=fields.id)
    set_parameters(message.parameters, parameters)
    for tensor in tensors:
        item = message.inputs.add(name=tensor.name, datatype=tensor.datatype)
        item.shape.extend(tensor.shape)
        place = fields.shared_inputs.get(tensor.name)
        if place is not None:
            _set_place(item, place)
        else:
            message.raw_input_contents.append(bytes(tensor.data))
    for output in fields.outputs:
        wanted = message.outputs.add(name=output.name)
        set_parameters(wanted.parameters, output.parameters)
        if output.classification:
            wanted.parameters["classification"].int64_param = output.classification
        if output.shared_memory is not None:
            _set_place(wanted, output.shared_memory)
    data: bytes = message.SerializeToString(deterministic=True)
    if log.isEnabledFor(logging.DEBUG):
        size = sum(map(len, message.raw_input_contents))
        message.ClearField("raw_input_contents")
        log.debug("request: %s, %d bytes of tensors behind it", brief(str(message)), size)
    return data


def _set_place(item: Any, place: SharedMemoryRange) -> None:
    item.parameters["shared_memory_region"].string_param = place.region
    item.parameters["shared_memory_byte_size"].int64_param = place.byte_size
    if place.offset:
        item.parameters["shared_memory_offset"].int64_param = place.offset


def flags_only(fields: RequestFields) -> dict[str, Parameter]:
    """The parameters of a request of whatever sequence: all but the sequence's id."""
    parameters = fields.all_parameters
    parameters.pop("sequence_id", None)
    return parameters | {"sequence_start": fields.sequence_start, "sequence_end": fields.sequence_end}


def sequence_field(sequence: int) -> bytes:
    """The parameter `sequence_id` as a field of its own, which may stand before all others of a request."""
    value = _INT64_TAG + encode_varint(sequence)
    entry = _SEQUENCE_KEY + bytes((len(value),)) + value
    return _PARAMETERS_TAG + bytes((len(entry),)) + entry


def metadata(endpoint: Endpoint) -> dict[str, str | bytes]:
    """Names of metadata are lower case, values carry no blanks at their ends; `-bin` ones are bytes."""
    pairs = ((h.name.lower(), h.value.strip()) for h in endpoint.headers)
    return {name: value.encode() if name.endswith("-bin") else value for name, value in pairs}


def header_block(endpoint: Endpoint, path: str) -> bytes:
    """The constant header block of calls to an endpoint."""
    return request_block(
        path,
        f"{endpoint.host}:{endpoint.port}",
        metadata(endpoint),
        tls=endpoint.tls is not None,
        encoding=endpoint.wire.compression,
    )


def framed(message: bytes, encoding: str) -> bytes:
    """A message behind its prefix, compressed where `encoding` is one."""
    if not encoding:
        return frame_message(message)
    packed = deflate(message, encoding)
    return pack_prefix(1, len(packed)) + packed


class GrpcTemplate:
    """Implements Template: the sequence's id goes before the rest, which is encoded already.

    A compressed message is compressed for each request, as there is no other way.
    """

    __slots__ = ("_block", "_encoding", "_rest", "_shapes")

    def __init__(self, block: bytes, rest: bytes, encoding: str) -> None:
        self._block = block
        self._rest = rest
        self._encoding = encoding
        self._shapes: dict[int, tuple[bytes, PreparedCall]] = {}

    def fill(self, sequence: int) -> PreparedCall:
        field = sequence_field(sequence)
        if self._encoding:
            return PreparedCall(self._block, framed(field + self._rest, self._encoding))
        size = len(field)
        shape = self._shapes.get(size)
        if shape is None:
            # all but the message itself is the same for ids of the same length
            prefix = pack_prefix(0, size + len(self._rest))
            shape = self._shapes[size] = prefix, PreparedCall(self._block, prefix + field + self._rest)
        return shape[1].with_message(b"".join((shape[0], field, self._rest)))
