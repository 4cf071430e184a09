"""Decoupled models in a thread: a request receives any number of responses as they are produced."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from tpx.errors import Cancelled, ExecutionError, TpxError
from tpx.serving.backends.contract import Arrays, DecoupledExecutor
from tpx.serving.backpressure import ResponseBackpressure
from tpx.serving.batch import Batch, EarlyResponse, Stacking
from tpx.serving.instance import CompletionSink
from tpx.serving.instances.completions import Completions
from tpx.serving.request import InferResponse

log = logging.getLogger(__name__)

_clock = time.perf_counter_ns


@dataclass(slots=True, eq=False)
class DecoupledWork:
    """Implements Work: computes the requests of a batch one after another.

    Every response goes to the event loop at once; an empty final one follows the last.
    """

    compute: ClassVar[None] = None
    _name: str
    _executor: DecoupledExecutor
    _stacking: Stacking

    def run(self, batch: Batch, sink: CompletionSink, completions: Completions) -> None:
        batch.started_ns = _clock()
        for index in range(len(batch.requests)):
            self._respond(batch.single(index), lambda early: completions.push(sink.responded, early))
        completions.push(sink.released, batch)

    def warm(self, batch: Batch) -> TpxError | None:
        errors: list[TpxError] = []

        def take(early: EarlyResponse) -> None:
            if early.request.backpressure is not None:
                early.request.backpressure.delivered(early.size)
            if early.response.error is not None:
                errors.append(early.response.error)

        for index in range(len(batch.requests)):
            self._respond(batch.single(index), take)
        return errors[0] if errors else None

    def close(self) -> None:
        self._executor.close()

    def _respond(self, single: Batch, push: Callable[[EarlyResponse], None]) -> None:
        responses = _Responses(single, push, self._stacking)
        error: TpxError | None = None
        try:
            single.started_ns = _clock()
            inputs = self._stacking.gather(single)
            single.gathered_ns = _clock()
            self._executor.respond(inputs, responses)
        except TpxError as exc:
            error = exc
        except BaseException as exc:  # native code may raise what is not an Exception
            log.error("instance %s failed", self._name, exc_info=exc)
            error = ExecutionError(f"{type(exc).__name__}: {exc}")
        responses.end(error)


class _Responses:
    """Implements ResponseSender for one request."""

    __slots__ = ("_backpressure", "_batch", "_begun_ns", "_push", "_request", "_sent", "_stacking")

    def __init__(self, batch: Batch, push: Callable[[EarlyResponse], None], stacking: Stacking) -> None:
        self._batch = batch
        self._stacking = stacking
        self._push = push
        self._request = batch.requests[0]
        backpressure = self._request.backpressure
        if not isinstance(backpressure, ResponseBackpressure):
            backpressure = self._request.backpressure = ResponseBackpressure()
        self._backpressure = backpressure
        self._begun_ns = 0
        self._sent = 0

    def send(self, outputs: Arrays) -> bool:
        batch = self._batch
        batch.responses = []
        batch.computed_ns = _clock()
        self._stacking.scatter(batch, outputs)
        batch.ended_ns = _clock()
        return self._send(batch.responses[0])

    def send_error(self, error: TpxError) -> bool:
        self._batch.computed_ns = self._batch.ended_ns = _clock()
        return self._send(InferResponse([], error))

    def wait(self, seconds: float) -> bool:
        return self._backpressure.wait(seconds)

    def end(self, error: TpxError | None) -> None:
        """Send the final response, after the executor has returned or failed."""
        if error is None and self._request.cancelled:
            error = Cancelled("the request was cancelled")
        self._batch.end(error)
        self._push_response(InferResponse([], error), 0)

    def _send(self, response: InferResponse) -> bool:
        response.final = False
        size = sum(len(tensor.data) for tensor in response.outputs)
        if not self._backpressure.advance(size):
            return False
        self._push_response(response, size)
        self._sent += 1
        self._begun_ns = _clock()
        return not self._request.cancelled

    def _push_response(self, response: InferResponse, size: int) -> None:
        self._push(EarlyResponse(self._batch, response, index=self._sent, begun_ns=self._begun_ns, size=size))
