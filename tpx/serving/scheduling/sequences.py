"""Which sequence has which slot: what both strategies of sequence batching share.

Triton: core/src/sequence_batch_scheduler/sequence_batch_scheduler.cc.
"""

import heapq
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tpx.errors import InvalidRequest, NotReady, TpxError
from tpx.serving.request import InferRequest

log = logging.getLogger(__name__)

CorrelationId = int | str
MAX_ID_CHARACTERS = 128


class LiveSequence:
    """A sequence between its first request and its last."""

    __slots__ = ("busy", "ended", "id", "lane", "queue", "slot", "states", "touched_ns")

    def __init__(self, correlation_id: CorrelationId, now_ns: int) -> None:
        self.id = correlation_id
        self.queue: deque[InferRequest] = deque()
        self.lane = -1
        """The instance it sticks to; -1 while it waits in the backlog."""
        self.slot = -1
        self.busy = False
        """One of its requests is being computed."""
        self.ended = False
        """Its last request has come, or it was given up: it leaves its slot when nothing of it is left."""
        self.touched_ns = now_ns
        self.states: dict[str, Any] = {}
        """What the model keeps between its requests, by the name of the state's input."""


class SequenceTable:
    """Gives sequences slots, lowest first over all lanes, and has the others wait in the order they came."""

    def __init__(
        self, model_name: str, lanes: int, slots: int, idle_ns: int, check_id: Callable[[CorrelationId], None]
    ) -> None:
        """`check_id` raises InvalidRequest for an id that the model cannot be told."""
        self._model_name = model_name
        self._check_id = check_id
        self._idle_ns = idle_ns
        self._live: dict[CorrelationId, LiveSequence] = {}
        self._backlog: deque[LiveSequence] = deque()
        self._free = [(slot, lane) for slot in range(slots) for lane in range(lanes)]  # sorted: a heap
        self._slots: list[list[LiveSequence | None]] = [[None] * slots for _ in range(lanes)]
        self.waiting = 0
        """Requests that were added and not yet taken."""

    def add(self, request: InferRequest) -> LiveSequence:
        """Put a request at the end of its sequence. Raises InvalidRequest."""
        correlation_id = self._checked_id(request)
        parameters = request.head.parameters
        starts = bool(parameters.get("sequence_start"))
        sequence = self._live.get(correlation_id)
        if sequence is None:
            if not starts:
                raise InvalidRequest(
                    f"inference request for sequence {correlation_id} to model '{self._model_name}' must "
                    "specify the START flag on the first request of the sequence"
                )
            sequence = self._live[correlation_id] = LiveSequence(correlation_id, request.arrived_ns)
            self._settle(sequence)
        elif starts:
            log.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end before this "
                "sequence start. Previous sequence will be terminated early.",
                correlation_id,
                self._model_name,
            )
        request.sequence = sequence
        sequence.queue.append(request)
        sequence.touched_ns = request.arrived_ns
        self.waiting += 1
        if parameters.get("sequence_end"):
            sequence.ended = True
            del self._live[correlation_id]
        return sequence

    def ready(self, lane: int) -> list[LiveSequence]:
        """The sequences of a lane that have a request and none in work, by slot."""
        return [s for s in self._slots[lane] if s is not None and s.queue and not s.busy]

    def take(self, sequence: LiveSequence) -> InferRequest:
        """The next request of a sequence, which is busy until `done`."""
        sequence.busy = True
        self.waiting -= 1
        return sequence.queue.popleft()

    def done(self, request: InferRequest, now_ns: int) -> LiveSequence | None:
        """A request that was taken is computed, or nobody wants it any more: that ends its sequence.

        Returns the sequence that took over its slot, or itself if it goes on.
        """
        sequence: LiveSequence = request.sequence
        sequence.busy = False
        sequence.touched_ns = now_ns
        if request.cancelled and not sequence.ended:
            self._end(sequence)
            for queued in sequence.queue:
                queued.cancel()
        if sequence.ended and not sequence.queue:
            return self._release(sequence)
        return sequence

    def expire(
        self, now_ns: int, freed: Callable[[LiveSequence], None]
    ) -> list[tuple[InferRequest, TpxError]]:
        """End the sequences that have been idle for too long; refuse those that waited in the backlog
        beyond the timeout of a request. `freed` is told who took over a slot."""
        for sequence in list(self._live.values()):
            if self._is_idle(sequence) and now_ns - sequence.touched_ns > self._idle_ns:
                log.info("sequence %s of model '%s' was idle: ended", sequence.id, self._model_name)
                self._end(sequence)
                follower = self._release(sequence)
                if follower is not None:
                    freed(follower)
        late = [s for s in self._backlog if any(_deadline_ns(r) <= now_ns for r in s.queue)]
        refused: list[tuple[InferRequest, TpxError]] = []
        for sequence in late:
            self._backlog.remove(sequence)
            if not sequence.ended:
                self._end(sequence)
            self.waiting -= len(sequence.queue)
            error = NotReady("timeout of the corresponding sequence has been expired")
            refused += [(request, error) for request in sequence.queue]
            sequence.queue.clear()
        return refused

    def next_event_ns(self) -> int | None:
        """When `expire` may find something."""
        idle = [s.touched_ns + self._idle_ns + 1 for s in self._live.values() if self._is_idle(s)]
        late = [_deadline_ns(request) for s in self._backlog for request in s.queue]
        return min((at for at in (*idle, *late) if at < _NEVER_NS), default=None)

    def _checked_id(self, request: InferRequest) -> CorrelationId:
        head = request.head
        if head.batch_size > 1:
            raise InvalidRequest(
                f"inference request to model '{self._model_name}' must specify batch-size 1 due to "
                "requirements of sequence batcher"
            )
        correlation_id = head.parameters.get("sequence_id", 0)
        if not correlation_id or isinstance(correlation_id, float):
            raise InvalidRequest(
                f"inference request to model '{self._model_name}' must specify a non-zero or non-empty "
                "correlation ID"
            )
        if isinstance(correlation_id, str) and len(correlation_id) > MAX_ID_CHARACTERS:
            raise InvalidRequest(
                f"string correlation ID cannot be longer than {MAX_ID_CHARACTERS} characters"
            )
        self._check_id(correlation_id)
        return correlation_id

    @staticmethod
    def _is_idle(sequence: LiveSequence) -> bool:
        return not sequence.queue and not sequence.busy

    def _settle(self, sequence: LiveSequence) -> None:
        """Give a sequence the first free slot, or a place in the backlog."""
        if not self._free:
            self._backlog.append(sequence)
            return
        sequence.slot, sequence.lane = heapq.heappop(self._free)
        self._slots[sequence.lane][sequence.slot] = sequence

    def _end(self, sequence: LiveSequence) -> None:
        sequence.ended = True
        del self._live[sequence.id]

    def _release(self, sequence: LiveSequence) -> LiveSequence | None:
        """Free the slot of a sequence, and give it to the one that has waited longest."""
        if sequence.lane < 0:
            self._backlog.remove(sequence)
            return None
        slot, lane = sequence.slot, sequence.lane
        self._slots[lane][slot] = None
        heapq.heappush(self._free, (slot, lane))
        if not self._backlog:
            return None
        follower = self._backlog.popleft()
        self._settle(follower)
        return follower


