"""Sequences and their slots, shared by both strategies of sequence batching.

Triton: core/src/sequence_batch_scheduler/sequence_batch_scheduler.cc.
"""

import heapq
import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from tpx.errors import Cancelled, InvalidRequest, Overloaded
from tpx.serving.request import CorrelationId, InferRequest, LiveSequence
from tpx.serving.scheduling.base import Refusal

log = logging.getLogger(__name__)

MAX_ID_CHARACTERS = 128
_FEW = 64
"""Deadlines kept for sequences that have left the backlog."""


class SequenceTable:
    """Assigns slots to sequences, lowest first over all instances; the others wait in order of arrival."""

    def __init__(
        self,
        model_name: str,
        instances: int,
        slots: int,
        idle_ns: int,
        check_id: Callable[[CorrelationId], None],
        varying_shapes: Sequence[tuple[int, ...]] = (),
        *,
        iterative: bool = False,
    ) -> None:
        """Create a table with open `instances` of `slots` each.

        `check_id` raises InvalidRequest for an id that the model cannot take. `varying_shapes` are the
        initial shapes of states that may grow. If `iterative`, each request is its own sequence,
        computed each time that its model reschedules it.
        """
        self.slotted = False
        """True if the rows of a batch are slots; set by the strategy."""
        self._model_name = model_name
        self.iterative = iterative
        self._check_id = check_id
        self._idle_ns = idle_ns
        self._first_shapes = tuple(varying_shapes)
        self.varies = bool(varying_shapes)
        """True if the shapes of states may change with each request."""
        self._live: dict[CorrelationId, LiveSequence] = {}
        self._backlog: OrderedDict[LiveSequence, None] = OrderedDict()
        self._deadlines: list[tuple[int, int, LiveSequence]] = []
        """A heap; some of its sequences may have left the backlog."""
        self._idle: OrderedDict[LiveSequence, None] = OrderedDict()
        """Sequences with a slot and no request, longest idle first."""
        self._slots_of_instance = slots
        self._free: list[tuple[int, int]] = []
        """A heap of (slot, instance); only the first unused slot of an instance is in it."""
        self._slots: dict[int, list[LiveSequence | None]] = {}
        """Used slots by instance; a configuration may have 2^31 of them."""
        self._closing: set[int] = set()
        """Instances that end with their last sequence."""
        self._numbers = 0
        self._ids = itertools.count(1)
        self.waiting = 0
        """Number of queued requests."""
        self.on_ready: Callable[[LiveSequence], None] = lambda _: None
        """Called with a sequence that has a slot and a request, and none computing."""
        self.on_closed: Callable[[int], None] = lambda _: None
        """Called with an instance that is removed."""
        for instance in range(instances):
            self.open_instance(instance, 0)

    def open_instance(self, instance: int, now_ns: int) -> None:
        """Add the slots of an instance, and assign them to the backlog first."""
        self._slots[instance] = []
        heapq.heappush(self._free, (0, instance))
        while self._backlog and self._free:
            self._assign_slot(*heapq.heappop(self._free), now_ns)

    def close_instance(self, instance: int) -> bool:
        """Start no more sequences on an instance. Return whether it had none left and was removed."""
        self._closing.add(instance)
        self._free = [each for each in self._free if each[1] != instance]
        heapq.heapify(self._free)
        if any(self._slots[instance]):
            return False
        del self._slots[instance]
        self._closing.discard(instance)
        self.on_closed(instance)
        return True

    @property
    def live(self) -> int:
        """Return the number of sequences that have begun and not ended."""
        return len(self._live)

    def add(self, request: InferRequest) -> None:
        """Append a request to its sequence. Raises InvalidRequest."""
        if self.iterative:
            self._assign_id(request)
        correlation_id = self._validate_id(request)
        parameters = request.head.parameters
        sequence = self._get_or_start_sequence(correlation_id, starts=bool(parameters.get("sequence_start")))
        request.sequence = sequence
        sequence.queue.append(request)
        self.waiting += 1
        # ends when its last request arrives, not when it is computed: the id may now start another sequence
        if parameters.get("sequence_end"):
            self.end(sequence)
        self._idle.pop(sequence, None)
        if sequence.instance < 0:
            # the deadline in the backlog is that of the request with the shortest timeout
            timeout_ns = request.head.timeout_ns
            if timeout_ns and request.arrived_ns + timeout_ns < sequence.deadline_ns:
                sequence.deadline_ns = request.arrived_ns + timeout_ns
                self._numbers += 1  # tie-breaker for equal deadlines: sequences have no order
                heapq.heappush(self._deadlines, (sequence.deadline_ns, self._numbers, sequence))
        elif not sequence.busy:
            self.on_ready(sequence)

    def _assign_id(self, request: InferRequest) -> None:
        """Start a sequence for a new request; a rescheduled one continues its own."""
        head = request.head
        parameters = dict(head.parameters)
        if request.sequence is None:
            if parameters.get("sequence_id"):
                raise InvalidRequest(
                    f"inference request to model '{self._model_name}' must not specify a correlation ID: "
                    "its sequences are iterative, each request is a separate sequence"
                )
            parameters["sequence_id"] = next(self._ids)
            parameters["sequence_start"] = True
            request.head = head.with_parameters(parameters)
        elif parameters.pop("sequence_start", False):
            request.head = head.with_parameters(parameters)

    def ready(self, instance: int) -> list[LiveSequence]:
        """Return the sequences of an instance with a request and none computing, by slot."""
        return [s for s in self._slots[instance] if s is not None and s.queue and not s.busy]

    def take(self, sequence: LiveSequence) -> InferRequest:
        """Remove and return the next request of a sequence, which is busy until `finished` or `dropped`."""
        sequence.busy = True
        self.waiting -= 1
        return sequence.queue.popleft()

    def state_shapes(self, sequence: LiveSequence) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the states for the next request of a sequence."""
        if not sequence.states or sequence.queue[0].head.parameters.get("sequence_start"):
            return self._first_shapes
        return tuple([state.shape for state in sequence.states.values()])

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None:
        """Note that these requests were computed."""
        for request in requests:
            sequence = request.live_sequence
            if self.iterative:
                if not sequence.continues:
                    self.end(sequence)
                sequence.continues = False
            sequence.busy = False
            sequence.touched_ns = now_ns
            if sequence.queue:
                self.on_ready(sequence)
            elif sequence.ended:
                self._release_slot(sequence, now_ns)
            else:
                self._idle[sequence] = None

    def dropped(self, request: InferRequest, now_ns: int) -> list[Refusal]:
        """End the sequence of a request that was cancelled after `take`; return the requests that
        depend on it.
        """
        sequence = request.live_sequence
        sequence.busy = False
        # after a missed request the model would compute the others with a wrong state
        refusals = self._remove_cancelled(sequence, cut=True)
        if sequence.queue:
            self.on_ready(sequence)
        else:
            self._release_slot(sequence, now_ns)
        return refusals

    def purge_cancelled(self, now_ns: int) -> list[Refusal]:
        """Remove cancelled requests and the later requests of their sequences."""
        refusals: list[Refusal] = []
        settled = [sequence for slots in self._slots.values() for sequence in slots if sequence is not None]
        for sequence in (*self._backlog, *settled):
            if any(request.cancelled for request in sequence.queue):
                refusals += self._remove_cancelled(sequence)
                if not sequence.queue and not sequence.busy:
                    if sequence.instance < 0:
                        del self._backlog[sequence]
                    else:
                        self._release_slot(sequence, now_ns)
        # removal from the middle of a heap is a search: rebuild it once most entries are stale
        if len(self._deadlines) > 2 * len(self._backlog) + _FEW:
            self._deadlines = [each for each in self._deadlines if each[2] in self._backlog]
            heapq.heapify(self._deadlines)
        return refusals

    def _remove_cancelled(self, sequence: LiveSequence, *, cut: bool = False) -> list[Refusal]:
        """Remove cancelled requests and those behind them, up to one that restarts the sequence;
        without one the sequence ends.

        `cut` is true if a request before the queue was cancelled.
        """
        kept: deque[InferRequest] = deque()
        refusals: list[Refusal] = []
        for request in sequence.queue:
            cut = request.cancelled or (cut and not request.head.parameters.get("sequence_start"))
            if not cut:
                kept.append(request)
            elif request.cancelled:
                refusals.append(Refusal.of_cancelled(request))
            else:
                refusals.append(Refusal(request, Cancelled("a request of the sequence was cancelled")))
        self.waiting -= len(refusals)
        sequence.queue = kept
        if cut:
            self.end(sequence)
        return refusals

    def expire(self, now_ns: int) -> list[Refusal]:
        """End sequences that were idle for too long; refuse those whose timeout in the backlog has passed."""
        while self._idle and now_ns - (sequence := next(iter(self._idle))).touched_ns > self._idle_ns:
            log.info("sequence %s of model '%s' was idle and has been ended", sequence.id, self._model_name)
            del self._idle[sequence]
            self._give_up(sequence, None)  # an idle sequence has no requests to refuse
            self._release_slot(sequence, now_ns)
        refusals: list[Refusal] = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, _, sequence = heapq.heappop(self._deadlines)
            if sequence in self._backlog:
                del self._backlog[sequence]
                error = Overloaded("timeout of the corresponding sequence has been expired")
                refusals += self._give_up(sequence, error)
        return refusals

    def next_event_ns(self) -> int | None:
        """Return the next time at which `expire` may have an effect."""
        times = [deadline_ns for deadline_ns, _, _ in self._deadlines[:1]]
        if self._idle:
            # ordered by the time of last use, so the first has been idle for longest
            times.append(next(iter(self._idle)).touched_ns + self._idle_ns + 1)
        return min(times, default=None)

    def _validate_id(self, request: InferRequest) -> CorrelationId:
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

    def end(self, sequence: LiveSequence) -> None:
        """End a sequence: no further request follows."""
        if not sequence.ended:
            sequence.ended = True
            del self._live[sequence.id]

    def _get_or_start_sequence(self, correlation_id: CorrelationId, *, starts: bool) -> LiveSequence:
        sequence = self._live.get(correlation_id)
        if sequence is None:
            if not starts:
                raise InvalidRequest(
                    f"inference request for sequence {correlation_id} to model '{self._model_name}' must "
                    "specify the START flag on the first request of the sequence"
                )
            sequence = self._live[correlation_id] = LiveSequence(correlation_id)
            if self._free:
                self._occupy_slot(sequence, *heapq.heappop(self._free))
            else:
                self._backlog[sequence] = None
        elif starts:
            log.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end before this "
                "sequence start. Previous sequence will be terminated early.",
                correlation_id,
                self._model_name,
            )
        return sequence

    def _occupy_slot(self, sequence: LiveSequence, slot: int, instance: int) -> None:
        sequence.slot, sequence.instance = slot, instance
        slots = self._slots[instance]
        if slot < len(slots):
            slots[slot] = sequence
            return
        slots.append(sequence)
        # the heap has only the first unused slot of an instance: using it adds the next one
        if len(slots) < self._slots_of_instance:
            heapq.heappush(self._free, (len(slots), instance))

    def _assign_slot(self, slot: int, instance: int, now_ns: int) -> None:
        """Assign a slot to the sequence that has waited longest."""
        follower, _ = self._backlog.popitem(last=False)
        self._occupy_slot(follower, slot, instance)
        follower.touched_ns = now_ns
        self.on_ready(follower)

    def _release_slot(self, sequence: LiveSequence, now_ns: int) -> None:
        """Release the slot of a sequence, to the one that has waited longest, if any."""
        slot, instance = sequence.slot, sequence.instance
        if self._backlog and instance not in self._closing:
            self._assign_slot(slot, instance, now_ns)
        else:
            self._slots[instance][slot] = None
            if instance not in self._closing:
                heapq.heappush(self._free, (slot, instance))

    def _give_up(self, sequence: LiveSequence, error: Overloaded | None) -> list[Refusal]:
        """Abandon a sequence; its queued requests fail with the error."""
        self.end(sequence)
        self.waiting -= len(sequence.queue)
        refusals = [Refusal(request, error) for request in sequence.queue] if error is not None else []
        sequence.queue.clear()
        return refusals
