"""The short way of requests that come together and that the event loop can compute at once.

A model with kept bindings and nothing to wait for needs neither requests, batches nor responses: the tensors
are copied from where they came into the bound memory, and the outputs from there to where they go. Whenever
anything is not as simple as that, requests take the usual way through scheduler and dispatcher.
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
"""Takes the memory with the outputs of requests: the index of the first, how many they are, and the time."""


class Express:
    """The short way of requests with one head."""

    __slots__ = ("_bound", "_cuts", "_dispatcher", "_kept", "_statistics", "bound", "head", "most", "size")

    def __init__(
        self,
        head: RequestHead,
        dispatcher: Dispatcher,
        statistics: ModelStatistics,
        kept: KeptBindings,
        most: int,
    ) -> None:
        """At most `most` requests are computed together."""
        self.head = head
        self.size = head.total_size
        """Bytes of the tensors of a request, which lie one behind the other."""
        self.most = most
        self.bound: BoundRows | None = None
        """What computed the last request that `compute_one` was asked for."""
        self._dispatcher = dispatcher
        self._statistics = statistics
        self._kept = kept
        self._bound: dict[int, BoundRows] = {}
        """What computes so many requests."""
        self._cuts: list[slice] = []
        at = 0
        for bound in head.inputs:
            self._cuts.append(slice(at, at + bound.size))
            at += bound.size

    def compute(self, tensors: Sequence[memoryview], came_ns: int, answer: Answer) -> int:
        """Compute requests of `size` bytes each that came at that time, and have `answer` copy outputs.

        Returns how many: the others have to go the usual way.
        """
        total, most = len(tensors), self.most
        done = self._compute_alike(tensors, 0, most, total // most, came_ns, answer) if total >= most else 0
        if total - done < most:
            done += self._compute_alike(tensors, done, total - done, 1, came_ns, answer)
        return done

    def compute_one(self, tensors: Buffer) -> list[bytes] | None:
        """Compute a request that has just come and return the data of its outputs; None: it has to go the
        usual way."""
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
        """Return the outputs of the last request of `compute_one`."""
        assert self.bound is not None
        return self.tensors(self.bound)

    def tensors(self, bound: BoundRows) -> list[Tensor]:
        """Return the outputs of the first request in `bound`. Raises ExecutionError."""
        head = self.head
        return [bound.output(wanted.spec).tensor(wanted.spec, 0, head.batch_size) for wanted in head.outputs]

    def _compute_alike(
        self,
        tensors: Sequence[memoryview],
        first: int,
        count: int,
        times: int,
        came_ns: int,
        answer: Answer,
    ) -> int:
        """Compute `count` requests so many times, from the first on. Returns how many it were."""
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
                bound.alive = False  # the usual way tells what is wrong, if anything is
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

    def _gather(self, bound: BoundRows, tensors: Sequence[memoryview]) -> None:
        """Copy the tensors into the bound memory. Raises ValueError where they do not fill it."""
        if len(self._cuts) == 1:
            bound.inputs[0][:] = b"".join(tensors)
        else:
            for memory, cut in zip(bound.inputs, self._cuts, strict=True):
                memory[:] = b"".join([each[cut] for each in tensors])
