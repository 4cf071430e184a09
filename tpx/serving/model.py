"""One loaded version of a model: takes requests, sends responses, counts statistics."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from tpx.errors import Cancelled, LoadError, TpxError
from tpx.processors import waited_ns
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import (
    Binds,
    DecoupledExecutor,
    DividesMachine,
    Executor,
    InstanceSpec,
    OpenModel,
    TakesGpuMemory,
)
from tpx.serving.batch import Batch, EarlyResponse, Stacking
from tpx.serving.cache import CachedModel, ResponseCache
from tpx.serving.dispatcher import Dispatcher
from tpx.serving.fast_path import BoundPath
from tpx.serving.instance import Instance, RemoteInstance
from tpx.serving.instance_pool import InstanceQueue, close_together
from tpx.serving.instances.bindings import MAX_BOUND_BYTES, BindingCache
from tpx.serving.instances.completions import Completions
from tpx.serving.instances.thread import BatchWork, ThreadInstance, Work
from tpx.serving.model_id import ModelId
from tpx.serving.ordering import ReplyOrder
from tpx.serving.polling import NO_POLLING, BusyPolling
from tpx.serving.request import NOT_COMPUTED, InferRequest, InferResponse, RequestHead
from tpx.serving.scheduling.base import Scheduler
from tpx.serving.scheduling.inline import Arrivals, InlinePolicy
from tpx.serving.scheduling.limiter import Limiter, NoLimiter
from tpx.serving.served import Served
from tpx.serving.signature import Signature
from tpx.serving.stacking.plain import PlainStacking

log = logging.getLogger(__name__)

_clock = time.perf_counter_ns


class ModelParts(msgspec.Struct, frozen=True, kw_only=True):
    """Components of a model."""

    signature: Signature
    scheduler: Scheduler
    stacking: Stacking
    opened: OpenModel
    cache: ResponseCache | None = None
    """Cache for responses; None if disabled."""
    preserve_ordering: bool = False
    namespace: str = ""
    limiter: Limiter = msgspec.field(default_factory=NoLimiter)
    arrivals: Arrivals = msgspec.field(default_factory=Arrivals)
    """Request counter shared by all models of the server."""
    polling: BusyPolling = NO_POLLING


class ModelInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance, its spec, and the queue it takes batches from."""

    spec: InstanceSpec
    instance: Instance
    queue: InstanceQueue
    bindings: BindingCache | None = None
    """Kept bindings of an instance that supports them."""


def plan_regroup(
    present: Sequence[InstanceSpec], wanted: Sequence[InstanceSpec]
) -> tuple[list[InstanceSpec], list[InstanceSpec]]:
    """Return the instances to add and to end; instances that differ only in name are kept."""
    add = []
    left = list(present)
    for spec in wanted:
        same = [one for one in left if replace(one, name=spec.name) == spec]
        if same:
            left.remove(next((one for one in same if one.name == spec.name), same[0]))
        else:
            add.append(spec)
    return add, left


