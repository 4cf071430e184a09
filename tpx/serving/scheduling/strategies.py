"""The two strategies of sequence batching: who of those that have a slot is computed together."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import Refusal
from tpx.serving.scheduling.dynamic import DynamicBatcher
from tpx.serving.scheduling.sequences import LiveSequence, SequenceTable


class DirectSequences:
    """Each sequence has a slot of one instance; a batch has a row for every slot up to the last ready one.

    Rows of slots that have nothing ready, or nothing of the same shape, are empty.
    """

    waits = True
    timed = True
    slotted = True

    def __init__(
        self, table: SequenceTable, slots: int, max_queue_delay_ns: int, minimum_slot_utilization: float
    ) -> None:
        self._table = table
        self._enough = minimum_slot_utilization * slots
        self._delay_ns = max_queue_delay_ns if minimum_slot_utilization > 0 else 0
        self._leaves_ns: dict[int, int] = {}
        """By lane: when what is ready there leaves, few as they are."""

    def add(self, request: InferRequest) -> None:
        self._table.add(request)

    def take(self, now_ns: int, *, idle: bool, lane: int = 0) -> Sequence[InferRequest | None]:
        ready = self._table.ready(lane) if idle else ()
        if not ready:
            return ()
        # whose shape it is changes, so that no shape waits for ever
        oldest = min(ready, key=_arrived_ns)
        if self._delay_ns and len(ready) < self._enough:
            leaves_ns = self._leaves_ns[lane] = _arrived_ns(oldest) + self._delay_ns
            if now_ns < leaves_ns:
                return ()
        self._leaves_ns.pop(lane, None)
        key = oldest.queue[0].head.batch_key
        alike = [s for s in ready if s.queue[0].head.batch_key == key]
        if self._table.varies:
            shapes = self._table.state_shapes(oldest)
            alike = [s for s in alike if self._table.state_shapes(s) == shapes]
        rows: list[InferRequest | None] = [None] * (ready[-1].slot + 1)
        for sequence in alike:
            rows[sequence.slot] = self._table.take(sequence)
        return rows

    def open_lane(self, lane: int, now_ns: int) -> None:
        self._table.open_lane(lane, now_ns)

    def close_lane(self, lane: int) -> bool:
        return self._table.close_lane(lane)

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None:
        for request in requests:
            self._table.done(request, now_ns)

    def dropped(self, request: InferRequest, now_ns: int) -> Sequence[Refusal]:
        return self._table.drop(request, now_ns)

    def expire(self, now_ns: int) -> Sequence[Refusal]:
        return self._table.expire(now_ns)

    def weed(self, now_ns: int) -> Sequence[Refusal]:
        return self._table.weed(now_ns)

    def wake_ns(self, now_ns: int) -> int | None:
        times = (self._table.next_event_ns(), *self._leaves_ns.values())
        return min((at for at in times if at is not None and at > now_ns), default=None)

    @property
    def live(self) -> int:
        return self._table.live

    def __len__(self) -> int:
        return self._table.waiting


class OldestSequences:
    """Each sequence has one request at a time in the dynamic batcher of its instance, oldest first."""

    waits = True
    timed = True
    slotted = False

    def __init__(self, table: SequenceTable, new_batcher: Callable[[], DynamicBatcher]) -> None:
        self._table = table
        self._batchers: defaultdict[int, DynamicBatcher] = defaultdict(new_batcher)
        """By lane."""
        table.on_ready = self._offer

    def add(self, request: InferRequest) -> None:
        self._table.add(request)

    def take(self, now_ns: int, *, idle: bool, lane: int = 0) -> Sequence[InferRequest]:
        return self._batchers[lane].take(now_ns, idle=idle)

    def open_lane(self, lane: int, now_ns: int) -> None:
        self._table.open_lane(lane, now_ns)

    def close_lane(self, lane: int) -> bool:
        vacant = self._table.close_lane(lane)
        if vacant:
            self._batchers.pop(lane, None)
        return vacant

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None:
        for request in requests:
            self._table.done(request, now_ns)

    def dropped(self, request: InferRequest, now_ns: int) -> Sequence[Refusal]:
        return self._table.drop(request, now_ns)

    def expire(self, now_ns: int) -> Sequence[Refusal]:
        return self._table.expire(now_ns)

    def weed(self, now_ns: int) -> Sequence[Refusal]:
        refusals = self._table.weed(now_ns)
        left = [refusal for batcher in self._batchers.values() for refusal in batcher.weed(now_ns)]
        for refusal in left:
            refusals += [refusal, *self._table.drop(refusal.request, now_ns)]
        return refusals

    def wake_ns(self, now_ns: int) -> int | None:
        times = [
            self._table.next_event_ns(),
            *(batcher.wake_ns(now_ns) for batcher in self._batchers.values()),
        ]
        return min((at for at in times if at is not None and at > now_ns), default=None)

    @property
    def live(self) -> int:
        return self._table.live

    def __len__(self) -> int:
        return self._table.waiting + sum(len(batcher) for batcher in self._batchers.values())

    def _offer(self, sequence: LiveSequence) -> None:
        shapes = self._table.state_shapes(sequence) if self._table.varies else None
        request = self._table.take(sequence)
        if shapes is not None:
            request.head = request.head.with_states(shapes)
        self._batchers[sequence.lane].add(request)


def _arrived_ns(sequence: LiveSequence) -> int:
    return sequence.queue[0].arrived_ns
