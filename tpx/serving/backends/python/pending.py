"""Requests held by a model's process, and their outcomes."""

import time
from collections.abc import Callable

from tpx.errors import ExecutionError, TpxError
from tpx.protocol.tensors import Buffer
from tpx.serving.backends.python.connection import WorkerConnection
from tpx.serving.backends.python.worker import frames
from tpx.serving.backpressure import ResponseBackpressure
from tpx.serving.batch import Batch, EarlyResponse
from tpx.serving.instance import CompletionSink
from tpx.serving.request import InferRequest, InferResponse, UnreadInput

_clock = time.perf_counter_ns


class PendingBatch:
    """A batch in `execute`. When `execute` returns, some of its requests may be unanswered."""

    __slots__ = (
        "_apart",
        "_left",
        "_released",
        "_rescheduled",
        "batch",
        "decoupled",
        "held",
        "on_cancel",
        "sink",
    )

    def __init__(
        self, batch: Batch, sink: CompletionSink, on_cancel: Callable[[], None], *, decoupled: bool
    ) -> None:
        self.batch = batch
        self.sink = sink
        self.on_cancel = on_cancel
        """Called when one of its requests is cancelled."""
        self.decoupled = decoupled
        self.held: list[PendingRequest] = []
        self._left = len(batch.requests)
        self._released = False
        self._rescheduled: list[InferRequest] = []
        self._apart: dict[InferRequest, int] = {}
        """Requests answered before the others, with the number of their computed rows."""
        if not decoupled:
            batch.responses = [_NONE] * self._left

    def executed(self, read_ns: int, began_ns: int, computed_ns: int) -> None:
        """Note that `execute` has returned; the times come from the process and use the same clock."""
        batch = self.batch
        batch.started_ns, batch.gathered_ns, batch.computed_ns = read_ns, began_ns, computed_ns
        if self.decoupled:
            for held in self.held:
                if held.single is not None:
                    single = held.single
                    single.started_ns, single.gathered_ns, single.computed_ns = read_ns, began_ns, computed_ns

    def fail(self, message: str) -> None:
        """Fail every unanswered request."""
        for held in self.held:
            held.fail(ExecutionError(message))

    def release(self) -> None:
        """Release the instance, and queue rescheduled requests again."""
        self._released = True
        self.held.clear()  # break the cycle: tensors are freed with their last reader, not by the collector
        self.sink.released(self.batch)
        if self.decoupled:
            # count the execution now; requests of a decoupled model count with their last response
            batch = self.batch
            if batch.computed_ns:
                batch.ended_ns = batch.computed_ns
                batch.empty += batch.size
                batch.size = 0
                batch.requests = []
                self.sink.answered(batch)
        elif not self._left:
            self._count_execution()
        for request in self._rescheduled:
            self.sink.requeue(request)

    def give_back(self) -> None:
        """Restore the batch as it was, because it was not started."""
        for held in self.held:
            held.give_back()
        self.held.clear()
        self.batch.responses = []
        self.batch.started_ns = 0
        self.sink.returned(self.batch)

    def one_less(self) -> None:
        """Note that a request was answered."""
        self._left -= 1
        if not self._left and self._released:
            self._count_execution()

    @property
    def ends_with_one(self) -> bool:
        """Return whether the next answered request completes the batch."""
        return self._released and self._left == 1

    def answered_apart(self, request: InferRequest, error: TpxError | None) -> None:
        """Note that a request is answered ahead of its batch; its execution is counted with the batch."""
        self._apart[request] = request.head.batch_size if error is None else 0
        self._left -= 1

    def mark_rescheduled(self, request: InferRequest) -> None:
        """Note that the model rescheduled a request: it is not answered with this batch."""
        self._rescheduled.append(request)
        if request.sequence is not None:
            request.sequence.continues = True
        self._left -= 1

    def _count_execution(self) -> None:
        """Count the batch as one execution once all of its requests are answered."""
        batch = self.batch
        ran = batch.computed_ns > 0
        if ran:
            batch.ended_ns = _clock()
        else:
            batch.end(None)  # the process died after the responses, so its times are unknown
        for response in batch.responses:
            if response.error is not None:
                self._take_out_others()
                if not batch.requests and not ran and not batch.size:
                    return
                break
        self.sink.answered(batch)

    def _take_out_others(self) -> None:
        """Leave only requests that succeed together in the batch; its execution counts once."""
        batch = self.batch
        failed = sum(request.head.batch_size for request in self._apart) - sum(self._apart.values())
        gone = {*self._rescheduled, *self._apart}
        pairs = zip(batch.requests, batch.responses, strict=True)
        kept = [(request, response) for request, response in pairs if request not in gone]
        if any(response.error is not None for _, response in kept):
            for request, response in kept:
                failed += request.head.batch_size if response.error is not None else 0
                single = Batch([request])
                single.started_ns, single.gathered_ns = batch.started_ns, batch.gathered_ns
                single.computed_ns, single.ended_ns = batch.computed_ns, batch.ended_ns
                self.sink.responded(EarlyResponse(single, response))
            kept = []
        batch.size -= failed
        batch.empty += failed
        batch.requests = [request for request, _ in kept]
        batch.responses = [response for _, response in kept]


