"""Business logic scripting: requests from a model to other models."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.channel import Channel
from tpx.serving.backends.python.worker.errors import ErrorCode, TritonError, TritonModelException
from tpx.serving.backends.python.worker.request import InferenceRequest
from tpx.serving.backends.python.worker.response import InferenceResponse
from tpx.serving.backends.python.worker.tensor import Tensor
from tpx.serving.transport.memory import Buffer

_KEPT_BYTES = 16 << 20
"""Bytes of responses that an iterator keeps so that it can be iterated again."""
_OUTSIDE = "BLS is only supported during the 'execute' function."


class _Call:
    """One call in progress and the responses received so far."""

    __slots__ = ("final", "notify", "responses", "wanted")

    def __init__(self) -> None:
        self.responses: deque[InferenceResponse] = deque()
        self.final = False
        self.wanted = True
        self.notify: Callable[[], None] | None = None

    async def changed(self, ready: Callable[[], bool]) -> None:
        """Return when `ready` is true; other threads notify when they add responses."""
        loop = asyncio.get_running_loop()
        while not ready():
            arrived = loop.create_future()
            self.notify = partial(_call_soon, loop, partial(_resolve_future, arrived))
            if not ready():  # register first: a response may have arrived before
                await arrived
        self.notify = None


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(function)


def _resolve_future(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)


class Calls:
    """Implements Server: calls of a process, and its other requests."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.open = False
        """True between `initialize` and `finalize` of the model."""
        self._heads = frames.Heads()
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._asked: dict[int, Any] = {}

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
        head = frames.encode_head([tensor._make_head() for tensor in request._inputs], extra)
        self._calls[number] = call
        identity = request._request_id.encode()
        parts: list[Buffer] = [frames.HANDLE.pack(number, len(head), len(identity)), head, identity]
        self.channel.send(frames.CALL, parts, [tensor._encode() for tensor in request._inputs])
        return number

    def cancel(self, number: int) -> None:
        """Cancel a call whose further responses are not needed."""
        if number in self._calls:
            self.channel.send(frames.CANCEL_CALL, [frames.NUMBER.pack(number)])

    def drop(self, number: int) -> None:
        """Cancel a call and discard the responses that still arrive."""
        call = self._calls.get(number)
        if call is not None:
            call.wanted = False
            call.responses.clear()
            self.cancel(number)

    def taken(self, number: int, size: int) -> None:
        """Note that `size` bytes of responses were read, so that the server may send more."""
        if number in self._calls:
            self.channel.send(frames.TAKEN, [frames.CREDIT_BODY.pack(number, size)])

    def replied(self, body: memoryview) -> None:
        """Handle a REPLY frame."""
        number, flags = frames.RESPONSE_START.unpack_from(body)
        call = self._calls.get(number)
        if call is None:
            return
        empty = flags & frames.EMPTY
        response = InferenceResponse() if empty else self._decode_response(body, frames.RESPONSE_START.size)
        if call.wanted:
            call.responses.append(response)
        if flags & frames.FINAL:
            call.final = True
            del self._calls[number]
        notify = call.notify  # the event loop may replace it
        if notify is not None:
            notify()

    def _decode_response(self, body: memoryview, at: int) -> InferenceResponse:
        status, size = frames.STATUS.unpack_from(body, at)
        at += frames.STATUS.size
        if status == frames.ERROR:
            code, message = body[at], bytes(body[at + 1 : at + 1 + size])
            return InferenceResponse(error=TritonError(message.decode(errors="replace"), ErrorCode(code)))
        head = self._heads[bytes(body[at : at + size])]
        buffers, _ = frames.take_tensors(body, at + size, len(head.tensors), self.channel)
        tensors = [Tensor._from_frame(h, data) for h, data in zip(head.tensors, buffers)]
        return InferenceResponse(tensors, parameters=json.loads(head.extra.get("parameters", "{}")))

    def infer(self, request: InferenceRequest, *, decoupled: bool) -> object:
        """Implement InferenceRequest.exec."""
        made = _Call()
        number = self.begin(request, made, decoupled=decoupled)
        if decoupled:
            return ResponseIterator(self, made, number)
        self.channel.wait(lambda: made.final)
        return made.responses.popleft()

    def infer_async(self, request: InferenceRequest, *, decoupled: bool) -> object:
        """Implement InferenceRequest.async_exec: return a future of the running event loop.

        Its result is the response, or for a decoupled model an iterator, available with the first response.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        made = _Call()
        self.channel.pump()

        def finish() -> None:
            if not future.done():
                made.notify = None
                first = ResponseIterator(self, made, number) if decoupled else made.responses.popleft()
                future.set_result(first)

        made.notify = partial(_call_soon, loop, finish)
        number = self.begin(request, made, decoupled=decoupled)
        future.add_done_callback(lambda done: self.drop(number) if done.cancelled() else None)
        return future

    # services other than inference

    @property
    def free_bytes(self) -> int:
        """Bytes of shared memory for tensors to the server."""
        return self.channel.free_bytes

    def ask(self, verb: str, *, blame: str = "", **words: object) -> Any:
        """Ask the server for a service and return its result.

        Raises TritonModelException, whose message begins with `blame`.
        """
        number = next(self._numbers)
        self.tell(verb, number=number, **words)
        self.channel.wait(lambda: number in self._asked)
        answer = self._asked.pop(number)
        if "error" in answer:
            raise TritonModelException(f"{blame}{answer['error']}")
        return answer.get("value")

    def tell(self, verb: str, *, number: int = 0, **words: object) -> None:
        """Ask the server for a service; a request without a number is not answered."""
        self.channel.send(frames.CONTROL, [json.dumps({"verb": verb, "number": number, **words}).encode()])

    def answered(self, body: memoryview) -> None:
        """Handle a RESULT frame."""
        answer = json.loads(bytes(body))
        self._asked[answer["number"]] = answer


class ResponseIterator:
    """Responses of a decoupled model as they arrive; the last one may be empty.

    Iterating again starts at the first response, as in Triton, unless the responses were too large to
    keep.
    """

    def __init__(self, calls: Calls, call: _Call, number: int) -> None:
        self._calls = calls
        self._call = call
        self._number = number
        self._taken = 0
        self._kept: list[InferenceResponse] = []
        self._kept_bytes = 0
        self._at = 0

    @property
    def _is_ended(self) -> bool:
        return self._call.final and not self._call.responses

    def __iter__(self) -> ResponseIterator:
        if self._is_ended and self._at == len(self._kept):
            if self._kept_bytes > _KEPT_BYTES:
                raise TritonModelException(
                    f"responses of more than {_KEPT_BYTES} bytes cannot be iterated a second time"
                )
            self._at = 0
        return self

    def __next__(self) -> InferenceResponse:
        call = self._call
        if self._at == len(self._kept):
            self._calls.channel.wait(lambda: bool(call.responses) or call.final)
        if self._is_ended and self._at == len(self._kept):
            raise StopIteration
        return self._take_next()

    def __aiter__(self) -> ResponseIterator:
        """Iterate without blocking the event loop; a plain `for` blocks it while there is no response."""
        return self.__iter__()

    async def __anext__(self) -> InferenceResponse:
        call = self._call
        if self._at == len(self._kept):
            self._calls.channel.pump()
            await call.changed(lambda: bool(call.responses) or call.final)
        if self._is_ended and self._at == len(self._kept):
            raise StopAsyncIteration
        return self._take_next()

    def _take_next(self) -> InferenceResponse:
        if self._at < len(self._kept):
            self._at += 1
            return self._kept[self._at - 1]
        response = self._call.responses.popleft()
        size = frames.RESPONSE_BYTES + sum(len(t._data or b"") for t in response._outputs)
        self._kept_bytes += size
        if self._kept_bytes > _KEPT_BYTES:
            self._kept.clear()
        else:
            self._kept.append(response)
        self._at = len(self._kept)
        self._taken += size
        if self._taken >= frames.CREDIT_BYTES:
            self._calls.taken(self._number, self._taken)
            self._taken = 0
        return response

    def cancel(self) -> None:
        """Cancel the call."""
        self._calls.cancel(self._number)

    def __del__(self) -> None:
        if not self._call.final:
            self._calls.drop(self._number)
