"""One version of a model, ready to serve: requests in, batches to its instances, answers out.

Everything here runs on the event loop; only instances compute elsewhere.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from tpx.errors import Cancelled, NotReady, TpxError
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.backends.base import OpenModel
from tpx.serving.batch import Batch
from tpx.serving.instances.completions import Completions
from tpx.serving.instances.decoupled import DecoupledAnswer, DecoupledCallbacks, DecoupledInstance
from tpx.serving.instances.placement import InstanceSpec
from tpx.serving.instances.thread import Inbox, ThreadInstance
from tpx.serving.request import InferRequest, InferResponse, RequestHead
from tpx.serving.scheduling.base import Scheduler
from tpx.serving.signature import Signature
from tpx.serving.statistics import ModelStatistics

log = logging.getLogger(__name__)

_clock = time.perf_counter_ns
_MAX_RELUCTANCE = 16
_BATCHES_AT_ONCE = 64
"""Computed on the event loop before it turns to anything else."""


class ServedModel:
    """Owns the scheduler, the instances and the statistics of one model version.

    A model whose executions are hardly longer than two thread switches is computed on the event loop itself.
    `_reluctance` rises at once when an execution exceeds `inline_below_ns` and falls slowly when it does not.
    A request with larger rows than any that was short shows in a thread what it takes.
    """

    def __init__(
        self,
        config: Any,
        version: int,
        signature: Signature,
        scheduler: Scheduler,
        opened: OpenModel,
        loop: asyncio.AbstractEventLoop,
        *,
        inline_below_ns: int,
    ) -> None:
        self.config = config
        self.name: str = config.name
        self.version = version
        self.max_batch_size = signature.max_batch_size
        self.signature = signature
        self.decoupled: bool = config.model_transaction_policy.decoupled
        """A request gets any number of responses."""
        self.statistics = ModelStatistics()
        self.retired = False
        """Takes no new requests: unloaded, or replaced by a newer load."""
        self._scheduler = scheduler
        self._opened = opened
        self._instances: list[ThreadInstance | DecoupledInstance] = []
        self._inbox: Inbox = Inbox()
        self._held: set[Batch] = set()
        """Batches given to the instances and not yet back: one each in work and one each in hand."""
        self._held_long = 0
        """Those of them that may take long, for which the loop does not wait."""
        self._waits = scheduler.waits
        self._call_soon = loop.call_soon
        self._looking = False
        self._dispatching = False
        self._timer: asyncio.TimerHandle | None = None
        self._in_flight = 0
        self._inline_below_ns = inline_below_ns if opened.inline else 0
        self._reluctance = _MAX_RELUCTANCE
        self._inline = False
        self._short_row_size = -1
        self._batched = signature.max_batch_size > 0

    def start(self, specs: Sequence[InstanceSpec], completions: Completions) -> None:
        """Create the instances, all or none. Raises LoadError. May be called from any thread."""
        try:
            for spec in specs:
                self._instances.append(self._instance(spec, completions))
        except BaseException:
            self._end_instances()
            raise

    def _instance(self, spec: InstanceSpec, completions: Completions) -> ThreadInstance | DecoupledInstance:
        executor: Any = self._opened.executor(spec, self.config)
        if not self.decoupled:
            return ThreadInstance(
                spec.name, executor, self._inbox, completions, self._computed, batched=self._batched
            )
        return DecoupledInstance(
            spec.name,
            executor,
            self._inbox,
            completions,
            DecoupledCallbacks(self._responded, self._released),
            batched=self._batched,
        )

    def close(self) -> None:
        """End the instances after what they hold; nothing may be in flight. May be called from any thread.

        Whoever still remembers the model, a frontend say, does not hold its weights.
        """
        self._end_instances()
        self._instances.clear()
        self.signature.forget_heads()
        self._opened.close()

    def _end_instances(self) -> None:
        for _ in self._instances:
            self._inbox.put(None)
        for instance in self._instances:
            instance.close()

    @property
    def pending(self) -> int:
        """Requests that wait for an instance, in the queue or in a batch that no instance has begun."""
        in_hand = sum(len(batch.requests) for batch in self._held if not batch.started_ns)
        return len(self._scheduler) + in_hand

    @property
    def in_flight(self) -> int:
        """Requests taken and not yet answered."""
        return self._in_flight

    def bind(self, request: DecodedRequest) -> RequestHead:
        """Validate a request's head against this model. Raises InvalidRequest."""
        return self.signature.bind(self, request)

    def submit(self, request: InferRequest) -> None:
        """Take a request; its `reply` is called later, or before this returns. Raises NotReady,
        Overloaded."""
        if self.retired:
            raise NotReady(
                f"Request for unknown model: '{self.name}' version {self.version} is not at ready state"
            )
        request.arrived_ns = _clock()
        try:
            self._scheduler.add(request)
        except TpxError as error:
            self.statistics.failed(error, 1, _clock() - request.arrived_ns)
            raise
        self._in_flight += 1
        if not self._waits:
            self._look()
        elif not self._looking:
            # after everything that has arrived with this request was read
            self._looking = True
            self._call_soon(self._look)

    def _look(self) -> None:
        """Hand to instances what may leave now, or compute it here."""
        if self._dispatching:
            return  # an answer has brought another request: the loop below takes it next
        self._looking = False
        self._dispatching = True
        try:
            for _ in range(_BATCHES_AT_ONCE):
                if not self._dispatch():
                    break
            else:
                self._looking = True
                self._call_soon(self._look)
        finally:
            self._dispatching = False
        if len(self._scheduler) and (not self._inline or self._held_long):
            self._prefetch()

    def _dispatch(self) -> bool:
        """One batch, if there is one and an instance for it."""
        if len(self._held) >= len(self._instances):
            return False
        if self._inline and self._held and not self._held_long:
            return False  # what the instances hold is soon back; then the loop computes
        requests = self._scheduler.take(_clock(), idle=True)
        if not requests:
            self._wake_later()
            return False
        batch = self._batch(requests)
        if batch is None:
            return True
        first = self._instances[0]
        if self._inline and not self._held and self._is_short(batch) and isinstance(first, ThreadInstance):
            first.run(batch)
            batch.cost_ns = batch.ended_ns - batch.started_ns
            self._answer(batch)
        else:
            self._hand_over(batch)
        return True

    def _is_short(self, batch: Batch) -> bool:
        return batch.requests[0].head.row_size <= self._short_row_size

    def _hand_over(self, batch: Batch) -> None:
        """Give a batch to the instances."""
        self._held.add(batch)
        batch.long = not self._is_short(batch)
        self._held_long += batch.long
        self._inbox.put(batch)

    def _prefetch(self) -> None:
        """Keep as many batches in hand as there are instances, so that none waits for the loop."""
        most = 2 * len(self._instances)
        while len(self._held) < most:
            requests = self._scheduler.take(_clock(), idle=False)
            if not requests:
                self._wake_later()
                return
            batch = self._batch(requests)
            if batch is not None:
                self._hand_over(batch)

    def _batch(self, requests: Sequence[InferRequest]) -> Batch | None:
        """A batch of those that are still wanted."""
        for request in requests:
            if request.cancelled:
                return self._batch_of_wanted(requests)
        return Batch(requests)

    def _batch_of_wanted(self, requests: Sequence[InferRequest]) -> Batch | None:
        wanted = []
        for request in requests:
            if request.cancelled:
                self._reply_cancelled(request)
            else:
                wanted.append(request)
        return Batch(wanted) if wanted else None

    def _wake_later(self) -> None:
        wake_ns = self._scheduler.wake_ns()
        if wake_ns is None or self._timer is not None:
            return
        delay = max(0, wake_ns - _clock()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay, self._woken)

    def _woken(self) -> None:
        self._timer = None
        self._look()

    def _computed(self, batch: Batch) -> None:
        """An instance has finished a batch: first give it work, then answer."""
        self._held.discard(batch)
        self._held_long -= batch.long
        if len(self._scheduler):
            self._look()
        self._answer(batch)

    def _released(self, batch: Batch) -> None:
        """An instance of a decoupled model is done with a batch, whose answers have gone before."""
        self._held.discard(batch)
        self._held_long -= batch.long
        if len(self._scheduler):
            self._look()

    def _responded(self, answer: DecoupledAnswer) -> None:
        """A decoupled model has another response, or, with the final one, no more."""
        request, response = answer.request, answer.response
        now = _clock()
        self.statistics.responded(answer.batch, response, answer.times, now)
        if response.final:
            self._in_flight -= 1
        if request.trace is not None:
            request.trace.computed(request, answer.times, response)
        self._reply(request, response)
        if request.pace is not None:
            request.pace.delivered(answer.size)

    def _reply(self, request: InferRequest, response: InferResponse) -> None:
        try:
            request.reply(request, response)
        except Exception:  # one request's boundary: the others get their answers
            log.exception("answering a request to model '%s' failed", self.name)

    def _answer(self, batch: Batch) -> None:
        self._judge(batch.cost_ns, batch.requests[0].head.row_size)
        now = _clock()
        statistics = self.statistics
        if batch.error is None:
            statistics.executed(batch, now)
        else:
            self._count_failed(batch, now)
        self._in_flight -= len(batch.requests)
        for request, response in zip(batch.requests, batch.responses, strict=True):
            if request.trace is not None:
                request.trace.computed(request, batch.part_of(request), response)
            self._reply(request, response)

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

    def _count_failed(self, batch: Batch, now_ns: int) -> None:
        """Of a batch that failed, every request was computed alone: each counts for itself."""
        for part in batch.alone or (batch,):
            if part.error is None:
                self.statistics.executed(part, now_ns)
            else:
                self.statistics.failed(part.error, 1, now_ns - part.requests[0].arrived_ns)

    def _reply_cancelled(self, request: InferRequest) -> None:
        error = Cancelled("the request was cancelled")
        self.statistics.failed(error, 1, _clock() - request.arrived_ns)
        self._in_flight -= 1
        response = InferResponse([], error)
        if request.trace is not None:
            request.trace.computed(request, Batch([request]), response)
        request.reply(request, response)
