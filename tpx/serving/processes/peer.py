"""The engine's side of one frontend: passes its frames to the data plane, and sends the responses."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from tpx.errors import TpxError
from tpx.protocol.grpc.server_call import Method
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.backpressure import ResponseBackpressure
from tpx.serving.dataplane import DataPlane
from tpx.serving.fast_path import FastPath
from tpx.serving.frontends.http import HttpFrontend
from tpx.serving.frontends.outputs import put_into_place, takes_long
from tpx.serving.instances.kept import BoundRows
from tpx.serving.model import ServedModel
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
from tpx.serving.processes.traces import add_stamps, read_caller
from tpx.serving.processes.wire import NO_TEMPLATE, TEMPLATES, Flag, FrameKind, FrameTemplate, Templates
from tpx.serving.repository.coordinator import NotLoaded
from tpx.serving.request import InferRequest, InferResponse, RequestHead, rendering_key
from tpx.serving.tracing.trace import Trace

log = logging.getLogger(__name__)

_clock = time.perf_counter_ns
_GENERATIONS = 0xFFFFFFFF
_TURN_NS = 2_000_000
"""Time limit for taking frames of one frontend in one turn of the event loop."""
_PUBLISH_NS = 30_000
"""Time after which computed responses are published, without waiting for the others of the turn."""
_INFER, _RESPONSE, _FINAL = int(FrameKind.INFER), int(FrameKind.RESPONSE), int(Flag.FINAL)


class Hub(Protocol):
    """The engine's state that all frontends share."""

    plane: DataPlane
    http: HttpFrontend
    methods: Mapping[str, Method]
    changed: asyncio.Event

    def left(self, peer: "Peer") -> None:
        """Remove a frontend that has ended."""

    def announce_generation(self) -> None:
        """Notify all frontends if models have changed."""


_NOTHING = FrameTemplate(b"")


class _Known:
    """Request template: a request without tensors, with its head and fast path until a model changes."""

    __slots__ = (
        "bound", "fast_path", "generation", "head", "output_size", "outputs", "request", "sizes", "template",
    )  # fmt: skip

    def __init__(self, meta: Buffer) -> None:
        self.request = wire.decode(wire.Request, meta)
        self.sizes = self.request.sizes
        self.head: RequestHead | None = None
        self.generation = -1
        self.fast_path: FastPath | None = None
        self.bound: BoundRows | None = None
        """Memory with the outputs of the requests that were computed last."""
        self.template = _NOTHING
        """Template of responses with the outputs in `bound`."""
        self.outputs: list[tuple[memoryview, int]] = []
        """Memory of each output in `bound`, and its bytes per request."""
        self.output_size = 0
        """Bytes of all outputs of a request."""

    def learn(self, head: RequestHead, generation: int) -> None:
        """Store the validated head, and the fast path if the model has one."""
        self.head, self.generation = head, generation
        self.bound = None
        self.fast_path = head.model.fast_path(head) if isinstance(head.model, ServedModel) else None


