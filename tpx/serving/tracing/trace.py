"""The trace of one request: timestamps, input and output tensors, and its position among spans.

The position follows W3C Trace Context, from the headers `traceparent` and `tracestate`.
"""

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import orjson

from tpx.protocol.tensors import Tensor
from tpx.serving.request import Computation, InferRequest, InferResponse, RequestHead
from tpx.serving.tracing.settings import Level

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_VERSION = "ff"
_SAMPLED = 1
_MAX_STATE = 512
_ELEMENTS_AT_ONCE = 4096
"""Number of elements that numpy formats before other threads may run."""


class Caller(NamedTuple):
    """The caller's span."""

    trace_id: int
    span_id: int
    sampled: bool
    """True if the caller records its span."""
    state: str = ""
    """State of other tracing systems, passed on unchanged."""

    @property
    def traceparent(self) -> str:
        """Return the header that `read_caller` parses."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"


class SpanIds(NamedTuple):
    """Ids of a trace among spans: of its model's span and of the parent span.

    The parent is the span of the request or, for a request made by another model, that model's span.
    """

    trace_id: int
    span_id: int
    above_id: int
    caller: Caller | None = None

    def child(self) -> "SpanIds":
        """Return the ids of a child trace."""
        return SpanIds(self.trace_id, new_span_id(), self.span_id, self.caller)

    @property
    def state(self) -> str:
        return self.caller.state if self.caller is not None else ""

    @property
    def context(self) -> str:
        """Return the trace context for Python models that create child spans, as JSON."""
        words = {"traceparent": Caller(self.trace_id, self.span_id, sampled=True).traceparent}
        if self.state:
            words["tracestate"] = self.state
        return json.dumps(words)


def ids_below(caller: Caller | None) -> SpanIds:
    """Return the position of a request's trace."""
    import random  # late: few servers trace requests

    trace_id = caller.trace_id if caller is not None else random.getrandbits(128) or 1
    return SpanIds(trace_id, new_span_id(), new_span_id(), caller)


def read_caller(traceparent: str, tracestate: str = "") -> Caller | None:
    """Parse the headers of a request; None if they are missing or invalid."""
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == _NO_VERSION or (more and version == "00"):
        return None
    caller = Caller(
        int(trace_id, 16),
        int(span_id, 16),
        bool(int(flags, 16) & _SAMPLED),
        tracestate.strip() if len(tracestate) <= _MAX_STATE and tracestate.isascii() else "",
    )
    return caller if caller.trace_id and caller.span_id else None


def new_span_id() -> int:
    """Return a random span id."""
    import random

    return random.getrandbits(64) or 1


Activity = Literal["TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_INPUT", "TENSOR_BACKEND_OUTPUT"]


class TraceStamp(NamedTuple):
    """A timestamp."""

    name: str
    ns: int

    def record(self, trace_id: int) -> dict[str, object]:
        return {"id": trace_id, "timestamps": [{"name": self.name, "ns": self.ns}]}


class TensorSeen(NamedTuple):
    """A tensor; the shape is the model's."""

    activity: Activity
    tensor: Tensor

    def record(self, trace_id: int) -> dict[str, object]:
        tensor = self.tensor
        item = {
            "name": tensor.name,
            "data": ",".join(_format_elements(tensor)),
            "shape": ",".join(map(str, tensor.shape)),
            "dtype": tensor.datatype,
        }
        return {"id": trace_id, "activity": self.activity, "tensor": item}


class _Begun(NamedTuple):
    """The point of a trace at which model and request id are known."""

    head: RequestHead
    parent_id: int

    def record(self, trace_id: int) -> dict[str, object]:
        model, request_id = self.head.model, self.head.request_id
        return {
            "id": trace_id,
            "model_name": model.name,
            "model_version": model.version,
            **({"request_id": request_id} if request_id else {}),
            **({"parent_id": self.parent_id} if self.parent_id else {}),
        }


