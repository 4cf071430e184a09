"""The engine's side of one frontend: passes its frames to the data plane, and sends the responses."""

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from msgspec import Struct

from tpx.errors import TpxError
from tpx.protocol.grpc.server_call import Method
from tpx.protocol.memory_budget import MemoryBudget
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest, Parameter
from tpx.serving.backpressure import ResponseBackpressure
from tpx.serving.dataplane import DataPlane
from tpx.serving.deferred import NotLoaded
from tpx.serving.frontends.http import HttpFrontend
from tpx.serving.frontends.outputs import put_into_place, takes_long
from tpx.serving.inference_plane import FastPath, split_outputs
from tpx.serving.offload import Postponed
from tpx.serving.processes import wire
from tpx.serving.processes.channel import (
    CLOSING,
    CONNECTIONS,
    ChannelBroken,
    Descriptors,
    FrameChannel,
    ReceivedFrame,
)
from tpx.serving.processes.relayed import RelayedCall, RelayedRequest
from tpx.serving.processes.ring import INLINE, Arrived, Fields
from tpx.serving.processes.wire import NO_TEMPLATE, TEMPLATES, Flag, FrameKind, FrameTemplate, Templates
from tpx.serving.request import InferRequest, InferResponse, RequestHead, rendering_key
from tpx.serving.tracing.trace import Trace, read_caller
from tpx.serving.turn import Turn

log = logging.getLogger(__name__)

_clock = time.perf_counter_ns
_PUBLISH_NS = 200_000
"""Time after which responses are published, without waiting for the others of the turn: to wake the
frontend takes 5 to 25 us.
"""
_PUBLISH_FAST_NS = 30_000
"""The same on the fast path, where this is time for several responses."""
_INFER, _RESPONSE, _FINAL = int(FrameKind.INFER), int(FrameKind.RESPONSE), int(Flag.FINAL)


class _RequestTemplate:
    """Request template: a request without tensors, with its head and fast path until a model changes."""

    __slots__ = ("fast_path", "generation", "head", "output_size", "request", "sizes", "template")

    def __init__(self, meta: Buffer) -> None:
        self.request = wire.decode(wire.Request, meta)
        self.sizes = self.request.sizes
        self.head: RequestHead | None = None
        self.generation = -1
        self.fast_path: FastPath | None = None
        self.template: FrameTemplate | None = None
        """Template of the responses on the fast path, whose outputs always have the same shapes."""
        self.output_size = 0
        """Bytes of all outputs of such a response."""

    def learn(self, head: RequestHead, generation: int, fast_path: FastPath | None) -> None:
        """Store the validated head, and the fast path if the model has one."""
        self.head, self.generation, self.fast_path, self.template = head, generation, fast_path, None


