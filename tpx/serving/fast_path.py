"""Fast path for requests that the event loop can compute immediately.

A model with cached bindings that is idle needs no request, batch or response objects: tensors are copied
from the read buffer into the bound memory, and outputs from there to their destination. If the model
batches, requests are gathered until the event loop has read all that arrived together. In all other cases
requests take the regular path through scheduler and dispatcher.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tpx.errors import ExecutionError
from tpx.protocol.tensors import Buffer, Tensor
from tpx.serving.dispatcher import Dispatcher
from tpx.serving.inference_plane import split_outputs
from tpx.serving.instances.bindings import BindingCache, BoundRows
from tpx.serving.polling import BusyPolling
from tpx.serving.request import RequestHead
from tpx.serving.statistics import ModelStatistics
from tpx.serving.turn import Turn

_clock = time.perf_counter_ns


Answer = Callable[[Sequence[memoryview], int, int, int], None]
"""Receives the outputs of a batch, the index of its first request, their number, and the time in ns."""
Reply = Callable[[Sequence[bytes] | None], None]
"""Receives the data of a request's outputs, or None if the request must take the regular path."""


class _Memory(NamedTuple):
    """Bound memory for a number of requests, and its outputs that they want."""

    bound: BoundRows
    outputs: list[memoryview]


