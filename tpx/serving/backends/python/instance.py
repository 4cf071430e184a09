"""One instance of a Python model: its process, the requests it holds, and its restart after a crash."""

import asyncio
import json
import logging
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass

from tpx.errors import Code, ExecutionError, LoadError, NotReady, TpxError
from tpx.protocol.json_values import JsonObject
from tpx.protocol.tensors import Buffer
from tpx.serving.backends.python.connection import WorkerConnection
from tpx.serving.backends.python.encoding import (
    STRING,
    AnswerDecoder,
    added_tensors,
    encode_null,
    encode_request,
    string_start,
)
from tpx.serving.backends.python.held import Held, HeldBatch, unread_buffers
from tpx.serving.backends.python.process import ChildProcess, Restarts
from tpx.serving.backends.python.services import Services
from tpx.serving.backends.python.worker import frames
from tpx.serving.batch import Batch, EarlyResponse, Stacking
from tpx.serving.host import Host
from tpx.serving.instance import CompletionSink
from tpx.serving.request import InferRequest, RequestTrace
from tpx.serving.stacking.sequences import SequenceStacking, null_request

log = logging.getLogger(__name__)

_clock = time.perf_counter_ns
_WARM_UP_S = 600
_FIRST_READY_S = 5.0
_NEXT_READY_S = 0.5
"""Time for `is_ready` once the model has answered before; probes wait for 1 s by default."""
_HANGING_NS = 60 * 10**9
"""A question that is older, and not held up by an execution, will never be answered."""
_KILLED_S = 5.0
_START_BYTES = frames.RESPONSE_START.size
_start_of_response = frames.RESPONSE_START.unpack_from
_tensor_size = frames.NUMBER.unpack_from


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSettings:
    """Settings of an instance."""

    name: str
    model: str
    words: JsonObject
    """Arguments for `initialize`."""
    decoupled: bool
    end_timeout_s: float
    start: Callable[[], ChildProcess]
    """Start a process; blocks."""


_FIRST_GUESS_NS = 1_000_000
_DEPTHS = ((300_000, 8), (3_000_000, 2))


class QueueDepth:
    """Batches per process, computing or queued there, by the average duration of an execution.

    A hand-over costs more than executing a short model. For long models none is queued, because another
    process could have started it.
    """

    FIRST = 2

    def __init__(self) -> None:
        self._took_ns = _FIRST_GUESS_NS

    def after(self, took_ns: int) -> int:
        """Return the depth after another execution."""
        self._took_ns += (took_ns - self._took_ns) >> 3
        return next((depth for most_ns, depth in _DEPTHS if self._took_ns <= most_ns), 1)


