"""Sequences and their slots: what both strategies of sequence batching share.

Triton: core/src/sequence_batch_scheduler/sequence_batch_scheduler.cc.
"""

import heapq
import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from tpx.errors import Cancelled, InvalidRequest, Overloaded
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import Refusal

log = logging.getLogger(__name__)

CorrelationId = int | str
MAX_ID_CHARACTERS = 128
_NEVER_NS = 2**63
_FEW = 64
"""Deadlines that may be kept of sequences that are not in the backlog any more."""


class LiveSequence:
    """A sequence between its first request and its last."""

    __slots__ = (
        "busy",
        "continues",
        "deadline_ns",
        "ended",
        "id",
        "instance",
        "queue",
        "slot",
        "states",
        "touched_ns",
    )

    def __init__(self, correlation_id: CorrelationId) -> None:
        self.id = correlation_id
        self.queue: deque[InferRequest] = deque()
        self.instance = -1
        """The instance it sticks to; -1 while it waits in the backlog."""
        self.slot = -1
        self.busy = False
        """One of its requests has left the queue and is not computed yet."""
        self.continues = False
        """The model wants the request in work once more."""
        self.ended = False
        """Its last request has come, or it was given up: it leaves its slot when nothing of it is left."""
        self.deadline_ns = _NEVER_NS
        """Until when it may wait in the backlog."""
        self.touched_ns = 0
        """When it got its slot, or the last of its requests was computed."""
        self.states: dict[str, Any] = {}
        """What the model keeps between its requests, by the name of the state's input."""


