"""The two strategies of sequence batching: which sequences with a slot are computed together."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from tpx.serving.request import InferRequest, LiveSequence
from tpx.serving.scheduling.base import Refusal
from tpx.serving.scheduling.dynamic import DynamicBatcher
from tpx.serving.scheduling.sequences import SequenceTable


class DirectSequences:
    """Each sequence has a slot of an instance; a batch has a row for every slot up to the last ready
    one.

    Rows of slots with no ready request, or with one of another shape, are empty.
    """

    waits = True
    rows_at_once = 0
    timed = True

    def __init__(
        self, table: SequenceTable, slots: int, max_queue_delay_ns: int, minimum_slot_utilization: float
    ) -> None:
        table.slotted = True
        self.affinity = self._table = table
        self.add, self.expire, self.purge_cancelled = table.add, table.expire, table.purge_cancelled
        self._enough = minimum_slot_utilization * slots
        self._delay_ns = max_queue_delay_ns if minimum_slot_utilization > 0 else 0
        self._leaves_ns: dict[int, int] = {}
        """By instance: when ready requests are sent even if they are few."""

    def take(self, now_ns: int, *, idle: bool, instance: int = 0) -> Sequence[InferRequest | None]:
        ready = self._table.ready(instance) if idle else ()
        if not ready:
            return ()
        # rotate the shape that goes first, so that none starves
        oldest = min(ready, key=_arrived_ns)
        if self._delay_ns and len(ready) < self._enough:
            leaves_ns = self._leaves_ns[instance] = _arrived_ns(oldest) + self._delay_ns
            if now_ns < leaves_ns:
                return ()
        self._leaves_ns.pop(instance, None)
        key = oldest.queue[0].head.batch_key
        stackable = [s for s in ready if s.queue[0].head.batch_key == key]
        if self._table.varies:
            shapes = self._table.state_shapes(oldest)
            stackable = [s for s in stackable if self._table.state_shapes(s) == shapes]
        rows: list[InferRequest | None] = [None] * (ready[-1].slot + 1)
        for sequence in stackable:
            rows[sequence.slot] = self._table.take(sequence)
        return rows

    def wake_ns(self, now_ns: int) -> int | None:
        times = (self._table.next_event_ns(), *self._leaves_ns.values())
        return min((at for at in times if at is not None and at > now_ns), default=None)

    def __len__(self) -> int:
        return self._table.waiting


class OldestSequences:
    """Each sequence has at most one request in the dynamic batcher of its instance, oldest first."""

    waits = True
    rows_at_once = 0
    timed = True

    def __init__(self, table: SequenceTable, new_batcher: Callable[[], DynamicBatcher]) -> None:
        self.affinity = self._table = table
        self.add, self.expire = table.add, table.expire
        self._batchers: defaultdict[int, DynamicBatcher] = defaultdict(new_batcher)
        """Batchers by instance."""
        table.on_ready = self._queue_request
        table.on_closed = self._drop_batcher

    def take(self, now_ns: int, *, idle: bool, instance: int = 0) -> Sequence[InferRequest]:
        return self._batchers[instance].take(now_ns, idle=idle)

    def purge_cancelled(self, now_ns: int) -> Sequence[Refusal]:
        refusals = self._table.purge_cancelled(now_ns)
        left = [refusal for batcher in self._batchers.values() for refusal in batcher.purge_cancelled(now_ns)]
        for refusal in left:
            refusals += [refusal, *self._table.dropped(refusal.request, now_ns)]
        return refusals

    def wake_ns(self, now_ns: int) -> int | None:
        times = [
            self._table.next_event_ns(),
            *(batcher.wake_ns(now_ns) for batcher in self._batchers.values()),
        ]
        return min((at for at in times if at is not None and at > now_ns), default=None)

    def __len__(self) -> int:
        return self._table.waiting + sum(len(batcher) for batcher in self._batchers.values())

    def _drop_batcher(self, instance: int) -> None:
        self._batchers.pop(instance, None)

    def _queue_request(self, sequence: LiveSequence) -> None:
        shapes = self._table.state_shapes(sequence) if self._table.varies else None
        request = self._table.take(sequence)
        if shapes is not None:
            request.head = request.head.with_states(shapes)
        self._batchers[sequence.instance].add(request)


def _arrived_ns(sequence: LiveSequence) -> int:
    return sequence.queue[0].arrived_ns