class _Exchange:
    """Context of a request on the regular path."""

    __slots__ = ("described", "number", "placing", "stalled")

    def __init__(self, number: int, described: bool) -> None:
        self.number = number
        self.described = described
        """True if its frontend did not know of changed models; responses describe the outputs."""
        self.stalled = False
        """True while the client does not read its responses."""
        self.placing = 0
        """Number of responses being written to shared memory in another thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineServices:
    """Services that the engine has for every frontend."""

    plane: DataPlane
    http: HttpFrontend
    methods: Mapping[str, Method]
    """Methods of gRPC by their path."""
    budget: MemoryBudget
    """Budget to which large responses are charged."""
    limit_bytes: int
    """Bytes of large responses that a frontend may hold."""
    on_serving: Callable[[], None]
    """Called when a frontend accepts connections."""
    on_end: "Callable[[Peer], None]"
    """Called once when a frontend has ended."""


class Peer:
    """A connected frontend, until it ends."""

    def __init__(
        self, services: EngineServices, sock: socket.socket, descriptors: Descriptors, index: int
    ) -> None:
        """Map the memory of a frontend. Raises ChannelBroken."""
        self._services = services
        self._plane = services.plane
        self.index = index
        self.serving = False
        self.channel = FrameChannel(
            descriptors,
            self._on_frames,
            self._on_broken,
            is_engine=True,
            limit_bytes=services.limit_bytes,
            budget=services.budget,
        )
        self.channel.on_backlog = self._on_backlog
        self._sock = sock
        self._requests: list[_RequestTemplate | None] = [None] * wire.TEMPLATES
        self._responses = Templates()
        self._key = f"ring{index}.{id(self)}"
        self._in_flight: dict[int, InferRequest] = {}
        self._pending: dict[int, Callable[[], None]] = {}
        """Functions that cancel requests waiting for a thread or for their model, by request number."""
        self._traces: dict[int, Trace] = {}
        """Traces that end when the frontend has sent the response."""
        self._published_ns = 0

    @property
    def connections(self) -> int:
        """Number of connections, as last reported; at least 1 until the frontend has stopped accepting."""
        gauges = self.channel.gauges
        return int(gauges[CONNECTIONS]) or int(not gauges[CLOSING])

    def _on_broken(self, error: Exception) -> None:
        log.error("frontend %d: its messages cannot be read", self.index, exc_info=error)
        self.close()

    def close(self) -> None:
        """Close the channel to a frontend that has ended, and cancel its requests."""
        if self.channel.closed:
            return
        self.channel.close()
        with suppress(OSError):  # it has ended
            self._sock.shutdown(socket.SHUT_RDWR)  # uvloop keeps a socket open that it reads from
        self._sock.close()
        self._services.on_end(self)
        for infer in list(self._in_flight.values()):
            infer.cancel()
        for call_off in list(self._pending.values()):
            call_off()
        self._in_flight.clear()
        self._pending.clear()
        for trace in self._traces.values():
            trace.end()
        self._traces.clear()

    def _on_backlog(self, waits: bool) -> None:
        """Pause models that produce responses faster than the frontend reads them."""
        for infer in self._in_flight.values():
            infer.stall(waits or infer.context.stalled)

    def _on_frames(self, channel: FrameChannel, frames: Iterator[Arrived]) -> None:
        """Take frames for a limited time; the channel schedules another turn for the rest."""
        self._published_ns = _clock()
        turn = Turn(self._published_ns)
        for arrived in frames:
            known = self._find_fast_template(arrived[0])
            if known is not None:
                left = self._compute_fast(known, arrived, turn)
            else:
                left = self._handle_frames(arrived, turn)
            if channel.closed:
                return
            if left or turn.is_over(_clock()):
                channel.unread(arrived, left)
                return

    def _handle_frames(self, arrived: Arrived, turn: Turn) -> int:
        """Handle frames until the turn is over; return the number of the others."""
        left = len(arrived[1])
        for frame in self.channel.open(arrived):
            self._handle_frame(frame)
            del frame  # so that its block can be released
            left -= 1
            now_ns = _clock()
            self._publish_late(now_ns, _PUBLISH_NS)
            if turn.is_over(now_ns):
                break
        return left

    def _publish_late(self, now_ns: int, after_ns: int) -> None:
        """Publish the responses so far if the last ones were published `after_ns` before."""
        if now_ns - self._published_ns > after_ns:
            self._published_ns = now_ns
            self.channel.publish()

    def _find_fast_template(self, fields: Fields) -> _RequestTemplate | None:
        """Return the template of a request that can take the fast path, otherwise None."""
        _, kind, flags, _, template, generation, meta_size, size, place = fields
        # flags mean a trace, a stream or a new template; with metadata or in a block, a frame is not plain
        if kind != _INFER or flags or meta_size or place != INLINE or template >= TEMPLATES:
            return None
        known = self._requests[template]
        if known is None or known.fast_path is None or known.head is None or known.head.total_size != size:
            return None
        plane = self._plane
        # a frontend that does not know of changed models needs a response that describes its outputs
        if not known.generation == plane.generation == generation or plane.stopping:
            return None
        return known

    def _compute_fast(self, known: _RequestTemplate, arrived: Arrived, turn: Turn) -> int:
        """Compute requests on the fast path and answer them; those that it refuses take the regular path.

        Returns the number of requests left when the turn is over.
        """
        assert known.fast_path is not None
        _, numbers, tensors = arrived
        self._published_ns = arrived_ns = _clock()
        done = known.fast_path.compute(tensors, arrived_ns, turn, partial(self._answer_fast, known, numbers))
        for index in range(done, len(numbers)):
            if turn.is_over(_clock()):
                return len(numbers) - index
            self._start_request(
                ReceivedFrame(_INFER, 0, numbers[index], NO_TEMPLATE, known.generation, b"", tensors[index]),
                known,
            )
        return 0

    def _answer_fast(
        self,
        known: _RequestTemplate,
        numbers: Sequence[int],
        outputs: Sequence[memoryview],
        first: int,
        count: int,
        now_ns: int,
    ) -> None:
        """Send the responses to requests that were computed in one run."""
        template = known.template or self._learn_outputs(known)
        plain = template.plain_in(self._responses, _RESPONSE, _FINAL, 0, known.output_size)
        if count == len(outputs) == 1 and plain is not None:  # the common case, without slicing
            self.channel.post_plain(plain, numbers[first], bytes(outputs[0]))
            count = 0
        for index, parts in enumerate(split_outputs(outputs, count) if count else (), first):
            if plain is None:
                defined = template.define_in(self._responses)
                head = _RESPONSE, Flag.FINAL | Flag.DEFINES, numbers[index], defined, 0
                self.channel.post(head, template.meta, parts)
                plain = template.plain_in(self._responses, _RESPONSE, _FINAL, 0, known.output_size)
            else:
                self.channel.post_plain(plain, numbers[index], b"".join(parts))
        self._publish_late(now_ns, _PUBLISH_FAST_NS)

    def _learn_outputs(self, known: _RequestTemplate) -> FrameTemplate:
        assert known.fast_path is not None
        assert known.head is not None
        outputs = known.fast_path.outputs()
        template = self._get_template(known.head, outputs)
        assert template is not None
        known.template, known.output_size = template, sum(len(tensor.data) for tensor in outputs)
        return template

    def _get_template(self, head: RequestHead, outputs: Sequence[Tensor]) -> FrameTemplate | None:
        """Return the template of responses with outputs of these shapes, None if their sizes may vary."""
        key = rendering_key(self._key, outputs, None)
        known: FrameTemplate | None = head.rendered.get(key)
        if known is None and outputs and not any(tensor.datatype == "BYTES" for tensor in outputs):
            known = FrameTemplate(_encode_meta(outputs, None, None))
            head.remember_rendered(key, known)
        return known

    def _handle_frame(self, frame: ReceivedFrame) -> None:
        match frame.kind:
            case FrameKind.INFER:
                self._handle_infer(frame)
            case FrameKind.CANCEL:
                self._handle_cancel(frame)
            case FrameKind.STALL:
                self._handle_stall(frame)
            case FrameKind.ASK_MODEL:
                name = wire.decode(wire.ModelName, frame.meta)
                self._describe_model(frame.number, name.name, name.version)
            case FrameKind.HTTP | FrameKind.GRPC:
                self._serve_verb(frame)
            case FrameKind.TRACE:
                self._end_trace(frame)
            case FrameKind.SERVING:
                self.serving = True
                self._services.on_serving()
            case _:
                raise ChannelBroken(f"a frame of kind {frame.kind}")

    def _handle_stall(self, frame: ReceivedFrame) -> None:
        infer = self._in_flight.get(frame.number)
        if infer is not None:
            infer.context.stalled = bool(frame.flags & Flag.ON)
            infer.stall(infer.context.stalled or self.channel.backlog)

    def _end_trace(self, frame: ReceivedFrame) -> None:
        trace = self._traces.pop(frame.number, None)
        if trace is not None:
            _add_stamps(trace, wire.decode(wire.WireStamps, frame.meta))
            trace.end()

    def _handle_cancel(self, frame: ReceivedFrame) -> None:
        number = frame.number
        infer = self._in_flight.get(number)
        if infer is not None:
            infer.cancel()
        else:
            call_off = self._pending.pop(number, None)
            if call_off is not None:
                call_off()

    # requests other than inference

    def _serve_verb(self, frame: ReceivedFrame) -> None:
        number, verb = frame.number, wire.decode(wire.Verb, frame.meta)
        answer = partial(self._answer, number)
        if frame.kind == FrameKind.HTTP:
            request = RelayedRequest(verb, frame.payload, answer)
            self._pending[number] = request.call_off
            self._services.http.serve(request)  # type: ignore[arg-type]
        else:
            call, serve = RelayedCall(answer), self._services.methods[verb.path.decode()].unary
            assert serve is not None
            self._pending[number] = call.call_off
            serve(call, frame.payload)  # type: ignore[arg-type]

    def _answer(self, number: int, answer: Struct, parts: Sequence[Buffer] = ()) -> None:
        self._pending.pop(number, None)
        try:
            self.channel.send(FrameKind.ANSWER, number=number, meta=wire.encode(answer), parts=parts)
        except TpxError as exc:
            self.fail(FrameKind.ANSWER, number, exc)

    def fail(self, kind: FrameKind, number: int, error: TpxError) -> None:
        """End a request with an error."""
        self._pending.pop(number, None)
        self._in_flight.pop(number, None)
        flags = Flag.ERROR | Flag.FINAL
        self.channel.send(kind, flags=flags, number=number, meta=wire.encode(wire.Error.of(error)))

    def _describe_model(self, number: int, name: str, version: str, *, waits: bool = True) -> None:
        try:
            model = self._plane.model(name, version)
        except NotLoaded as exc:
            work = partial(self._describe_model, number, name, version, waits=False)
            self._wait_for_load(FrameKind.ANSWER, number, exc, work, waits=waits)
        except TpxError as exc:
            self.fail(FrameKind.ANSWER, number, exc)
        else:
            self._answer(number, wire.Model.of(model))

    def _wait_for_load(
        self, kind: FrameKind, number: int, absent: NotLoaded, work: Callable[[], None], *, waits: bool
    ) -> None:
        """Do `work` once the model is loaded; fail if the request has waited for that before."""
        if not waits:
            self.fail(kind, number, absent)
            return
        try:
            self._pending[number] = absent.then(work, partial(self.fail, kind, number))
        except TpxError as exc:
            self.fail(kind, number, exc)

    # inference

    def _handle_infer(self, frame: ReceivedFrame) -> None:
        meta = frame.meta
        if frame.flags & Flag.TRACED:
            meta = wire.decode(wire.TraceStart, meta).meta
        if frame.template == NO_TEMPLATE:
            known: _RequestTemplate | None = _RequestTemplate(meta)
        elif frame.flags & Flag.DEFINES:
            known = self._requests[frame.template] = _RequestTemplate(meta)
        else:
            known = self._requests[frame.template]
        if known is None:
            raise ChannelBroken(f"a request of the unknown template {frame.template}")
        self._start_request(frame, known)

    def _start_request(
        self,
        frame: ReceivedFrame,
        known: _RequestTemplate,
        decoded: DecodedRequest | None = None,
        *,
        waits: bool = True,
    ) -> None:
        """Start a request. Every failure is answered, because this is the request's error boundary."""
        number, plane = frame.number, self._plane
        try:
            infer = self._build_request(frame, known, decoded)
            if frame.flags & Flag.PACED:
                infer.backpressure = ResponseBackpressure()
                infer.stall(self.channel.backlog)
            self._pending.pop(number, None)
            self._in_flight[number] = infer
            if frame.flags & Flag.TRACED:
                self._begin_trace(infer, wire.decode(wire.TraceStart, frame.meta))
            plane.infer(infer)
        except Postponed as exc:
            go_on = partial(self._start_request, frame, known)
            self._pending[number] = exc.then(go_on, partial(self.fail, FrameKind.RESPONSE, number))
        except NotLoaded as exc:
            work = partial(self._start_request, frame, known, waits=False)
            self._wait_for_load(FrameKind.RESPONSE, number, exc, work, waits=waits)
        except TpxError as exc:
            self.fail(FrameKind.RESPONSE, number, exc)
        except Exception:  # one request's boundary
            log.exception("a request of frontend %d failed", self.index)
            self.fail(FrameKind.RESPONSE, number, TpxError("internal error: see the log of the server"))

    def _build_request(
        self, frame: ReceivedFrame, known: _RequestTemplate, decoded: DecodedRequest | None
    ) -> InferRequest:
        """Return a request with the head of its template, or bind it. Raises the errors of DataPlane.bind."""
        head, reply = known.head, self._handle_response
        exchange = _Exchange(frame.number, frame.generation != self._plane.generation)
        if decoded is None:
            tensors = wire.cut(frame.payload, known.sizes)
            if head is not None and known.generation == self._plane.generation:
                infer = head.repeat(tensors, reply, exchange)
                if infer is not None:
                    return infer
            decoded = known.request.request(tensors)
        bound = self._plane.bind(decoded)
        head = bound.head
        reusable = head.shared is not None if decoded.shared_inputs else head.reusable
        if frame.template != NO_TEMPLATE and reusable:
            known.learn(head, self._plane.generation, self._plane.fast_path(head))
        return bound.request(reply, exchange)

    def _begin_trace(self, infer: InferRequest, start: wire.TraceStart) -> None:
        """Trace a request if it is sampled or its caller traces it."""
        trace = self._plane.tracer.sample(
            infer.head.model.name, read_caller(start.traceparent, start.tracestate)
        )
        if trace is not None:
            self._traces[infer.context.number] = infer.trace = trace
            _add_stamps(trace, start.stamps)
            trace.begin(infer)

    def _handle_response(self, infer: InferRequest, response: InferResponse) -> None:
        head = infer.head
        if head.placed and response.error is None:
            if infer.context.placing or takes_long(head, response.outputs):
                self._place_later(infer, response)
                return
            try:
                response.outputs = put_into_place(response.outputs, infer)
            except TpxError as exc:
                self._fail_request(infer, exc)
                return
        self._send_response(infer, response)

    def _place_later(self, infer: InferRequest, response: InferResponse) -> None:
        """Write outputs to shared memory in another thread; later responses of the request must wait."""
        infer.context.placing += 1
        if response.final:
            infer.buffers, infer.unread = [], ()  # they need not be held until this is written

        def placed(outputs: list[Tensor]) -> None:
            infer.context.placing -= 1
            response.outputs = outputs
            self._send_response(infer, response)

        def failed(error: TpxError) -> None:
            infer.context.placing -= 1
            self._fail_request(infer, error)

        work = partial(put_into_place, response.outputs, infer)
        self._plane.offload.encode(response.size_bytes, work, placed, failed)

    def _fail_request(self, infer: InferRequest, error: TpxError) -> None:
        """End a request whose response cannot be written to shared memory."""
        if infer.context.number in self._in_flight:
            infer.cancel()
            self.fail(FrameKind.RESPONSE, infer.context.number, error)

    def _send_response(self, infer: InferRequest, response: InferResponse) -> None:
        number, described = infer.context.number, infer.context.described
        if self._in_flight.get(number) is not infer:
            return  # already answered with an error, or the frontend has ended
        outputs, flags, template, meta = response.outputs, 0, NO_TEMPLATE, b""
        if response.final:
            flags = _FINAL
            del self._in_flight[number]
        known = None
        if response.error is None and not (described or response.parameters):
            known = self._get_template(infer.head, outputs)
        if known is not None:
            defined = known.number_in(self._responses)
            if defined is None:
                defined = known.define_in(self._responses)
                meta, flags = known.meta, flags | Flag.DEFINES
            template = defined
        elif response.error is None:
            meta = _encode_meta(outputs, response.parameters, infer.head if described else None)
            flags |= Flag.DESCRIBES if described else 0
        else:
            meta, flags = wire.encode(wire.Error.of(response.error)), flags | Flag.ERROR
        try:
            head = _RESPONSE, flags, number, template, 0
            self.channel.post(head, meta, [tensor.data for tensor in outputs])
        except TpxError as exc:
            if not response.final:
                infer.cancel()
            self.fail(FrameKind.RESPONSE, number, exc)


def _add_stamps(trace: Trace, stamps: wire.WireStamps) -> None:
    """Add a frontend's timestamps to a trace."""
    for name, ns in stamps:
        trace.stamp(name, ns)


def _encode_meta(
    outputs: Sequence[Tensor], parameters: dict[str, Parameter] | None, head: RequestHead | None
) -> bytes:
    tensors = [wire.OutputTensor(t.name, t.datatype, t.shape, len(t.data)) for t in outputs]
    described = None if head is None else wire.Described.of(head)
    return wire.encode(wire.WireResponse(tensors, parameters or None, described))
