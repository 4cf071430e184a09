"""Services for a model's process: calls (business logic scripting) and loads of models, logging, metrics."""

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tpx.errors import Cancelled, InvalidRequest, NotReady, TpxError
from tpx.protocol.json_values import JsonObject
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest, Parameter, RequestedOutput
from tpx.serving.backends.python.connection import WorkerConnection, error_entry
from tpx.serving.backends.python.encoding import as_json, code_number
from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.frames import Head
from tpx.serving.backpressure import AHEAD_BYTES
from tpx.serving.custom_metrics import KINDS, CustomFamily, CustomSeries, Labels
from tpx.serving.host import Callee, Host
from tpx.serving.request import InferRequest, InferResponse, RequestTrace

log = logging.getLogger(__name__)

_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)
"""Log levels by their pb_utils numbers."""

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


class Services:
    """Serves one process, on the event loop, until it is closed."""

    def __init__(
        self,
        connection: WorkerConnection,
        host: Host,
        model: str,
        trace_of: Callable[[int], RequestTrace | None],
    ) -> None:
        """`trace_of` finds the trace of a request that the process holds."""
        self._connection = connection
        self._host = host
        self._model = model
        self._trace_of = trace_of
        self._heads = frames.Heads()
        self._calls: dict[int, _ModelCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._families: dict[int, CustomFamily] = {}
        self._series: dict[int, tuple[CustomFamily, Labels, CustomSeries]] = {}
        self._verbs: dict[str, Callable[[JsonObject], Any]] = {
            "log": write_log,
            "ready": lambda words: self._host.is_ready(words["model"], words["version"]),
            "family": self._create_family,
            "drop_family": self._drop_family,
            "metric": self._create_series,
            "increment": self._increment_series,
            "set": self._set_series,
            "observe": lambda words: self._series[words["id"]][2].observe(
                words["value"], words.get("count", 1)
            ),
            "value": lambda words: self._series[words["id"]][2].value,
        }

    def take(self, kind: int, body: memoryview) -> None:
        """Handle a frame that requests a service. Raises ValueError for any other frame."""
        if kind == frames.CALL:
            self._begin_call(body)
        elif kind == frames.CANCEL_CALL:
            if (call := self._calls.get(frames.NUMBER.unpack(body)[0])) is not None:
                call.request.cancel()
        elif kind == frames.TAKEN:
            number, size = frames.CREDIT_BODY.unpack(body)
            if (call := self._calls.get(number)) is not None:
                call.advance(-size)
        elif kind == frames.CONTROL:
            words = json.loads(bytes(body))
            verb, number = words["verb"], words["number"]
            if verb in ("load", "unload"):
                task = asyncio.get_running_loop().create_task(self._load_or_unload(number, words))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return
            try:
                value = self._verbs[verb](words)
            except TpxError as exc:
                self._send_result(number, {"error": exc.message})
            else:
                self._send_result(number, {"value": value})
        else:
            raise ValueError(f"there is no frame {kind}")

    def give_up_calls(self) -> None:
        """Answer all calls now, because the request that made them was cancelled."""
        gone = Cancelled("the request that it was made for has ended")
        while self._calls:
            number, call = self._calls.popitem()
            call.request.cancel()
            self._send_error(number, call.request.head.model.name, gone)

    def close(self) -> None:
        """Cancel the calls of a process that has exited, and release what it held."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.request.cancel()
        self._drop_series(list(self._series))
        for family in self._families.values():
            self._host.metrics.drop_family(family)
        self._families.clear()

    # calls

    def _begin_call(self, body: memoryview) -> None:
        """Handle a CALL frame. Failures are sent as responses."""
        number, size, id_size = frames.HANDLE.unpack_from(body)
        at = frames.HANDLE.size
        head = self._heads[bytes(body[at : at + size])]
        at += size + id_size
        buffers, _ = frames.take_tensors(body, at, len(head.tensors), self._connection)
        name = head.extra["model"]
        try:
            model = self._find_model(head)
            decoded = _decode_request(head, buffers, bytes(body[at - id_size : at]).decode())
            request = InferRequest(
                model.bind(decoded), buffers, partial(self._respond, number, decoupled=model.decoupled), None
            )
            parent = self._trace_of(head.extra["parent"]) if head.extra["parent"] else None
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
            self._send_error(number, name, exc)

    def _find_model(self, head: Head) -> Callee:
        name, number = head.extra["model"], head.extra["version"]
        try:
            model = self._host.model(name, "" if number < 0 else str(number))
        except NotReady as exc:
            raise NotReady(f"Failed for execute the inference request. Model '{name}' is not ready.") from exc
        if model.decoupled and not head.extra["decoupled"]:
            raise InvalidRequest(_DECOUPLED.format(name))
        return model

    def _respond(
        self, number: int, request: InferRequest, response: InferResponse, *, decoupled: bool
    ) -> None:
        call = self._calls.pop(number, None) if response.final else self._calls.get(number)
        if call is None or not self._connection.open:
            return
        flags = frames.FINAL if response.final else 0
        if response.error is not None:
            self._send_reply(number, flags, error_entry(response.error.message, code_number(response.error)))
        elif decoupled and not response.has_content:
            self._send_reply(number, flags | frames.EMPTY, [])
        else:
            outputs = response.outputs
            extra = {"parameters": as_json(response.parameters)} if response.parameters else {}
            head = frames.encode_head([(t.name, t.datatype, t.shape) for t in outputs], extra)
            entry: list[Buffer] = [frames.STATUS.pack(frames.TENSORS, len(head)), head]
            try:
                self._connection.add_tensors(entry, [tensor.data for tensor in outputs])
            except MemoryError as exc:
                self._connection.drop_tensors()
                request.cancel()
                entry = error_entry(str(exc), 1)
            self._send_reply(number, flags, entry)
        if decoupled:
            call.advance(frames.RESPONSE_BYTES + sum(len(tensor.data) for tensor in response.outputs))

    def _send_error(self, number: int, model: str, error: TpxError) -> None:
        message = f"Model {model} - Error when running inference: {error.message}"
        self._send_reply(number, frames.FINAL, error_entry(message, code_number(error)))

    def _send_reply(self, number: int, flags: int, entry: list[Buffer]) -> None:
        self._connection.send(frames.REPLY, [frames.RESPONSE_START.pack(number, flags), *entry])

    # other services

    def _send_result(self, number: int, answer: JsonObject) -> None:
        if number and self._connection.open:
            self._connection.send(frames.RESULT, [json.dumps({"number": number, **answer}).encode()])

    async def _load_or_unload(self, number: int, words: JsonObject) -> None:
        try:
            if words["verb"] == "load":
                files = {path: base64.b64decode(content) for path, content in words["files"].items()}
                await self._host.load(words["model"], words["config"], files)
            else:
                await self._host.unload(words["model"], unload_dependents=words["dependents"])
        except TpxError as exc:
            self._send_result(number, {"error": exc.message})
        except Exception as exc:  # one worker's boundary: the model gets an internal error
            log.exception("a request of model '%s' failed", self._model)
            self._send_result(number, {"error": f"internal error: {type(exc).__name__}"})
        else:
            self._send_result(number, {"value": None})

    def _create_family(self, words: JsonObject) -> None:
        self._families[words["id"]] = self._host.metrics.hold_family(
            words["name"], words["help"], KINDS[words["kind"]]
        )

    def _drop_family(self, words: JsonObject) -> None:
        self._drop_series(words["metrics"])
        family = self._families.pop(words["id"], None)
        if family is not None:
            self._host.metrics.drop_family(family)

    def _create_series(self, words: JsonObject) -> None:
        family = self._families[words["family"]]
        key, series = self._host.metrics.hold_series(family, words["labels"], words["buckets"])
        self._series[words["id"]] = family, key, series

    def _drop_series(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            held = self._series.pop(number, None)
            if held is not None:
                self._host.metrics.drop_series(held[0], held[1])

    def _increment_series(self, words: JsonObject) -> None:
        self._series[words["id"]][2].value += words["value"]

    def _set_series(self, words: JsonObject) -> None:
        self._series[words["id"]][2].value = words["value"]


def _decode_request(head: Head, buffers: list[Buffer], request_id: str) -> DecodedRequest:
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


def write_log(words: JsonObject) -> None:
    """Write a log line of a model with the source position in the model."""
    level = _LEVELS[words["level"]]
    if log.isEnabledFor(level):
        more = {"traceback": words.get("traceback", "")}
        place = words["file"], words["line"]
        log.handle(log.makeRecord(log.name, level, *place, words["message"], (), None, extra=more))
