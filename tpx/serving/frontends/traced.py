"""Tracing in the frontends: adds receive and send times to the events of the model."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from tpx.protocol.grpc.server_call import ServerCall
from tpx.protocol.grpc.status import Status
from tpx.protocol.http1.request import GONE, HttpRequest
from tpx.serving.inference_plane import TraceSource, WireTrace
from tpx.serving.request import Computation, InferRequest, InferResponse, RequestTrace
from tpx.serving.tracing.trace import Caller, read_caller

_LOOKS_AT_ONCE = 4
_LOOK_S = 0.0005
"""Polling interval for the kernel to accept a response, after the first few immediate polls."""
_LOOKS_ALIKE = 8
"""Polls before the interval doubles: for a slow reader the timestamp is at most one eighth late."""
_MOST_DOUBLINGS = 9


def trace_http(tracer: TraceSource, infer: InferRequest, request: HttpRequest) -> None:
    """Trace a request if it is sampled or its caller traces it."""
    caller = None
    if tracer.accepts_callers:
        get = request.head.headers.get
        caller = _parse_caller(
            get(b"traceparent", b"").decode("latin-1"), get(b"tracestate", b"").decode("latin-1")
        )
    trace = tracer.sample(infer.head.model.name, caller)
    if trace is not None:
        trace.stamp("HTTP_RECV_START", request.began_ns)
        trace.stamp("HTTP_RECV_END", request.received_ns)
        _TracedExchange(trace, infer, "HTTP", request.unsent).watch(request)


def trace_grpc(tracer: TraceSource, infer: InferRequest, call: ServerCall) -> None:
    """Trace a unary call if it is sampled or its caller traces it."""
    trace = _sample_call(tracer, infer, call, call.began_ns)
    if trace is not None:
        _TracedExchange(trace, infer, "GRPC", call.unsent).watch(call)


def trace_stream(tracer: TraceSource, infer: InferRequest, call: ServerCall, began_ns: int) -> int:
    """Trace a request of a stream that waited for it since `began_ns`. Return when the wait for the
    next one began. Its send time is that of handing responses to the stream, because the bytes of
    several responses cannot be told apart later.
    """
    trace = _sample_call(tracer, infer, call, began_ns)
    if trace is not None:
        _TracedExchange(trace, infer, "GRPC", lambda: 0, sends_with_replies=True)
    return call.received_ns


def _sample_call(
    tracer: TraceSource, infer: InferRequest, call: ServerCall, began_ns: int
) -> WireTrace | None:
    get = call.head.metadata.get
    caller = _parse_caller(get("traceparent"), get("tracestate")) if tracer.accepts_callers else None
    trace = tracer.sample(infer.head.model.name, caller)
    if trace is not None:
        trace.stamp("GRPC_WAITREAD_START", began_ns)
        trace.stamp("GRPC_WAITREAD_END", call.received_ns)
    return trace


def _parse_caller(traceparent: object, tracestate: object) -> Caller | None:
    if not (isinstance(traceparent, str) and traceparent):
        return None
    return read_caller(traceparent, tracestate if isinstance(tracestate, str) else "")


class _Answered(Protocol):
    """A request of either protocol with a callback for the start of its response."""

    on_answered: Callable[[Any], None] | None


class _TracedExchange:
    """Wraps the trace and the reply of a request. It ends when the model has sent its final response
    and the kernel has accepted the answer, or the client has disconnected.
    """

    def __init__(
        self,
        trace: WireTrace,
        infer: InferRequest,
        protocol: str,
        unsent: Callable[[], int],
        *,
        sends_with_replies: bool = False,
    ) -> None:
        """With `sends_with_replies`, the first reply starts the response (streams have no callback)."""
        self._trace = trace
        self._protocol = protocol
        self._unsent = unsent
        self._reply = infer.reply
        self._before: Callable[[Any], None] | None = None
        self._replied = self._answered = self._final = self._gone = self._ended = False
        self._sends_with_replies, self._refused = sends_with_replies, False
        self._looks = 0
        infer.reply = self._handle_reply
        infer.trace = self
        trace.begin(infer)

    def watch(self, request: _Answered) -> None:
        """Observe the start of the response through the request's callback."""
        self._before, request.on_answered = request.on_answered, self._handle_answer

    # the model's side

    @property
    def context(self) -> str:
        return self._trace.context

    def computed(self, request: InferRequest, times: Computation, response: InferResponse) -> None:
        self._trace.computed(request, times, response)

    def refused(self) -> None:
        self._trace.refused()
        self._refused = self._sends_with_replies
        self._mark_final()

    def child(self, request: InferRequest) -> RequestTrace:
        return self._trace.child(request)

    def _handle_reply(self, infer: InferRequest, response: InferResponse) -> None:
        if not self._replied:
            self._replied = True
            self._trace.stamp("INFER_RESPONSE_COMPLETE")
            if self._sends_with_replies:
                self._handle_answer(Status.CANCELLED if infer.cancelled else Status.OK)
        self._reply(infer, response)
        if response.final:
            self._mark_final()

    # the wire's side

    def _handle_answer(self, status: int | Status) -> None:
        if self._before is not None:
            self._before(status)
        self._answered = True
        self._gone = status in (GONE, Status.CANCELLED)
        if not self._gone:
            self._trace.stamp(f"{self._protocol}_SEND_START")
        self._end_if_sent()

    def _mark_final(self) -> None:
        self._final = True
        self._end_if_sent()

    def _end_if_sent(self) -> None:
        if self._ended or not (self._final and (self._answered or self._refused)):
            return
        if not self._gone:
            if self._unsent():
                self._schedule_check()
                return
            self._trace.stamp(f"{self._protocol}_SEND_END")
        self._ended = True
        self._trace.end()

    def _schedule_check(self) -> None:
        loop = asyncio.get_running_loop()
        self._looks += 1
        if self._looks <= _LOOKS_AT_ONCE:
            loop.call_soon(self._end_if_sent)
        else:
            doublings = min(_MOST_DOUBLINGS, (self._looks - _LOOKS_AT_ONCE) // _LOOKS_ALIKE)
            loop.call_later(_LOOK_S * 2**doublings, self._end_if_sent)