class Peer:
    """A connected frontend, until it ends."""

    def __init__(self, hub: Hub, sock: socket.socket, descriptors: Descriptors, index: int) -> None:
        """Map the memory of a frontend. Raises ChannelBroken."""
        self._hub = hub
        self._plane = hub.plane
        self.index = index
        self.serving = False
        self.channel = FrameChannel(descriptors, self._on_frames, self._on_broken, is_engine=True)
        self.channel.on_backlog = self._on_backlog
        self._sock = sock
        self._requests: list[_Known | None] = [None] * wire.TEMPLATES
        self._responses = Templates()
        self._key = f"ring{index}.{id(self)}"
        self._in_flight: dict[int, InferRequest] = {}
        self._pending: dict[int, Callable[[], None]] = {}
        """Functions that cancel requests waiting for a thread or for their model, by request number."""
        self._stalled: set[int] = set()
        """Requests whose client does not read its responses."""
        self._described: set[int] = set()
        """Requests sent before their frontend knew of changed models; responses describe the outputs."""
        self._starts: dict[int, wire.TraceStart] = {}
        """Beginnings of traces, for requests that have not reached their model yet."""
        self._traces: dict[int, Trace] = {}
        """Traces that end when the frontend has sent the response."""
        self._run: tuple[_Known, Sequence[int]]
        """Requests being computed on the fast path: their template and their numbers."""
        self._published_ns = 0
        self._placing: dict[int, int] = {}
        """Responses being written to shared memory in another thread: their count by request number."""

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
        self._sock.close()
        self._hub.left(self)
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
        for number, infer in self._in_flight.items():
            infer.stall(waits or number in self._stalled)

    def _on_frames(self, channel: FrameChannel, frames: Iterator[Arrived]) -> None:
        """Take frames for a limited time."""
        self._hub.announce_generation()
        ends_ns = _clock() + _TURN_NS
        for arrived in frames:
            known = self._find_fast_template(arrived[0])
            if known is not None:
                self._compute_fast(known, *arrived[1:])
            else:
                for frame in channel.open(arrived):
                    self._handle_frame(frame)
                if channel.closed:
                    return
            if _clock() > ends_ns:  # the channel schedules another turn for the rest
                return

    def _find_fast_template(self, fields: Fields) -> _Known | None:
        """Return the template of a request that can take the fast path, otherwise None."""
        _, kind, flags, _, template, generation, meta_size, size, place = fields
        if kind != _INFER or flags or meta_size or place != INLINE or template >= TEMPLATES:
            return None
        known = self._requests[template]
        if known is None or known.fast_path is None or known.fast_path.size != size:
            return None
        plane = self._plane
        if not known.generation == plane.generation == generation or plane.stopping:
            return None
        return known

    def _compute_fast(self, known: _Known, numbers: Sequence[int], tensors: Sequence[Buffer]) -> None:
        """Compute requests on the fast path and answer them; the others take the regular path."""
        assert known.fast_path is not None
        self._published_ns = came_ns = _clock()
        self._run = known, numbers
        done = known.fast_path.compute(tensors, came_ns, self._answer_fast)
        for number, data in zip(numbers[done:], tensors[done:], strict=True):
            self._start_request(
                ReceivedFrame(_INFER, 0, number, NO_TEMPLATE, known.generation, b"", data), known
            )

    def _answer_fast(self, bound: BoundRows, first: int, count: int, now_ns: int) -> None:
        """Send the responses to requests that were computed in one run."""
        known, numbers = self._run
        if known.bound is not bound:
            self._learn_outputs(known, bound)
        outputs, template = known.outputs, known.template
        plain = template.plain_in(self._responses, _RESPONSE, _FINAL, 0, known.output_size)
        if count == len(outputs) == 1 and plain is not None:  # the common case, without slicing
            self.channel.post_plain(plain, numbers[first], bytes(outputs[0][0]))
            count = 0
        for index in range(count):
            data = b"".join([each[index * size : (index + 1) * size] for each, size in outputs])
            if plain is None:
                head = (
                    _RESPONSE,
                    Flag.FINAL | Flag.DEFINES,
                    numbers[first],
                    template.define_in(self._responses),
                    0,
                )
                self.channel.post(head, template.meta, (data,))
                plain = template.plain_in(self._responses, _RESPONSE, _FINAL, 0, known.output_size)
            else:
                self.channel.post_plain(plain, numbers[first + index], data)
        if now_ns - self._published_ns > _PUBLISH_NS:
            self._published_ns = now_ns
            self.channel.publish()

    def _learn_outputs(self, known: _Known, bound: BoundRows) -> None:
        fast = known.fast_path
        assert fast is not None
        outputs = fast.tensors(bound)
        known.bound = bound
        known.template = self._get_template(fast.head, InferResponse(outputs))
        known.output_size = sum(len(tensor.data) for tensor in outputs)
        known.outputs = [
            (bound.output(wanted.spec).data, len(tensor.data))
            for wanted, tensor in zip(fast.head.outputs, outputs, strict=True)
        ]

    def _get_template(self, head: RequestHead, response: InferResponse) -> FrameTemplate:
        """Return the template of responses to such requests with outputs of these shapes."""
        key = rendering_key(self._key, response.outputs, None)
        known: FrameTemplate | None = head.rendered.get(key)
        if known is None:
            known = FrameTemplate(_encode_meta(response.outputs, response, None))
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
            case FrameKind.HTTP:
                self._hub.http.serve(RelayedRequest(self, frame))  # type: ignore[arg-type]
            case FrameKind.GRPC:
                self._serve_call(RelayedCall(self, frame), frame.payload)
            case FrameKind.TRACE:
                self._end_trace(frame)
            case FrameKind.SERVING:
                self.serving = True
                self._hub.changed.set()
            case _:
                raise ChannelBroken(f"a frame of kind {frame.kind}")

    def _serve_call(self, call: RelayedCall, message: Buffer) -> None:
        serve = self._hub.methods[call.path].unary
        assert serve is not None
        serve(call, message)  # type: ignore[arg-type]

    def _handle_stall(self, frame: ReceivedFrame) -> None:
        infer = self._in_flight.get(frame.number)
        if infer is None:
            return
        if frame.flags & Flag.ON:
            self._stalled.add(frame.number)
        else:
            self._stalled.discard(frame.number)
        infer.stall(bool(frame.flags & Flag.ON or self.channel.backlog))

    def _end_trace(self, frame: ReceivedFrame) -> None:
        trace = self._traces.pop(frame.number, None)
        if trace is not None:
            add_stamps(trace, wire.decode(wire.TraceEnd, frame.meta).stamps)
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

    # answers to relayed requests

    def answer(self, number: int, flags: int, meta: bytes, parts: Sequence[Buffer] = ()) -> None:
        """Send the response to a relayed request."""
        self._pending.pop(number, None)
        self._hub.announce_generation()
        try:
            self.channel.send(FrameKind.ANSWER, flags=flags, number=number, meta=meta, parts=parts)
        except TpxError as exc:
            self.fail(FrameKind.ANSWER, number, exc)

    def when_gone(self, number: int, call_off: Callable[[], None]) -> None:
        """Register a function that is called if the client disconnects before the response."""
        self._pending[number] = call_off

    def fail(self, kind: FrameKind, number: int, error: TpxError) -> None:
        """End a request with an error."""
        self._pending.pop(number, None)
        self._in_flight.pop(number, None)
        self._described.discard(number)
        self._stalled.discard(number)
        self._starts.pop(number, None)
        self._hub.announce_generation()
        flags = Flag.ERROR | Flag.FINAL
        self.channel.send(kind, flags=flags, number=number, meta=wire.encode(wire.Error.of(error)))

    def _describe_model(self, number: int, name: str, version: str, *, waits: bool = True) -> None:
        try:
            model = self._plane.model(name, version)
        except NotLoaded as exc:
            self._wait_for_load(
                FrameKind.MODEL,
                number,
                exc,
                partial(self._describe_model, number, name, version, waits=False),
                waits=waits,
            )
        except TpxError as exc:
            self.fail(FrameKind.MODEL, number, exc)
        else:
            self._pending.pop(number, None)
            self._hub.announce_generation()
            fields = wire.Model.of(model.name, model.version, model.signature, decoupled=model.decoupled)
            self.channel.send(
                FrameKind.MODEL, number=number, generation=self._plane.generation & _GENERATIONS,
                meta=wire.encode(fields),
            )  # fmt: skip

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
        if frame.flags & Flag.TRACED:
            start = self._starts[frame.number] = wire.decode(wire.TraceStart, frame.meta)
            frame.meta = start.meta
        if frame.template == NO_TEMPLATE:
            known: _Known | None = _Known(frame.meta)
        elif frame.flags & Flag.DEFINES:
            known = self._requests[frame.template] = _Known(frame.meta)
        else:
            known = self._requests[frame.template]
        if known is None:
            raise ChannelBroken(f"a request of the unknown template {frame.template}")
        self._start_request(frame, known)

    def _start_request(
        self,
        frame: ReceivedFrame,
        known: _Known,
        decoded: DecodedRequest | None = None,
        *,
        waits: bool = True,
    ) -> None:
        """Start a request. Every failure is answered, because this is the request's error boundary."""
        number, plane = frame.number, self._plane
        try:
            if known.head is not None and known.generation == plane.generation:
                infer = InferRequest(
                    known.head, wire.cut(frame.payload, known.sizes), self._handle_response, number
                )
            else:
                infer = self._bind_request(frame, known, decoded)
            if frame.generation != plane.generation & _GENERATIONS:
                self._described.add(number)
            if frame.flags & Flag.PACED:
                infer.backpressure = ResponseBackpressure()
                infer.stall(self.channel.backlog > 0)
            self._pending.pop(number, None)
            self._in_flight[number] = infer
            if number in self._starts:
                self._begin_trace(infer, self._starts.pop(number))
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

    def _bind_request(
        self, frame: ReceivedFrame, known: _Known, decoded: DecodedRequest | None
    ) -> InferRequest:
        """Validate a request against its model. Raises the errors of DataPlane.bind."""
        if decoded is None:
            decoded = known.request.request(wire.cut(frame.payload, known.sizes))
        head = self._plane.bind(decoded)
        if frame.template != NO_TEMPLATE and head.reusable:
            known.learn(head, self._plane.generation)
        return InferRequest(
            head, [tensor.data for tensor in decoded.inputs], self._handle_response, frame.number
        )

    def _begin_trace(self, infer: InferRequest, start: wire.TraceStart) -> None:
        """Trace a request if it is sampled or its caller traces it."""
        trace = self._plane.tracer.sample(infer.head.model.name, read_caller(start.caller))
        if trace is not None:
            self._traces[infer.context] = infer.trace = trace
            add_stamps(trace, start.stamps)
            trace.begin(infer)

    def _handle_response(self, infer: InferRequest, response: InferResponse) -> None:
        plain = response.final and response.error is None and not response.parameters
        if plain and not self._described and not infer.head.placed:
            known = infer.head.rendered.get(rendering_key(self._key, response.outputs, None))
            template = None if known is None else known.number_in(self._responses)
            if template is not None:  # most responses
                self._send_known(infer, response.outputs, template)
                return
        number: int = infer.context
        if self.channel.closed:
            return
        if infer.head.placed and response.error is None:
            if number in self._placing or takes_long(infer.head, response.outputs):
                self._place_later(infer, response)
                return
            try:
                response.outputs = put_into_place(response.outputs, infer)
            except TpxError as exc:
                self._fail_request(infer, exc)
                return
        self._send_response(infer, response)

    def _send_known(self, infer: InferRequest, outputs: Sequence[Tensor], template: int) -> None:
        """Send the only or last response to a request, with a template that the frontend knows."""
        number: int = infer.context
        if self._in_flight.get(number) is infer:
            self._remove_request(number)
            self._hub.announce_generation()
            head = FrameKind.RESPONSE, Flag.FINAL, number, template, 0
            self.channel.post(head, b"", [tensor.data for tensor in outputs])

    def _remove_request(self, number: int) -> None:
        """Remove a request that has its last response."""
        del self._in_flight[number]
        if self._stalled:
            self._stalled.discard(number)

    def _place_later(self, infer: InferRequest, response: InferResponse) -> None:
        """Write outputs to shared memory in another thread; later responses of the request must wait."""
        number: int = infer.context
        self._placing[number] = self._placing.get(number, 0) + 1

        def done() -> None:
            self._placing[number] -= 1
            if not self._placing[number]:
                del self._placing[number]

        def placed(outputs: list[Tensor]) -> None:
            done()
            response.outputs = outputs
            self._send_response(infer, response)

        def failed(error: TpxError) -> None:
            done()
            self._fail_request(infer, error)

        self._plane.offload.encode(partial(put_into_place, response.outputs, infer), placed, failed)

    def _fail_request(self, infer: InferRequest, error: TpxError) -> None:
        """End a request whose response cannot be written to shared memory."""
        if infer.context in self._in_flight:
            infer.cancel()
            self.fail(FrameKind.RESPONSE, infer.context, error)

    def _send_response(self, infer: InferRequest, response: InferResponse) -> None:
        number: int = infer.context
        if self._in_flight.get(number) is not infer:
            return  # already answered with an error
        flags, template, meta = 0, NO_TEMPLATE, b""
        if response.final:
            flags = Flag.FINAL
            self._remove_request(number)
        outputs = response.outputs
        described = bool(self._described) and number in self._described
        if response.error is not None:
            flags |= Flag.ERROR
            meta = wire.encode(wire.Error.of(response.error))
        elif described or response.parameters or not outputs or _can_vary(outputs):
            meta = _encode_meta(outputs, response, infer.head if described else None)
            flags |= Flag.DESCRIBES if described else 0
        else:
            known = self._get_template(infer.head, response)
            number_of = known.number_in(self._responses)
            if number_of is None:
                template = known.define_in(self._responses)
                meta, flags = known.meta, flags | Flag.DEFINES
            else:
                template = number_of
        if response.final and described:
            self._described.discard(number)
        self._starts.pop(number, None)
        self._hub.announce_generation()
        try:
            self.channel.send(
                FrameKind.RESPONSE, flags=flags, number=number, template=template, meta=meta,
                parts=[tensor.data for tensor in outputs],
            )  # fmt: skip
        except TpxError as exc:
            self.fail(FrameKind.RESPONSE, number, exc)


def _can_vary(outputs: Sequence[Tensor]) -> bool:
    """Return whether outputs of these shapes may have other sizes next time."""
    return any(tensor.datatype == "BYTES" for tensor in outputs)


def _encode_meta(outputs: Sequence[Tensor], response: InferResponse, head: RequestHead | None) -> bytes:
    tensors = [wire.OutputTensor(t.name, t.datatype, t.shape, len(t.data)) for t in outputs]
    described = None if head is None else wire.Described.of(head)
    return wire.encode(wire.WireResponse(tensors, response.parameters or None, described))
