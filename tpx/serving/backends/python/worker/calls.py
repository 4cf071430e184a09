"""Business logic scripting: requests of a model to other models."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.channel import Channel
from tpx.serving.backends.python.worker.errors import ErrorCode, TritonError, TritonModelException
from tpx.serving.backends.python.worker.request import InferenceRequest, InferenceResponse
from tpx.serving.backends.python.worker.tensor import Tensor

_OUTSIDE = "BLS is only supported during the 'execute' function."


class _Call:
    """One request on its way, and the responses that have come."""

    __slots__ = ("final", "notify", "responses", "wanted")

    def __init__(self, notify: Callable[[], None] | None = None) -> None:
        self.responses: deque[InferenceResponse] = deque()
        self.final = False
        self.wanted = True
        self.notify = notify


class Calls:
    """The calls of a process, and what else it asks of the server."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.open = False
        """The model is between `initialize` and `finalize`."""
        self._heads = frames.Heads()
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._asked: dict[int, Any] = {}
        self._lock = threading.Lock()

    def begin(self, request: InferenceRequest, call: _Call, *, decoupled: bool) -> int:
        """Send a request. Raises TritonModelException."""
        if not self.open:
            raise TritonModelException(_OUTSIDE)
        number = next(self._numbers)
        extra = {
            "model": request._model_name,
            "version": request._model_version,
            "sequence": request._correlation_id,
            "flags": request._flags,
            "timeout": request._timeout,
            "parameters": request._parameters,
            "outputs": request._outputs,
            "decoupled": decoupled,
            "parent": request._trace._handle if request._trace is not None else 0,
        }
        head = frames.encode_head([tensor._head() for tensor in request._inputs], extra)
        self._calls[number] = call
        identity = request._request_id.encode()
        parts: list[frames.Buffer] = [frames.HANDLE.pack(number, len(head), len(identity)), head, identity]
        self.channel.send(frames.CALL, parts, [tensor._raw() for tensor in request._inputs])
        return number

    def cancel(self, number: int) -> None:
        """Nobody waits for more responses of a call."""
        if number in self._calls:
            self.channel.send(frames.CANCEL_CALL, [frames.NUMBER.pack(number)])

    def drop(self, number: int) -> None:
        """As `cancel`; what still comes is for nobody."""
        call = self._calls.get(number)
        if call is not None:
            call.wanted = False
            call.responses.clear()
            self.cancel(number)

    def taken(self, number: int, size: int) -> None:
        """So many bytes of responses have been read: the server may send more."""
        if number in self._calls:
            self.channel.send(frames.TAKEN, [frames.CREDIT_BODY.pack(number, size)])

    def replied(self, body: memoryview) -> None:
        """A REPLY frame has come."""
        number, flags = frames.RESPONSE_START.unpack_from(body)
        call = self._calls.get(number)
        if call is None:
            return
        if flags & frames.EMPTY:
            response = InferenceResponse()
        else:
            response = self._response(body, frames.RESPONSE_START.size)
        if call.wanted:
            call.responses.append(response)
        if flags & frames.FINAL:
            call.final = True
            del self._calls[number]
        if call.notify is not None:
            call.notify()

    def _response(self, body: memoryview, at: int) -> InferenceResponse:
        status, size = frames.STATUS.unpack_from(body, at)
        at += frames.STATUS.size
        if status == frames.ERROR:
            code, message = body[at], bytes(body[at + 1 : at + 1 + size])
            return InferenceResponse(error=TritonError(message.decode(errors="replace"), ErrorCode(code)))
        head = self._heads[bytes(body[at : at + size])]
        buffers, _ = frames.take_tensors(body, at + size, len(head.tensors), self.channel)
        tensors = [Tensor._received(h, data) for h, data in zip(head.tensors, buffers)]
        return InferenceResponse(tensors, parameters=json.loads(head.extra.get("parameters", "{}")))

    # what is not inference

    def ask(self, verb: str, **words: Any) -> Any:
        """Have the server do something; returns what it says. Raises TritonModelException."""
        number = self._tell(verb, words, wanted=True)
        self.channel.wait(lambda: number in self._asked)
        answer = self._asked.pop(number)
        if "error" in answer:
            raise TritonModelException(answer["error"])
        return answer.get("value")

    def tell(self, verb: str, **words: Any) -> None:
        """Have the server do something, without an answer."""
        self._tell(verb, words, wanted=False)

    def _tell(self, verb: str, words: dict[str, Any], *, wanted: bool) -> int:
        number = next(self._numbers)
        words = {"verb": verb, "number": number if wanted else 0, **words}
        self.channel.send(frames.CONTROL, [json.dumps(words).encode()])
        return number

    def answered(self, body: memoryview) -> None:
        """A RESULT frame has come."""
        answer = json.loads(bytes(body))
        self._asked[answer["number"]] = answer


class Runtime:
    """What the functions of pb_utils reach for: there is one model in a process."""

    def __init__(self) -> None:
        self._calls: Calls | None = None
        self.model_directory = ""

    def start(self, calls: Calls, model_directory: str) -> None:
        """The process has a server."""
        self._calls = calls
        self.model_directory = model_directory

    @property
    def calls(self) -> Calls:
        """Raises TritonModelException outside of a server."""
        if self._calls is None:
            raise TritonModelException("this needs a server: the model was imported by something else")
        return self._calls

    @property
    def connected(self) -> bool:
        return self._calls is not None


RUNTIME = Runtime()


class ResponseIterator:
    """The responses of a decoupled model, as they come; the last one may be empty."""

    def __init__(self, calls: Calls, call: _Call, number: int) -> None:
        self._calls = calls
        self._call = call
        self._number = number
        self._taken = 0

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        call = self._call
        self._calls.channel.wait(lambda: bool(call.responses) or call.final)
        if not call.responses:
            raise StopIteration
        response = call.responses.popleft()
        self._taken += frames.RESPONSE_BYTES + sum(len(t._data or b"") for t in response._outputs)
        if self._taken >= frames.CREDIT_BYTES:
            self._calls.taken(self._number, self._taken)
            self._taken = 0
        return response

    def cancel(self) -> None:
        """No more responses are wanted."""
        self._calls.cancel(self._number)

    def __del__(self) -> None:
        if not self._call.final:
            self._calls.drop(self._number)


def call(request: InferenceRequest, *, decoupled: bool) -> Any:
    """Implements InferenceRequest.exec."""
    calls = RUNTIME.calls
    made = _Call()
    number = calls.begin(request, made, decoupled=decoupled)
    if decoupled:
        return ResponseIterator(calls, made, number)
    calls.channel.wait(lambda: made.final)
    return made.responses.popleft()


def call_async(request: InferenceRequest, *, decoupled: bool) -> Any:
    """Implements InferenceRequest.async_exec: a future of the running event loop."""
    calls = RUNTIME.calls
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    made = _Call()
    calls.channel.pump()
    if decoupled:
        number = calls.begin(request, made, decoupled=True)
        future.set_result(ResponseIterator(calls, made, number))
        return future

    def finish() -> None:
        if not future.done():
            future.set_result(made.responses.popleft())

    def finish_there() -> None:
        loop.call_soon_threadsafe(finish)

    made.notify = finish_there
    number = calls.begin(request, made, decoupled=False)
    future.add_done_callback(lambda done: calls.cancel(number) if done.cancelled() else None)
    return future