class SequenceTable:
    """Gives sequences slots, lowest first over all instances; the others wait in order of arrival."""

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
        """`instances` are open from the start, with `slots` each. `check_id` raises InvalidRequest for an id
        that the model cannot take. States begin with `varying_shapes`, where they may grow. Each
        request is a sequence of its own if `iterative`, computed as often as its model asks for it."""
        self.slotted = False
        """The rows of a batch are slots; the strategy decides."""
        self._model_name = model_name
        self.iterative = iterative
        self._check_id = check_id
        self._idle_ns = idle_ns
        self._first_shapes = tuple(varying_shapes)
        self.varies = bool(varying_shapes)
        """States may have other shapes after each request."""
        self._live: dict[CorrelationId, LiveSequence] = {}
        self._backlog: OrderedDict[LiveSequence, None] = OrderedDict()
        self._deadlines: list[tuple[int, int, LiveSequence]] = []
        """A heap; of sequences that were in the backlog, some are no longer."""
        self._idle: OrderedDict[LiveSequence, None] = OrderedDict()
        """Those that have a slot and no request, the one that has been so for longest first."""
        self._slots_of_instance = slots
        self._free: list[tuple[int, int]] = []
        """A heap of slots and instances; of the slots that an instance has never used, the first."""
        self._slots: dict[int, list[LiveSequence | None]] = {}
        """By instance, as many as were ever used: a configuration may have 2^31 of them."""
        self._closing: set[int] = set()
        """Lanes that end with their last sequence."""
        self._numbers = 0
        self._ids = itertools.count(1)
        self.waiting = 0
        """Requests that were added and not yet taken."""
        self.on_ready: Callable[[LiveSequence], None] = _ignore
        """Called with a sequence that has a slot, a request, and none that is being computed."""
        self.on_closed: Callable[[int], None] = _ignore
        """Called with an instance that is forgotten."""
        for instance in range(instances):
            self.open_instance(instance, 0)

    def open_instance(self, instance: int, now_ns: int) -> None:
        """Give sequences the slots of one more instance, those in the backlog first."""
        self._slots[instance] = []
        heapq.heappush(self._free, (0, instance))
        while self._backlog and self._free:
            self._succeed(*heapq.heappop(self._free), now_ns)

    def close_instance(self, instance: int) -> bool:
        """Let no more sequences begin on an instance. Return whether none is left, and it is forgotten."""
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
        """Sequences that have begun and not ended."""
        return len(self._live)

    def add(self, request: InferRequest) -> None:
        """Put a request at the end of its sequence. Raises InvalidRequest."""
        if self.iterative:
            self._identify(request)
        correlation_id = self._checked_id(request)
        parameters = request.head.parameters
        sequence = self._sequence_of(correlation_id, starts=bool(parameters.get("sequence_start")))
        request.sequence = sequence
        sequence.queue.append(request)
        self.waiting += 1
        # ended as soon as its last request is here, not computed: the same id may begin another sequence now
        if parameters.get("sequence_end"):
            self.end(sequence)
        self._idle.pop(sequence, None)
        if sequence.instance < 0:
            self._await(sequence, request)
        elif not sequence.busy:
            self.on_ready(sequence)

    def _identify(self, request: InferRequest) -> None:
        """Begin a sequence with a new request; let one that comes again continue its own."""
        head = request.head
        parameters = dict(head.parameters)
        if request.sequence is None:
            if parameters.get("sequence_id"):
                raise InvalidRequest(
                    f"inference request to model '{self._model_name}' must not specify a correlation ID: "
                    "its sequences are iterative, each request is one of its own"
                )
            parameters["sequence_id"] = next(self._ids)
            parameters["sequence_start"] = True
            request.head = head.with_parameters(parameters)
        elif parameters.pop("sequence_start", False):
            request.head = head.with_parameters(parameters)

    def ready(self, instance: int) -> list[LiveSequence]:
        """The sequences of an instance that have a request and none in work, by slot."""
        return [s for s in self._slots[instance] if s is not None and s.queue and not s.busy]

    def take(self, sequence: LiveSequence) -> InferRequest:
        """The next request of a sequence, which is busy until that is done or dropped."""
        sequence.busy = True
        self.waiting -= 1
        return sequence.queue.popleft()

    def state_shapes(self, sequence: LiveSequence) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the states that the next request of a sequence gets."""
        if not sequence.states or sequence.queue[0].head.parameters.get("sequence_start"):
            return self._first_shapes
        return tuple([state.shape for state in sequence.states.values()])

    def finished(self, requests: Sequence[InferRequest], now_ns: int) -> None:
        """Take note that requests which were taken have been computed."""
        for request in requests:
            sequence: LiveSequence = request.sequence
            if self.iterative:
                if not sequence.continues:
                    self.end(sequence)
                sequence.continues = False
            sequence.busy = False
            sequence.touched_ns = now_ns
            if sequence.queue:
                self.on_ready(sequence)
            elif sequence.ended:
                self._release(sequence, now_ns)
            else:
                self._idle[sequence] = None

    def dropped(self, request: InferRequest, now_ns: int) -> list[Refusal]:
        """End the sequence of a request that was taken and cancelled; return what depends on it."""
        sequence: LiveSequence = request.sequence
        sequence.busy = False
        # a model that has missed one request would compute the others with a wrong state
        refusals = self._cut(sequence, cut=True)
        if sequence.queue:
            self.on_ready(sequence)
        else:
            self._release(sequence, now_ns)
        return refusals

    def purge_cancelled(self, now_ns: int) -> list[Refusal]:
        """Give up the requests that nobody waits for, and those of their sequences that come after them."""
        refusals: list[Refusal] = []
        settled = [sequence for slots in self._slots.values() for sequence in slots if sequence is not None]
        for sequence in (*self._backlog, *settled):
            if any(request.cancelled for request in sequence.queue):
                refusals += self._cut(sequence)
                if not sequence.queue and not sequence.busy:
                    if sequence.instance < 0:
                        del self._backlog[sequence]
                    else:
                        self._release(sequence, now_ns)
        # removing from the middle of a heap would cost a search per sequence: rebuild it when most is stale
        if len(self._deadlines) > 2 * len(self._backlog) + _FEW:
            self._deadlines = [each for each in self._deadlines if each[2] in self._backlog]
            heapq.heapify(self._deadlines)
        return refusals

    def _cut(self, sequence: LiveSequence, *, cut: bool = False) -> list[Refusal]:
        """Take out what is cancelled, and what follows it up to where the client has started anew; if it has
        not, the sequence ends. `cut`: what was before the queue was cancelled."""
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
        """End the sequences that have been idle for too long; refuse those that waited in the backlog
        beyond the timeout of a request."""
        while self._idle and now_ns - (sequence := next(iter(self._idle))).touched_ns > self._idle_ns:
            log.info("sequence %s of model '%s' was idle: ended", sequence.id, self._model_name)
            del self._idle[sequence]
            self._give_up(sequence, None)
            self._release(sequence, now_ns)
        refusals: list[Refusal] = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, _, sequence = heapq.heappop(self._deadlines)
            if sequence in self._backlog:
                del self._backlog[sequence]
                error = Overloaded("timeout of the corresponding sequence has been expired")
                refusals += self._give_up(sequence, error)
        return refusals

    def next_event_ns(self) -> int | None:
        """When `expire` may find something."""
        times = [deadline_ns for deadline_ns, _, _ in self._deadlines[:1]]
        if self._idle:
            # the first has been idle for longest: sequences enter in the order in which they were touched
            times.append(next(iter(self._idle)).touched_ns + self._idle_ns + 1)
        return min(times, default=None)

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

    def end(self, sequence: LiveSequence) -> None:
        """No further request of it comes."""
        if not sequence.ended:
            sequence.ended = True
            del self._live[sequence.id]

    def _sequence_of(self, correlation_id: CorrelationId, *, starts: bool) -> LiveSequence:
        sequence = self._live.get(correlation_id)
        if sequence is None:
            if not starts:
                raise InvalidRequest(
                    f"inference request for sequence {correlation_id} to model '{self._model_name}' must "
                    "specify the START flag on the first request of the sequence"
                )
            sequence = self._live[correlation_id] = LiveSequence(correlation_id)
            if self._free:
                self._settle(sequence, *heapq.heappop(self._free))
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

    def _await(self, sequence: LiveSequence, request: InferRequest) -> None:
        """A request in the backlog: the whole sequence waits no longer than it may."""
        timeout_ns = request.head.timeout_ns
        if timeout_ns and request.arrived_ns + timeout_ns < sequence.deadline_ns:
            sequence.deadline_ns = request.arrived_ns + timeout_ns
            self._numbers += 1  # decides between equal deadlines: sequences themselves have no order
            heapq.heappush(self._deadlines, (sequence.deadline_ns, self._numbers, sequence))

    def _settle(self, sequence: LiveSequence, slot: int, instance: int) -> None:
        sequence.slot, sequence.instance = slot, instance
        slots = self._slots[instance]
        if slot < len(slots):
            slots[slot] = sequence
            return
        slots.append(sequence)
        # only the first unused slot of an instance is in the heap: using it brings the next one in
        if len(slots) < self._slots_of_instance:
            heapq.heappush(self._free, (len(slots), instance))

    def _succeed(self, slot: int, instance: int, now_ns: int) -> None:
        """Give a slot to the sequence that has waited longest."""
        follower, _ = self._backlog.popitem(last=False)
        self._settle(follower, slot, instance)
        follower.touched_ns = now_ns
        self.on_ready(follower)

    def _release(self, sequence: LiveSequence, now_ns: int) -> None:
        """Give its slot to the sequence that has waited longest, or keep it for the next that begins."""
        slot, instance = sequence.slot, sequence.instance
        if self._backlog and instance not in self._closing:
            self._succeed(slot, instance, now_ns)
        else:
            self._slots[instance][slot] = None
            if instance not in self._closing:
                heapq.heappush(self._free, (slot, instance))

    def _give_up(self, sequence: LiveSequence, error: Overloaded | None) -> list[Refusal]:
        """Nothing more of a sequence is computed; what is left of it gets the error."""
        self.end(sequence)
        self.waiting -= len(sequence.queue)
        refusals = [Refusal(request, error) for request in sequence.queue] if error is not None else []
        sequence.queue.clear()
        return refusals


def _ignore(subject: object) -> None:
    """Do nothing: the default of callbacks."""
