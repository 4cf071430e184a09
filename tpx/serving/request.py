"""An inference request inside the server.

A request consists of a head and buffers. The head is everything except the tensors' bytes; it is
validated once against the model and shared by all requests that a client sends with the same head.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from tpx.errors import InvalidRequest, TpxError
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Array, Buffer, Tensor, decode_bytes
from tpx.protocol.v2 import HeldRegion, Parameter

_RENDERED_SHAPES = 64
_NEVER_NS = 2**63

CorrelationId = int | str


class RequestTarget(Protocol):
    """A model as its requests see it."""

    name: str
    version: int
    max_batch_size: int
    decoupled: bool
    retired: bool

    def submit(self, request: "InferRequest") -> None: ...
    def cancelled(self) -> None:
        """Schedule a purge of cancelled requests."""


class Computation(Protocol):
    """Timestamps of a request's phases in its model, by time.perf_counter_ns; 0 for phases that did not
    take place.
    """

    @property
    def started_ns(self) -> int: ...
    @property
    def gathered_ns(self) -> int: ...
    @property
    def computed_ns(self) -> int: ...
    @property
    def ended_ns(self) -> int: ...


class _NotComputed:
    """All timestamps are 0."""

    started_ns = gathered_ns = computed_ns = ended_ns = 0


NOT_COMPUTED: Computation = _NotComputed()
"""Times of a request that reached no instance: refused, cached, or computed by other models."""


class RequestTrace(Protocol):
    """Records the events of one request."""

    @property
    def context(self) -> str:
        """OpenTelemetry context as JSON; "" if traces are not exported as spans."""

    def computed(self, request: "InferRequest", times: Computation, response: "InferResponse") -> None:
        """Record a response of the model."""

    def refused(self) -> None:
        """Record that the model did not accept the request."""

    def child(self, request: "InferRequest") -> "RequestTrace":
        """Return the trace of a request that this one causes, which is about to be submitted."""


class Holder(Protocol):
    """Backpressure on the producer of a request's responses."""

    def delivered(self, size: int) -> None:
        """Note that a response of `size` bytes was handed to the frontend."""

    def stall(self, stalled: bool) -> None:
        """Pause or resume, as the client has stopped or resumed reading."""

    def end(self) -> None:
        """End the request: no more responses are needed."""


