"""An inference request inside the server.

A request is a head and buffers. The head is everything but the tensors' bytes: validated once against the
model, and
shared by all requests that a client sends with the same head.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tpx.errors import InvalidRequest, TpxError
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.tensors import Buffer, Tensor, decode_bytes
from tpx.protocol.v2 import Parameter

_RENDERED_SHAPES = 64


class Servant(Protocol):
    """A model as its requests see it."""

    name: str
    version: int
    max_batch_size: int
    decoupled: bool
    retired: bool

    def submit(self, request: "InferRequest") -> None: ...
    def cancelled(self) -> None:
        """Note that one of its requests was cancelled."""


class Computation(Protocol):
    """When what happened to a request in its model; ns of time.perf_counter_ns, 0 for what did not happen."""

    @property
    def started_ns(self) -> int: ...
    @property
    def gathered_ns(self) -> int: ...
    @property
    def computed_ns(self) -> int: ...
    @property
    def ended_ns(self) -> int: ...


class _NotComputed:
    """Nothing has happened."""

    started_ns = gathered_ns = computed_ns = ended_ns = 0


NOT_COMPUTED: Computation = _NotComputed()
"""Of a request that no instance has seen: refused, answered from the cache, or by other models."""


class RequestTrace(Protocol):
    """Takes note of what happens to one request."""

    @property
    def context(self) -> str:
        """Return what OpenTelemetry calls the context, as JSON; "" where traces do not become spans."""

    def computed(self, request: "InferRequest", times: Computation, response: "InferResponse") -> None:
        """The model has a response."""

    def refused(self) -> None:
        """The model has not taken it."""

    def child(self, request: "InferRequest") -> "RequestTrace":
        """For a request that this one gives rise to, and that now goes to its model."""


class Holder(Protocol):
    """The reader of a request's responses."""

    def delivered(self, size: int) -> None:
        """A response of `size` bytes is with whoever sends it to the client."""

    def stall(self, stalled: bool) -> None:
        """The client does not take what was sent, or does again."""

    def end(self) -> None:
        """Note that responses are not wanted any more."""


class TensorSpec:
    """One input or output as the model's configuration has it.

    `dims` are without the batch dimension, -1 where they vary; `model_dims` are what the model file itself
    takes,
    where `reshape` makes them differ.
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
        """Requests with different shapes of it can be computed together."""
        self.labels = labels


class UnreadInput(Protocol):
    """An input whose buffer is filled by `read`, where the model computes."""

    def read(self) -> None:
        """Fill it; in any thread. Raises InvalidRequest."""


class SharedTensors(Protocol):
    """The shared memory of a head that is remembered."""

    def again(self, head: "RequestHead") -> "list[Buffer] | None":
        """Return the buffers of one more request, or None where the head is to be bound anew. Raises
        InvalidRequest, Overloaded."""


class Placement(Protocol):
    """A range of shared memory that an output goes to."""

    def put(self, output: str, data: Buffer) -> None:
        """Write it. Raises InvalidRequest where it does not fit."""


class BoundInput:
    """An input of a request: its spec, the shape for the model, and its size in bytes (-1: BYTES, which
    vary)."""

    __slots__ = ("data_size", "dtype", "shape", "size", "spec")

    def __init__(self, spec: TensorSpec, shape: tuple[int, ...], size: int, *, data_size: int) -> None:
        self.spec = spec
        self.shape = shape
        self.size = size
        self.data_size = data_size
        """What came, also of BYTES."""
        self.dtype = None if size < 0 else spec.dtype


class BoundOutput:
    """An output that the client gets, and how."""

    __slots__ = ("binary", "classification", "placement", "spec")

    def __init__(self, spec: TensorSpec, *, binary: bool, classification: int) -> None:
        self.spec = spec
        self.binary = binary
        self.classification = classification
        self.placement: Placement | None = None
        """Where it goes instead of into the answer."""


class RequestHead:
    """A validated request without its data."""

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
        "regions",
        "rendered",
        "request_id",
        "row_size",
        "shared",
        "timeout_ns",
        "total_size",
        "unread",
    )

    def __init__(
        self,
        model: "Servant",
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
        """Of the request; 1 where the model has no batch dimension."""
        self.parameters = parameters
        self.priority = int(parameters.get("priority", 0)) if parameters else 0
        """1 is the highest; 0 and levels that the model has not mean its default."""
        self.timeout_ns = int(parameters.get("timeout", 0)) * 1000 if parameters else 0
        self.empty_final_response = False
        """The client wants the empty final response of a decoupled model, too."""
        self.placed = False
        """Some output goes into shared memory."""
        self.origin: object = None
        """A frontend process' own: how the engine gets to know the request."""
        self.regions: Sequence[Any] = ()
        """The shared memory's own: what it must keep for the request."""
        self.shared: SharedTensors | None = None
        """Finds the inputs of another request with this head, which are in shared memory."""
        self.unread: Sequence[UnreadInput] = ()
        """Inputs of the request that is bound just now."""
        self.converted = any(not output.binary or output.classification for output in outputs)
        """Some output does not go into the answer as it is: as JSON, as classes, into shared memory."""
        rows = 1 if model.max_batch_size else 0
        self.batch_key: tuple[Any, ...] = tuple(
            (i.spec.name, () if i.spec.ragged else i.shape[rows:]) for i in inputs
        )
        """Requests with equal keys can be stacked; without a batch dimension they have the same shapes."""
        self.total_size = sum(i.size for i in inputs) if all(i.size >= 0 for i in inputs) else -1
        self.row_size = sum(i.data_size for i in inputs) // batch_size
        """Bytes of one row of all inputs; tells how much work a request is."""
        self.rendered: dict[Any, Any] = {}
        """What a frontend has made of the response's constant part, by the shapes of the outputs."""

    @property
    def reusable(self) -> bool:
        """Return whether another request with the same words before its tensors has the same head. One with
        an id seldom comes again; one that is placed would hold its region."""
        return self.total_size >= 0 and not self.request_id and not self.placed and self.shared is None

    def in_shared_memory(self, tensors: SharedTensors) -> "RequestHead":
        """The same request as one that has its inputs in shared memory, and is remembered."""
        other = self._varied(self.outputs, self.parameters)
        other.shared = tensors
        other.rendered = self.rendered
        return other

    def with_outputs(self, outputs: tuple[BoundOutput, ...]) -> "RequestHead":
        """The same request as one that wants other outputs: a model has not given those that it wants."""
        return self._varied(outputs, self.parameters)

    def with_parameters(self, parameters: dict[str, Parameter]) -> "RequestHead":
        """The same request as one that has other parameters."""
        return self._varied(self.outputs, parameters)

    def with_states(self, shapes: tuple[tuple[int, ...], ...]) -> "RequestHead":
        """The same request as one that is stacked only with others whose states have these shapes, too."""
        other = self._varied(self.outputs, self.parameters)
        other.batch_key = (other.batch_key, shapes)
        other.rendered = self.rendered
        return other

    def _varied(self, outputs: tuple[BoundOutput, ...], parameters: dict[str, Parameter]) -> "RequestHead":
        other = RequestHead(self.model, self.request_id, self.inputs, outputs, self.batch_size, parameters)
        other.empty_final_response = self.empty_final_response
        other.placed = self.placed
        other.converted = self.converted
        return other

    def remember_rendered(self, key: object, rendered: object) -> None:
        """Keep what is the same in every response with these output shapes; the memory is bounded."""
        if len(self.rendered) >= _RENDERED_SHAPES:
            self.rendered.clear()
        self.rendered[key] = rendered


