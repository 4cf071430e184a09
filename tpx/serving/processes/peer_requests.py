"""Requests of one frontend in the engine, from their frames to the frames of their responses."""

import logging
from collections.abc import Callable
from functools import partial

from tpx.errors import TpxError
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.backpressure import ResponseBackpressure
from tpx.serving.dataplane import DataPlane
from tpx.serving.deferred import NotLoaded
from tpx.serving.frontends.outputs import put_into_place, takes_long
from tpx.serving.offload import Postponed
from tpx.serving.processes import wire
from tpx.serving.processes.channel import ChannelBroken, FrameChannel, ReceivedFrame
from tpx.serving.processes.templates import PeerTemplates, RequestTemplate, encode_outputs
from tpx.serving.processes.wire import NO_TEMPLATE, Flag, FrameKind
from tpx.serving.request import InferRequest, InferResponse
from tpx.serving.tracing.trace import Trace, read_caller

log = logging.getLogger(__name__)

_RESPONSE, _FINAL = int(FrameKind.RESPONSE), int(Flag.FINAL)


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


class PeerRequests:
    """Requests of one frontend that the engine has not answered."""

    def __init__(self, plane: DataPlane, channel: FrameChannel, templates: PeerTemplates, index: int) -> None:
        self._plane = plane
        self._channel = channel
        self._templates = templates
        self._index = index
        self._in_flight: dict[int, InferRequest] = {}
        self.pending: dict[int, Callable[[], None]] = {}
        """Functions that cancel requests waiting for a thread or for their model, by request number; those
        of other verbs, too.
        """
        self._traces: dict[int, Trace] = {}
        """Traces that end when the frontend has sent the response."""

    def cancel_all(self) -> None:
        """Cancel everything: the frontend has ended."""
        for infer in list(self._in_flight.values()):
            infer.cancel()
        for call_off in list(self.pending.values()):
            call_off()
        self._in_flight.clear()
        self.pending.clear()
        for trace in self._traces.values():
            trace.end()
        self._traces.clear()

    def on_backlog(self, waits: bool) -> None:
        """Pause models that produce responses faster than the frontend reads them."""
        for infer in self._in_flight.values():
            infer.stall(waits or infer.context.stalled)

    def stall(self, frame: ReceivedFrame) -> None:
        """Pause or resume a model whose client reads slowly."""
        infer = self._in_flight.get(frame.number)
        if infer is not None:
            infer.context.stalled = bool(frame.flags & Flag.ON)
            infer.stall(infer.context.stalled or self._channel.backlog)

    def end_trace(self, frame: ReceivedFrame) -> None:
        """End a trace with the frontend's last timestamps."""
        trace = self._traces.pop(frame.number, None)
        if trace is not None:
            _add_stamps(trace, wire.decode(wire.WireStamps, frame.meta))
            trace.end()

    def cancel(self, frame: ReceivedFrame) -> None:
        """Cancel a request of any kind."""
        number = frame.number
        infer = self._in_flight.get(number)
        if infer is not None:
            infer.cancel()
        else:
            call_off = self.pending.pop(number, None)
            if call_off is not None:
                call_off()

    def fail(self, kind: FrameKind, number: int, error: TpxError) -> None:
        """End a request with an error."""
        self.pending.pop(number, None)
        self._in_flight.pop(number, None)
        flags = Flag.ERROR | Flag.FINAL
        self._channel.send(kind, flags=flags, number=number, meta=wire.encode(wire.Error.of(error)))

    def wait_for_load(
        self, kind: FrameKind, number: int, absent: NotLoaded, work: Callable[[], None], *, waits: bool
    ) -> None:
        """Do `work` once the model is loaded; fail if the request has waited for that before."""
        if not waits:
            self.fail(kind, number, absent)
            return
        try:
            self.pending[number] = absent.then(work, partial(self.fail, kind, number))
        except TpxError as exc:
            self.fail(kind, number, exc)

    def receive(self, frame: ReceivedFrame) -> None:
        """Start the request of a frame. Raises ChannelBroken, msgspec.DecodeError."""
        meta = frame.meta
        if frame.flags & Flag.TRACED:
            meta = wire.decode(wire.TraceStart, meta).meta
        if frame.template == NO_TEMPLATE:
            known: RequestTemplate | None = RequestTemplate(meta)
        elif frame.flags & Flag.DEFINES:
            known = self._templates.requests[frame.template] = RequestTemplate(meta)
        else:
            known = self._templates.requests[frame.template]
        if known is None:
            raise ChannelBroken(f"a request of the unknown template {frame.template}")
        self.start(frame, known)

    def start(
        self,
        frame: ReceivedFrame,
        known: RequestTemplate,
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
                infer.stall(self._channel.backlog)
            self.pending.pop(number, None)
            self._in_flight[number] = infer
            if frame.flags & Flag.TRACED:
                self._begin_trace(infer, wire.decode(wire.TraceStart, frame.meta))
            plane.infer(infer)
        except Postponed as exc:
            go_on = partial(self.start, frame, known)
            self.pending[number] = exc.then(go_on, partial(self.fail, FrameKind.RESPONSE, number))
        except NotLoaded as exc:
            work = partial(self.start, frame, known, waits=False)
            self.wait_for_load(FrameKind.RESPONSE, number, exc, work, waits=waits)
        except TpxError as exc:
            self.fail(FrameKind.RESPONSE, number, exc)
        except Exception:  # one request's boundary
            log.exception("a request of frontend %d failed", self._index)
            self.fail(FrameKind.RESPONSE, number, TpxError("internal error: see the log of the server"))

    def _build_request(
        self, frame: ReceivedFrame, known: RequestTemplate, decoded: DecodedRequest | None
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
            known = self._templates.of_response(infer.head, outputs)
        if known is not None:
            defined = known.number_in(self._templates.responses)
            if defined is None:
                defined = known.define_in(self._templates.responses)
                meta, flags = known.meta, flags | Flag.DEFINES
            template = defined
        elif response.error is None:
            meta = encode_outputs(outputs, response.parameters, infer.head if described else None)
            flags |= Flag.DESCRIBES if described else 0
        else:
            meta, flags = wire.encode(wire.Error.of(response.error)), flags | Flag.ERROR
        try:
            head = _RESPONSE, flags, number, template, 0
            self._channel.post(head, meta, [tensor.data for tensor in outputs])
        except TpxError as exc:
            if not response.final:
                infer.cancel()
            self.fail(FrameKind.RESPONSE, number, exc)


def _add_stamps(trace: Trace, stamps: wire.WireStamps) -> None:
    """Add a frontend's timestamps to a trace."""
    for name, ns in stamps:
        trace.stamp(name, ns)