class TensorSpec:
    """An input or output as configured.

    `dims` exclude the batch dimension, with -1 for variable ones; `model_dims` are those of the model
    file, which differ if there is a `reshape`.
    """

    __slots__ = ("datatype", "dims", "dtype", "labels", "model_dims", "name", "optional", "ragged")

    def __init__(
        self,
        name: str,
        datatype: str,
        dims: tuple[int, ...],
        *,
        model_dims: tuple[int, ...] | None = None,
        optional: bool = False,
        ragged: bool = False,
        labels: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.dtype = BY_NAME[datatype].numpy
        self.dims = dims
        self.model_dims = dims if model_dims is None else model_dims
        self.optional = optional
        self.ragged = ragged
        """True if requests with different shapes of this input may share a batch."""
        self.labels = labels


class UnreadInput(Protocol):
    """An input whose buffer is filled by `read` just before it is computed."""

    memory: memoryview

    @property
    def gpu_address(self) -> int:
        """Return the address of its data in GPU memory, 0 if it is in host memory."""

    def read(self) -> None:
        """Fill the buffer. May run in any thread. Raises InvalidRequest."""

    def read_into(self, memory: memoryview) -> None:
        """Fill other memory instead, which is as long."""


class SharedTensors(Protocol):
    """Shared memory inputs of a remembered head."""

    def rebind(self, head: "RequestHead") -> "Bound | None":
        """Bind another request with this head; return None if it must be decoded and bound anew. Raises
        InvalidRequest, Overloaded.
        """


class Placement(Protocol):
    """A range of shared memory to write an output to."""

    def put(self, output: str, data: Buffer) -> None:
        """Write the output. Raises InvalidRequest if it does not fit."""


class BoundInput:
    """An input of a request: its spec, the shape for the model, and its size in bytes (-1 for BYTES,
    whose size varies).
    """

    __slots__ = ("data_size", "dtype", "shape", "size", "spec")

    def __init__(self, spec: TensorSpec, shape: tuple[int, ...], size: int, *, data_size: int) -> None:
        self.spec = spec
        self.shape = shape
        self.size = size
        self.data_size = data_size
        """Bytes received, for BYTES too."""
        self.dtype = None if size < 0 else spec.dtype


class BoundOutput:
    """A requested output and its form."""

    __slots__ = ("binary", "classification", "placement", "spec")

    def __init__(self, spec: TensorSpec, *, binary: bool, classification: int) -> None:
        self.spec = spec
        self.binary = binary
        self.classification = classification
        self.placement: Placement | None = None
        """Shared memory to write to instead of the response."""


class RequestHead:
    """A validated request without its tensor data.

    Requests share it, so it does not change once it is bound; only `rendered`, a cache, grows. The state of
    one request is in `Bound` and `InferRequest`.
    """

    __slots__ = (
        "batch_key",
        "batch_size",
        "converted",
        "empty_final_response",
        "inputs",
        "model",
        "origin",
        "outputs",
        "parameters",
        "placed",
        "priority",
        "rendered",
        "request_id",
        "row_size",
        "shared",
        "timeout_ns",
        "total_size",
    )

    def __init__(
        self,
        model: "RequestTarget",
        request_id: str,
        inputs: tuple[BoundInput, ...],
        outputs: tuple[BoundOutput, ...],
        batch_size: int,
        parameters: dict[str, Parameter],
    ) -> None:
        self.model = model
        self.request_id = request_id
        self.inputs = inputs
        self.outputs = outputs
        self.batch_size = batch_size
        """Batch size of the request; 1 if the model has no batch dimension."""
        self.parameters = parameters
        self.priority = int(parameters.get("priority", 0)) if parameters else 0
        """Priority level, 1 being the highest. 0 and unknown levels mean the model's default."""
        self.timeout_ns = int(parameters.get("timeout", 0)) * 1000 if parameters else 0
        self.empty_final_response = False
        """True if the client wants the empty final response of a decoupled model."""
        self.placed = False
        """True if some output goes to shared memory."""
        self.origin: object = None
        """Data of a frontend process: how the engine identifies the request."""
        self.shared: SharedTensors | None = None
        """Finds the inputs of further requests with this head in shared memory."""
        self.converted = any(not output.binary or output.classification for output in outputs)
        """True if some output needs conversion: to JSON, classes, or shared memory."""
        rows = 1 if model.max_batch_size else 0
        self.batch_key: tuple[object, ...] = tuple(
            (i.spec.name, () if i.spec.ragged else i.shape[rows:]) for i in inputs
        )
        """Key of the requests that can be stacked; without a batch dimension these have equal shapes."""
        self.total_size = sum(i.size for i in inputs) if all(i.size >= 0 for i in inputs) else -1
        self.row_size = sum(i.data_size for i in inputs) // batch_size
        """Bytes of one row of all inputs, an estimate of the work per row."""
        self.rendered: dict[object, Any] = {}
        """Constant parts of responses as rendered by a frontend, by output shapes."""

    @property
    def reusable(self) -> bool:
        """True if another request with the same bytes before its tensors has the same head. A request
        id seldom repeats, and a head with placed outputs would hold its region.
        """
        return self.total_size >= 0 and not self.request_id and not self.placed and self.shared is None

    def repeat(
        self,
        tensors: "list[Buffer]",
        reply: "Callable[[InferRequest, InferResponse], None]",
        context: object,
    ) -> "InferRequest | None":
        """Return another request with this head, and with `tensors` unless these are in shared memory.

        Returns None if it must be decoded and bound anew. Raises InvalidRequest, Overloaded.
        """
        if self.shared is None:
            return InferRequest(self, tensors, reply, context)
        bound = self.shared.rebind(self)
        return None if bound is None else bound.request(reply, context)

    def in_shared_memory(self, tensors: SharedTensors) -> "RequestHead":
        """Return a copy of this head to remember, whose inputs are in shared memory."""
        other = self._copy_with(self.outputs, self.parameters)
        other.shared = tensors
        other.rendered = self.rendered
        return other

    def with_outputs(self, outputs: tuple[BoundOutput, ...]) -> "RequestHead":
        """Return a copy with other outputs, for a model that did not produce all requested ones."""
        return self._copy_with(outputs, self.parameters)

    def with_parameters(self, parameters: dict[str, Parameter]) -> "RequestHead":
        """Return a copy with other parameters."""
        return self._copy_with(self.outputs, parameters)

    def with_states(self, shapes: tuple[tuple[int, ...], ...]) -> "RequestHead":
        """Return a copy that is stacked only with requests whose states have the same shapes."""
        other = self._copy_with(self.outputs, self.parameters)
        other.batch_key = (other.batch_key, shapes)
        other.rendered = self.rendered
        return other

    def _copy_with(self, outputs: tuple[BoundOutput, ...], parameters: dict[str, Parameter]) -> "RequestHead":
        other = RequestHead(self.model, self.request_id, self.inputs, outputs, self.batch_size, parameters)
        other.empty_final_response = self.empty_final_response
        other.placed = self.placed
        other.converted = self.converted
        return other

    def remember_rendered(self, key: object, rendered: object) -> None:
        """Cache the constant part of responses with these output shapes, in bounded memory."""
        if len(self.rendered) >= _RENDERED_SHAPES:
            self.rendered.clear()
        self.rendered[key] = rendered


def rendering_key(
    frontend: str, outputs: Sequence[Tensor], parameters: Mapping[str, Parameter] | None
) -> tuple[object, ...]:
    """Return the key in `RequestHead.rendered` for the constant part of a response."""
    if len(outputs) == 1 and not parameters:  # the common case, with a cheaper key
        return frontend, outputs[0].shape
    key: tuple[object, ...] = (frontend, *[tensor.shape for tensor in outputs])
    if parameters:
        # True == 1, but they are different parameters: include the types
        key += (*parameters.items(), *map(type, parameters.values()))
    return key


@dataclass(slots=True, eq=False, repr=False)
class InferRequest:
    """A request in progress. `reply` is called on the event loop with each response: one, or for a
    decoupled model any number, the last marked final.
    """

    head: RequestHead
    buffers: list[Buffer]
    """Raw tensors, in the order of `head.inputs`."""
    reply: "Callable[[InferRequest, InferResponse], None]"
    context: Any
    """Frontend data that identifies the connection or stream to answer."""
    arrived_ns: int = 0
    cancelled: bool = False
    cache_miss: "CacheMiss | None" = None
    """Set if the response must be stored in the cache."""
    sequence: "LiveSequence | None" = None
    """Its sequence, if the model has a sequence batcher."""
    trace: RequestTrace | None = None
    unread: Sequence[UnreadInput] = ()
    """Inputs whose buffers the instance must fill."""
    regions: Sequence[HeldRegion] = ()
    """Shared memory regions to hold until the request has ended."""
    template_of: "Callable[[InferRequest, InferResponse], Callable[[list[bytes]], None] | None] | None" = None
    """Returns `pieces` for further responses like one that was sent, or None. They are not final, have no
    parameters, and one tensor of the same name, datatype and shape.
    """
    pieces: "Callable[[list[bytes]], None] | None" = None
    """Takes the data of such responses' tensors instead of `reply`: no object is needed per response."""
    tokens: tuple[int, int] | None = None
    """Tokens of the prompt, and generated ones, of a language model; set before the final response."""
    backpressure: Holder | None = None
    """Limits how far a decoupled model runs ahead of the client; for an ensemble, that of its steps."""

    @property
    def live_sequence(self) -> "LiveSequence":
        """Return the request's sequence; its model has a sequence batcher."""
        assert self.sequence is not None
        return self.sequence

    def cancel(self) -> None:
        """Cancel the request: its response is no longer needed."""
        self.cancelled = True
        if self.backpressure is not None:
            self.backpressure.end()
        self.head.model.cancelled()

    def stall(self, stalled: bool) -> None:
        """Pause or resume the model, as the client has stopped or resumed reading."""
        if self.backpressure is not None:
            self.backpressure.stall(stalled)


class Bound(msgspec.Struct, frozen=True):
    """A request that was bound to its model: a head that others may share, and what is its own."""

    head: RequestHead
    buffers: list[Buffer]
    """Raw tensors, in the order of `head.inputs`."""
    regions: Sequence[HeldRegion] = ()
    """Shared memory regions to hold until the request has ended."""
    unread: Sequence[UnreadInput] = ()
    """Inputs whose buffers the instance must fill."""

    def request(
        self, reply: "Callable[[InferRequest, InferResponse], None]", context: object
    ) -> InferRequest:
        """Return the request, to be submitted once."""
        return InferRequest(self.head, self.buffers, reply, context, regions=self.regions, unread=self.unread)


class CacheMiss(NamedTuple):
    """A cache miss: the key for the response, and the duration of the lookup."""

    key: bytes
    lookup_ns: int


@dataclass(slots=True, eq=False)
class LiveSequence:
    """A sequence between its first and last request."""

    id: CorrelationId
    queue: deque[InferRequest] = field(default_factory=deque)
    instance: int = -1
    """Its instance; -1 while it waits in the backlog."""
    slot: int = -1
    busy: bool = False
    """True while one of its requests is computing."""
    continues: bool = False
    """True if the model has rescheduled the computing request."""
    ended: bool = False
    """True after its last request has arrived, or after it was abandoned; its slot is released when it has
    no request left.
    """
    deadline_ns: int = _NEVER_NS
    """Deadline in the backlog."""
    touched_ns: int = 0
    """When it got its slot, or its last request was computed."""
    states: dict[str, Array] = field(default_factory=dict)
    """State between requests, by the name of the state's input."""


class InferResponse:
    """Outputs in the order of `head.outputs`, or an error. The final response of a decoupled model is
    empty.
    """

    __slots__ = ("error", "final", "outputs", "parameters")

    def __init__(self, outputs: list[Tensor], error: TpxError | None = None) -> None:
        self.outputs = outputs
        self.error = error
        self.final = True
        self.parameters: dict[str, Parameter] | None = None
        """Response parameters set by the model."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the outputs."""
        return sum(len(tensor.data) for tensor in self.outputs)

    @property
    def has_content(self) -> bool:
        """True if there is content to send; the final response of a decoupled model often has none."""
        return bool(self.outputs or self.parameters) or not self.final


def response_like(tensor: Tensor, data: Buffer) -> InferResponse:
    """Return a response that is not final, whose only tensor differs from `tensor` in its data."""
    response = InferResponse([Tensor(tensor.name, tensor.datatype, tensor.shape, data)])
    response.final = False
    return response


CHECKED_AT_ONCE_BYTES = 64 << 10
"""Maximum size of a BYTES tensor that is validated on the event loop. Parsing the elements of a large
one takes seconds and is left to the instance.
"""


def elements_of(model: str, name: str, data: Buffer, count: int) -> list[bytes]:
    """Return the `count` elements of input `name`.

    Raises InvalidRequest, with Triton's wording (core/src/infer_request.cc), if lengths and data
    disagree.
    """
    try:
        return decode_bytes(data, count)
    except InvalidRequest as exc:
        head, _, rest = exc.message.partition(",")
        raise InvalidRequest(f"{head} for inference input '{name}' for model '{model}',{rest}") from exc


def with_request_id(error: InvalidRequest, request_id: str) -> InvalidRequest:
    """Return the error with the prefix that all validation errors have."""
    return InvalidRequest(f"[request id: {request_id or '<id_unknown>'}] {error.message}")


def drop_response(request: InferRequest, response: InferResponse) -> None:
    """Drop the response of a request that no client made."""