_NONE = InferResponse([], ExecutionError("the model has not responded"))


class PendingRequest:
    """One request in the process. As its `backpressure`, it forwards cancellation and stalls to the model."""

    __slots__ = (
        "_before",
        "_begun_ns",
        "_connection",
        "_credit",
        "_index",
        "_owner",
        "_sent",
        "_stalled",
        "handle",
        "head",
        "over",
        "pieces",
        "request",
        "single",
        "start",
    )

    def __init__(
        self,
        owner: PendingBatch,
        index: int,
        request: InferRequest,
        handle: int,
        connection: WorkerConnection,
    ) -> None:
        self.handle = handle
        self.request = request
        self.head = request.head
        """The head as sent by the client; a response's head describes the outputs it has."""
        self.over = False
        """True once no further response follows."""
        self.single: Batch | None = None
        if owner.decoupled:
            self.single = Batch([request])
            self.single.executes = False
        self.start = b""
        """Start of the responses whose tensor goes to `pieces` instead of to `responded`; empty: none."""
        self.pieces: list[bytes] = []
        """Tensors of such responses that `pass_pieces` has not passed on yet."""
        self._owner = owner
        self._index = index
        self._connection = connection
        before = request.backpressure
        self._stalled = before is not None and isinstance(before, ResponseBackpressure) and before.stalled
        self._credit = 0
        self._sent = 0
        self._begun_ns = 0
        self._before = before
        request.backpressure = self

    # the `backpressure` of InferRequest

    def end(self) -> None:
        if not self.over and self._connection.open:
            self._connection.send(frames.CANCEL, [frames.NUMBER.pack(self.handle)])
            self._owner.on_cancel()

    def stall(self, stalled: bool) -> None:
        self._stalled = stalled
        self._give_credit()

    def delivered(self, size: int) -> None:
        self._credit += size + frames.RESPONSE_BYTES
        if self._credit >= frames.CREDIT_BYTES:
            self._give_credit()

    def _give_credit(self) -> None:
        if self._credit and not self._stalled and not self.over and self._connection.open:
            self._connection.send(frames.CREDIT, [frames.CREDIT_BODY.pack(self.handle, self._credit)])
            self._credit = 0

    # messages from the process

    def answered(self, response: InferResponse | int) -> None:
        """Handle the request's entry in the return value of `execute`."""
        if isinstance(response, InferResponse):
            self._set_response(response)
        elif response == frames.AGAIN and not self.over:
            self.request.head = self.head
            self._end_request()
            self._owner.mark_rescheduled(self.request)

    def responded(self, response: InferResponse | int | None, *, final: bool) -> None:
        """Handle a response sent by a response sender."""
        given = response if isinstance(response, InferResponse) else None
        if self.single is not None:
            self._stream_response(self.single, given or InferResponse([]), final=final)
        elif given is not None:
            self._send_early(given, over=final)
        elif final and not self._sent:
            error = ExecutionError("the model has dropped the request without a response")
            self._send_early(InferResponse([], error), over=True)
        elif final:
            self._end_request()

    @property
    def repeats(self) -> bool:
        """Return whether a template pays: not for the first response, which may be the only one."""
        return self._sent > 1 and self.request.template_of is not None

    def learn(self, response: InferResponse, start: bytes) -> None:
        """Pass pieces from now on if the frontend has a template of responses like this one."""
        request = self.request
        template_of, request.template_of = request.template_of, None
        if template_of is not None and self.single is not None and not (request.trace or request.cancelled):
            request.pieces = template_of(request, response)
            self.start = start if request.pieces is not None else b""

    def pass_pieces(self, now_ns: int) -> None:
        """Handle responses like the one that the template was made of."""
        pieces, self.pieces = self.pieces, []
        self._owner.sink.streamed(self.request, pieces, self._sent, self._begun_ns, now_ns)
        self._sent += len(pieces)
        self._begun_ns = now_ns
        for piece in pieces:
            self._credit += len(piece) + frames.RESPONSE_BYTES
        if self._credit >= frames.CREDIT_BYTES:
            self._give_credit()

    def fail(self, error: TpxError) -> None:
        """Fail the request; no further response follows."""
        if self.over:
            return
        if self.single is not None:
            self.single.end(error)
            self._stream_response(self.single, InferResponse([], error), final=True)
        else:
            self._set_response(InferResponse([], error))

    def give_back(self) -> None:
        """Note that the request has left the process."""
        self.over = True
        self.request.backpressure = self._before
        if self._before is not None:
            self._before.stall(self._stalled)

    def _set_response(self, response: InferResponse, *, over: bool = True) -> None:
        if over:
            self._end_request()
        if self._sent:
            return
        self._sent = 1
        self._owner.batch.responses[self._index] = response
        self._owner.one_less()

    def _send_early(self, response: InferResponse, *, over: bool) -> None:
        """Deliver a response of a sender, without waiting for the batch or for `execute` to return."""
        if self._sent or self._owner.ends_with_one:
            self._set_response(response, over=over)
            return
        if over:
            self._end_request()
        self._owner.answered_apart(self.request, response.error)
        self._push_early(Batch([self.request]), response)

    def _stream_response(self, single: Batch, response: InferResponse, *, final: bool) -> None:
        response.final = self.over = final
        self._push_early(single, response)
        if final:
            self._end_request()

    def _push_early(self, batch: Batch, response: InferResponse) -> None:
        now = _clock()
        if not batch.gathered_ns:
            self._begin(batch, now)
        batch.computed_ns = batch.ended_ns = now
        size = 0
        for tensor in response.outputs:
            size += len(tensor.data)
        early = EarlyResponse(batch, response, self._sent, self._begun_ns, size)
        self._sent += 1
        self._begun_ns = now
        self._owner.sink.responded(early)

    def _begin(self, batch: Batch, now_ns: int) -> None:
        """Set the start before the first response: until execute returns, it is that of the hand-over."""
        batch.started_ns = batch.started_ns or self._owner.batch.started_ns or now_ns
        batch.gathered_ns = batch.gathered_ns or self._owner.batch.gathered_ns or batch.started_ns

    def _end_request(self) -> None:
        self.over = True
        self.request.backpressure = None


