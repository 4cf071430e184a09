"""One instance of a Python model: the batches that its process holds, and their responses."""

import logging
import struct
import time
from collections.abc import Iterator
from concurrent.futures import Future

from tpx.errors import Code, ExecutionError, NotReady, TpxError
from tpx.protocol.tensors import Buffer
from tpx.serving.backends.python.connection import WorkerConnection
from tpx.serving.backends.python.encoding import (
    AnswerDecoder,
    added_tensors,
    encode_null,
    encode_request,
)
from tpx.serving.backends.python.lifecycle import InstanceSettings, ModelProcess
from tpx.serving.backends.python.pending import PendingBatch, PendingRequest, unread_buffers
from tpx.serving.backends.python.process import ChildProcess
from tpx.serving.backends.python.worker import frames
from tpx.serving.batch import Batch, EarlyResponse, Stacking
from tpx.serving.host import Host
from tpx.serving.instance import CompletionSink
from tpx.serving.request import InferRequest, InferResponse, RequestTrace
from tpx.serving.stacking.sequences import SequenceStacking, null_request

log = logging.getLogger(__name__)

_clock = time.perf_counter_ns
_WARM_UP_S = 600
_START_BYTES = frames.RESPONSE_START.size
_start_of_response = frames.RESPONSE_START.unpack_from
_tensor_size = frames.NUMBER.unpack_from


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
    """Implements RemoteInstance and ProcessOwner; on the event loop, except where Instance says otherwise."""

    compute = None
    _sequences: SequenceStacking | None
    _answers: AnswerDecoder

    def __init__(self, settings: InstanceSettings, host: Host, process: ChildProcess | None) -> None:
        """Begin to initialize the model in `process`, or in a new one. Not called on the event loop."""
        self.name = settings.name
        self.depth = QueueDepth.FIRST
        self._sink: CompletionSink | None = None
        self._leaving = False
        self._depths = QueueDepth()
        self._decoupled = settings.decoupled
        self._numbers = 0
        self._batches: dict[int, PendingBatch] = {}
        """Batches it holds, in order; the first is computing, as far as known here."""
        self._held: dict[int, PendingRequest] = {}
        self._with_pieces: list[PendingRequest] = []
        """Requests whose `pieces` are passed on when the frames of the turn have been handled."""
        self._loop = host.loop
        self._process = ModelProcess(settings, host, self)
        self._process.launch(process)

    @property
    def alive(self) -> bool:
        return self._process.alive

    @property
    def failure(self) -> str:
        return self._process.failure

    @property
    def has_readiness_hook(self) -> bool:
        return self._process.has_readiness_hook

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
        self._process.wait()

    def warm(self, batch: Batch) -> TpxError | None:
        sink = _WarmUp(len(batch.requests))
        self._loop.call_soon_threadsafe(lambda: self._submit(batch, sink))
        return sink.done.result(_WARM_UP_S)

    def begin(self, sink: CompletionSink) -> None:
        self._sink = sink

    def leave(self) -> None:
        self._leaving = True

    async def ready(self) -> bool:
        return await self._process.ready()

    def close(self) -> None:
        self._process.close()

    # events of its process

    def notify(self) -> None:
        if self._sink is not None:
            self._sink.dispatch()

    @property
    def computing(self) -> int:
        return next(iter(self._batches), 0)

    def find_trace(self, handle: int) -> RequestTrace | None:
        held = self._held.get(handle)
        return held.request.trace if held is not None else None

    def fail_held(self, begun: int) -> None:
        """Fail the requests of the batch that the process had started; other batches may run elsewhere."""
        error = ExecutionError(
            f"Failed to process the request(s) for model '{self.name}', message: {self._process.unhealthy}",
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
        self.notify()

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
        connection = self._process.connection
        assert connection is not None
        self._numbers += 1
        number = self._numbers & 0xFFFFFFFF
        held_batch = PendingBatch(batch, sink, self._schedule_cancellation, decoupled=self._decoupled)
        for index, request in enumerate(batch.requests):
            self._numbers += 1
            held_batch.held.append(PendingRequest(held_batch, index, request, self._numbers, connection))
        if not connection.open:  # the process died in an earlier warm-up
            self._fail_unsent(held_batch, self._process.unhealthy)
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

    def _add_request(self, held: PendingRequest, parts: list[Buffer], connection: WorkerConnection) -> None:
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

    def _fail_unsent(self, batch: PendingBatch, why: str) -> None:
        batch.fail(why)
        batch.release()

    # frames

    def handle_frames(self, arrived: Iterator[tuple[int, memoryview]]) -> None:
        """Handle the frames of a turn; the pieces of a stream that they bring are passed on together."""
        try:
            for kind, body in arrived:
                if kind == frames.RESPONSE:
                    self._handle_responses(bytes(body))  # slices of it cost less than those of a view
                    continue
                self._pass_pieces()
                if kind == frames.ANSWERS:
                    self._handle_answers(body)
                else:
                    self._process.handle_frame(kind, body)
                    if kind == frames.CALL:
                        self._cancel_abandoned_calls()
        finally:
            self._pass_pieces()

    def _pass_pieces(self) -> None:
        if self._with_pieces:
            streams, self._with_pieces = self._with_pieces, []
            now_ns = _clock()
            for held in streams:
                if held.pieces:
                    held.pass_pieces(now_ns)

    def _schedule_cancellation(self) -> None:
        """Schedule the check for later: the abandoned request may be a call of another process."""
        self._loop.call_soon(self._cancel_abandoned_calls)

    def _cancel_abandoned_calls(self) -> None:
        """Cancel calls of abandoned requests: a model that waits for itself, directly or not, would wait
        forever.
        """
        connection, services = self._process.connection, self._process.services
        if connection is None or not connection.open or services is None:
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
            services.give_up_calls()

    def _handle_answers(self, body: memoryview) -> None:
        number, read_ns, began_ns, computed_ns, count, failed = frames.ANSWER.unpack_from(body)
        at = frames.ANSWER.size
        batch = self._batches[number]
        batch.executed(read_ns, began_ns, computed_ns)
        if failed:
            message = bytes(body[at + frames.SIZE.size :]).decode(errors="replace")
            batch.fail(f"Failed to process the request(s) for model '{self.name}', message: {message}")
        else:
            take, connection = self._answers.take, self._process.connection
            assert connection is not None
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

    def _handle_responses(self, data: bytes) -> None:
        """Handle the responses of a frame, which may be of several requests."""
        at, end, known = 0, len(data), self._held
        while at < end:
            handle, flags = _start_of_response(data, at)
            held = known.get(handle)
            if held is not None and held.start and not (flags or held.over):
                start = held.start
                if data.startswith(start, at + _START_BYTES):
                    at += _START_BYTES + len(start)
                    piece_at = at + frames.NUMBER.size
                    at = piece_at + _tensor_size(data, at)[0]
                    if not held.pieces:
                        self._with_pieces.append(held)
                    held.pieces.append(data[piece_at:at])
                    continue
            if held is not None and held.pieces:
                held.pass_pieces(_clock())
            at = self._handle_response(data, at)

    def _handle_response(self, body: bytes, at: int) -> int:
        """Handle one response; return the position of the next one."""
        handle, flags = frames.RESPONSE_START.unpack_from(body, at)
        held = self._held.get(handle)
        connection = self._process.connection
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
            start_at = at
            response, at = self._answers.take(held.request, body, at, connection)
        final = bool(flags & frames.FINAL)
        held.responded(response, final=final)
        if final:
            del self._held[handle]
        elif held.repeats and isinstance(response, InferResponse):
            start = self._answers.start_of_piece(response, body, start_at)
            if start:
                held.learn(response, start)
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

    def streamed(
        self, request: InferRequest, pieces: list[bytes], index: int, begun_ns: int, now_ns: int
    ) -> None:
        """Do nothing: requests for a warm-up have no `pieces`."""

    def requeue(self, request: InferRequest) -> None:  # noqa: ARG002
        """Refuse: rescheduling a warm-up request would never end, and one execution warms enough."""
        self._finish(None)

    def dispatch(self) -> None:
        """Do nothing: there is no other batch."""

    def returned(self, batch: Batch) -> None:  # noqa: ARG002
        self._finish(NotReady("the process has ended before it was warmed up"))

    def _finish(self, error: TpxError | None) -> None:
        if not self.done.done():
            self.done.set_result(error)
