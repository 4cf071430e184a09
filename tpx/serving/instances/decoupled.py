"""An instance of a decoupled model: each request gets any number of responses, whenever the model has
them."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tpx.errors import Cancelled, ExecutionError, TpxError
from tpx.serving.backends.contract import Arrays, DecoupledExecutor
from tpx.serving.batch import Batch, EarlyResponse
from tpx.serving.instances.completions import Completions
from tpx.serving.instances.thread import Inbox, pass_on
from tpx.serving.pace import Pace
from tpx.serving.request import InferResponse
from tpx.serving.stacking.base import Stacking

log = logging.getLogger(__name__)

_clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class DecoupledCallbacks:
    """Run on the event loop: for each answer, and when a batch has been computed."""

    on_answer: Callable[[EarlyResponse], None]
    on_done: Callable[[Batch], None]


class DecoupledInstance:
    """Takes batches from the inbox it shares; computes their requests one after the other.

    Every response goes to the event loop as it is made; an empty one marked final follows the last.
    """

    alive = True
    drained = True
    __slots__ = (
        "_callbacks",
        "_completions",
        "_executor",
        "_inbox",
        "_stacking",
        "_thread",
        "leaving",
        "name",
    )

    def __init__(
        self,
        name: str,
        executor: DecoupledExecutor,
        inbox: Inbox,
        completions: Completions,
        callbacks: DecoupledCallbacks,
        stacking: Stacking,
    ) -> None:
        self.name = name
        self._stacking = stacking
        self._executor = executor
        self._inbox = inbox
        self._completions = completions
        self._callbacks = callbacks
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.leaving = False

    def begin(self) -> None:
        self._thread.start()

    def warm(self, batch: Batch) -> TpxError | None:
        errors: list[TpxError] = []

        def take(early: EarlyResponse) -> None:
            if early.request.pace is not None:
                early.request.pace.delivered(early.size)
            if early.response.error is not None:
                errors.append(early.response.error)

        for index in range(len(batch.requests)):
            self._compute(batch.single(index), take)
        return errors[0] if errors else None

    def close(self) -> None:
        """Wait for the thread, for which a None must be in the inbox; not for the event loop."""
        if self._thread.ident is not None:
            self._thread.join()
        self._executor.close()

    def _work(self) -> None:
        while True:
            batch = self._inbox.get()
            if batch is None:
                if self.leaving:
                    return
                pass_on(self._inbox)
                continue
            batch.started_ns = _clock()
            for index in range(len(batch.requests)):
                self._compute(batch.single(index), self._push)
            self._completions.push(self._callbacks.on_done, batch)
            del batch  # while nothing comes, their tensors and their shared memory are not kept

    def _compute(self, single: Batch, push: Callable[[EarlyResponse], None]) -> None:
        responses = _Responses(single, push, self._stacking)
        error: TpxError | None = None
        try:
            self._executor.respond(self._stacking.gather(single), responses)
        except TpxError as exc:
            error = exc
        except BaseException as exc:  # native code panics and exits with what is no Exception
            log.error("instance %s failed", self.name, exc_info=exc)
            error = ExecutionError(f"{type(exc).__name__}: {exc}")
        responses.end(error)

    def _push(self, early: EarlyResponse) -> None:
        self._completions.push(self._callbacks.on_answer, early)


class _Responses:
    """Implements ResponseSender for one request."""

    __slots__ = ("_batch", "_begun_ns", "_pace", "_push", "_request", "_sent", "_stacking")

    def __init__(self, batch: Batch, push: Callable[[EarlyResponse], None], stacking: Stacking) -> None:
        self._batch = batch
        self._stacking = stacking
        self._push = push
        self._request = batch.requests[0]
        pace = self._request.pace
        if not isinstance(pace, Pace):
            pace = self._request.pace = Pace()
        self._pace = pace
        self._begun_ns = 0
        self._sent = 0

    def send(self, outputs: Arrays) -> bool:
        batch = self._batch
        batch.responses = []
        self._stacking.scatter(batch, outputs)
        return self._send(batch.responses[0])

    def send_error(self, error: TpxError) -> bool:
        self._batch.computed_ns = self._batch.ended_ns = _clock()
        return self._send(InferResponse([], error))

    def wait(self, seconds: float) -> bool:
        return self._pace.wait(seconds)

    def end(self, error: TpxError | None) -> None:
        """The executor has returned, or failed."""
        if error is None and self._request.cancelled:
            error = Cancelled("the request was cancelled")
        self._batch.end(error)
        self._give(InferResponse([], error), 0)

    def _send(self, response: InferResponse) -> bool:
        response.final = False
        size = sum(len(tensor.data) for tensor in response.outputs)
        if not self._pace.advance(size):
            return False
        self._give(response, size)
        self._sent += 1
        self._begun_ns = _clock()
        return not self._request.cancelled

    def _give(self, response: InferResponse, size: int) -> None:
        self._push(EarlyResponse(self._batch, response, index=self._sent, begun_ns=self._begun_ns, size=size))
