"""An instance that computes in a thread of its own: its kernels release the interpreter lock."""

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from tpx.errors import ExecutionError, TpxError
from tpx.serving.backends.contract import Executor
from tpx.serving.batch import Batch
from tpx.serving.instances.completions import Completions
from tpx.serving.stacking.base import Stacking

log = logging.getLogger(__name__)

_cpu_clock = time.thread_time_ns


Inbox = SimpleQueue[Batch | None]
"""The batches that a model's instances take, whichever is free first; None ends one that is leaving."""

_PASSED_ON_S = 0.001


def pass_on(inbox: Inbox) -> None:
    """A None is for another instance, which may be busy."""
    inbox.put(None)
    time.sleep(_PASSED_ON_S)


class ThreadInstance:
    """Takes batches from the inbox that it shares with the other instances of its model.

    While none of them has work, the event loop may compute a batch itself with `run`.
    """

    alive = True
    drained = True
    __slots__ = ("_completions", "_executor", "_inbox", "_on_done", "_stacking", "_thread", "leaving", "name")

    def __init__(
        self,
        name: str,
        executor: Executor,
        inbox: Inbox,
        completions: Completions,
        on_done: Callable[[Batch], None],
        stacking: Stacking,
    ) -> None:
        self.name = name
        self._stacking = stacking
        self._executor = executor
        self._inbox = inbox
        self._completions = completions
        self._on_done = on_done
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.leaving = False

    def begin(self) -> None:
        self._thread.start()

    def run(self, batch: Batch) -> None:
        """Compute a batch here and now; whatever the backend raises becomes an error of the requests.

        When a batch fails, each of its requests is tried alone: a bad one then harms only itself.
        """
        try:
            stacking = self._stacking
            stacking.scatter(batch, self._executor.execute(stacking.gather(batch)))
        except TpxError as exc:
            self._failed(batch, exc)
        except BaseException as exc:  # native code panics and exits with what is no Exception
            log.error("instance %s failed", self.name, exc_info=exc)
            self._failed(batch, ExecutionError(f"{type(exc).__name__}: {exc}"))

    def warm(self, batch: Batch) -> TpxError | None:
        self.run(batch)
        return batch.error

    def _failed(self, batch: Batch, error: TpxError) -> None:
        if len(batch.requests) == 1:
            batch.fail(error)
            return
        batch.error = error
        batch.alone = [batch.single(index) for index in range(len(batch.requests))]
        for single in batch.alone:
            self.run(single)
        batch.responses = [response for single in batch.alone for response in single.responses]
        batch.ended_ns = batch.alone[-1].ended_ns

    def close(self) -> None:
        """Wait for the thread, for which a None must be in the inbox; not for the event loop."""
        if self._thread.ident is not None:
            self._thread.join()
        self._executor.close()

    def _work(self) -> None:
        push, done = self._completions.push, self._on_done
        while True:
            batch = self._inbox.get()
            if batch is None:
                if self.leaving:
                    return
                pass_on(self._inbox)
                continue
            began_ns = _cpu_clock()
            self.run(batch)
            # of the thread's CPU time: waiting for the interpreter or for a core is not the batch's cost
            batch.cost_ns = _cpu_clock() - began_ns
            push(done, batch)
            del batch  # while nothing comes, its tensors and their shared memory are not kept
