"""ModelStreamInfer: requests on one stream, their answers as they come.

Errors are answers too, and the stream goes on; with the metadata `triton_grpc_error: true` the first error
ends it
with a real status. Answers of models that are not decoupled come in the order of their requests.
"""

from collections import deque

from tpx.errors import NotReady, TpxError
from tpx.protocol import messages
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.tensors import Buffer
from tpx.protocol.v2_protobuf import encode_varint
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.grpc_answers import fail, fail_internally
from tpx.serving.frontends.grpc_infer import GrpcInference, encode_response
from tpx.serving.frontends.grpc_verbs import SERVICE, Rpc
from tpx.serving.request import InferRequest, InferResponse

_INFER_RESPONSE_TAG = bytes((2 << 3 | 2,))
_FINAL = {"triton_final_response": True}
_NOT_FINAL = {"triton_final_response": False}


class _Turn:
    """One request of a stream: what is ready of its answer, and whether that is all of it."""

    __slots__ = ("done", "messages", "request")

    def __init__(self) -> None:
        self.request: InferRequest | None = None
        self.messages: list[list[Buffer]] = []
        self.done = False


class GrpcStreams:
    """Serves ModelStreamInfer."""

    def __init__(self, plane: DataPlane, inference: GrpcInference) -> None:
        self._plane = plane
        self._inference = inference

    def rpcs(self) -> list[Rpc]:
        return [Rpc(category="inference", method=Method(SERVICE + "ModelStreamInfer", stream=self._open))]

    def _open(self, call: ServerCall) -> "_InferStream":
        return _InferStream(call, self._plane, self._inference)


class _InferStream:
    """The sink of one ModelStreamInfer call."""

    def __init__(self, call: ServerCall, plane: DataPlane, inference: GrpcInference) -> None:
        self._call = call
        self._plane = plane
        self._inference = inference
        self._turns: deque[_Turn] = deque()
        self._half_closed = False
        self._ended = False
        self._errors_end = call.head.metadata.get("triton_grpc_error") == "true"

    def message(self, message: Buffer) -> None:
        """The boundary of a request: whatever happens, it is answered."""
        if self._ended:
            return
        if self._plane.exiting:
            text = "GRPC server is shutting down and has stopped accepting new requests."
            self._end_with(NotReady(text))
            return
        turn = _Turn()
        self._turns.append(turn)
        try:
            infer = self._inference.request(message, self._call.method, self._reply, turn)
            turn.request = infer
            self._plane.infer(infer)
        except TpxError as exc:
            self._error(turn, exc)
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            self._ended = True
            fail_internally(self._call, "ModelStreamInfer", exc)

    def half_closed(self) -> None:
        """The client sends no more; the stream ends with its last answer."""
        self._half_closed = True
        self._finish_if_done()

    def gone(self) -> None:
        """Nobody reads any more: what is in flight is cancelled."""
        self._ended = True
        for turn in self._turns:
            if turn.request is not None:
                turn.request.cancel()
        self._turns.clear()

    def _reply(self, infer: InferRequest, response: InferResponse) -> None:
        turn: _Turn = infer.context
        if self._ended:
            return
        if response.error is not None:
            self._error(turn, response.error)
            return
        decoupled = infer.head.model.decoupled
        if response.outputs or not decoupled or infer.head.empty_final_response:
            parameters = _FINAL if response.final else _NOT_FINAL
            try:
                turn.messages.append(_framed(encode_response(infer, response.outputs, parameters)))
            except TpxError as exc:
                self._error(turn, exc)
                return
        turn.done = response.final
        if decoupled:
            self._send(turn)
            if turn.done:
                self._turns.remove(turn)
        self._send_in_order()

    def _error(self, turn: _Turn, error: TpxError) -> None:
        """An error in the stream: the answer says which request it is of, and nothing else."""
        if self._errors_end:
            self._end_with(error)
            return
        head = turn.request.head if turn.request is not None else None
        answer = messages.ModelStreamInferResponse(error_message=error.message)
        answer.infer_response.id = head.request_id if head is not None else ""
        turn.messages.append([answer.SerializeToString()])
        turn.done = True
        self._send_in_order()

    def _send_in_order(self) -> None:
        turns = self._turns
        while turns and (turns[0].done or turns[0].messages):
            self._send(turns[0])
            if not turns[0].done:
                break
            turns.popleft()
        self._finish_if_done()

    def _send(self, turn: _Turn) -> None:
        ready, turn.messages = turn.messages, []
        for parts in ready:
            self._call.send(parts, sum(len(part) for part in parts))

    def _finish_if_done(self) -> None:
        if self._half_closed and not self._turns and not self._ended:
            self._ended = True
            self._call.finish()

    def _end_with(self, error: TpxError) -> None:
        self.gone()
        fail(self._call, error)


def _framed(parts: list[Buffer]) -> list[Buffer]:
    """A ModelInferResponse as the infer_response of a ModelStreamInferResponse."""
    size = sum(len(part) for part in parts)
    return [_INFER_RESPONSE_TAG + encode_varint(size), *parts]