class _UnreadInput:
    """Implements UnreadTensor: an input that the event loop has left in shared memory."""

    def __init__(self, held: PendingRequest, unread: UnreadInput) -> None:
        self._held = held
        self._unread = unread

    def __len__(self) -> int:
        return len(self._unread.memory)

    def read_into(self, memory: memoryview) -> None:
        self._unread.read_into(memory)

    def fail(self, error: TpxError) -> None:
        self._held.fail(error)


def unread_buffers(held: PendingRequest) -> "list[Buffer | _UnreadInput]":
    """Return the tensors of a request; small ones that were left unread are read."""
    request = held.request
    unread = {id(each.memory): each for each in request.unread}
    buffers: list[Buffer | _UnreadInput] = []
    for buffer in request.buffers:
        there = unread.get(id(buffer))
        if there is None or len(buffer) < frames.INLINE_BELOW_BYTES:
            if there is not None:
                _read_small(held, there)
            buffers.append(buffer)
        else:
            buffers.append(_UnreadInput(held, there))
    return buffers


def _read_small(held: PendingRequest, unread: UnreadInput) -> None:
    try:
        unread.read()
    except TpxError as exc:
        unread.memory[:] = bytes(len(unread.memory))  # the model gets zeros, and its answer is dropped
        held.fail(exc)
