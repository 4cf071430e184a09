"""Fast path for requests that the event loop can compute immediately.

A model with kept bindings that is idle needs no request, batch or response objects: tensors are copied
from the read buffer into the bound memory, and outputs from there to their destination. In all other
cases requests take the regular path through scheduler and dispatcher.
"""

import time
from collections.abc import Callable, Sequence

from tpx.errors import ExecutionError
from tpx.protocol.tensors import Buffer, Tensor
from tpx.serving.dispatcher import Dispatcher
from tpx.serving.instances.kept import BoundRows, KeptBindings
from tpx.serving.request import RequestHead
from tpx.serving.statistics import ModelStatistics

_clock = time.perf_counter_ns


Answer = Callable[[BoundRows, int, int, int], None]
"""Receives the memory with the outputs, the index of the first request, their number, and the time in ns."""


class FastPath:
    """Fast path for requests with one head."""

    __slots__ = ("_bound", "_cuts", "_dispatcher", "_kept", "_statistics", "bound", "head", "most", "size")

    def __init__(
        self,
        head: RequestHead,
        dispatcher: Dispatcher,
        statistics: ModelStatistics,
        kept: KeptBindings,
        most: int,
    ) -> None:
        """Compute at most `most` requests at once."""
        self.head = head
        self.size = head.total_size
        """Bytes of a request's tensors, which are contiguous."""
        self.most = most
        self.bound: BoundRows | None = None
        """Bound memory used by the last call of `compute_one`."""
        self._dispatcher = dispatcher
        self._statistics = statistics
        self._kept = kept
        self._bound: dict[int, BoundRows] = {}
        """Bound memory by number of requests."""
        self._cuts: list[slice] = []
        at = 0
        for bound in head.inputs:
            self._cuts.append(slice(at, at + bound.size))
            at += bound.size

    def compute(self, tensors: Sequence[Buffer], came_ns: int, answer: Answer) -> int:
        """Compute requests of `size` bytes each, received at `came_ns`; `answer` copies their outputs.

        Returns the number computed; the remaining requests must take the regular path.
        """
        total, most = len(tensors), self.most
        done = self._compute_alike(tensors, 0, most, total // most, came_ns, answer) if total >= most else 0
        if total - done < most:
            done += self._compute_alike(tensors, done, total - done, 1, came_ns, answer)
        return done

    def compute_one(self, tensors: Buffer) -> list[bytes] | None:
        """Compute a request that was just received and return the data of its outputs, or None if it
        must take the regular path.
        """
        bound, head, dispatcher = self.bound, self.head, self._dispatcher
        if bound is None or not bound.alive:
            bound = self.bound = self._find(1)
            if bound is None:
                return None
        if head.model.retired or not dispatcher.idle(head.row_size):
            return None
        started_ns = _clock()
        try:
            if len(bound.inputs) == 1:
                bound.inputs[0][:] = tensors
            else:
                self._gather(bound, [memoryview(tensors)])
            gathered_ns = _clock()
            bound.run()
        except (ExecutionError, ValueError):
            bound.alive = False
            return None
        computed_ns = _clock()
        outputs = [bytes(data) for data in bound.wanted(head)]
        ended_ns = _clock()
        phases_ns = 0, gathered_ns - started_ns, computed_ns - gathered_ns, ended_ns - computed_ns
        self._statistics.computed(1, 1, head.batch_size, phases_ns, ended_ns)
        dispatcher.computed_here(computed_ns - started_ns, head.row_size)
        return outputs

    def outputs(self) -> list[Tensor]:
        """Return the outputs of the last request computed by `compute_one`."""
        assert self.bound is not None
        return self.tensors(self.bound)

    def tensors(self, bound: BoundRows) -> list[Tensor]:
        """Return the outputs of the first request in `bound`. Raises ExecutionError."""
        head = self.head
        return [bound.output(wanted.spec).tensor(wanted.spec, 0, head.batch_size) for wanted in head.outputs]

    def _compute_alike(
        self,
        tensors: Sequence[Buffer],
        first: int,
        count: int,
        times: int,
        came_ns: int,
        answer: Answer,
    ) -> int:
        """Compute up to `times` batches of `count` requests, beginning at `first`. Return the number of
        requests computed.
        """
        head, dispatcher = self.head, self._dispatcher
        bound = self._bound.get(count)
        if bound is None or not bound.alive:
            bound = self._find(count)
        if not count or bound is None or head.model.retired or not dispatcher.idle(head.row_size):
            return 0
        gather, run, row_size = self._gather, bound.run, head.row_size
        memory = bound.inputs[0] if count == len(self._cuts) == 1 else None
        input_ns = infer_ns = output_ns = waited_ns = executions = 0
        ended_ns = _clock()
        while executions < times:
            index = first + executions * count
            started_ns = ended_ns
            try:
                if memory is not None:
                    memory[:] = tensors[index]
                else:
                    gather(bound, tensors[index : index + count])
                gathered_ns = _clock()
                run()
            except (ExecutionError, ValueError):
                bound.alive = False  # the regular path reports the error, if it persists
                break
            computed_ns = _clock()
            answer(bound, index, count, computed_ns)
            ended_ns = _clock()
            executions += 1
            waited_ns += started_ns - came_ns
            input_ns += gathered_ns - started_ns
            infer_ns += computed_ns - gathered_ns
            output_ns += ended_ns - computed_ns
            if not dispatcher.computed_here(computed_ns - started_ns, row_size):
                break
        if executions:
            phases_ns = waited_ns, input_ns, infer_ns, output_ns
            self._statistics.computed(executions, count, head.batch_size, phases_ns, ended_ns)
        return executions * count

    def _find(self, count: int) -> BoundRows | None:
        self._bound.pop(count, None)
        bound = self._kept.known(self.head, count * self.head.batch_size)
        if bound is None or not bound.alive:
            return None
        try:
            self.tensors(bound)
        except ExecutionError:
            return None
        self._bound[count] = bound
        return bound

    def _gather(self, bound: BoundRows, tensors: Sequence[Buffer]) -> None:
        """Copy the tensors into the bound memory. Raises ValueError if the sizes differ."""
        if len(self._cuts) == 1:
            bound.inputs[0][:] = b"".join(tensors)
        else:
            for memory, cut in zip(bound.inputs, self._cuts, strict=True):
                memory[:] = b"".join([each[cut] for each in tensors])