def rendering_key(
    frontend: str, outputs: Sequence[Tensor], parameters: Mapping[str, Parameter] | None
) -> tuple[object, ...]:
    """Return the key of `RequestHead.rendered` for the constant part of a response."""
    if len(outputs) == 1 and not parameters:  # most answers, and less work
        return frontend, outputs[0].shape
    key: tuple[object, ...] = (frontend, *[tensor.shape for tensor in outputs])
    if parameters:
        # True and 1 are equal, but not the same parameter
        key += (*parameters.items(), *map(type, parameters.values()))
    return key


class InferRequest:
    """One request on its way through a model. Its answers come through `reply`, on the event loop: one, or
    of a
    decoupled model any number and then one that is final."""

    __slots__ = (
        "arrived_ns",
        "backpressure",
        "buffers",
        "cache_miss",
        "cancelled",
        "context",
        "head",
        "reply",
        "sequence",
        "trace",
        "unread",
    )

    def __init__(
        self,
        head: RequestHead,
        buffers: list[Buffer],
        reply: "Callable[[InferRequest, InferResponse], None]",
        context: Any,
    ) -> None:
        self.head = head
        self.buffers = buffers
        """Raw tensors, in the order of `head.inputs`."""
        self.reply = reply
        self.context = context
        """The frontend's own: whom to answer."""
        self.arrived_ns = 0
        self.cancelled = False
        self.cache_miss: Any = None
        """The cache's own: where its answer is to be kept."""
        self.sequence: Any = None
        """Its sequence, where the model has a sequence batcher."""
        self.trace: RequestTrace | None = None
        self.unread: Sequence[UnreadInput] = ()
        """Inputs whose buffers are not filled yet: their instance does that."""
        self.backpressure: Holder | None = None
        """Of a decoupled model: what keeps it from running ahead of the client. Of an ensemble: its steps."""

    def cancel(self) -> None:
        """Cancel the request: its answer is not wanted any more."""
        self.cancelled = True
        if self.backpressure is not None:
            self.backpressure.end()
        self.head.model.cancelled()

    def stall(self, stalled: bool) -> None:
        """The client does not take the responses that it has, or does again."""
        if self.backpressure is not None:
            self.backpressure.stall(stalled)


class InferResponse:
    """Outputs in the order of `head.outputs`, or an error. A decoupled model's last one, marked final, is
    empty."""

    __slots__ = ("error", "final", "outputs", "parameters")

    def __init__(self, outputs: list[Tensor], error: TpxError | None = None) -> None:
        self.outputs = outputs
        self.error = error
        self.final = True
        self.parameters: dict[str, Parameter] | None = None
        """What the model says besides."""

    @property
    def says_something(self) -> bool:
        """Return whether there is a response: of a decoupled model's last one often only that it is the
        last."""
        return bool(self.outputs or self.parameters) or not self.final


CHECKED_AT_ONCE_BYTES = 64 << 10
"""Up to this size a BYTES tensor is checked when its request comes. Walking the elements of a large one takes
seconds: that happens where the model computes, not on the event loop."""


def elements_of(model: str, name: str, data: Buffer, count: int) -> list[bytes]:
    """Return the `count` elements of input `name`.

    Raises InvalidRequest in Triton's words (core/src/infer_request.cc) where lengths and data do not agree.
    """
    try:
        return decode_bytes(data, count)
    except InvalidRequest as exc:
        head, _, rest = exc.message.partition(",")
        raise InvalidRequest(f"{head} for inference input '{name}' for model '{model}',{rest}") from exc


def with_request_id(error: InvalidRequest, request_id: str) -> InvalidRequest:
    """Return the error with the prefix that all errors of validating a request have."""
    return InvalidRequest(f"[request id: {request_id or '<id_unknown>'}] {error.message}")
