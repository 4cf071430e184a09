"""An instance of a decoupled model: each request gets any number of responses, whenever the model has
them."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tpx.errors import ExecutionError, TpxError
from tpx.serving.backends.base import DecoupledExecutor
from tpx.serving.batch import Arrays, Batch
from tpx.serving.instances.completions import Completions
from tpx.serving.instances.thread import Inbox
from tpx.serving.request import InferRequest, InferResponse

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecoupledAnswer:
    """One response of a request, and the request as a batch of its own with the times so far."""

    request: InferRequest
    response: InferResponse
    batch: Batch


@dataclass(frozen=True, slots=True)
class DecoupledCallbacks:
    """Run on the event loop: for each answer, and when a batch has been computed."""

    on_answer: Callable[[DecoupledAnswer], None]
    on_done: Callable[[Batch], None]


class DecoupledInstance:
    """Takes batches from the inbox it shares; computes their requests one after the other.

    Every response goes to the event loop as it is made; an empty one marked final follows the last.
    """

    __slots__ = ("_batched", "_callbacks", "_completions", "_executor", "_inbox", "_thread", "name")

    def __init__(
        self,
        name: str,
        executor: DecoupledExecutor,
        inbox: Inbox,
        completions: Completions,
        callbacks: DecoupledCallbacks,
        *,
        batched: bool,
    ) -> None:
        self.name = name
        self._batched = batched
        self._executor = executor
        self._inbox = inbox
        self._completions = completions
        self._callbacks = callbacks
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the thread, for which a None must be in the inbox; not for the event loop."""
        self._thread.join()
        self._executor.close()

    def _work(self) -> None:
        while True:
            batch = self._inbox.get()
            if batch is None:
                return
            batch.started_ns = time.perf_counter_ns()
            for request in batch.requests:
                self._compute(request)
            self._completions.push(self._callbacks.on_done, batch)

    def _compute(self, request: InferRequest) -> None:
        single = Batch([request])

        def send(outputs: Arrays) -> bool:
            single.responses = []
            single.scatter(outputs, batched=self._batched)
            single.responses[0].final = False
            self._push(single, single.responses[0])
            return not request.cancelled

        error: TpxError | None = None
        try:
            self._executor.respond(single.gather(), send)
        except TpxError as exc:
            error = exc
        except BaseException as exc:  # native code panics and exits with what is no Exception
            log.error("instance %s failed", self.name, exc_info=exc)
            error = ExecutionError(f"{type(exc).__name__}: {exc}")
        single.end(error)
        self._push(single, InferResponse([], error))

    def _push(self, single: Batch, response: InferResponse) -> None:
        self._completions.push(
            self._callbacks.on_answer, DecoupledAnswer(single.requests[0], response, single)
        )
