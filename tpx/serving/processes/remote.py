"""Data plane of a frontend process; asks the engine for models and sends it the requests."""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar, cast

import numpy as np

from tpx.errors import Cancelled, NotReady, TpxError
from tpx.protocol.memory_budget import MemoryBudget
from tpx.protocol.tensors import Array, Buffer
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.dataplane import check_strings
from tpx.serving.deferred import NotLoaded, Tasks
from tpx.serving.inference_plane import RemoteAnswers, RemotePath, RemoteResponse, ServerLoad
from tpx.serving.logs import LogControl
from tpx.serving.offload import Offload
from tpx.serving.processes import wire
from tpx.serving.processes.channel import (
    GENERATION,
    IN_FLIGHT,
    INLINE_BYTES,
    PENDING,
    READY,
    Arrived,
    FrameChannel,
    ReceivedFrame,
)
from tpx.serving.processes.remote_requests import (
    DOWN,
    UNKNOWN,
    RemoteModel,
    RemoteOrigin,
    RemoteTemplate,
    SharedSize,
    bind_shared,
    with_described_outputs,
)
from tpx.serving.processes.traces import RemoteTracer
from tpx.serving.processes.wire import NO_TEMPLATE, Flag, FrameKind, FrameTemplate, Templates
from tpx.serving.request import (
    Bound,
    InferRequest,
    InferResponse,
    RequestHead,
)
from tpx.serving.signature import Signature

log = logging.getLogger(__name__)

_NUMBERS = 1 << 32
_INFER, _RESPONSE, _FINAL = int(FrameKind.INFER), int(FrameKind.RESPONSE), int(Flag.FINAL)

_Context = TypeVar("_Context")
OnAnswer = Callable[[ReceivedFrame], None]
OnError = Callable[[TpxError], None]


class _Holder:
    """Implements Holder: forwards the client's stalls and disconnection to the engine."""

    __slots__ = ("_number", "_plane")

    def __init__(self, plane: "RemotePlane", number: int) -> None:
        self._plane = plane
        self._number = number

    def delivered(self, size: int) -> None:
        """Do nothing: the engine counts the bytes that it sends."""

    def stall(self, stalled: bool) -> None:
        self._plane.tell(FrameKind.STALL, self._number, Flag.ON if stalled else 0)

    def end(self) -> None:
        self._plane.tell(FrameKind.CANCEL, self._number)


class _Requests:
    """Implements RemoteAnswers for requests on the regular path."""

    def answered(self, context: InferRequest, response: RemoteResponse, payload: Buffer) -> None:
        context.reply(context, InferResponse(response.tensors(payload)))

    def request(self, context: InferRequest) -> InferRequest:
        return context


_REQUESTS = cast("RemoteAnswers[object]", _Requests())


class _TemplatePath:
    """Implements RemotePath: requests with a template that the engine knows become frames without
    metadata.
    """

    __slots__ = ("_plane", "_size", "_template")

    def __init__(self, plane: "RemotePlane", template: FrameTemplate, size: int) -> None:
        self._plane = plane
        self._template = template
        self._size = size

    def send(
        self, tensors: Buffer, answers: RemoteAnswers[_Context], context: _Context
    ) -> Callable[[], None] | None:
        """Send a request unless the engine has to learn the template first."""
        plane, size = self._plane, self._size
        channel = plane.channel
        if channel is None or len(tensors) != size:
            return None
        template, generation = self._template, channel.peer_gauges[GENERATION]
        number = plane.number()
        if size <= INLINE_BYTES:
            plain = template.plain_in(plane.requests, _INFER, 0, generation, size)
            if plain is None:
                return None
            channel.post_plain(plain, number, bytes(tensors))
        else:
            defined = template.number_in(plane.requests)
            if defined is None:
                return None
            channel.post((_INFER, 0, number, defined, generation), b"", (tensors,))
        plane.in_flight[number] = answers, context  # type: ignore[assignment]  # a pair that fits
        return partial(plane.tell, FrameKind.CANCEL, number)


