"""Server side of business logic scripting: requests from models to other models, on the event loop."""

import json
from collections.abc import Callable
from functools import partial

from tpx.errors import Cancelled, InvalidRequest, NotReady, TpxError
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest, Parameter, RequestedOutput
from tpx.serving.backends.python.connection import WorkerConnection, error_entry
from tpx.serving.backends.python.encoding import as_json, code_number
from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.frames import Head
from tpx.serving.backpressure import AHEAD_BYTES
from tpx.serving.host import Callee, Host
from tpx.serving.request import InferRequest, InferResponse, RequestTrace

_DECOUPLED = (
    "Model {} is using the decoupled. The current BLS request call doesn't support models using the "
    "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
    "'async_exec' calls for decoupled models.'"
)


class _ModelCall:
    """A request made by a model, with the number of response bytes that the model has not read yet."""

    __slots__ = ("_ahead", "_stalled", "request")

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self._ahead = 0
        self._stalled = False

    def advance(self, size: int) -> None:
        """Add `size` bytes of unread responses, negative if read; above a limit the producer is paused."""
        self._ahead += size
        stalled = self._ahead > AHEAD_BYTES
        if stalled is not self._stalled:
            self._stalled = stalled
            self.request.stall(stalled)


class ModelCalls:
    """Calls in progress of one process."""

    def __init__(self, connection: WorkerConnection, host: Host) -> None:
        self._connection = connection
        self._host = host
        self._heads = frames.Heads()
        self._calls: dict[int, _ModelCall] = {}

    def begin(self, body: memoryview, trace_of: Callable[[int], RequestTrace | None]) -> None:
        """Handle a CALL frame. Failures are sent as responses."""
        number, size, id_size = frames.HANDLE.unpack_from(body)
        at = frames.HANDLE.size
        head = self._heads[bytes(body[at : at + size])]
        at += size + id_size
        buffers, _ = frames.take_tensors(body, at, len(head.tensors), self._connection)
        name = head.extra["model"]
        try:
            model = self._model(head)
            decoded = _decoded(head, buffers, bytes(body[at - id_size : at]).decode())
            request = InferRequest(
                model.bind(decoded), buffers, partial(self._reply, number, decoupled=model.decoupled), None
            )
            parent = trace_of(head.extra["parent"]) if head.extra["parent"] else None
            if parent is not None:
                request.trace = parent.child(request)
            self._calls[number] = _ModelCall(request)
            try:
                model.submit(request)
            except TpxError:
                if request.trace is not None:
                    request.trace.refused()
                raise
        except TpxError as exc:
            self._calls.pop(number, None)
            self._refuse(number, name, exc)

    def cancel(self, number: int) -> None:
        """Cancel a call whose further responses are not needed."""
        call = self._calls.get(number)
        if call is not None:
            call.request.cancel()

    def taken(self, number: int, size: int) -> None:
        """Note that the process has read `size` bytes of responses."""
        call = self._calls.get(number)
        if call is not None:
            call.advance(-size)

    def give_up(self) -> None:
        """Answer all calls now, because the request that made them was cancelled."""
        gone = Cancelled("the request that it was made for has ended")
        while self._calls:
            number, call = self._calls.popitem()
            call.request.cancel()
            self._refuse(number, call.request.head.model.name, gone)

    def close(self) -> None:
        """Cancel all calls: the process has exited."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.request.cancel()

    def _model(self, head: Head) -> Callee:
        name, number = head.extra["model"], head.extra["version"]
        try:
            model = self._host.model(name, "" if number < 0 else str(number))
        except NotReady as exc:
            raise NotReady(f"Failed for execute the inference request. Model '{name}' is not ready.") from exc
        if model.decoupled and not head.extra["decoupled"]:
            raise InvalidRequest(_DECOUPLED.format(name))
        return model

    def _reply(self, number: int, request: InferRequest, response: InferResponse, *, decoupled: bool) -> None:
        call = self._calls.pop(number, None) if response.final else self._calls.get(number)
        if call is None or not self._connection.open:
            return
        flags = frames.FINAL if response.final else 0
        if response.error is not None:
            self._send(number, flags, error_entry(response.error.message, code_number(response.error)))
        elif decoupled and not response.says_something:
            self._send(number, flags | frames.EMPTY, [])
        else:
            outputs = response.outputs
            extra = {"parameters": as_json(response.parameters)} if response.parameters else {}
            head = frames.encode_head([(t.name, t.datatype, t.shape) for t in outputs], extra)
            entry: list[Buffer] = [frames.STATUS.pack(frames.TENSORS, len(head)), head]
            try:
                self._connection.add_tensors(entry, [tensor.data for tensor in outputs])
            except OSError as exc:
                request.cancel()
                entry = error_entry(f"no shared memory for the outputs of a call: {exc.strerror}", 1)
            self._send(number, flags, entry)
        if decoupled:
            call.advance(frames.RESPONSE_BYTES + sum(len(tensor.data) for tensor in response.outputs))

    def _refuse(self, number: int, model: str, error: TpxError) -> None:
        message = f"Model {model} - Error when running inference: {error.message}"
        self._send(number, frames.FINAL, error_entry(message, code_number(error)))

    def _send(self, number: int, flags: int, entry: list[Buffer]) -> None:
        self._connection.send(frames.REPLY, [frames.RESPONSE_START.pack(number, flags), *entry])


def _decoded(head: Head, buffers: list[Buffer], request_id: str) -> DecodedRequest:
    extra = head.extra
    parameters: dict[str, Parameter] = json.loads(extra["parameters"])
    if extra["sequence"]:
        parameters["sequence_id"] = extra["sequence"]
    if extra["flags"] & 1:
        parameters["sequence_start"] = True
    if extra["flags"] & 2:
        parameters["sequence_end"] = True
    if extra["timeout"]:
        parameters["timeout"] = extra["timeout"]
    return DecodedRequest(
        model_name=extra["model"],
        request_id=request_id,
        parameters=parameters,
        inputs=[
            Tensor(tensor.name, tensor.datatype, tensor.shape, data)
            for tensor, data in zip(head.tensors, buffers, strict=True)
        ],
        outputs=[RequestedOutput(name=name) for name in extra["outputs"]],
        default_binary=True,
    )
