"""The data plane as a frontend's process has it: what it does not know, it asks the engine."""

import logging
import math
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np

from tpx.errors import Cancelled, InvalidRequest, NotReady, TpxError
from tpx.protocol.tensors import Array, Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest, check_string_count
from tpx.serving.logs import LogControl
from tpx.serving.offload import Offload
from tpx.serving.processes import wire
from tpx.serving.processes.channel import GENERATION, READY, FrameChannel, ReceivedFrame
from tpx.serving.processes.ring import INLINE, INLINE_BYTES, Arrived
from tpx.serving.processes.traces import RemoteTracer
from tpx.serving.processes.wire import NO_TEMPLATE, Flag, FrameKind, FrameTemplate, Templates
from tpx.serving.repository.on_demand import NotLoaded
from tpx.serving.repository.retirement import Tasks
from tpx.serving.request import CHECKED_AT_ONCE_BYTES, InferRequest, InferResponse, RequestHead
from tpx.serving.signature import Signature

log = logging.getLogger(__name__)

_NUMBERS = 1 << 32
_INFER, _RESPONSE, _FINAL = int(FrameKind.INFER), int(FrameKind.RESPONSE), int(Flag.FINAL)
_DOWN = "the engine of this server does not run; it is being started again"

OnAnswer = Callable[[ReceivedFrame], None]
OnError = Callable[[TpxError], None]


class RemoteModel:
    """Implements Servant: what a frontend knows of a model that the engine serves."""

    def __init__(self, model: wire.Model) -> None:
        self.name, self.version, self.max_batch_size = model.name, model.version, model.max_batch_size
        self.decoupled = model.decoupled
        self.retired = False
        self.signature = model.signature()

    def submit(self, request: InferRequest) -> None:  # noqa: ARG002 (Servant's signature)
        """Raise NotReady: requests go to the engine."""
        raise NotReady(_DOWN)

    def cancelled(self) -> None:
        """The engine was told by the request's holder."""


class _Described:
    """Implements Servant: the model that has answered in the place of the one that was asked."""

    def __init__(self, model: wire.Described) -> None:
        self.name, self.version, self.decoupled = model.name, model.version, model.decoupled
        self.max_batch_size, self.retired = 0, False

    def submit(self, request: InferRequest) -> None:  # noqa: ARG002 (Servant's signature)
        raise NotReady(_DOWN)

    def cancelled(self) -> None:
        """The engine was told by the request's holder."""


class _NotKnown(NotLoaded):
    """The engine has to be asked for a model."""

    def __init__(self, plane: "RemotePlane", name: str, version: str) -> None:
        NotReady.__init__(self, f"Request for unknown model: '{name}' is changing, ask again")
        self._plane = plane
        self._key = name, version

    def then(self, work: Callable[[], None], fail: OnError) -> Callable[[], None]:
        """Ask, and call `work` when the model is known, or `fail` with the reason why not."""
        return self._plane.ask(*self._key, work, fail)


class _Holder:
    """Implements Holder: what happens to the client of a request is told to the engine."""

    __slots__ = ("_number", "_plane")

    def __init__(self, plane: "RemotePlane", number: int) -> None:
        self._plane = plane
        self._number = number

    def delivered(self, size: int) -> None:
        """The engine counts what it sends."""

    def stall(self, stalled: bool) -> None:
        self._plane.tell(FrameKind.STALL, self._number, Flag.ON if stalled else 0)

    def end(self) -> None:
        self._plane.tell(FrameKind.CANCEL, self._number)