class BoundPath:
    """Implements FastPath on the cached bindings of a model's only instance, and PhaseStamps."""

    __slots__ = (
        "_arrived_ns", "_bindings", "_cuts", "_dispatcher", "_head", "_memory", "_polling",
        "_replies", "_shapes", "_statistics", "_tensors", "computed_ns", "gathered_ns", "most",
    )  # fmt: skip

    def __init__(
        self,
        head: RequestHead,
        dispatcher: Dispatcher,
        statistics: ModelStatistics,
        bindings: BindingCache,
        polling: BusyPolling,
        most: int,
    ) -> None:
        """Compute at most `most` requests at once."""
        self._head = head
        self.most = most
        self._shapes: Sequence[Sequence[int]] = ()
        """Shapes of a request's outputs; bindings with other ones are not used."""
        self._tensors: list[Buffer] = []
        self._replies: list[Reply] = []
        self._arrived_ns = 0
        """When the first of the gathered requests came."""
        self._dispatcher = dispatcher
        self._statistics = statistics
        self._bindings = bindings
        self._polling = polling
        self._memory: dict[int, _Memory] = {}
        """Bound memory by number of requests."""
        self.gathered_ns = self.computed_ns = 0
        self._cuts: list[slice] = []
        """Place of each input in a request's tensors, if there are several."""
        if len(head.inputs) > 1:
            at = 0
            for bound in head.inputs:
                self._cuts.append(slice(at, at + bound.size))
                at += bound.size

    def compute_one(self, tensors: Buffer) -> Sequence[bytes] | None:
        memory = self._memory.get(1)
        if memory is None or not memory.bound.alive:
            memory = self._find(1)
        head, dispatcher = self._head, self._dispatcher
        if memory is None or head.model.retired or not dispatcher.idle(head.row_size):
            return None
        bound, wanted = memory
        started_ns = _clock()
        try:
            bound.compute(self._cut((tensors,)) if self._cuts else (tensors,), self)
        except (ExecutionError, ValueError):
            bound.alive = False  # the regular path reports the error, if it persists
            return None
        outputs = list(map(bytes, wanted))
        ended_ns = _clock()
        gathered_ns, computed_ns = self.gathered_ns, self.computed_ns
        phases_ns = 0, gathered_ns - started_ns, computed_ns - gathered_ns, ended_ns - computed_ns
        self._statistics.computed(1, 1, head.batch_size, phases_ns, ended_ns)
        dispatcher.computed_here(computed_ns - started_ns, head.row_size)
        self._polling.computed(started_ns, ended_ns)
        return outputs

    def compute(self, tensors: Sequence[Buffer], arrived_ns: int, turn: Turn, answer: Answer) -> int:
        total, most = len(tensors), self.most
        done = 0
        if total >= most:
            done = self._compute_batches(tensors, 0, most, arrived_ns, turn, answer)
        if 0 < total - done < most:
            done += self._compute_batches(tensors, done, total - done, arrived_ns, turn, answer)
        return done

    def _compute_batches(
        self, tensors: Sequence[Buffer], first: int, count: int, arrived_ns: int, turn: Turn, answer: Answer
    ) -> int:
        """Compute batches of `count` requests, from `first` on; return the number of requests computed."""
        memory = self._memory.get(count)
        if memory is None or not memory.bound.alive:
            memory = self._find(count)
        head, dispatcher = self._head, self._dispatcher
        if not count or memory is None or head.model.retired or not dispatcher.idle(head.row_size):
            return 0
        (bound, outputs), cuts, row_size = memory, self._cuts, head.row_size
        input_ns = infer_ns = output_ns = waited_ns = executions = 0
        ended_ns = _clock()
        for at in range(first, len(tensors) - count + 1, count):
            started_ns = ended_ns
            try:
                if cuts:
                    inputs = self._cut(tensors[at : at + count])
                else:
                    inputs = (tensors[at] if count == 1 else b"".join(tensors[at : at + count]),)
                bound.compute(inputs, self)
            except (ExecutionError, ValueError):
                bound.alive = False
                break
            gathered_ns, computed_ns = self.gathered_ns, self.computed_ns
            answer(outputs, at, count, computed_ns)
            ended_ns = _clock()
            executions += 1
            waited_ns += started_ns - arrived_ns
            input_ns += gathered_ns - started_ns
            infer_ns += computed_ns - gathered_ns
            output_ns += ended_ns - computed_ns
            if not dispatcher.computed_here(computed_ns - started_ns, row_size) or turn.is_over(ended_ns):
                break
        if executions:
            phases_ns = waited_ns, input_ns, infer_ns, output_ns
            self._statistics.computed(executions, count, head.batch_size, phases_ns, ended_ns)
            self._polling.computed(arrived_ns, ended_ns, executions * count)
        return executions * count

    def _cut(self, tensors: Sequence[Buffer]) -> Sequence[Buffer]:
        """Return the data of each of several inputs, of all requests one after another."""
        views = [memoryview(each) for each in tensors]
        return [b"".join([view[cut] for view in views]) for cut in self._cuts]

    def gather(self, tensors: Buffer, reply: Reply) -> bool:
        dispatcher = self._dispatcher
        if dispatcher.gathering is not self:
            if not dispatcher.gather(self, self._head.row_size):
                return False
            self._arrived_ns = _clock()
        self._tensors.append(tensors)
        self._replies.append(reply)
        return True

    def compute_gathered(self) -> None:
        """Compute the gathered requests, called by the dispatcher."""
        tensors, replies = self._tensors, self._replies
        self._tensors, self._replies = [], []
        turn = Turn(_clock())
        done = 0

        def answer(outputs: Sequence[memoryview], first: int, count: int, _: int) -> None:
            nonlocal done
            for done, each in enumerate(split_outputs(outputs, count), first + 1):
                replies[done - 1](each)

        try:
            self.compute(tensors, self._arrived_ns, turn, answer)
        finally:
            if done < len(replies) and not (
                turn.is_over(_clock()) and self._gather_again(tensors[done:], replies[done:])
            ):
                for reply in replies[done:]:
                    reply(None)

    def _gather_again(self, tensors: list[Buffer], replies: list[Reply]) -> bool:
        """Compute the rest of the gathered requests in the next iteration. Return False if they must take
        the regular path.
        """
        dispatcher = self._dispatcher
        if dispatcher.gathering is not self and not dispatcher.gather(self, self._head.row_size):
            return False
        self._tensors[:0], self._replies[:0] = tensors, replies
        return True

    def give_up_gathered(self) -> None:
        """Let the gathered requests take the regular path, because others join them."""
        replies, self._tensors, self._replies = self._replies, [], []
        for reply in replies:
            reply(None)

    def outputs(self) -> list[Tensor]:
        bound, _ = next(iter(self._memory.values()))
        return bound.tensors(self._head, 0)

    def _find(self, count: int) -> _Memory | None:
        """Find the memory that the model has bound for so many requests."""
        self._memory.pop(count, None)
        head = self._head
        bound = self._bindings.known(head, count * head.batch_size)
        if bound is None or not bound.alive:
            return None
        try:
            shapes = [tensor.shape for tensor in bound.tensors(head, 0)]
            found = _Memory(bound, bound.memory(head))
        except ExecutionError:
            return None
        if self._shapes and shapes != self._shapes:
            return None
        self._shapes = shapes
        self._memory[count] = found
        return found
