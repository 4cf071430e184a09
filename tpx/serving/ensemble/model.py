"""An ensemble as seen by the repository, the data plane, and the frontends: a model like any other."""

import asyncio
import logging
import time

from tpx.protocol.messages import ModelConfig
from tpx.serving.cache import CachedModel, ResponseCache
from tpx.serving.ensemble.composition import Composition
from tpx.serving.ensemble.plan import EnsemblePlan
from tpx.serving.ensemble.run import EnsembleRun, Resolve
from tpx.serving.request import NOT_COMPUTED, InferRequest, InferResponse
from tpx.serving.served import Served
from tpx.serving.signature import Signature

log = logging.getLogger(__name__)

_clock = time.perf_counter_ns
_KNOWN_PLANS = 64
_LEVELS_ON_THE_STACK = 16


class Ensemble(Served):
    """Runs its steps on the models found by `resolve`.

    It has neither instances nor a queue: requests wait for composing models, which have their own health
    and sequences.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        signature: Signature,
        composition: Composition,
        resolve: Resolve,
        cache: ResponseCache | None = None,
    ) -> None:
        super().__init__(config, composition.graph.model, version, signature)
        self.composed_of = composition.models
        self.levels = composition.levels
        self.composition = composition
        self._plans: dict[tuple[str, ...], EnsemblePlan] = {}
        self._resolve = resolve
        self._cache = CachedModel(cache, self.statistics) if cache is not None else None
        # levels call each other recursively, so the depth must be bounded
        self._breaks_stack = self.levels % _LEVELS_ON_THE_STACK == 0

    def submit(self, request: InferRequest) -> None:
        """Accept a request; its `reply` is called later, or before this returns. Raises NotReady."""
        if self.retired:
            raise self.not_ready()
        request.arrived_ns = _clock()
        self.in_flight += 1
        if self._cache is None:
            self._run(request)
        elif self._cache.is_large(request):
            self._cache.hash_in_thread(request, self._run_unless_cached)
        else:
            self._run_unless_cached(request, self._cache.key_of(request))

    def _run_unless_cached(self, request: InferRequest, key: bytes) -> None:
        assert self._cache is not None
        known = self._cache.answer(request, key)
        if known is None:
            self._run(request)
            return
        self.in_flight -= 1
        self._reply(request, known)

    def _run(self, request: InferRequest) -> None:
        wanted = tuple([bound.spec.name for bound in request.head.outputs])
        plan = self._plans.get(wanted)
        if plan is None:
            if len(self._plans) >= _KNOWN_PLANS:
                self._plans.clear()
            plan = self._plans[wanted] = EnsemblePlan(self.composition.graph, wanted)
        run = EnsembleRun(plan, self._resolve, request, self._handle_response)
        request.backpressure = run
        if self._breaks_stack:
            asyncio.get_running_loop().call_soon(run.advance)
        else:
            run.advance()

    def cancelled(self) -> None:
        """Do nothing: the run of a cancelled request cancels its steps."""

    def recomposed(self) -> None:
        """Clear the cache, because a composing model was replaced."""
        if self._cache is not None:
            self._cache.renew()

    def close(self) -> None:
        """Drop caches that hold references to models."""
        super().close()
        self._plans.clear()

    def _handle_response(self, run: EnsembleRun, request: InferRequest, response: InferResponse) -> None:
        """Handle a response of a run; unless the ensemble is decoupled, the final one is the only one."""
        if self.decoupled and not run.answered:
            run.answered = True
            if self.statistics.latencies is not None:
                now = _clock()
                self.statistics.latencies.observe("first_response", now - request.arrived_ns, now)
        if response.final:
            request.backpressure = None  # break the reference cycle
            self.in_flight -= 1
            now = _clock()
            if response.error is None:
                self.statistics.composed(run.times, request.head.batch_size, now - request.arrived_ns, now)
            else:
                # the failed step has counted its own reason
                reason = "CANCELED" if request.cancelled else "OTHER"
                self.statistics.failed_for(reason, 1, now - request.arrived_ns)
            if self._cache is not None:
                self._cache.keep(request, response, self._pass_on)
                return
        self._pass_on(request, response)

    def _pass_on(self, request: InferRequest, response: InferResponse) -> None:
        if self._breaks_stack:
            asyncio.get_running_loop().call_soon(self._reply, request, response)
        else:
            self._reply(request, response)

    def _reply(self, request: InferRequest, response: InferResponse) -> None:
        if request.trace is not None:
            request.trace.computed(request, NOT_COMPUTED, response)
        try:
            request.reply(request, response)
        except Exception:  # one request's boundary: the server must survive
            log.exception("answering a request to ensemble '%s' failed", self.name)