_NEVER_NS = 2**63


def _deadline_ns(request: InferRequest) -> int:
    return request.arrived_ns + request.head.timeout_ns if request.head.timeout_ns else _NEVER_NS


class DirectSequences:
    """Each sequence has a slot of one instance; a batch has a row for every slot up to the last ready one.

    Rows of slots that have nothing ready, or nothing of the same shape, are empty: stacking fills them.
    """

    waits = True
    sticky = True
    expires = True

    def __init__(
        self, table: SequenceTable, slots: int, max_queue_delay_ns: int, minimum_slot_utilization: float
    ) -> None:
        self._table = table
        self._slots = slots
        self._delay_ns = max_queue_delay_ns if minimum_slot_utilization > 0 else 0
        self._utilization = minimum_slot_utilization
        self._wake_ns: int | None = None

    def add(self, request: InferRequest) -> None:
        self._table.add(request)

    def take(self, now_ns: int, *, idle: bool, lane: int = 0) -> Sequence[InferRequest]:
        if not idle:
            return ()
        ready = self._table.ready(lane)
        if not ready:
            return ()
        if self._delay_ns and len(ready) < self._utilization * self._slots:
            oldest_ns = min(sequence.queue[0].arrived_ns for sequence in ready)
            if now_ns - oldest_ns < self._delay_ns:
                wake_ns = oldest_ns + self._delay_ns
                self._wake_ns = wake_ns if self._wake_ns is None else min(self._wake_ns, wake_ns)
                return ()
        key = ready[0].queue[0].head.batch_key
        return [self._table.take(s) for s in ready if s.queue[0].head.batch_key == key]

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None:
        for request in requests:
            self._table.done(request, now_ns)

    def expire(self, now_ns: int) -> Sequence[tuple[InferRequest, TpxError]]:
        if self._wake_ns is not None and self._wake_ns <= now_ns:
            self._wake_ns = None
        return self._table.expire(now_ns, lambda _: None)

    def wake_ns(self) -> int | None:
        times = (self._wake_ns, self._table.next_event_ns())
        return min((at for at in times if at is not None), default=None)

    def __len__(self) -> int:
        return self._table.waiting


class OldestSequences:
    """Each sequence has one request at a time in the dynamic batcher of its instance, oldest first."""

    waits = True
    sticky = True
    expires = True

    def __init__(self, table: SequenceTable, batchers: Sequence[Any]) -> None:
        """`batchers`: a DynamicBatcher for each lane."""
        self._table = table
        self._batchers = batchers

    def add(self, request: InferRequest) -> None:
        self._offer(self._table.add(request))

    def take(self, now_ns: int, *, idle: bool, lane: int = 0) -> Sequence[InferRequest]:
        taken: Sequence[InferRequest] = self._batchers[lane].take(now_ns, idle=idle)
        return taken

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None:
        for request in requests:
            sequence = self._table.done(request, now_ns)
            if sequence is not None:
                self._offer(sequence)

    def expire(self, now_ns: int) -> Sequence[tuple[InferRequest, TpxError]]:
        return self._table.expire(now_ns, self._offer)

    def wake_ns(self) -> int | None:
        times = [batcher.wake_ns() for batcher in self._batchers]
        times.append(self._table.next_event_ns())
        return min((at for at in times if at is not None), default=None)

    def __len__(self) -> int:
        return self._table.waiting + sum(len(batcher) for batcher in self._batchers)

    def _offer(self, sequence: LiveSequence) -> None:
        if sequence.lane >= 0 and sequence.queue and not sequence.busy:
            self._batchers[sequence.lane].add(self._table.take(sequence))
