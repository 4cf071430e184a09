"""Requests over gRPC, encoded before the load starts; many are in flight on one HTTP/2 connection."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpx.perf.clients.base import PLAIN, Failure, OnResponse, RequestFields, Slot, brief, ignore_loss
from tpx.perf.clients.control import V2Control
from tpx.perf.clients.endpoint import Connections, Endpoint
from tpx.perf.clients.grpc_control import SERVICE, GrpcMethodCaller, metadata
from tpx.perf.clients.model import ModelKey
from tpx.perf.clients.tls import tls_context
from tpx.perf.clients.transport import GrpcCarrier, connect_grpc
from tpx.protocol import messages
from tpx.protocol.grpc.client_call import GrpcResponse, PreparedCall
from tpx.protocol.grpc.framing import frame_message, pack_prefix
from tpx.protocol.grpc.metadata import request_block
from tpx.protocol.grpc.status import Status
from tpx.protocol.protobuf_contents import encode_varint
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import Parameter, SharedMemoryRange
from tpx.protocol.v2_protobuf import set_parameters
from tpx.protocol.write_buffer import WriteCoalescing

log = logging.getLogger(__name__)
SLOTS_PER_CONNECTION = 16
"""Fewer connections cost the client less; more let a server with one thread per connection use its cores."""
# ModelInferRequest.parameters is a map<string, InferParameter>: in an entry, field 1 is the key, 2 the value
_PARAMETERS_TAG = bytes((4 << 3 | 2,))
_SEQUENCE_KEY = b"\x0a\x0bsequence_id\x12"
_INT64_TAG = bytes((2 << 3,))

Send = Callable[[Any, OnResponse], object]
"""Sends a request; returns an identifier of its call for `renew`."""


def connect(endpoint: Endpoint) -> Connections:
    """Return the connections to a v2 server over gRPC."""
    control = V2Control(GrpcMethodCaller(endpoint))
    if endpoint.wire.streaming:
        from tpx.perf.clients.grpc_stream import GrpcStreamClient, SingleStreamClient

        kind = SingleStreamClient if endpoint.wire.stream_per_request else GrpcStreamClient
        return Connections(kind(endpoint), control)
    return Connections(GrpcClient(endpoint), control)


class GrpcSlots:
    """The common part of the clients over gRPC: connections and the slots that share them.

    A slot sends on a carrier, which several slots share: a connection, unless a subclass uses streams.
    Connections that have ended are replaced.
    """

    success = int(Status.OK)
    slots_per_connection = float(SLOTS_PER_CONNECTION)

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.connections: list[GrpcCarrier] = []
        self._slots: list[Slot] = []
        self._tls = tls_context(endpoint.tls)
        self._replacing = asyncio.Lock()
        self._coalescing = WriteCoalescing()

    def send_on(self, carrier: Any) -> Send:
        """Return the carrier's own method that sends, so that no code of ours runs before the wire."""
        send: Send = carrier.call
        return send

    async def open(self, count: int) -> Sequence[Slot]:
        await self.resize(-(-count // SLOTS_PER_CONNECTION))
        return self.spread(count, self.connections)

    async def renew(self, slot: Slot, call: object) -> None:
        """Cancel the call if it is in flight; replace an ended connection for all of its slots."""
        broken: GrpcCarrier = slot.connection
        if isinstance(call, int):
            broken.cancel(call)
        if broken.closing:
            self.move(broken, await self.instead_of(broken))

    async def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.connections.clear()

    async def resize(self, count: int) -> None:
        """Open or close connections until there are exactly `count`, all usable. Raises WireError."""
        for surplus in self.connections[count:]:
            surplus.close()
        del self.connections[count:]
        while len(self.connections) < count:
            self.connections.append(await self._connect())
        for i, connection in enumerate(self.connections):
            if connection.closing:
                self.connections[i] = await self._connect()

    async def instead_of(self, broken: GrpcCarrier) -> GrpcCarrier:
        """Return a replacement for an ended connection; the first caller opens it.

        Raises WireError if it cannot connect.
        """
        async with self._replacing:
            # another caller replaced it while this one waited for the lock
            if broken not in self.connections:
                return min(self.connections, key=lambda c: c.in_flight)
            fresh = await self._connect()
            self.connections[self.connections.index(broken)] = fresh
            return fresh

    def spread(self, count: int, carriers: Sequence[object]) -> Sequence[Slot]:
        """Return exactly `count` slots, distributed evenly over the carriers.

        A slot in use keeps its carrier as long as that carrier is in `carriers`.
        """
        del self._slots[count:]
        while len(self._slots) < count:
            self._slots.append(Slot(None, self.send_on(carriers[0])))
        load = dict.fromkeys(map(id, carriers), 0)
        homeless = []
        for slot in self._slots:
            # an idle slot may move; one in use only if its carrier is gone
            if slot.on_lost is ignore_loss or id(slot.connection) not in load:
                homeless.append(slot)
            else:
                load[id(slot.connection)] += 1
        for slot in homeless:
            carrier = min(carriers, key=lambda c: load[id(c)])
            load[id(carrier)] += 1
            slot.connection, slot.send = carrier, self.send_on(carrier)
        return self._slots

    def move(self, broken: object, fresh: object) -> None:
        """Move all slots of an ended carrier to another one."""
        for slot in self._slots:
            if slot.connection is broken:
                slot.connection, slot.send = fresh, self.send_on(fresh)

    async def _connect(self) -> GrpcCarrier:
        return await connect_grpc(self.endpoint, self._tls, self._coalescing)


class GrpcClient(GrpcSlots):
    """Implements Client."""

    streams = False

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> PreparedCall:
        message = infer_message(self.endpoint.model, tensors, fields, fields.all_parameters)
        block = header_block(self.endpoint, SERVICE + "ModelInfer")
        return PreparedCall(block, frame_message(message, self.endpoint.wire.compression))

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> "GrpcTemplate":
        message = infer_message(self.endpoint.model, tensors, fields, flags_only(fields))
        block = header_block(self.endpoint, SERVICE + "ModelInfer")
        return GrpcTemplate(block, message, self.endpoint.wire.compression)

    def failure(self, response: GrpcResponse) -> Failure:
        return call_failure(response)


def call_failure(response: GrpcResponse) -> Failure:
    """Return the failure that an unsuccessful call describes."""
    return Failure(f"gRPC {Status(response.status).name}", response.message or "(no message)")


def infer_message(
    model: ModelKey, tensors: Sequence[Tensor], fields: RequestFields, parameters: Mapping[str, Parameter]
) -> bytes:
    """Serialize a ModelInferRequest; `parameters` replace those of `fields`."""
    message = messages.ModelInferRequest(model_name=model.name, model_version=model.version)
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
    """Return the parameters of a request template: all but the sequence id."""
    parameters = fields.all_parameters
    parameters.pop("sequence_id", None)
    return parameters | {"sequence_start": fields.sequence_start, "sequence_end": fields.sequence_end}


def sequence_field(sequence: int) -> bytes:
    """Encode the parameter `sequence_id` as a separate field, which may precede all others of a request."""
    value = _INT64_TAG + encode_varint(sequence)
    entry = _SEQUENCE_KEY + bytes((len(value),)) + value
    return _PARAMETERS_TAG + bytes((len(entry),)) + entry


def header_block(endpoint: Endpoint, path: str) -> bytes:
    """Return the constant header block of calls to an endpoint."""
    return request_block(
        path,
        f"{endpoint.host}:{endpoint.port}",
        metadata(endpoint),
        tls=endpoint.tls is not None,
        encoding=endpoint.wire.compression,
    )


class GrpcTemplate:
    """Implements Template: prepends the sequence id to the encoded rest of the message.

    With compression, every request is compressed anew, because the id is part of the compressed data.
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
            return PreparedCall(self._block, frame_message(field + self._rest, self._encoding))
        size = len(field)
        shape = self._shapes.get(size)
        if shape is None:
            # ids of equal length share the prefix and the frame headers
            prefix = pack_prefix(0, size + len(self._rest))
            shape = self._shapes[size] = prefix, PreparedCall(self._block, prefix + field + self._rest)
        return shape[1].with_message(b"".join((shape[0], field, self._rest)))