class ServedModel(Served):
    """Owner of the instances of one model version."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        parts: ModelParts,
        loop: asyncio.AbstractEventLoop,
        *,
        inline_below_ns: int,
    ) -> None:
        super().__init__(config, ModelId(config.name, parts.namespace), version, parts.signature)
        self._opened = parts.opened
        self._instances: list[ModelInstance] = []
        self._stacking = parts.stacking
        self._loop = loop
        self._dispatcher = Dispatcher(
            parts.scheduler,
            loop,
            self,
            parts.limiter,
            inline=InlinePolicy(
                inline_below_ns if parts.opened.inline else 0,
                parts.arrivals,
                waited=waited_ns,
                model=config.name,
            ),
            arrivals=parts.arrivals,
        )
        self._arrivals = parts.arrivals
        self._polling = parts.polling
        self._cache = CachedModel(parts.cache, self.statistics) if parts.cache is not None else None
        self._order = ReplyOrder(self._send_in_turn) if parts.preserve_ordering else None
        self._reply = self._send if self._order is None else self._order.reply
        self._finish = self._reply if self._cache is None else self._cache_and_reply
        self._plain = self._cache is None and self._order is None and not self.decoupled
        self._add = (
            self._answer_or_compute
            if self._cache is not None or self._order is not None
            else self._dispatcher.add
        )

    def prepare(
        self, specs: Sequence[InstanceSpec], config: ModelConfig, completions: Completions
    ) -> list[ModelInstance]:
        """Create instances, all or none, that take no batches yet; `config` is the ModelConfig they
        belong to. Raises LoadError. May be called from any thread.
        """
        prepared: list[ModelInstance] = []
        try:
            for spec in specs:
                prepared.append(self._create_instance(spec, config, completions))  # noqa: PERF401 (kept for closing)
            for one in prepared:
                one.instance.start()
        except BaseException:
            close_together([one.instance for one in prepared])
            raise
        return prepared

    def add_instances(self, prepared: Sequence[ModelInstance]) -> None:
        """Let these instances compute. Call on the event loop once there are requests."""
        for one in prepared:
            self._dispatcher.pool.add(one.queue, one.instance)
        self._instances += prepared

    def remove_instances(self, specs: Sequence[InstanceSpec]) -> list[Instance]:
        """Remove instances after the batches and sequences they have begun. Return them; the caller
        closes each once it has left.
        """
        removed = [one for one in self._instances if one.spec in specs]
        for one in removed:
            self._dispatcher.pool.remove(one.instance)
            self._instances.remove(one)
        return [one.instance for one in removed]

    def give_up_sequences(self) -> None:
        """End sequences that belong to removed instances."""
        self._dispatcher.pool.end_closing()

    @property
    def specs(self) -> list[InstanceSpec]:
        """Specs of the current instances."""
        return [one.spec for one in self._instances]

    def may_regroup(self, config: ModelConfig) -> bool:
        """Return True if the instance groups of `config` can be applied while serving. A backend that
        divides cores or memory among its instances decides itself.
        """
        return not isinstance(self._opened, DividesMachine) or self._opened.divides_as(config)

    def _create_instance(
        self, spec: InstanceSpec, config: ModelConfig, completions: Completions
    ) -> ModelInstance:
        executor = self._opened.executor(spec, config)
        queue = self._dispatcher.pool.queue_for(spec.needs)
        bindings = None
        instance: Instance
        if isinstance(executor, RemoteInstance):
            executor.use(self._stacking)
            self.in_processes = True
            self.reads_inputs = self._cache is None
            instance = executor
        else:
            work: Work
            if self.decoupled and isinstance(executor, DecoupledExecutor):
                from tpx.serving.instances.decoupled import DecoupledWork  # late: few models need it

                work = DecoupledWork(spec.name, executor, self._stacking)
            elif not isinstance(executor, Executor):
                executor.close()
                raise LoadError(f"the backend of model '{self.name}' computes only decoupled models")
            else:
                on_gpu = None
                if isinstance(self._stacking, PlainStacking):
                    if isinstance(executor, Binds):
                        bindings = BindingCache(executor, batched=self.max_batch_size > 0)
                    if isinstance(executor, TakesGpuMemory) and executor.takes_gpu_memory:
                        on_gpu = self._stacking.gather_on_gpu
                work = BatchWork(spec.name, executor, self._stacking, bindings, on_gpu)
                # the cache must read inputs first, to compute its key
                self.reads_inputs = self._cache is None
                self.takes_gpu_memory = self.reads_inputs and on_gpu is not None
            instance = ThreadInstance(spec.name, work, queue.threads, completions)
        return ModelInstance(spec=spec, instance=instance, queue=queue, bindings=bindings)

    @property
    def healthy(self) -> bool:
        instances = self._dispatcher.pool.instances
        return not instances or any(instance.alive for instance in instances)

    @property
    def has_readiness_hook(self) -> bool:
        return any(instance.has_readiness_hook for instance in self.instances)

    async def check_ready(self) -> bool:
        return all(await asyncio.gather(*(instance.ready() for instance in self.instances)))

    @property
    def instances(self) -> list[Instance]:
        """Instances that compute."""
        return self._dispatcher.pool.instances

    def close(self) -> None:
        """Close the instances after the batches they hold; nothing may be in flight. May be called from
        any thread.
        """
        self._dispatcher.close()
        super().close()
        self._opened.close()

    @property
    def pending(self) -> int:
        return self._dispatcher.pending

    @property
    def sequences(self) -> int:
        return self._dispatcher.sequences

    @property
    def abandoned(self) -> bool:
        return 0 < self.in_flight == sum(instance.abandoned for instance in self.instances)

    def submit(self, request: InferRequest) -> None:
        """Take a request; `reply` is called later, or before this returns. Raises RequestError."""
        if self.retired:
            raise self.not_ready()
        request.arrived_ns = _clock()
        self.in_flight += 1
        self._arrivals.count += 1
        try:
            self._add(request)
        except TpxError as error:
            self.in_flight -= 1
            self.statistics.failed(error, 1, _clock() - request.arrived_ns)
            raise

    def fast_path(self, head: RequestHead) -> BoundPath | None:
        """Return the fast path for requests with this head, or None if they must take the regular path."""
        bindings = self._instances[0].bindings if self._instances else None
        if not self._plain or bindings is None or self.statistics.latencies is not None:
            return None
        if not 0 <= head.total_size <= MAX_BOUND_BYTES:
            return None
        most = self._dispatcher.rows_at_once // head.batch_size
        if not most and self._dispatcher.rows_at_once == 1:
            most = 1  # no batching: a request of several rows is computed alone
        if not most:
            return None
        return BoundPath(head, self._dispatcher, self.statistics, bindings, self._polling, most)

    def cancelled(self) -> None:
        """Schedule a purge of cancelled requests."""
        self._dispatcher.cancelled()

    def _answer_or_compute(self, request: InferRequest) -> None:
        """Register a request for in-order replies, and compute it unless its response is cached."""
        if self._order is not None:
            self._order.enter(request)
            request.template_of = None
        cache = self._cache
        try:
            if cache is None:
                self._dispatcher.add(request)
            elif cache.is_large(request):
                cache.hash_in_thread(request, self._compute_hashed)
            else:
                self._compute_unless_cached(cache, request, cache.key_of(request))
        except TpxError:
            if self._order is not None:
                self._order.leave(request)
            raise

    def _compute_hashed(self, request: InferRequest, key: bytes) -> None:
        """Continue with a request that was hashed in a thread."""
        assert self._cache is not None
        try:
            if request.cancelled:
                raise Cancelled("the request was cancelled")
            self._compute_unless_cached(self._cache, request, key)
        except TpxError as error:
            self.refused(request, error)

    def _compute_unless_cached(self, cache: CachedModel, request: InferRequest, key: bytes) -> None:
        known = cache.answer(request, key)
        if known is None:
            self._dispatcher.add(request)
            return
        self.in_flight -= 1
        if request.trace is not None:
            request.trace.computed(request, NOT_COMPUTED, known)
        self._reply(request, known)

    # results of requests

    def answered(self, batch: Batch) -> None:
        """Answer the requests of a batch that was computed or has failed."""
        now = _clock()
        if batch.error is None:
            self.statistics.executed(batch, now)
        else:
            # one by one, since most were computed again alone
            for part in batch.alone or (batch,):
                if part.error is None:
                    self.statistics.executed(part, now)
                else:
                    self.statistics.failed(part.error, 1, now - part.requests[0].arrived_ns)
        if self.decoupled:
            self.statistics.responded_once(batch, now)
        self.in_flight -= len(batch.requests)
        finish = self._finish
        for request, response in zip(batch.requests, batch.responses, strict=True):
            if request.trace is not None:
                request.trace.computed(request, batch.part_of(request), response)
            finish(request, response)

    def responded(self, early: EarlyResponse) -> None:
        """Send a response whose batch has not ended; the execution is counted at its end."""
        request, response = early.request, early.response
        now = _clock()
        if self.decoupled:
            self.statistics.responded(early, now)
        elif response.error is None:
            self.statistics.answered(request, early, now)
        else:
            self.statistics.failed(response.error, 1, now - request.arrived_ns)
        if response.final:
            self.in_flight -= 1
        if request.trace is not None:
            request.trace.computed(request, early, response)
        if not self.decoupled:
            self._finish(request, response)
            return
        self._reply(request, response)
        if self._order is None and request.backpressure is not None:
            request.backpressure.delivered(early.size)

    def streamed(
        self, request: InferRequest, pieces: list[bytes], index: int, begun_ns: int, now_ns: int
    ) -> None:
        """Send pieces of a stream: what `responded` does, without responses and their times as objects."""
        self.statistics.streamed(index, len(pieces), now_ns - begun_ns)
        if request.pieces is not None:
            self._deliver(request.pieces, pieces)

    def refused(self, request: InferRequest, error: TpxError) -> None:
        """Answer a request that reached no instance with an error."""
        self.statistics.failed(error, 1, _clock() - request.arrived_ns)
        self.in_flight -= 1
        response = InferResponse([], error)
        if request.trace is not None:
            request.trace.computed(request, NOT_COMPUTED, response)
        self._reply(request, response)

    def _cache_and_reply(self, request: InferRequest, response: InferResponse) -> None:
        assert self._cache is not None
        self._cache.keep(request, response, self._reply)

    def _send_in_turn(self, request: InferRequest, response: InferResponse) -> None:
        """Send a response that was held back, and let a decoupled model that waits for it continue."""
        self._send(request, response)
        if self.decoupled and request.backpressure is not None:
            request.backpressure.delivered(sum(len(tensor.data) for tensor in response.outputs))

    def _send(self, request: InferRequest, response: InferResponse) -> None:
        self._deliver(request.reply, request, response)

    def _deliver(self, take: Callable[..., None], *given: object) -> None:
        try:
            take(*given)
        except Exception:  # one request's boundary: the others must still be answered
            log.exception("answering a request to model '%s' failed", self.name)
