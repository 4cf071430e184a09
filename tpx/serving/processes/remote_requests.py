"""Models, requests and responses as a frontend knows them: all but their data."""

import sys
from typing import cast

from tpx.errors import InvalidRequest, NotReady
from tpx.protocol import messages
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.processes import wire
from tpx.serving.processes.wire import FrameTemplate
from tpx.serving.request import (
    CHECKED_AT_ONCE_BYTES,
    Bound,
    BoundOutput,
    InferRequest,
    InferResponse,
    RequestHead,
)
from tpx.serving.signature import Signature

DOWN = "the engine of this server does not run; it is being started again"
"""Error of requests while there is no engine."""


class RemoteModel:
    """Implements RequestTarget: a model that the engine serves, or the one that answered a request."""

    retired = False

    def __init__(self, model: wire.Model) -> None:
        config = messages.ModelConfig.FromString(model.config)
        self.name, self.version = config.name, model.version
        self.max_batch_size = config.max_batch_size
        self.decoupled = config.model_transaction_policy.decoupled
        self.signature = Signature.of(config, model.labels)

    def submit(self, request: InferRequest) -> None:  # noqa: ARG002 (RequestTarget's signature)
        """Raise NotReady: requests are sent to the engine instead."""
        raise NotReady(DOWN)

    def cancelled(self) -> None:
        """Do nothing: the request's holder has notified the engine."""


class SharedSize:
    """Placeholder for tensor data in shared memory, which only the engine reads; it has only a length."""

    def __init__(self, size: int) -> None:
        self._size = min(max(0, size), sys.maxsize)  # the engine refuses ranges of other sizes

    def __len__(self) -> int:
        return self._size


class _InSharedMemory:
    """Implements SharedTensors in a frontend: the engine reads the inputs of every request."""

    def rebind(self, head: RequestHead) -> Bound:
        return Bound(head, [])


def bind_shared(model: RemoteModel, request: DecodedRequest) -> RequestHead:
    """Return the head of a request with tensors in shared memory.

    The engine reports the errors of such a request, because it checks the regions first.
    """
    for tensor, place in request.shared_inputs:
        varies = tensor.datatype == "BYTES"
        size = max(place.byte_size, CHECKED_AT_ONCE_BYTES + 1) if varies else place.byte_size
        tensor.data = cast("Buffer", SharedSize(size))
    try:
        # a copy: the cached head may belong to requests that carry their tensors
        known = model.signature.bind(model, request)
        head = known.with_outputs(known.outputs)
    except InvalidRequest:
        head = RequestHead(model, request.request_id, (), (), 1, request.parameters)
    for output, bound_output in zip(request.outputs, head.outputs, strict=False):
        if output.shared_memory is not None:
            bound_output.placement = wire.EnginePlacement()
            bound_output.binary = True
    head.converted = any(not each.binary or each.classification for each in head.outputs)
    head.placed = True
    if head.total_size >= 0 and 0 < len(head.inputs) == len(request.shared_inputs):
        head.shared = _InSharedMemory()
    return head


class RemoteOrigin:
    """Properties of a request other than its tensors, as sent to the engine."""

    __slots__ = ("_request", "has_shared", "template")

    def __init__(self, request: DecodedRequest, head: RequestHead) -> None:
        self._request = wire.Request.of(request)
        self.has_shared = bool(request.shared_inputs)
        self.template: FrameTemplate | None = None
        """Set if other requests with this head differ only in their tensors."""
        if head.shared is not None and not head.request_id:
            self.template = FrameTemplate(self.meta([]))
        elif head.reusable and not self.has_shared:
            self.template = FrameTemplate(self.meta([bound.size for bound in head.inputs]))

    def meta(self, sizes: list[int]) -> bytes:
        """Return the metadata of a request whose tensors have these sizes. Raises InvalidRequest."""
        self._request.sizes = sizes
        return wire.encode(self._request)


class RemoteTemplate:
    """Implements RemoteResponse: a response without its data."""

    __slots__ = ("_sizes", "_tensors", "head")

    def __init__(self, head: wire.WireResponse) -> None:
        self.head = head
        self._tensors = [(tensor.name, tensor.datatype, tensor.shape) for tensor in head.tensors]
        self._sizes = [tensor.size for tensor in head.tensors]

    def tensors(self, payload: Buffer) -> list[Tensor]:
        """Return the outputs with this data. Raises ValueError if its size differs."""
        buffers = wire.cut(payload, self._sizes)
        return [Tensor(*each, data) for each, data in zip(self._tensors, buffers, strict=True)]

    def response(self, payload: Buffer) -> InferResponse:
        """Return the response with this data. Raises ValueError if its size differs."""
        response = InferResponse(self.tensors(payload))
        response.parameters = self.head.parameters
        return response


UNKNOWN = RemoteTemplate(wire.WireResponse([], None, None))
"""A template that the engine has not defined."""


def with_described_outputs(head: RequestHead, described: wire.Described) -> RequestHead:
    """Return the head with the model that answered, and with its outputs."""
    model = RemoteModel(described.model)
    outputs = []
    for each in described.outputs:
        spec = model.signature.outputs[each.name]
        output = BoundOutput(spec, binary=each.binary, classification=each.classification)
        output.placement = wire.EnginePlacement() if each.placed else None
        outputs.append(output)
    other = RequestHead(model, head.request_id, head.inputs, tuple(outputs), head.batch_size, head.parameters)
    other.empty_final_response = head.empty_final_response
    other.placed = any(output.placement is not None for output in outputs)
    return other