class _Size:
    """In the place of the data of a tensor in shared memory, which only the engine reads."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


class _RemoteOrigin:
    """Facts of a request besides its tensors, for the engine."""

    __slots__ = ("_request", "has_shared", "template")

    def __init__(self, request: DecodedRequest, head: RequestHead) -> None:
        self._request = wire.Request.of(request)
        self.has_shared = bool(request.shared_inputs)
        self.template: FrameTemplate | None = None
        if head.reusable and not self.has_shared:
            self.template = FrameTemplate(self.meta([bound.size for bound in head.inputs]))

    def meta(self, sizes: list[int]) -> bytes:
        """Return the meta data of a request whose tensors have these sizes. Raises InvalidRequest."""
        self._request.sizes = sizes
        return wire.encode(self._request)


class _KnownResponse:
    """A response without its data."""

    __slots__ = ("_sizes", "_tensors", "head")

    def __init__(self, head: wire.WireResponse) -> None:
        self.head = head
        self._tensors = [(tensor.name, tensor.datatype, tensor.shape) for tensor in head.tensors]
        self._sizes = [tensor.size for tensor in head.tensors]

    def response(self, payload: Buffer) -> InferResponse:
        """Return the response with these tensors. Raises ValueError for other sizes."""
        buffers = wire.cut(payload, self._sizes)
        response = InferResponse(
            [Tensor(*each, data) for each, data in zip(self._tensors, buffers, strict=True)]
        )
        response.parameters = self.head.parameters
        return response


_UNKNOWN = _KnownResponse(wire.WireResponse([], None, None))


class RemotePlane:
    """Implements InferencePlane, and hands all other verbs on."""

    def __init__(self, logs: LogControl, max_string_elements: int) -> None:
        self.logs = logs
        self.max_string_elements = max_string_elements
        self.tracer = RemoteTracer(self._end_trace)
        self.offload = Offload()
        self.tasks = Tasks()
        self.on_state: Callable[[wire.EngineState], None] = lambda _: None
        self.on_order: Callable[[FrameKind], None] = lambda _: None
        """Called with what the engine has the frontend do with its connections."""
        self._channel: FrameChannel | None = None
        self._sessions = 0
        self._models: dict[tuple[str, str], RemoteModel] = {}
        self._models_generation = -1
        self._answered: tuple[str, str] | None = None
        """The model that was just asked for: what waited for it uses it, whatever changed since."""
        self._next = 0
        self._in_flight: dict[int, InferRequest] = {}
        self._asked: dict[int, tuple[OnAnswer, OnError]] = {}
        self._requests = Templates()
        self._responses: list[_KnownResponse] = []

    # the channel

    def use(self, channel: FrameChannel) -> None:
        """The engine is there."""
        self._channel = channel
        self._sessions += 1
        self._requests = Templates()
        self._responses = [_UNKNOWN] * len(self._requests.known)

    def allocate(self, size: int) -> Array:
        """Return memory for a message: of the channel, so that its tensors need not be copied."""
        channel = self._channel
        block = None if channel is None or size <= INLINE_BYTES else channel.allocate(size)
        return np.empty(size, np.uint8) if block is None else block

    def lose(self) -> None:
        """The engine has gone: whatever waits for it fails."""
        self._channel = None
        self._sessions += 1
        error = NotReady(_DOWN)
        in_flight, self._in_flight = self._in_flight, {}
        asked, self._asked = self._asked, {}
        for infer in in_flight.values():
            _reply(infer, InferResponse([], error))
        for _, failed in asked.values():
            failed(error)

    @property
    def generation(self) -> int:
        """Changes with the models, and with the engine."""
        word = 0 if self._channel is None else self._channel.gauges[GENERATION]
        return self._sessions << 32 | int(word)

    def ready(self) -> bool:
        """Tell whether the server was ready a moment ago; false without an engine."""
        return self._channel is not None and bool(self._channel.gauges[READY])

    def on_frames(self, channel: FrameChannel, frames: Iterator[Arrived]) -> None:
        """Take what the engine has sent."""
        responses = self._responses
        for arrived in frames:
            (_, kind, flags, number, template, *_, place), data = arrived
            if kind == _RESPONSE and flags == _FINAL and place == INLINE and template != NO_TEMPLATE:
                infer = self._in_flight.pop(number, None)
                if infer is not None:  # most responses
                    _reply(infer, responses[template].response(bytes(data)))
                continue
            frame = channel.open(arrived)
            if frame is not None:
                self._take(frame)

    def _take(self, frame: ReceivedFrame) -> None:
        kind = frame.kind
        if kind == FrameKind.RESPONSE:
            self._take_response(frame)
        elif kind in (FrameKind.ANSWER, FrameKind.MODEL):
            asked = self._asked.pop(frame.number, None)
            if asked is not None:
                done, failed = asked
                if frame.flags & Flag.ERROR:
                    failed(wire.decode(wire.Error, frame.meta).error())
                else:
                    done(frame)
        elif kind == FrameKind.STATE:
            self.on_state(wire.decode(wire.EngineState, frame.meta))
        else:
            self.on_order(FrameKind(kind))

    def tell(self, kind: FrameKind, number: int = 0, flags: int = 0) -> None:
        """Send a word without an answer."""
        if self._channel is not None:
            self._channel.send(kind, number=number, flags=flags)

    def ask_engine(
        self, kind: FrameKind, meta: bytes, payload: Buffer, done: OnAnswer, failed: OnError
    ) -> Callable[[], None]:
        """Ask, and call `done` or `failed` with what comes of it; returns what calls it off."""
        if self._channel is None:
            raise NotReady(_DOWN)
        number = self._number()
        self._channel.send(kind, number=number, meta=meta, parts=(payload,))
        self._asked[number] = done, failed

        def call_off() -> None:
            if self._asked.pop(number, None) is not None:
                self.tell(FrameKind.CANCEL, number)
                failed(Cancelled("the request was cancelled"))

        return call_off

    def _number(self) -> int:
        self._next = (self._next + 1) % _NUMBERS
        return self._next

    # models

    def ask(self, name: str, version: str, work: Callable[[], None], failed: OnError) -> Callable[[], None]:
        """Ask for a model, and call `work` when it is known."""
        key = name, version

        def done(frame: ReceivedFrame) -> None:
            self._look_at_generation()
            self._models[key] = RemoteModel(wire.decode(wire.Model, frame.meta))
            self._answered = key
            try:
                work()
            finally:
                self._answered = None

        return self.ask_engine(
            FrameKind.ASK_MODEL, wire.encode(wire.ModelName(name, version)), b"", done, failed
        )

    def _look_at_generation(self) -> None:
        generation = self.generation
        if generation != self._models_generation:
            self._models.clear()
            self._models_generation = generation

    def _model(self, name: str, version: str) -> RemoteModel:
        key = name, version
        if key != self._answered:
            self._look_at_generation()
        model = self._models.get(key)
        if model is None:
            raise _NotKnown(self, name, version)
        return model

    def signature(self, name: str, version: str) -> Signature:
        """Return the tensors of a model. Raises NotLoaded where the engine has to be asked."""
        return self._model(name, version).signature

    def bind(self, request: DecodedRequest) -> RequestHead:
        """Return the head of a request, validated as far as it can be here. Raises InvalidRequest, and
        NotLoaded where the engine has to be asked."""
        model = self._model(request.model_name, request.model_version)
        bind = self._bind_shared if _uses_shared_memory(request) else model.signature.bind
        head = bind(model, request)
        if head.total_size < 0:
            for bound in head.inputs:
                if bound.size < 0:
                    check_string_count(bound.spec.name, math.prod(bound.shape), self.max_string_elements)
        if head.origin is None:
            head.origin = _RemoteOrigin(request, head)
        return head

    def _bind_shared(self, model: RemoteModel, request: DecodedRequest) -> RequestHead:
        """Return the head of a request with tensors in shared memory. What is wrong with it the engine says,
        which looks at the regions first."""
        for tensor, place in request.shared_inputs:
            varies = tensor.datatype == "BYTES"
            size = max(place.byte_size, CHECKED_AT_ONCE_BYTES + 1) if varies else place.byte_size
            tensor.data = cast("Buffer", _Size(size))
        try:
            # the head that fits may be that of requests whose tensors come with them: this is another one
            known = model.signature.bind(model, request)
            head = known.with_outputs(known.outputs)
        except InvalidRequest:
            head = RequestHead(model, request.request_id, (), (), 1, request.parameters)
        for output, bound_output in zip(request.outputs, head.outputs, strict=False):
            if output.shared_memory is not None:
                bound_output.placement = wire.Elsewhere()
                bound_output.binary = head.converted = True
        head.placed = True
        return head

    # inference

    stopping = False
    """The engine refuses requests when it stops."""

    def short_way(self, head: RequestHead) -> None:
        """Return None: the engine computes."""

    def infer(self, infer: InferRequest) -> None:
        """Have the engine compute; the answer comes through the request's `reply`. Raises NotReady."""
        channel = self._channel
        if channel is None:
            raise NotReady(_DOWN)
        origin = infer.head.origin
        assert isinstance(origin, _RemoteOrigin)
        number = self._next = (self._next + 1) % _NUMBERS
        template, meta, buffers = origin.template, b"", infer.buffers
        generation = channel.gauges[GENERATION]
        if template is not None and infer.backpressure is None and infer.trace is None:  # most requests
            known = template.number_in(self._requests)
            if known is not None:
                channel.post((_INFER, 0, number, known, generation), b"", buffers)
                infer.backpressure = _Holder(self, number)
                self._in_flight[number] = infer
                return
        flags = 0 if infer.backpressure is None else Flag.PACED
        if template is not None:
            known = template.number_in(self._requests)
            if known is None:
                known = template.define_in(self._requests)
                meta, flags = template.meta, flags | Flag.DEFINES
        else:
            known = NO_TEMPLATE
            if origin.has_shared:
                buffers = [data for data in buffers if not isinstance(data, _Size)]
            meta = origin.meta([len(data) for data in buffers])
        if infer.trace is not None:
            meta = self.tracer.started(infer, number, meta)
            flags |= Flag.TRACED
        channel.send(
            FrameKind.INFER, flags=flags, number=number, template=known, generation=generation,
            meta=meta, parts=buffers,
        )  # fmt: skip
        infer.backpressure = _Holder(self, number)
        self._in_flight[number] = infer

    def _end_trace(self, number: int, stamps: bytes) -> None:
        if self._channel is not None:
            self._channel.send(FrameKind.TRACE, number=number, meta=stamps)

    def _take_response(self, frame: ReceivedFrame) -> None:
        number, flags = frame.number, frame.flags
        infer = self._in_flight.get(number)
        if flags & Flag.DEFINES:
            self._responses[frame.template] = _KnownResponse(wire.decode(wire.WireResponse, frame.meta))
        if infer is None:
            return
        if flags & Flag.ERROR:
            response = InferResponse([], wire.decode(wire.Error, frame.meta).error())
        else:
            if frame.template != NO_TEMPLATE:
                known = self._responses[frame.template]
            else:
                known = _KnownResponse(wire.decode(wire.WireResponse, frame.meta))
            response = known.response(frame.payload)
            if known.head.described is not None:
                infer.head = _described(infer.head, known.head.described)
        if flags & Flag.FINAL:
            del self._in_flight[number]
        else:
            response.final = False
        _reply(infer, response)


def _uses_shared_memory(request: DecodedRequest) -> bool:
    return bool(request.shared_inputs) or any(output.shared_memory for output in request.outputs)


def _described(head: RequestHead, model: wire.Described) -> RequestHead:
    outputs = tuple(output.bound() for output in model.outputs)
    other = RequestHead(
        _Described(model), head.request_id, head.inputs, outputs, head.batch_size, head.parameters
    )
    other.empty_final_response = head.empty_final_response
    other.placed = any(output.placement is not None for output in outputs)
    return other


def _reply(infer: InferRequest, response: InferResponse) -> None:
    try:
        infer.reply(infer, response)
    except Exception:  # one request's boundary: the others get their answers
        log.exception("answering a request to model '%s' failed", infer.head.model.name)
