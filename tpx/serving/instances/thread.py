"""Instances that compute in a thread each; their kernels release the interpreter lock."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from tpx.errors import ExecutionError, TpxError
from tpx.serving.backends.contract import Arrays, Executor
from tpx.serving.batch import Batch, Stacking
from tpx.serving.instance import CompletionSink
from tpx.serving.instances.bindings import BindingCache
from tpx.serving.instances.completions import Completions

log = logging.getLogger(__name__)

_clock = time.perf_counter_ns
_cpu_clock = time.thread_time_ns
_PASSED_ON_S = 0.001

ThreadQueue = SimpleQueue[Batch | None]
"""Batches of instances that share a queue; None ends one that is leaving."""


class Work(Protocol):
    """The work of a thread on batches."""

    @property
    def compute(self) -> Callable[[Batch], None] | None:
        """Return a function that computes a batch in the calling thread, None if impossible."""

    def run(self, batch: Batch, sink: CompletionSink, completions: Completions) -> None:
        """Compute a batch in an instance's thread and pass the result to the sink through `completions`."""

    def warm(self, batch: Batch) -> TpxError | None:
        """Compute a warm-up batch; return the error, if any."""

    def close(self) -> None: ...


class ThreadInstance:
    """Takes batches from the queue that the instances of its model share."""

    alive = True
    failure = ""
    held = abandoned = 0
    depth = 2
    """One batch computing and one queued, so that the thread does not wait for the event loop."""
    has_readiness_hook = False
    __slots__ = ("_completions", "_queue", "_sink", "_thread", "_work", "compute", "left", "name")

    def __init__(self, name: str, work: Work, queue: ThreadQueue, completions: Completions) -> None:
        self.name = name
        self.compute = work.compute
        self.left = False
        self._work = work
        self._queue = queue
        self._completions = completions
        self._sink: CompletionSink | None = None
        self._thread = threading.Thread(target=self._take_batches, name=name, daemon=True)

    def start(self) -> None:
        """Do nothing: an executor is ready when it is created."""

    def warm(self, batch: Batch) -> TpxError | None:
        return self._work.warm(batch)

    def begin(self, sink: CompletionSink) -> None:
        self._sink = sink
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        self._queue.put(batch)

    def leave(self) -> None:
        self.left = True
        self._queue.put(None)

    async def ready(self) -> bool:
        return True

    def close(self) -> None:
        """Wait for the thread, if it was started."""
        if self._thread.ident is not None:
            self._thread.join()
        self._work.close()

    def _take_batches(self) -> None:
        assert self._sink is not None
        queue, run, sink, completions = self._queue, self._work.run, self._sink, self._completions
        while True:
            batch = queue.get()
            if batch is not None:
                run(batch, sink, completions)
                del batch  # release its tensors and their shared memory while waiting
            elif self.left:
                return
            else:  # leave it to another instance, which may be busy
                queue.put(None)
                time.sleep(_PASSED_ON_S)


@dataclass(slots=True, eq=False)
class BatchWork:
    """Computes whole batches with an executor."""

    _name: str
    _executor: Executor
    _stacking: Stacking
    _bindings: BindingCache | None = None
    """Computes batches of shapes that it has bound."""
    _gather_on_gpu: Callable[[Batch], Arrays] | None = None
    """Gathers batches for an executor that takes inputs in GPU memory."""

    def compute(self, batch: Batch) -> None:
        """Compute a batch in this thread; exceptions of the backend become errors of its requests.

        If a batch fails, each of its requests is tried alone, so that a bad one harms only itself.
        """
        stacking, bindings = self._stacking, self._bindings
        try:
            batch.started_ns = _clock()
            if bindings is not None and bindings.compute(batch):
                return
            inputs = self._gather(batch)
            batch.gathered_ns = _clock()
            outputs = self._executor.execute(inputs)
            batch.computed_ns = _clock()
            stacking.scatter(batch, outputs)
            batch.ended_ns = _clock()
            if bindings is not None:
                bindings.learn(batch, inputs, outputs)
        except TpxError as exc:
            self._compute_individually(batch, exc)
        except BaseException as exc:  # native code may raise what is not an Exception
            log.error("instance %s failed", self._name, exc_info=exc)
            self._compute_individually(batch, ExecutionError(f"{type(exc).__name__}: {exc}"))

    def _gather(self, batch: Batch) -> Arrays:
        """Return the inputs, after reading those that the event loop has left unread."""
        for request in batch.requests:
            if request.unread:
                if self._gather_on_gpu is not None:
                    return self._gather_on_gpu(batch)
                unread, request.unread = request.unread, ()
                for each in unread:
                    each.read()
        return self._stacking.gather(batch)

    def run(self, batch: Batch, sink: CompletionSink, completions: Completions) -> None:
        began_ns = _cpu_clock()
        self.compute(batch)
        # CPU time of the thread: waiting for the interpreter lock or a core is not the batch's cost
        batch.cost_ns = _cpu_clock() - began_ns
        completions.push(sink.computed, batch)

    def warm(self, batch: Batch) -> TpxError | None:
        self.compute(batch)
        return batch.error

    def _compute_individually(self, batch: Batch, error: TpxError) -> None:
        if len(batch.requests) == 1:
            batch.fail(error)
            return
        batch.error = error
        batch.alone = [batch.single(index) for index in range(len(batch.requests))]
        for single in batch.alone:
            self.compute(single)
        batch.responses = [response for single in batch.alone for response in single.responses]
        batch.ended_ns = batch.alone[-1].ended_ns

    def close(self) -> None:
        if self._bindings is not None:
            self._bindings.clear()
        self._executor.close()
