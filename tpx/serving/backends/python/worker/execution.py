"""Run `execute`: decode requests, call the model, and encode responses."""

from __future__ import annotations

import asyncio
import inspect
import struct
import threading
import time
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any

from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.channel import Channel, Entry, ServerGone
from tpx.serving.backends.python.worker.errors import TritonError, described
from tpx.serving.backends.python.worker.request import (
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
)
from tpx.serving.backends.python.worker.response import InferenceResponse, InferenceResponseSender
from tpx.serving.backends.python.worker.services import Reports
from tpx.serving.backends.python.worker.tensor import Tensor
from tpx.serving.transport.memory import Buffer

_clock = time.perf_counter_ns
_AHEAD_BYTES = 1 << 20
_HEADS = 256
_SHORT_NS = 100_000
_SHORT_IN_A_ROW = 16
"""Executions after which a model counts as short; its responses are then sent with the next ones."""
_KEPT_NS = 200_000

_NOTHING: Entry = ([frames.STATUS.pack(frames.NOTHING, 0)], [])
_AGAIN: Entry = ([frames.STATUS.pack(frames.AGAIN, 0)], [])


class _WrongReturn(Exception):
    """`execute` has returned an invalid value."""


class Execution:
    """Executes one instance of a model."""

    def __init__(self, channel: Channel, name: str, reports: Reports, *, decoupled: bool) -> None:
        self.name = name
        self.channel = channel
        self._reports = reports
        self._decoupled = decoupled
        self._heads = frames.Heads()
        self._answer_starts: dict[Any, bytes] = {}
        """Status and head of entries, by parameters and tensors."""
        self._live: set[int] = set()
        self.cancelled: set[int] = set()
        """Handles of the requests that are known to be cancelled."""
        self._ahead: dict[int, int] = {}
        self._ahead_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_lock = threading.Lock()
        self.model: Any = None
        self._short = 0
        self._kept_since_ns = 0

    @property
    def _failure_message(self) -> str:
        return f"Failed to process the request(s) for model '{self.name}'"

    def cancel(self, handle: int) -> None:
        """Mark a request as cancelled."""
        if handle in self._live:
            self.cancelled.add(handle)

    def credit(self, handle: int, size: int) -> None:
        """Note that the client has received `size` bytes of a request's responses."""
        with self._ahead_lock:
            if handle in self._ahead:
                self._ahead[handle] -= size

    def take(self, body: memoryview) -> tuple[int, int, list[InferenceRequest]]:
        """Decode an EXECUTE frame; return the batch number, the decoding time, and the requests."""
        taken_ns = _clock()
        batch, count = frames.BATCH.unpack_from(body)
        at = frames.BATCH.size
        requests = []
        for _ in range(count):
            handle, size, id_size = frames.HANDLE.unpack_from(body, at)
            at += frames.HANDLE.size
            head = self._heads[bytes(body[at : at + size])]
            at += size + id_size
            request_id = bytes(body[at - id_size : at]).decode() if id_size else ""
            buffers, at = frames.take_tensors(body, at, len(head.tensors), self.channel)
            inputs = [Tensor._from_frame(h, data) for h, data in zip(head.tensors, buffers)]
            request = InferenceRequest._from_frame(handle, request_id, head, inputs, self)
            if self._decoupled:
                request._sender = InferenceResponseSender(self, handle, decoupled=True)
            self._live.add(handle)
            requests.append(request)
        return batch, _clock() - taken_ns, requests

    def run(self, batch: int, take_ns: int, requests: list[InferenceRequest], *, more: bool) -> None:
        """Call the model and send its responses; with `more` work, a short model's wait for the next ones."""
        began_ns = _clock()
        self.channel.begin(batch)
        try:
            returned = self.model.execute(requests)
            if inspect.iscoroutine(returned):
                returned = self._run_coroutine(returned, requests)
            computed_ns = _clock()
            entries, failed = self._encode_responses(returned, requests), False
        except ServerGone:
            raise
        except BaseException as exc:  # noqa: BLE001 (whatever a model raises is the answer)
            computed_ns, failed = _clock(), True
            message = str(exc) if isinstance(exc, _WrongReturn) else ""
            self._reports.raised(self._failure_message, exc, message)
            entries = _fail_all(message or described(exc))
            for request in requests:
                if request._sender is not None:
                    request._sender._close()
        times = (batch, began_ns - take_ns, began_ns, computed_ns, len(requests))
        keep = self._is_kept(began_ns, computed_ns, more=more)
        try:
            self.channel.send_entries(
                frames.ANSWERS, [frames.ANSWER.pack(*times, failed)], entries, keep=keep
            )
        except MemoryError as exc:
            self.channel.send_entries(frames.ANSWERS, [frames.ANSWER.pack(*times, True)], _fail_all(str(exc)))
        for request in requests:
            if request._sender is None or request._sender._closed:
                self.forget(request._handle)

    def _is_kept(self, began_ns: int, computed_ns: int, *, more: bool) -> bool:
        self._short = self._short + 1 if computed_ns - began_ns < _SHORT_NS else 0
        since_ns = self._kept_since_ns or computed_ns
        kept = more and self._short >= _SHORT_IN_A_ROW and computed_ns - since_ns <= _KEPT_NS
        self._kept_since_ns = since_ns if kept else 0
        return kept

    def _encode_responses(self, returned: Any, requests: list[InferenceRequest]) -> list[Entry]:
        if self._decoupled:
            if returned is not None:
                raise _WrongReturn(
                    f"Python model '{self.name}' is using the decoupled mode and the execute function must "
                    "return None."
                )
            return [self._release_request(request) for request in requests]
        if returned is None:
            returned = [None] * len(requests)
        if not isinstance(returned, list):
            raise _WrongReturn(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(returned) != len(requests):
            raise _WrongReturn(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:"
                f"{len(returned)}\n"
            )
        return [self._encode_entry(response, request) for response, request in zip(returned, requests)]

    def _encode_entry(self, response: Any, request: InferenceRequest) -> Entry:
        if response is None:
            if request._release == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
                return self._release_request(request)
            if request._sender is None:
                raise _WrongReturn(
                    "Expected an 'InferenceResponse' object in the execute function return list, found type "
                    "'<class 'NoneType'>'."
                )
            return _NOTHING
        if request._release == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            raise _WrongReturn(
                "Expected a None object in the execute function return list for reschduled request, found "
                f"type '{type(response)}'."
            )
        if not isinstance(response, InferenceResponse):
            raise _WrongReturn(
                "Expected an 'InferenceResponse' object in the execute function return list, found type "
                f"'{type(response)}'."
            )
        if request._sender is not None:
            if request._sender._sent:
                raise _WrongReturn(
                    "Unable to send response. Non-decoupled model cannot send more than one response."
                )
            request._sender._close()
        return self._encode_response(response)

    def _release_request(self, request: InferenceRequest) -> Entry:
        if request._release != TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
            return _NOTHING
        if request._sender is not None:
            request._sender._close()
        self.forget(request._handle)
        return _AGAIN

    def _encode_response(self, response: InferenceResponse) -> Entry:
        error = response._error
        if error is not None:
            message = error.message().encode(errors="replace")
            status = frames.STATUS.pack(frames.ERROR, len(message)) + struct.pack("<B", error.code())
            return [status, message], []
        heads: list[tuple[str, str, tuple[int, ...]]] = []
        data: list[Buffer] = []
        for tensor in response._outputs:
            heads.append((tensor._name, tensor._datatype, tensor._shape))
            data.append(tensor._encode())
        key = (response._parameters, *heads)
        start = self._answer_starts.get(key)
        if start is None:
            extra = {} if response._parameters == "{}" else {"parameters": response._parameters}
            head = frames.encode_head(heads, extra)
            if len(self._answer_starts) >= _HEADS:
                self._answer_starts.clear()
            start = self._answer_starts[key] = frames.STATUS.pack(frames.TENSORS, len(head)) + head
        return [start], data

    # coroutines

    def _run_coroutine(self, coroutine: Any, requests: list[InferenceRequest]) -> Any:
        """Return the result of an `async def execute`; for a decoupled model, do not wait for it."""
        future = self._start_coroutine(coroutine)
        if self._decoupled:
            future.add_done_callback(partial(self._end_coroutine, [request._sender for request in requests]))
            return None
        future.add_done_callback(lambda _: self.channel.notify())
        self.channel.wait(future.done)
        return future.result()

    def _start_coroutine(self, coroutine: Any) -> Future[Any]:
        self.channel.pump()
        with self._loop_lock:  # `execute` and `is_ready` run on different threads
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_exception_handler(self._reports.task_raised)
                threading.Thread(target=self._loop.run_forever, name="tpx-asyncio", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _end_coroutine(self, senders: list[Any], done: Future[Any]) -> None:
        """Handle the end of a decoupled model's coroutine; unanswered requests get its exception."""
        error = CancelledError() if done.cancelled() else done.exception()
        if error is None:
            return
        self._reports.raised(self._failure_message, error)
        text = f"{self._failure_message}, message: {described(error)}"
        for sender in senders:
            if not sender._closed:
                sender.send(InferenceResponse(error=TritonError(text)), flags=frames.FINAL)

    def await_here(self, awaitable: Any) -> Any:
        """Return the result of an awaitable of the model."""
        return self._start_coroutine(awaitable).result()

    # senders

    def sender(self, request: InferenceRequest) -> InferenceResponseSender:
        """Return the response sender of a request."""
        if request._sender is None:
            request._sender = InferenceResponseSender(self, request._handle, decoupled=False)
        return request._sender

    def is_cancelled(self, handle: int) -> bool:
        """Return whether a request was cancelled, after reading the frames that have arrived."""
        self.channel.read_arrived()
        return handle in self.cancelled

    def respond(self, handle: int, response: InferenceResponse | None, *, final: bool) -> None:
        """Send a response of a request; blocks while the client is far behind."""
        flags = frames.FINAL if final else 0
        if response is None:
            self.channel.send(frames.RESPONSE, [frames.RESPONSE_START.pack(handle, flags | frames.EMPTY)])
        else:
            own, tensors = self._encode_response(response)
            size = 0
            for data in tensors:
                size += len(data)
            charged = size + frames.RESPONSE_BYTES
            if self._decoupled and self.run_ahead(handle, charged) > _AHEAD_BYTES + charged:
                self._await_credit(handle, _AHEAD_BYTES + charged)
            if size < frames.INLINE_BELOW_BYTES:
                self.channel.send_small(frames.small_response(handle, flags, own, tensors))
            else:
                self._send_large(frames.RESPONSE_START.pack(handle, flags), own, tensors)
        if final:
            self.forget(handle)

    def _send_large(self, start: bytes, own: list[Buffer], tensors: list[Buffer]) -> None:
        """Send a response whose tensors may need shared memory; an error if there is none."""
        try:
            self.channel.send(frames.RESPONSE, [start, *own], tensors)
        except MemoryError as exc:
            own, _ = self._encode_response(InferenceResponse(error=TritonError(str(exc))))
            self.channel.send(frames.RESPONSE, [start, *own])

    def _await_credit(self, handle: int, most: int) -> None:
        """Wait until the client is at most so many bytes behind."""
        ahead = self._ahead
        self.channel.wait(lambda: ahead.get(handle, 0) <= most or handle in self.cancelled)

    def abandoned(self, handle: int) -> None:
        """Handle a response sender that was dropped before its final flag."""
        with suppress(ServerGone):
            self.respond(handle, None, final=True)
        self.forget(handle)

    def run_ahead(self, handle: int, size: int) -> int:
        """Charge a response; return the bytes of responses that the client has not received."""
        with self._ahead_lock:
            ahead = self._ahead[handle] = self._ahead.get(handle, 0) + size
        return ahead

    def forget(self, handle: int) -> None:
        """Forget a request after its final response."""
        self._live.discard(handle)
        self.cancelled.discard(handle)
        self._ahead.pop(handle, None)


def _fail_all(text: str) -> list[Entry]:
    message = text.encode(errors="replace")
    return [([frames.SIZE.pack(len(message)), message], [])]