class RemotePlane:
    """Implements InferencePlane in a frontend; other verbs are relayed to the engine."""

    def __init__(
        self, logs: LogControl, max_string_elements: int, budget: MemoryBudget | None = None
    ) -> None:
        self.logs = logs
        self.max_string_elements = max_string_elements
        self.tracer = RemoteTracer(self._end_trace)
        self.offload = Offload(budget)
        self.tasks = Tasks()
        self.on_state: Callable[[wire.EngineState], None] = lambda _: None
        self.on_order: Callable[[FrameKind], None] = lambda _: None
        """Called with the engine's commands about connections."""
        self.channel: FrameChannel | None = None
        """The channel to the engine; None while there is no engine."""
        self._sessions = 0
        self._models: dict[tuple[str, str], RemoteModel] = {}
        self._models_generation = -1
        self._answered: tuple[str, str] | None = None
        """Model just described by the engine; requests that waited for it use it even if models changed."""
        self._next = 0
        self.in_flight: dict[int, tuple[RemoteAnswers[object], object]] = {}
        """Receivers of the responses to requests in flight, and what they know of the request, by number."""
        self._asked: dict[int, tuple[OnAnswer, OnError]] = {}
        self.requests = Templates()
        """Templates of requests that the engine knows."""
        self._responses: list[RemoteTemplate] = []

    # the channel

    def use(self, channel: FrameChannel) -> None:
        """Use the channel to a new engine."""
        self.channel = channel
        self._sessions += 1
        self.requests = Templates()
        self._responses = [UNKNOWN] * len(self.requests.known)

    def allocate(self, size: int) -> Array:
        """Return memory for a message, in the channel if there is room, so that its tensors are sent
        without a copy.
        """
        channel = self.channel
        block = None if channel is None or size <= INLINE_BYTES else channel.allocate(size)
        return np.empty(size, np.uint8) if block is None else block

    def lose(self) -> None:
        """Fail everything that waits for the engine, which has ended."""
        self.channel = None
        self._sessions += 1
        error = NotReady(DOWN)
        in_flight, self.in_flight = self.in_flight, {}
        pending, self._asked = self._asked, {}
        for answers, context in in_flight.values():
            infer = answers.request(context)
            _call_safely(infer.reply, infer, InferResponse([], error))
        for _, failed in pending.values():
            failed(error)

    @property
    def generation(self) -> int:
        """Number that changes with the models and with the engine."""
        word = 0 if self.channel is None else self.channel.peer_gauges[GENERATION]
        return self._sessions << 32 | int(word)

    def ready(self) -> bool:
        """Return whether the server was ready a moment ago; False without an engine."""
        return self.channel is not None and bool(self.channel.peer_gauges[READY])

    def server_load(self) -> ServerLoad:
        """Return the numbers of requests in the engine a moment ago."""
        if self.channel is None:
            return ServerLoad(0, 0)
        gauges = self.channel.peer_gauges
        return ServerLoad(gauges[IN_FLIGHT], gauges[PENDING])

    def on_frames(self, channel: FrameChannel, frames: Iterator[Arrived]) -> None:
        """Handle frames from the engine."""
        responses, in_flight = self._responses, self.in_flight
        for arrived in frames:
            (_, kind, flags, _, template, _, meta_size), numbers, data = arrived
            if kind == _RESPONSE and flags == _FINAL and not meta_size:  # most responses
                response = responses[template]
                for number, payload in zip(numbers, data, strict=True):
                    waiting = in_flight.pop(number, None)
                    if waiting is not None:
                        answers, context = waiting
                        _call_safely(answers.answered, context, response, payload)
                continue
            for frame in channel.open(arrived):
                self._handle_frame(frame)

    def _handle_frame(self, frame: ReceivedFrame) -> None:
        kind = frame.kind
        if kind == FrameKind.RESPONSE:
            self._handle_response(frame)
        elif kind == FrameKind.ANSWER:
            pending = self._asked.pop(frame.number, None)
            if pending is not None:
                done, failed = pending
                if frame.flags & Flag.ERROR:
                    failed(wire.decode(wire.Error, frame.meta).error())
                else:
                    done(frame)
        elif kind == FrameKind.STATE:
            self.on_state(wire.decode(wire.EngineState, frame.meta))
        else:
            self.on_order(FrameKind(kind))

    def tell(self, kind: FrameKind, number: int = 0, flags: int = 0) -> None:
        """Send a frame that has no answer."""
        if self.channel is not None:
            self.channel.send(kind, number=number, flags=flags)

    def ask_engine(
        self, kind: FrameKind, meta: bytes, payload: Buffer, done: OnAnswer, failed: OnError
    ) -> Callable[[], None]:
        """Send a frame to the engine; call `done` with the answer or `failed` with the error.

        Returns a function that cancels it. Raises NotReady.
        """
        if self.channel is None:
            raise NotReady(DOWN)
        number = self.number()
        self.channel.send(kind, number=number, meta=meta, parts=(payload,))
        self._asked[number] = done, failed

        def call_off() -> None:
            if self._asked.pop(number, None) is not None:
                self.tell(FrameKind.CANCEL, number)
                failed(Cancelled("the request was cancelled"))

        return call_off

    def number(self) -> int:
        """Return the number of another request."""
        self._next = (self._next + 1) % _NUMBERS
        return self._next

    # models

    def ask(self, name: str, version: str, work: Callable[[], None], failed: OnError) -> Callable[[], None]:
        """Ask for a model; call `work` when it is known. Returns a function that cancels this."""
        key = name, version

        def done(frame: ReceivedFrame) -> None:
            self._drop_stale_models()
            self._models[key] = RemoteModel(wire.decode(wire.Model, frame.meta))
            self._answered = key
            try:
                work()
            finally:
                self._answered = None

        return self.ask_engine(
            FrameKind.ASK_MODEL, wire.encode(wire.ModelName(name, version)), b"", done, failed
        )

    def _drop_stale_models(self) -> None:
        generation = self.generation
        if generation != self._models_generation:
            self._models.clear()
            self._models_generation = generation

    def _get_model(self, name: str, version: str) -> RemoteModel:
        key = name, version
        if key != self._answered:
            self._drop_stale_models()
        model = self._models.get(key)
        if model is None:
            what = f"Request for unknown model: '{name}' is changing, ask again"
            raise NotLoaded(what, partial(self.ask, name, version))
        return model

    def signature(self, name: str, version: str) -> Signature:
        """Return the signature of a model. Raises NotLoaded if the engine must be asked first."""
        return self._get_model(name, version).signature

    def bind(self, request: DecodedRequest) -> Bound:
        """Validate a request as far as a frontend can.

        Raises InvalidRequest, or NotLoaded if the engine must be asked first.
        """
        model = self._get_model(request.model_name, request.model_version)
        shared = bool(request.shared_inputs) or any(output.shared_memory for output in request.outputs)
        head = bind_shared(model, request) if shared else model.signature.bind(model, request)
        if head.total_size < 0:
            check_strings(head, self.max_string_elements)
        if head.origin is None:
            head.origin = RemoteOrigin(request, head)
        return Bound(head, [tensor.data for tensor in request.inputs])

    # inference

    stopping = False
    """Always False: an engine that stops refuses requests itself."""

    def fast_path(self, head: RequestHead) -> None:
        """Return None: the engine computes, so a frontend has no fast path."""

    def remote_path(self, head: RequestHead) -> RemotePath | None:
        """Return the path for requests with this head, or None if they vary or their outputs need
        conversion.
        """
        origin = head.origin
        if head.converted or head.model.decoupled or not isinstance(origin, RemoteOrigin):
            return None
        if origin.template is None:
            return None
        return _TemplatePath(self, origin.template, head.total_size if head.shared is None else 0)

    def infer(self, infer: InferRequest) -> None:
        """Send a request to the engine; the response arrives through its `reply`. Raises NotReady."""
        channel = self.channel
        if channel is None:
            raise NotReady(DOWN)
        origin = infer.head.origin
        assert isinstance(origin, RemoteOrigin)
        number = self.number()
        template, meta, buffers = origin.template, b"", infer.buffers
        if origin.has_shared:
            buffers = [data for data in buffers if not isinstance(data, SharedSize)]
        generation = channel.peer_gauges[GENERATION]
        flags = 0 if infer.backpressure is None else Flag.PACED
        defined = None if template is None else template.number_in(self.requests)
        if template is None:
            defined, meta = NO_TEMPLATE, origin.meta([len(data) for data in buffers])
        elif defined is None:
            defined, meta = template.define_in(self.requests), template.meta
            flags |= Flag.DEFINES
        if infer.trace is not None:
            meta = self.tracer.started(infer, number, meta)
            flags |= Flag.TRACED
        channel.post((_INFER, flags, number, defined, generation), meta, buffers)
        infer.backpressure = _Holder(self, number)
        self.in_flight[number] = _REQUESTS, infer

    def _end_trace(self, number: int, stamps: bytes) -> None:
        if self.channel is not None:
            self.channel.send(FrameKind.TRACE, number=number, meta=stamps)

    def _handle_response(self, frame: ReceivedFrame) -> None:
        number, flags = frame.number, frame.flags
        waiting = self.in_flight.get(number)
        if flags & Flag.DEFINES:
            self._responses[frame.template] = RemoteTemplate(wire.decode(wire.WireResponse, frame.meta))
        if waiting is None:
            return
        answers, context = waiting
        infer = answers.request(context)
        if flags & Flag.ERROR:
            response = InferResponse([], wire.decode(wire.Error, frame.meta).error())
        else:
            if frame.template != NO_TEMPLATE:
                known = self._responses[frame.template]
            else:
                known = RemoteTemplate(wire.decode(wire.WireResponse, frame.meta))
            response = known.response(frame.payload)
            if known.head.described is not None:
                infer.head = with_described_outputs(infer.head, known.head.described)
        if flags & Flag.FINAL:
            del self.in_flight[number]
        else:
            response.final = False
        _call_safely(infer.reply, infer, response)


def _call_safely(take: Callable[..., None], *answer: object) -> None:
    try:
        take(*answer)
    except Exception:  # one request's boundary: others must still be answered
        log.exception("answering a request failed")
