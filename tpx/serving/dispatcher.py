"""From a scheduler to the instances: hands over what may leave, or computes it on the event loop itself.

Everything here runs on the event loop; only instances compute elsewhere.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from tpx.errors import TpxError
from tpx.serving.backends.contract import Needs
from tpx.serving.batch import Batch
from tpx.serving.instances.base import Instance
from tpx.serving.instances.remote import RemoteInbox, RemoteInstance, close_together
from tpx.serving.instances.thread import Inbox, ThreadInstance
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.base import Refusal, Scheduler, SequenceScheduler
from tpx.serving.scheduling.limiter import RateLimiter, Turn

_clock = time.perf_counter_ns
_MAX_RELUCTANCE = 16
_IN_HAND = 2
"""One in work, and one so that no instance waits for the loop."""
_BATCHES_AT_ONCE = 64
"""Computed on the event loop before it turns to anything else."""
_WEED_S = 0.05
"""Between looks for requests that nobody waits for: clients leave many at a time, and queues are long."""


class Lane:
    """Instances that share an inbox, whichever is free first, and the batches that they hold: one each in
    work and one each in hand."""

    __slots__ = ("held", "held_long", "inbox", "index", "instances", "put", "remote", "run", "turn")

    def __init__(self, index: int, turn: Turn | None) -> None:
        self.index = index
        self.inbox: Inbox = Inbox()
        self.remote: RemoteInbox | None = None
        """Instead of the inbox, where the instances are other processes."""
        self.put: Callable[[Batch | None], None] = self.inbox.put
        self.instances: list[Instance] = []
        self.held: set[Batch] = set()
        self.held_long = 0
        """Those of them that may take long, for which the loop does not wait."""
        self.run: Callable[[Batch], None] | None = None
        """Computes a batch here and now, with an instance that has nothing to do."""
        self.turn = turn
        """Of its one instance, where instances take turns."""

    def add(self, instance: Instance) -> None:
        """One more that takes batches from the inbox."""
        self.instances.append(instance)
        if isinstance(instance, ThreadInstance):
            self.run = instance.run
        elif isinstance(instance, RemoteInstance) and self.remote is not None:
            self.remote.instances.append(instance)
        instance.begin()

    def remove(self, instance: Instance) -> None:
        """One less, which ends after what it has begun; there is another one, or nothing is held."""
        self.instances.remove(instance)
        instance.leaving = True
        if isinstance(instance, ThreadInstance):
            self.run = next((one.run for one in self.instances if isinstance(one, ThreadInstance)), None)
        elif isinstance(instance, RemoteInstance) and self.remote is not None:
            self.remote.instances.remove(instance)
        self.put(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What a dispatcher tells of its requests, on the event loop."""

    on_answer: Callable[[Batch], None]
    """A batch was computed, or failed."""
    on_refused: Callable[[InferRequest, TpxError], None]
    """A request is not computed: nobody wants it any more, or it has waited longer than it may."""