class PythonInstance:
    """Implements RemoteInstance; used on the event loop, except where Instance says otherwise."""

    compute = None
    _sequences: SequenceStacking | None
    _answers: AnswerDecoder

    def __init__(self, settings: InstanceSettings, host: Host, process: ChildProcess | None) -> None:
        """Begin to initialize the model in `process`, or in a new one. Not called on the event loop."""
        self.name = settings.name
        self.alive = False
        self.depth = QueueDepth.FIRST
        self.failure = ""
        self.has_readiness_hook = False
        self._sink: CompletionSink | None = None
        self._leaving = False
        self._depths = QueueDepth()
        self._settings = settings
        self._host = host
        self._loop = host.loop
        self._restarts = Restarts()
        self._process: ChildProcess | None = None
        self._connection: WorkerConnection | None = None
        self._services: Services | None = None
        self._initialized: asyncio.Future[JsonObject] | None = None
        self._finalized: asyncio.Future[None] | None = None
        self._asked: asyncio.Future[bool] | None = None
        """Pending answer to `is_ready`, shared by all callers that ask meanwhile."""
        self._asked_ns = 0
        self._asked_during = 0
        """Number of the batch that was computing when the question was asked."""
        self._was_ready: bool | None = None
        self._numbers = 0
        self._batches: dict[int, HeldBatch] = {}
        """Batches it holds, in order; the first is computing, as far as known here."""
        self._held: dict[int, Held] = {}
        self._closing = asyncio.Event()
        self._restarting: asyncio.Task[None] | None = None
        self._starting = asyncio.run_coroutine_threadsafe(self._start(process), self._loop)

    @property
    def _unhealthy(self) -> str:
        return f"Stub process '{self.name}' is not healthy."

    @property
    def held(self) -> int:
        return len(self._batches)

    @property
    def abandoned(self) -> int:
        return sum(request.cancelled for held in self._batches.values() for request in held.batch.requests)

    @property
    def left(self) -> bool:
        return self._leaving and not self._batches

    # life

    def start(self) -> None:
        self._starting.result()

    def warm(self, batch: Batch) -> TpxError | None:
        sink = _WarmUp(len(batch.requests))
        self._loop.call_soon_threadsafe(lambda: self._submit(batch, sink))
        return sink.done.result(_WARM_UP_S)

    def begin(self, sink: CompletionSink) -> None:
        self._sink = sink

    def leave(self) -> None:
        self._leaving = True

    async def _start(self, process: ChildProcess | None = None) -> None:
        """Initialize the model. Raises LoadError."""
        if process is None:
            process = await self._loop.run_in_executor(None, self._settings.start)
        self._process = process
        if self._closing.is_set():
            await self._loop.run_in_executor(None, process.abandon)
            raise LoadError(f"{self.name} is no longer needed")
        self._initialized = self._loop.create_future()
        connection = self._connection = WorkerConnection(
            self._loop, process.socket, process.memory, self._handle_frame, self._handle_exit
        )
        if process.exited >= 0:
            self._loop.add_reader(process.exited, self._kill_survivors)
        self._services = Services(connection, self._host, self._settings.model, self._find_trace)
        connection.send(frames.INITIALIZE, [json.dumps(self._settings.words).encode()])
        answer = await self._initialized
        if "error" in answer or not connection.open:
            connection.close()
            raise LoadError(answer.get("error", self._unhealthy))
        self.has_readiness_hook = answer["asks_ready"]
        self._was_ready = None
        self.alive = True
        self._notify()

    def _notify(self) -> None:
        if self._sink is not None:
            self._sink.look()

    def close(self) -> None:
        try:
            ending = asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop)
            ending.result(self._settings.end_timeout_s + 5)
            self._starting.exception(_KILLED_S)  # a process that was starting has been killed too
        except (RuntimeError, FutureTimeout):
            log.warning("the process of %s did not end in time", self.name)
        if self._process is not None:
            self._process.end(1.0)

    async def _shut_down(self) -> None:
        self._closing.set()
        self.alive = False
        connection = self._connection
        initialized = self._initialized
        if self._process is not None and initialized is not None and not initialized.done():
            self._process.kill()  # the load has failed: another instance of the model did
        elif connection is not None and connection.open:
            self._finalized = self._loop.create_future()
            connection.send(frames.FINALIZE, [])
            try:
                await asyncio.wait_for(self._finalized, self._settings.end_timeout_s)
            except TimeoutError:
                log.warning("finalize of %s did not end in time: it is killed", self.name)
                if self._process is not None:
                    self._process.kill()
        if connection is not None:
            connection.close()
        if self._restarting is not None:
            await asyncio.wait([self._restarting], timeout=_KILLED_S)

    def _kill_survivors(self) -> None:
        """Kill what the exited process forked: it holds the socket open, which would hide the exit."""
        assert self._process is not None
        self._loop.remove_reader(self._process.exited)
        self._process.kill()

    def _handle_exit(self) -> None:
        """Handle the exit of the process or the end of its socket."""
        if self._process is not None and self._process.exited >= 0:
            self._loop.remove_reader(self._process.exited)
        was_alive, self.alive = self.alive, False
        if self._services is not None:
            self._services.close()
        if self._finalized is not None and not self._finalized.done():
            self._finalized.set_result(None)
        self._resolve_readiness(False)
        if self._initialized is not None and not self._initialized.done():
            self._initialized.set_result({"error": self._unhealthy})
            return
        assert self._connection is not None
        self._fail_held(self._connection.begun)
        if was_alive:
            log.error("the process of %s has ended unexpectedly", self.name)
            self._restarting = self._loop.create_task(self._restart())

    def _fail_held(self, begun: int) -> None:
        """Fail the requests of the batch that the process had started; other batches may run elsewhere."""
        error = ExecutionError(
            f"Failed to process the request(s) for model '{self.name}', message: {self._unhealthy}",
            code=Code.UNAVAILABLE,
        )
        batches, self._batches = self._batches, {}
        untouched = [batch for number, batch in batches.items() if _is_after(number, begun)]
        for batch in untouched:
            for held in batch.held:
                del self._held[held.handle]
        begun_ones = [batch for number, batch in batches.items() if not _is_after(number, begun)]
        unanswered, self._held = list(self._held.values()), {}
        for one in unanswered:
            one.fail(error)
        for batch in begun_ones:
            batch.release()
        for batch in reversed(untouched):
            batch.give_back()
        self._notify()

    async def _restart(self) -> None:
        """Restart the process with increasing delays; give up if it keeps crashing."""
        name = self.name
        try:
            while True:
                if self._process is not None:
                    await self._loop.run_in_executor(None, self._process.end, 1.0)
                delay_s = self._restarts.died(_clock())
                if delay_s is None:
                    self.failure = (
                        f"Stub process '{name}' is not healthy: it has died repeatedly and is no longer "
                        "restarted. Fix the cause, then load the model again."
                    )
                    log.error("%s", self.failure)
                    self._notify()
                    return
                if await self._wait_for_close(delay_s):
                    return
                try:
                    await self._start()
                except LoadError as exc:
                    if self._closing.is_set():
                        return
                    log.error("cannot restart %s: %s", name, exc.message)
                    if exc.code is Code.RESOURCE_EXHAUSTED:
                        await self._wait_for_close(self._restarts.pardon())
                    continue
                log.warning("restarted the process of %s", name)
                return
        finally:
            self._restarting = None

    async def _wait_for_close(self, seconds: float) -> bool:
        """Wait `seconds`, or until the instance closes; return whether it does."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)
        return self._closing.is_set()

    # work

    def use(self, stacking: Stacking) -> None:
        self._sequences = stacking if isinstance(stacking, SequenceStacking) else None
        self._answers = AnswerDecoder(self._sequences)

    def submit(self, batch: Batch) -> None:
        assert self._sink is not None
        if not self._batches:
            batch.started_ns = _clock()
        self._submit(batch, self._sink)

    def _submit(self, batch: Batch, sink: CompletionSink) -> None:
        """Compute a batch. If the process dies, batches that it has started are answered with errors."""
        connection = self._connection
        assert connection is not None
        self._numbers += 1
        number = self._numbers & 0xFFFFFFFF
        held_batch = HeldBatch(batch, sink, self._schedule_cancellation, decoupled=self._settings.decoupled)
        for index, request in enumerate(batch.requests):
            self._numbers += 1
            held_batch.held.append(Held(held_batch, index, request, self._numbers, connection))
        if not connection.open:  # the process died in an earlier warm-up
            self._fail_unsent(held_batch, self._unhealthy)
            return
        parts: list[Buffer] = [frames.BATCH.pack(number, len(batch.requests) + batch.empty)]
        try:
            for held in batch.by_row(held_batch.held):
                if held is None:
                    self._add_null(batch.requests[0], parts, connection)
                else:
                    self._add_request(held, parts, connection)
        except MemoryError as exc:
            connection.drop_tensors()
            self._fail_unsent(held_batch, str(exc))
            return
        except (ValueError, OverflowError, struct.error) as exc:
            # not text, or a number out of range for a frame
            connection.drop_tensors()
            self._fail_unsent(held_batch, f"a request cannot be given to the model: {exc}")
            return
        self._batches[number] = held_batch
        for held in held_batch.held:
            self._held[held.handle] = held
        connection.send(frames.EXECUTE, parts)
        for held in tuple(held_batch.held):
            if held.request.cancelled:  # cancelled while it waited for a process
                held.end()

    def _add_request(self, held: Held, parts: list[Buffer], connection: WorkerConnection) -> None:
        request, sequences = held.request, self._sequences
        added = added_tensors(sequences, request, request) if sequences is not None else ()
        encode_request(held.handle, request, added, parts)
        buffers = unread_buffers(held) if request.unread else request.buffers
        connection.add_tensors(parts, [*buffers, *[tensor.data for tensor in added]] if added else buffers)

    def _add_null(self, request: InferRequest, parts: list[Buffer], connection: WorkerConnection) -> None:
        """Add an empty row to the batch of `request`; its response is dropped."""
        self._numbers += 1
        added = added_tensors(self._sequences, None, request)
        encode_null(self._numbers, request.head, added, parts)
        connection.add_tensors(parts, [*null_request(request).buffers, *[tensor.data for tensor in added]])

    def _fail_unsent(self, batch: HeldBatch, why: str) -> None:
        batch.fail(why)
        batch.release()

    async def ready(self) -> bool:
        if not self.alive or self._connection is None:
            return False
        if not self.has_readiness_hook:
            return True
        if self._asked is None:
            assert self._process is not None
            self._asked = self._loop.create_future()
            self._asked_ns, self._asked_during = _clock(), next(iter(self._batches), 0)
            self._process.ask_ready()
        timeout_s = _FIRST_READY_S if self._was_ready is None else _NEXT_READY_S
        try:
            return await asyncio.wait_for(asyncio.shield(self._asked), timeout_s)
        except TimeoutError:
            return self._assume_ready()

    def _assume_ready(self) -> bool:
        """Return the last answer: `is_ready` still computes, or `execute` holds the interpreter lock."""
        if self._asked_during not in self._batches and _clock() - self._asked_ns > _HANGING_NS:
            return False
        return self._was_ready is not False

    def _resolve_readiness(self, ready: bool) -> None:
        pending, self._asked, self._was_ready = self._asked, None, ready
        if pending is not None:
            pending.set_result(ready)

    # frames

    def _handle_frame(self, kind: int, body: memoryview) -> None:
        try:
            self._dispatch(kind, body)
        except Exception:  # one process' boundary: an invalid frame
            log.exception("the process of %s has sent an invalid frame and is stopped", self.name)
            if self._process is not None:
                self._process.kill()
            if self._connection is not None:
                self._connection.close()

    def _dispatch(self, kind: int, body: memoryview) -> None:
        if kind == frames.ANSWERS:
            self._handle_answers(body)
        elif kind == frames.RESPONSE:
            self._handle_responses(body)
        elif kind == frames.INITIALIZED:
            assert self._initialized is not None
            self._initialized.set_result(json.loads(bytes(body)))
        elif kind == frames.READY:
            self._resolve_readiness(bool(body[0]))
        elif kind == frames.FINALIZED:
            if self._finalized is not None and not self._finalized.done():
                self._finalized.set_result(None)
        else:
            assert self._services is not None
            self._services.take(kind, body)
            if kind == frames.CALL:
                self._cancel_abandoned_calls()

    def _schedule_cancellation(self) -> None:
        """Schedule the check for later: the abandoned request may be a call of another process."""
        self._loop.call_soon(self._cancel_abandoned_calls)

    def _cancel_abandoned_calls(self) -> None:
        """Cancel calls of abandoned requests: a model that waits for itself, directly or not, would wait
        forever.
        """
        connection = self._connection
        if connection is None or not connection.open or self._services is None:
            return
        begun = connection.begun
        in_hand = {
            held.handle
            for number, batch in self._batches.items()
            if _is_after(number, begun)
            for held in batch.held
        }
        requests = [held.request for handle, held in self._held.items() if handle not in in_hand]
        if requests and all(request.cancelled for request in requests):
            self._services.give_up_calls()

    def _find_trace(self, handle: int) -> RequestTrace | None:
        held = self._held.get(handle)
        return held.request.trace if held is not None else None

    def _handle_answers(self, body: memoryview) -> None:
        number, read_ns, began_ns, computed_ns, count, failed = frames.ANSWER.unpack_from(body)
        at = frames.ANSWER.size
        batch = self._batches[number]
        batch.executed(read_ns, began_ns, computed_ns)
        if failed:
            message = bytes(body[at + frames.SIZE.size :]).decode(errors="replace")
            batch.fail(f"Failed to process the request(s) for model '{self.name}', message: {message}")
        else:
            assert self._connection is not None
            take, connection = self._answers.take, self._connection
            for held in batch.batch.by_row(batch.held)[:count]:
                if held is None:
                    _, at = self._answers.skip(body, at, connection)
                    continue
                response, at = take(held.request, body, at, connection)
                held.answered(response)
        known = self._held
        for held in batch.held:
            if held.over:
                known.pop(held.handle, None)
        del self._batches[number]
        for following in self._batches.values():
            following.batch.started_ns = following.batch.started_ns or _clock()
            break
        if batch.sink is self._sink:  # and not a warm-up
            self.depth = self._depths.after(computed_ns - began_ns)
        batch.release()

    def _handle_responses(self, body: memoryview) -> None:
        """Handle the responses of a frame, which may be of several requests."""
        at, end, known = 0, len(body), self._held
        data = bytes(body)  # slices of it cost less than those of a view
        now_ns = _clock()
        while at < end:
            handle, flags = _start_of_response(data, at)
            held = known.get(handle)
            if held is not None and held.passes and not (flags or held.over):
                start = held.head.rendered.get(STRING) or string_start(held.head)
                if data.startswith(start, at + _START_BYTES):
                    at += _START_BYTES + len(start)
                    size_at, at = at, at + frames.NUMBER.size + frames.SIZE.size
                    piece_ends = size_at + frames.NUMBER.size + _tensor_size(data, size_at)[0]
                    held.pass_piece(data[at:piece_ends], now_ns)
                    at = piece_ends
                    continue
            at = self._handle_response(data, at)

    def _handle_response(self, body: bytes, at: int) -> int:
        """Handle one response; return the position of the next one."""
        handle, flags = frames.RESPONSE_START.unpack_from(body, at)
        held = self._held.get(handle)
        connection = self._connection
        at += frames.RESPONSE_START.size
        if flags & frames.COUNTED:
            if held is not None:
                held.request.tokens = frames.COUNTS.unpack_from(body, at)
            at += frames.COUNTS.size
        assert connection is not None
        if held is None or held.over:
            # already answered with an error, or an empty row: acknowledge it, so that the model continues
            size = 0
            if not flags & frames.EMPTY:
                size, at = self._answers.skip(body, at, connection)
            credit = frames.CREDIT_BODY.pack(handle, size + frames.RESPONSE_BYTES)
            connection.send(frames.CREDIT, [credit])
            if flags & frames.FINAL:
                self._held.pop(handle, None)
            return at
        response = None
        if not flags & frames.EMPTY:
            held.request.head = held.head
            response, at = self._answers.take(held.request, body, at, connection)
        final = bool(flags & frames.FINAL)
        held.responded(response, final=final)
        if final:
            del self._held[handle]
        return at


def _is_after(number: int, begun: int) -> bool:
    """Return whether a batch was sent after the last one that the process started; numbers wrap around."""
    return not begun or 0 < (number - begun) & 0xFFFFFFFF < 1 << 31


class _WarmUp:
    """Implements CompletionSink for a warm-up batch."""

    def __init__(self, requests: int) -> None:
        self.done: Future[TpxError | None] = Future()
        self._left = requests
        self._error: TpxError | None = None

    def computed(self, batch: Batch) -> None:
        self.answered(batch)

    def answered(self, batch: Batch) -> None:
        if batch.requests:  # empty if all requests were answered separately
            self._finish(self._error or batch.error)

    def released(self, batch: Batch) -> None:
        """Do nothing: there is no other batch."""

    def responded(self, early: EarlyResponse) -> None:
        if early.request.backpressure is not None:
            early.request.backpressure.delivered(early.size)
        self._error = self._error or early.response.error
        if early.response.final:
            self._left -= 1
            if not self._left:
                self._finish(self._error)

    def streamed(self, request: InferRequest, piece: bytes, index: int, begun_ns: int, now_ns: int) -> None:
        """Do nothing: requests for a warm-up have no `pieces`."""

    def again(self, request: InferRequest) -> None:  # noqa: ARG002
        """Refuse: rescheduling a warm-up request would never end, and one execution warms enough."""
        self._finish(None)

    def look(self) -> None:
        """Do nothing: there is no other batch."""

    def returned(self, batch: Batch) -> None:  # noqa: ARG002
        self._finish(NotReady("the process has ended before it was warmed up"))

    def _finish(self, error: TpxError | None) -> None:
        if not self.done.done():
            self.done.set_result(error)