@dataclass(eq=False)
class Trace:
    """Collects the trace of a request on the event loop; the writer's thread formats it.

    A step of an ensemble has its own trace, created by `child` and written with its parent's.
    """

    _take_id: Callable[[], int]
    _levels: Sequence[Level]
    _on_end: "Callable[[Trace], None]"
    parent_id: int = 0
    ids: SpanIds | None = None
    """Position among spans, if traces are exported as spans."""
    size: int = field(init=False, default=0)
    """Bytes of tensors held until they are written."""
    head: RequestHead | None = field(init=False, default=None)
    """Head of the request, once it is known."""
    error: str = field(init=False, default="")
    """Error of the last response; empty if it succeeded."""
    tokens: tuple[int, int] | None = field(init=False, default=None)
    """Tokens of the prompt, and generated ones, if a language model has counted them."""

    def __post_init__(self) -> None:
        self.id = self._take_id()
        self.events: list[TraceStamp | TensorSeen | _Begun] = []
        self.children: list[Trace] = []
        self._left_queue = False

    def child(self, request: InferRequest) -> "Trace":
        """Return a started trace for a request made by this one; it ends with its parent."""
        ids = self.ids.child() if self.ids is not None else None
        made = Trace(self._take_id, self._levels, lambda _: None, parent_id=self.id, ids=ids)
        self.children.append(made)
        made.begin(request)
        return made

    @property
    def context(self) -> str:
        """Return the trace context for child spans; "" if there are none."""
        return self.ids.context if self.ids is not None else ""

    def stamp(self, name: str, ns: int = 0) -> None:
        """Add a timestamp, now or at `ns` of time.perf_counter_ns."""
        if "TIMESTAMPS" in self._levels:
            self.events.append(TraceStamp(name, ns or time.perf_counter_ns()))

    def begin(self, request: InferRequest) -> None:
        """Record that the request was passed to its model."""
        self.head = request.head
        self.events.append(_Begun(request.head, self.parent_id))
        self.stamp("REQUEST_START")

    def computed(self, request: InferRequest, times: Computation, response: InferResponse) -> None:
        """Record a response of the model, the last one if it is final; `times` of 0 are left out."""
        if not self._left_queue:
            self._left_queue = True
            self.stamp("QUEUE_START", request.arrived_ns)
            self._record_inputs("TENSOR_QUEUE_INPUT", request)
            if times.started_ns:
                self.stamp("COMPUTE_START", times.started_ns)
                self._record_inputs("TENSOR_BACKEND_INPUT", request)
                self.stamp("COMPUTE_INPUT_END", times.gathered_ns)
                self.stamp("COMPUTE_OUTPUT_START", times.computed_ns)
        if response.error is not None:
            self.error = response.error.message
        for tensor in response.outputs:
            self._record_tensor("TENSOR_BACKEND_OUTPUT", tensor)
        if response.final:
            self.tokens = request.tokens
            if times.started_ns:
                self.stamp("COMPUTE_END", times.ended_ns)
            self.stamp("REQUEST_END")

    def refused(self) -> None:
        """Record that the model has refused the request."""
        self.stamp("REQUEST_END")

    def end(self) -> None:
        """End the trace and pass it to the writer."""
        self._on_end(self)

    def records(self) -> list[dict[str, object]]:
        """Return the records of the trace file, followed by those of children."""
        out = [event.record(self.id) for event in self.events]
        for child in self.children:
            out += child.records()
        return out

    @property
    def total_size(self) -> int:
        return self.size + sum(child.total_size for child in self.children)

    def _record_inputs(self, activity: Activity, request: InferRequest) -> None:
        if "TENSORS" in self._levels:
            for bound, data in zip(request.head.inputs, request.buffers, strict=True):
                self._record_tensor(activity, Tensor(bound.spec.name, bound.spec.datatype, bound.shape, data))

    def _record_tensor(self, activity: Activity, tensor: Tensor) -> None:
        if "TENSORS" in self._levels:
            self.size += len(tensor.data)
            self.events.append(TensorSeen(activity, tensor))


def encode(trace: Trace) -> bytes:
    """Return the records of a trace as JSON, without the brackets of the surrounding array."""
    return orjson.dumps(trace.records())[1:-1]


def _format_elements(tensor: Tensor) -> Iterator[str]:
    """Yield the elements of a tensor as text, each as short as it can be read back."""
    if tensor.datatype == "BYTES":
        for item in _split_strings(tensor):
            yield '"' + item.decode("utf-8", "backslashreplace") + '"'
        return
    array = tensor.numpy().reshape(-1)
    if tensor.datatype == "BOOL":
        array = array.astype(np.uint8)
    elif tensor.datatype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    for at in range(0, len(array), _ELEMENTS_AT_ONCE):
        for text in array[at : at + _ELEMENTS_AT_ONCE].astype(str).tolist():
            yield text.removesuffix(".0")


def _split_strings(tensor: Tensor) -> list[bytes]:
    """Return the elements of a BYTES tensor, up to a length that exceeds the data."""
    view, at, out = memoryview(tensor.data), 0, []
    for _ in range(math.prod(tensor.shape)):
        size = int.from_bytes(view[at : at + 4], "little")
        if at + 4 + size > len(view):
            break
        out.append(bytes(view[at + 4 : at + 4 + size]))
        at += 4 + size
    return out