class Dispatcher:
    """Gives each batch to a lane that has room.

    A model whose executions are hardly longer than two thread switches is computed on the event loop itself.
    `_reluctance` rises at once when an execution exceeds `inline_below_ns` and falls slowly when it does not.
    A request with larger rows than any that was short shows in a thread what it takes.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        loop: asyncio.AbstractEventLoop,
        outcomes: Outcomes,
        *,
        inline_below_ns: int,
        limiter: RateLimiter | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._sequences = scheduler if isinstance(scheduler, SequenceScheduler) else None
        self._slotted = self._sequences is not None and self._sequences.slotted
        self._waits = scheduler.waits
        self._timed = scheduler.timed
        self._on_answer = outcomes.on_answer
        self._on_refused = outcomes.on_refused
        self._lanes: list[Lane] = []
        self._shared = Lane(0, None)
        self._closing: list[Lane] = []
        """Those whose instance leaves with the last of its sequences."""
        self._numbers = itertools.count()
        self._loop = loop
        self._call_soon = loop.call_soon
        self._looking = False
        self._dispatching = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._weeding: asyncio.TimerHandle | None = None
        self._limiter = limiter
        self._plain = self._sequences is None and limiter is None
        """Nobody needs to know that a batch is computed but those who wait for it."""
        self._inline_below_ns = inline_below_ns
        self._reluctance = _MAX_RELUCTANCE
        self._inline = False
        self._short_row_size = -1

    def lane(self, needs: Needs) -> Lane:
        """The lane for one more instance: the same for all, but where requests stick to an instance, or
        instances take turns. May be called from any thread."""
        if self._limiter is None and self._sequences is None:
            return self._shared
        turn = Turn(needs, self._look_soon) if self._limiter is not None else None
        return Lane(next(self._numbers), turn)

    def join(self, lane: Lane, instance: Instance) -> None:
        """One more that computes; on the event loop, once there are requests."""
        if lane not in self._lanes:
            self._lanes.append(lane)
            if self._sequences is not None:
                self._sequences.open_lane(lane.index, _clock())
            if lane.turn is not None and self._limiter is not None:
                self._loop.call_soon_threadsafe(self._limiter.enter, lane.turn)
        lane.add(instance)
        self._loop.call_soon_threadsafe(self._look_soon)

    def part(self, instance: Instance) -> None:
        """One less; on the event loop. It is to be closed once it is leaving, with the last of its sequences,
        and drained."""
        lane = next(lane for lane in self._lanes if instance in lane.instances)
        if self._sequences is None:
            self._remove(lane, instance)
        else:
            self._closing.append(lane)
            self._close_vacant()

    def _close_vacant(self) -> None:
        """End the instances whose last sequence has ended."""
        for lane in list(self._closing):
            if self._sequences is not None and self._sequences.close_lane(lane.index):
                self._closing.remove(lane)
                self._remove(lane, lane.instances[0])

    def end_closing(self) -> None:
        """End the instances that are left to their last sequences; nothing may be in flight."""
        for lane in self._closing:
            lane.remove(lane.instances[0])
        self._closing.clear()

    def _remove(self, lane: Lane, instance: Instance) -> None:
        lane.remove(instance)
        self._drop(lane)

    def _drop(self, lane: Lane) -> None:
        """Forget the lane of one instance that has left, once it has nothing in work."""
        if lane is self._shared or lane.instances or lane.held:
            return
        self._lanes.remove(lane)
        if lane.turn is not None and self._limiter is not None:
            self._limiter.leave(lane.turn)

    def close(self) -> None:
        """End the instances after what they hold; nothing may be in flight. May be called from any thread.

        Those that are parted are closed by whoever has parted them.
        """
        self.end_closing()
        for lane in self._lanes:
            for instance in lane.instances:
                instance.leaving = True
                lane.put(None)
        close_together(self.instances)
        for lane in self._lanes:
            lane.instances.clear()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        for timer in (self._timer, self._weeding):
            if timer is not None:
                timer.cancel()
        for lane in self._lanes:
            if lane.turn is not None and self._limiter is not None:
                self._limiter.leave(lane.turn)

    @property
    def sequences(self) -> int:
        """Sequences that have begun and not ended."""
        return self._sequences.live if self._sequences is not None else 0

    @property
    def instances(self) -> list[Instance]:
        """All of them."""
        return [instance for lane in self._lanes for instance in lane.instances]

    @property
    def pending(self) -> int:
        """Requests that wait for an instance, in the queue or in a batch that no instance has begun."""
        held = [batch for lane in self._lanes for batch in lane.held]
        return len(self._scheduler) + sum(len(batch.requests) for batch in held if not batch.started_ns)

    def add(self, request: InferRequest) -> None:
        """Take a request; it may be answered before this returns. Raises RequestError."""
        self._scheduler.add(request)
        if not self._waits:
            self._look()
        elif not self._looking:
            # after everything that has arrived with this request was read
            self._looking = True
            self._call_soon(self._look)

    def cancelled(self) -> None:
        """Nobody waits for some request any more: if it is in the queue, it soon is no more."""
        if self._weeding is None and len(self._scheduler):
            self._weeding = self._loop.call_later(_WEED_S, self._weed)

    def _weed(self) -> None:
        self._weeding = None
        for request, error in self._scheduler.weed(_clock()):
            self._on_refused(request, error)
        self._look()

    def computed(self, batch: Batch) -> None:
        """An instance has finished a batch: first give it work, then answer."""
        self.released(batch)
        self._answer(batch)

    def answered(self, batch: Batch) -> None:
        """A batch of another process has ended; there may be no request in it that has no response yet."""
        self._on_answer(batch)

    def refused(self, batch: Batch, error: TpxError) -> None:
        """No instance will compute a batch."""
        batch.fail(error)
        self.computed(batch)

    def again(self, request: InferRequest) -> None:
        """A model wants a request once more."""
        try:
            self.add(request)
        except TpxError as error:
            self._on_refused(request, error)

    def released(self, batch: Batch) -> None:
        """An instance is done with a batch."""
        lane: Lane = batch.lane
        lane.held.discard(batch)
        lane.held_long -= batch.long
        if not self._plain:
            self._finished(batch, lane)
        if self._timed or len(self._scheduler):
            self._look()

    def _finished(self, batch: Batch, lane: Lane) -> None:
        if self._sequences is not None:
            self._sequences.finished(batch.requests, _clock())
        if lane.turn is not None and self._limiter is not None:
            self._limiter.done(lane.turn, more=len(self._scheduler) > 0)
            self._drop(lane)

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self._call_soon(self._look)

    def _look(self) -> None:
        """Hand to instances what may leave now, or compute it here."""
        if self._dispatching:
            return  # an answer has brought another request: the loop below takes it next
        self._looking = False
        self._dispatching = True
        try:
            looked_ns = self._refuse_late() if self._timed else 0
            for lane in self._lanes:
                self._fill(lane)
            if self._closing:
                self._close_vacant()
        finally:
            self._dispatching = False
        if looked_ns:
            self._wake_later(looked_ns)

    def _fill(self, lane: Lane) -> None:
        """Keep the instances of a lane busy, or the event loop."""
        scheduler = self._scheduler
        left = _BATCHES_AT_ONCE
        while len(scheduler):
            if not left:
                self._look_soon()
                break
            if not self._dispatch(lane):
                if not self._inline or lane.held_long:
                    self._prefetch(lane)
                break
            left -= 1
        else:
            if lane.turn is not None and self._limiter is not None and not lane.held:
                self._limiter.withdraw(lane.turn)

    def _refuse_late(self) -> int:
        """Returns when it looked."""
        now_ns = _clock()
        for request, error in self._scheduler.expire(now_ns):
            self._on_refused(request, error)
        return now_ns

    def _wake_later(self, looked_ns: int) -> None:
        """Look again when the scheduler may give something that it did not give at that time."""
        wake_ns = self._scheduler.wake_ns(looked_ns)
        if wake_ns is None or (self._timer is not None and self._timer_ns <= wake_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = wake_ns
        self._timer = self._loop.call_later(max(0, wake_ns - _clock()) / 1e9, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._look()

    def _dispatch(self, lane: Lane) -> bool:
        """One batch, if there is one and an instance for it."""
        held = lane.held
        if len(held) >= len(lane.instances):
            return False
        if held and self._inline and not lane.held_long:
            return False  # what the instances hold is soon back; then the loop computes
        turn = lane.turn
        if turn is not None and self._limiter is not None and not self._limiter.stage(turn):
            return False
        requests = self._scheduler.take(_clock(), idle=True, lane=lane.index)
        if not requests:
            if turn is not None and self._limiter is not None:
                self._limiter.withdraw(turn)
            return False
        batch = self._batch(requests)
        if batch is None:
            return True
        if self._inline and not held and lane.run is not None and self._is_short(batch):
            lane.run(batch)
            batch.cost_ns = batch.ended_ns - batch.started_ns
            if not self._plain:
                self._finished(batch, lane)
            self._answer(batch)
        else:
            self._hand_over(batch, lane)
        return True

    def _is_short(self, batch: Batch) -> bool:
        return batch.requests[0].head.row_size <= self._short_row_size

    def _hand_over(self, batch: Batch, lane: Lane) -> None:
        """Give a batch to the instances."""
        lane.held.add(batch)
        batch.lane = lane
        batch.long = not self._is_short(batch)
        lane.held_long += batch.long
        lane.put(batch)

    def _prefetch(self, lane: Lane) -> None:
        """Keep as many batches in hand as there are instances, so that none waits for the loop."""
        if self._limiter is not None:
            return  # nothing is taken before it is its turn
        depth = _IN_HAND if lane.remote is None else lane.remote.depth
        most = depth * len(lane.instances)
        while len(lane.held) < most:
            requests = self._scheduler.take(_clock(), idle=False, lane=lane.index)
            if not requests:
                return
            batch = self._batch(requests)
            if batch is not None:
                self._hand_over(batch, lane)

    def _batch(self, rows: Sequence[InferRequest | None]) -> Batch | None:
        """A batch of those that are still wanted."""
        if self._slotted:
            return self._batch_of_wanted(rows)
        for request in rows:
            if request is None or request.cancelled:
                return self._batch_of_wanted(rows)
        return Batch(cast("Sequence[InferRequest]", rows))

    def _batch_of_wanted(self, rows: Sequence[InferRequest | None]) -> Batch | None:
        wanted = [None if request is None or request.cancelled else request for request in rows]
        for request in rows:
            if request is not None and request.cancelled:
                self._refuse_cancelled(request)
        requests = [request for request in wanted if request is not None]
        if not requests:
            return None
        return Batch.of_rows(wanted) if self._slotted else Batch(requests)

    def _refuse_cancelled(self, request: InferRequest) -> None:
        self._on_refused(*Refusal.of_cancelled(request))
        refusals = self._sequences.dropped(request, _clock()) if self._sequences is not None else ()
        for dependent, error in refusals:
            self._on_refused(dependent, error)

    def _answer(self, batch: Batch) -> None:
        self._judge(batch.cost_ns, batch.requests[0].head.row_size)
        self._on_answer(batch)

    def _judge(self, cost_ns: int, row_size: int) -> None:
        """Decide from what a batch took whether the next ones are computed on the loop."""
        limit = self._inline_below_ns
        if not limit:
            return
        if cost_ns < limit:
            if self._reluctance:
                self._reluctance -= 1
            if row_size > self._short_row_size:
                self._short_row_size = row_size
        else:
            self._reluctance = min(_MAX_RELUCTANCE, self._reluctance + 2 * (cost_ns // limit))
            self._short_row_size = min(self._short_row_size, row_size - 1)
        self._inline = self._reluctance < _MAX_RELUCTANCE // 2
