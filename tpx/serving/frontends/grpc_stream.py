"""ModelStreamInfer: requests on one stream, answered as responses become available.

Errors are sent as messages and the stream continues; with the metadata `triton_grpc_error: true` the
first error ends it with a gRPC status. Responses of decoupled models are sent immediately, all others
in the order of their requests.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from tpx.errors import Code, TpxError
from tpx.protocol import messages
from tpx.protocol.grpc.backpressure import CALL_UNREAD_BYTES
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.grpc.status import from_code
from tpx.protocol.protobuf_contents import encode_varint
from tpx.protocol.tensors import Buffer
from tpx.protocol.v2 import DecodedRequest, Parameter
from tpx.protocol.v2_protobuf import request_id_of
from tpx.serving.backpressure import ResponseBackpressure
from tpx.serving.deferred import NotLoaded
from tpx.serving.frontends.grpc_infer import (
    FINAL,
    NOT_FINAL,
    RAW_OUTPUT,
    GrpcInference,
    encode_response,
    render_fields,
)
from tpx.serving.frontends.grpc_verbs import SERVICE, Rpc, fail_internally
from tpx.serving.frontends.outputs import takes_long
from tpx.serving.frontends.traced import trace_stream
from tpx.serving.inference_plane import InferencePlane
from tpx.serving.offload import Postponed
from tpx.serving.request import InferRequest, InferResponse

_COUNTED_BYTES = 16 << 10
"""Minimum size of a request to count as held memory; smaller ones are not worth counting."""
MOST_IN_FLIGHT = 1000
"""Maximum number of requests in flight per stream; beyond it the stream is not read."""
_EXITING = "GRPC server is shutting down and has stopped accepting new requests."
_INFER_RESPONSE_TAG = bytes((2 << 3 | 2,))


class _Turn(msgspec.Struct, eq=False):
    """One request of a stream and its responses that are ready."""

    request: InferRequest | None = None
    """None if the request could not be decoded."""
    messages: list[list[Buffer]] = msgspec.field(default_factory=list)
    size: int = 0
    """Total size of the messages, in bytes."""
    held: int = 0
    """Bytes of the request that count as held; 0 for small requests."""
    error: TpxError | None = None
    """Error that ends the stream after the messages are sent."""
    done: bool = False
    """True if no more responses follow."""
    encoding: int = 0
    """Number of responses being encoded in another thread; later responses wait for them."""

    @property
    def ordered(self) -> bool:
        """True if responses must wait for those of earlier requests."""
        return self.request is None or not self.request.head.model.decoupled

    def add(self, parts: list[Buffer]) -> None:
        self.messages.append(parts)
        self.size += sum(len(part) for part in parts)


def stream_rpc(plane: InferencePlane, inference: GrpcInference) -> Rpc:
    """Return ModelStreamInfer."""
    method = Method(SERVICE + "ModelStreamInfer", stream=lambda call: _InferStream(call, plane, inference))
    return Rpc(category="inference", method=method)


class _InferStream:
    """Sink of one ModelStreamInfer call."""

    def __init__(self, call: ServerCall, plane: InferencePlane, inference: GrpcInference) -> None:
        self._call = call
        self._plane = plane
        self._inference = inference
        self._turns: set[_Turn] = set()
        """Requests whose responses are not all sent."""
        self._ordered: deque[_Turn] = deque()
        """Requests that must be answered in order, oldest first."""
        self._kept = 0
        """Bytes of responses that wait for an earlier request."""
        self._paused = False
        self._half_closed = self._draining = False
        self._ended = False
        self._behind: deque[Buffer] | None = None
        """Messages received while an earlier one is decoded or its model loads; None if none is."""
        self._call_off: Callable[[], None] = lambda: None
        """Cancels what the stream waits for."""
        self._waits_since_ns = 0
        """Time at which the wait for the next message began; only set while requests are traced."""
        self._errors_end = call.head.metadata.get("triton_grpc_error") == "true"
        call.listen(on_stall=self._forward_stall, on_drain=self._drain)

    def message(self, message: Buffer) -> None:
        """Take a request, or queue it behind one that is being decoded or whose model is loading."""
        if self._behind is not None:
            self._behind.append(message)
        else:
            self._serve_request(message, waits=True)

    def _serve_request(self, message: Buffer, decoded: DecodedRequest | None = None, *, waits: bool) -> None:
        """Handle one request. Every error is answered; nothing is raised."""
        if self._ended or self._draining:
            return  # shutting down: finish what is in flight, then end with UNAVAILABLE
        turn = _Turn()
        try:
            infer = turn.request = self._inference.request(message, self._call, self._reply, turn, decoded)
            if infer.head.model.decoupled:
                # other models send one response, which needs no limit
                infer.backpressure = ResponseBackpressure()
                infer.template_of = self._template_of
            self._add_turn(turn, message)
            if self._plane.tracer.on:
                self._waits_since_ns = trace_stream(
                    self._plane.tracer, infer, self._call, self._waits_since_ns or self._call.began_ns
                )
            self._plane.infer(infer)
        except Postponed as exc:
            self._begin_wait(
                turn, message, partial(exc.then, partial(self._resume_serving, turn, message, None))
            )
        except TpxError as exc:
            if waits and isinstance(exc, NotLoaded):
                go_on = partial(self._resume_serving, turn, message, None, decoded, waits=False)
                self._begin_wait(turn, message, partial(exc.then, go_on))
                return
            if turn.request is None:
                self._add_turn(turn, message)
            self._refuse_request(turn, message, exc)
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            self._abort_stream(exc)

    def _begin_wait(
        self, turn: _Turn, message: Buffer, begin: Callable[[Callable[[TpxError], None]], Callable[[], None]]
    ) -> None:
        """Stop reading until a request is decoded or its model loaded. `begin` starts that work: it
        takes a failure callback and returns a cancel function.
        """
        try:
            self._call_off = begin(lambda error: self._resume_serving(turn, message, error, None))
        except TpxError as exc:
            self._add_turn(turn, message)
            self._refuse_request(turn, message, exc)
            return
        self._behind = deque()
        if not self._paused:
            self._call.pause_reading()

    def _resume_serving(
        self,
        turn: _Turn,
        message: Buffer,
        error: TpxError | None,
        decoded: DecodedRequest | None,
        *,
        waits: bool = True,
    ) -> None:
        """Serve a request that was waiting, or answer it with `error`, then the messages queued behind it."""
        behind, self._behind = self._behind, None
        if self._ended:
            return
        if error is None:
            self._serve_request(message, decoded, waits=waits)
        else:
            self._add_turn(turn, message)
            self._refuse_request(turn, message, error)
        if self._requeue_if_waiting(behind or deque()):
            return
        while behind and not self._ended:
            self.message(behind.popleft())
            if self._requeue_if_waiting(behind):
                return
        if not self._ended:
            if not self._paused:
                self._call.resume_reading()
            self._finish_if_done()

    def _requeue_if_waiting(self, messages: deque[Buffer]) -> bool:
        """Queue messages again if a request waits. Return False if none does."""
        if self._behind is None:
            return False
        self._behind.extend(messages)
        return True

    def half_closed(self) -> None:
        """Handle the client's half-close: the stream ends after its last response."""
        self._half_closed = True
        self._finish_if_done()

    def gone(self) -> None:
        """Cancel the requests in flight: the client has disconnected."""
        self._ended = True
        self._call_off()
        turns, self._turns = self._turns, set()
        self._ordered.clear()
        for turn in turns:
            request, turn.request = turn.request, None
            if request is not None:
                request.cancel()

    def _forward_stall(self, stalled: bool) -> None:
        """Pass on that the client has stopped or resumed reading."""
        for turn in self._turns:
            if turn.request is not None:
                turn.request.stall(stalled)

    def _add_turn(self, turn: _Turn, message: Buffer) -> None:
        self._turns.add(turn)
        if len(message) > _COUNTED_BYTES:
            turn.held = len(message)
            self._call.hold(turn.held)
        if turn.ordered:
            self._ordered.append(turn)
        self._limit_reading()

    def _limit_reading(self) -> None:
        """Pause reading while too many requests are in flight or bytes wait for an earlier response."""
        count = len(self._turns)
        if not self._paused and (count >= MOST_IN_FLIGHT or self._kept > CALL_UNREAD_BYTES):
            self._paused = True
            self._call.pause_reading()
        # resume at half the limits, so that reading does not toggle with every message
        elif self._paused and count <= MOST_IN_FLIGHT // 2 and self._kept <= CALL_UNREAD_BYTES // 2:
            self._paused = False
            self._call.resume_reading()

    def _reply(self, infer: InferRequest, response: InferResponse) -> None:
        turn: _Turn = infer.context
        if self._ended or turn.done:
            return
        work = partial(_encode, turn, infer, response)
        if turn.encoding or (infer.head.converted and takes_long(infer.head, response.outputs)):
            # encode later responses in the same thread to keep their order
            turn.encoding += 1
            then = partial(self._take_encoded, turn, infer, response)
            self._plane.offload.encode(
                response.size_bytes,
                work,
                then,
                lambda error: self._take_encoded(turn, infer, response, error),
            )
            return
        try:
            self._add_response(turn, infer, response, work())
        except TpxError as exc:
            self._fail_response(turn, infer, exc)
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            self._abort_stream(exc)

    def _template_of(
        self, infer: InferRequest, response: InferResponse
    ) -> Callable[[list[bytes]], None] | None:
        """Return what sends the tensors of responses like this one; None if outputs are converted."""
        turn: _Turn = infer.context
        if infer.head.converted or infer.head.placed:
            return None
        fields = render_fields(infer.head, response.outputs, NOT_FINAL) + RAW_OUTPUT
        call = self._call

        def message_of(data: bytes) -> bytes:
            # not remembered by size: the fields hold the client's request ID, which may be long
            size = encode_varint(len(data))
            message_bytes = encode_varint(len(fields) + len(size) + len(data))
            return b"".join((_INFER_RESPONSE_TAG, message_bytes, fields, size, data))

        def send(pieces: list[bytes]) -> None:
            if not (self._ended or turn.done):
                call.send_all([message_of(data) for data in pieces])

        return send

    def _take_encoded(
        self, turn: _Turn, infer: InferRequest, response: InferResponse, parts: list[Buffer] | TpxError
    ) -> None:
        """Take a response that was encoded in another thread."""
        turn.encoding -= 1
        if self._ended or turn.done:
            return
        if isinstance(parts, TpxError):
            self._fail_response(turn, infer, parts)
        else:
            self._add_response(turn, infer, response, parts)

    def _add_response(
        self, turn: _Turn, infer: InferRequest, response: InferResponse, parts: list[Buffer]
    ) -> None:
        turn.done = response.final
        if response.error is not None:
            self._add_error(turn, infer.head.request_id, response.error)
        elif parts:
            turn.add(parts)
        self._deliver_ready(turn)

    def _fail_response(self, turn: _Turn, infer: InferRequest, error: TpxError) -> None:
        """Cancel a request whose response cannot be sent, and answer with the error."""
        infer.cancel()
        turn.done = True
        self._add_error(turn, infer.head.request_id, error)
        self._deliver_ready(turn)

    def _refuse_request(self, turn: _Turn, message: Buffer, error: TpxError) -> None:
        """Answer a request that will not be computed with its error."""
        turn.done = True
        self._add_error(turn, request_id_of(message), error)
        self._deliver_ready(turn)

    def _add_error(self, turn: _Turn, request_id: str, error: TpxError) -> None:
        """Add an error message, which identifies its request but carries no outputs."""
        if self._errors_end:
            turn.error = error
            turn.done = True
            return
        answer = messages.ModelStreamInferResponse(error_message=error.message)
        answer.infer_response.id = request_id
        if turn.request is not None:
            answer.infer_response.model_name = turn.request.head.model.name
            answer.infer_response.parameters["triton_final_response"].bool_param = turn.done
        turn.add([answer.SerializeToString()])

    def _deliver_ready(self, turn: _Turn) -> None:
        """Send the responses that are ready and next in order."""
        if not turn.ordered:
            self._send_turn(turn)
        else:
            self._kept += turn.size
            ordered = self._ordered
            # an unfinished request holds back the responses of all later ones
            while ordered and ordered[0].done:
                self._kept -= ordered[0].size
                self._send_turn(ordered.popleft())
        if not self._ended:
            self._limit_reading()
            self._finish_if_done()

    def _send_turn(self, turn: _Turn) -> None:
        for parts in turn.messages:
            self._call.send(parts, sum(len(part) for part in parts))
        turn.messages, turn.size = [], 0
        if turn.error is not None and not self._ended:
            self._end_with_error(turn.error)
        elif turn.done:
            self._turns.discard(turn)
            if turn.held and not self._ended:
                self._call.hold(-turn.held)
            turn.request = None  # break the reference cycle

    def _drain(self) -> None:
        self._draining = True
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self._turns or self._ended or self._behind is not None:
            return
        if self._half_closed:
            self._ended = True
            self._call.finish()
        elif self._draining:
            self._end_with_error(TpxError(_EXITING, code=Code.UNAVAILABLE))

    def _end_with_error(self, error: TpxError) -> None:
        """End the stream with a status, after the messages already sent."""
        self.gone()
        self._call.finish(from_code(error.code), error.message)

    def _abort_stream(self, error: Exception) -> None:
        self.gone()
        fail_internally(self._call, error, "ModelStreamInfer")


def _encode(turn: _Turn, infer: InferRequest, response: InferResponse) -> list[Buffer]:
    """Encode a response; return [] if it carries nothing to send. Raises TpxError."""
    says = response.outputs or turn.ordered or response.has_content or infer.head.empty_final_response
    if response.error is not None or not says:
        return []
    parameters: Mapping[str, Parameter] = FINAL if response.final else NOT_FINAL
    if response.parameters:
        parameters = {**response.parameters, **parameters}
    parts = encode_response(infer, response.outputs, parameters)
    return [_INFER_RESPONSE_TAG + encode_varint(sum(map(len, parts))), *parts]
