"""Fast path for requests that the event loop can compute immediately.

A model with kept bindings that is idle needs no request, batch or response objects: tensors are copied
from the read buffer into the bound memory, and outputs from there to their destination. If the model
batches, requests are gathered until the event loop has read all that arrived together. In all other cases
requests take the regular path through scheduler and dispatcher.
"""

import time
from collections.abc import Callable, Sequence

from tpx.errors import ExecutionError
from tpx.protocol.tensors import Buffer, Tensor
from tpx.serving.dispatcher import Dispatcher
from tpx.serving.instances.kept import BoundRows, KeptBindings
from tpx.serving.polling import BusyPolling
from tpx.serving.request import RequestHead
from tpx.serving.statistics import ModelStatistics

_clock = time.perf_counter_ns


Answer = Callable[[BoundRows, int, int, int], None]
"""Receives the memory with the outputs, the index of the first request, their number, and the time in ns."""
Reply = Callable[[list[bytes] | None], None]
"""Receives the data of a request's outputs, or None if the request must take the regular path."""

_TURN_NS = 2_000_000
"""Time for computing gathered requests before the event loop handles other events."""


class FastPath:
    """Fast path for requests with one head."""

    __slots__ = (
        "_bound", "_came_ns", "_cuts", "_dispatcher", "_kept", "_polling", "_replies", "_shapes",
        "_single", "_statistics", "_tensors", "_wanted", "gathers", "head", "most", "size",
    )  # fmt: skip

    def __init__(
        self,
        head: RequestHead,
        dispatcher: Dispatcher,
        statistics: ModelStatistics,
        kept: KeptBindings,
        polling: BusyPolling,
        most: int,
    ) -> None:
        """Compute at most `most` requests at once."""
        self.head = head
        self.size = head.total_size
        """Bytes of a request's tensors, which are contiguous."""
        self.most = most
        self.gathers = most > 1
        """True if requests are computed with `gather`, otherwise with `compute_one`."""
        self._single: BoundRows | None = None
        """Bound memory used by the last call of `compute_one`."""
        self._wanted: list[memoryview] = []
        """Outputs in `_single`."""
        self._shapes: Sequence[Sequence[int]] = ()
        """Shapes of a request's outputs; bindings with other ones are not used."""
        self._tensors: list[memoryview] = []
        self._replies: list[Reply] = []
        self._came_ns = 0
        self._dispatcher = dispatcher
        self._statistics = statistics
        self._kept = kept
        self._polling = polling
        self._bound: dict[int, BoundRows] = {}
        """Bound memory by number of requests."""
        self._cuts: list[slice] = []
        at = 0
        for bound in head.inputs:
            self._cuts.append(slice(at, at + bound.size))
            at += bound.size

    def compute(self, tensors: Sequence[Buffer], came_ns: int, ends_ns: int, answer: Answer) -> int:
        """Compute requests of `size` bytes each, received at `came_ns`; `answer` copies their outputs.

        Returns the number computed. The remaining requests must take the regular path, or wait if
        `ends_ns` has come.
        """
        total, most = len(tensors), self.most
        done = 0
        if total >= most:
            done = self._compute_alike(tensors, 0, most, (came_ns, ends_ns), answer)
        if total - done < most:
            done += self._compute_alike(tensors, done, total - done, (came_ns, ends_ns), answer)
        return done

    def compute_one(self, tensors: Buffer) -> list[bytes] | None:
        """Compute a request that was just received and return the data of its outputs, or None if it
        must take the regular path.
        """
        bound, head, dispatcher = self._single, self.head, self._dispatcher
        if bound is None or not bound.alive:
            bound = self._single = self._find(1)
            if bound is None:
                return None
            self._wanted = bound.wanted(head)
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
        outputs = [bytes(data) for data in self._wanted]
        ended_ns = _clock()
        phases_ns = 0, gathered_ns - started_ns, computed_ns - gathered_ns, ended_ns - computed_ns
        self._statistics.computed(1, 1, head.batch_size, phases_ns, ended_ns)
        dispatcher.computed_here(computed_ns - started_ns, head.row_size)
        self._polling.computed(started_ns, ended_ns)
        return outputs

    def gather(self, tensors: Buffer, reply: Reply) -> bool:
        """Compute a request together with those that are read in the same iteration of the event loop;
        then `reply` is called. Return False if it must take the regular path.
        """
        dispatcher = self._dispatcher
        if dispatcher.gathering is not self:
            if not dispatcher.gather(self, self.head.row_size):
                return False
            self._came_ns = _clock()
        self._tensors.append(memoryview(tensors))
        self._replies.append(reply)
        return True

    def compute_gathered(self) -> None:
        """Compute the gathered requests, called by the dispatcher."""
        tensors, replies = self._tensors, self._replies
        self._tensors, self._replies = [], []
        ends_ns = _clock() + _TURN_NS
        done = 0

        def answer(bound: BoundRows, first: int, count: int, now_ns: int) -> None:  # noqa: ARG001
            nonlocal done
            outputs = [bytes(memory) for memory in bound.wanted(self.head)]
            sizes = [len(data) // count for data in outputs]
            for index in range(count):
                done = first + index + 1
                parts = zip(outputs, sizes, strict=True)
                replies[first + index]([data[index * size : (index + 1) * size] for data, size in parts])

        try:
            self.compute(tensors, self._came_ns, ends_ns, answer)
        finally:
            if done < len(replies) and not (
                _clock() >= ends_ns and self._gather_again(tensors[done:], replies[done:])
            ):
                for reply in replies[done:]:
                    reply(None)

    def _gather_again(self, tensors: list[memoryview], replies: list[Reply]) -> bool:
        """Compute the rest of the gathered requests in the next iteration. Return False if they must take
        the regular path.
        """
        dispatcher = self._dispatcher
        if dispatcher.gathering is not self and not dispatcher.gather(self, self.head.row_size):
            return False
        self._tensors[:0], self._replies[:0] = tensors, replies
        return True

    def give_up_gathered(self) -> None:
        """Let the gathered requests take the regular path, because others join them."""
        replies, self._tensors, self._replies = self._replies, [], []
        for reply in replies:
            reply(None)

    def outputs(self) -> list[Tensor]:
        """Return a request's outputs, with any data, once a request was computed."""
        bound = next(bound for bound in (self._single, *self._bound.values()) if bound is not None)
        return self.tensors(bound)

    def tensors(self, bound: BoundRows) -> list[Tensor]:
        """Return the outputs of the first request in `bound`. Raises ExecutionError."""
        head = self.head
        return [bound.output(wanted.spec).tensor(wanted.spec, 0, head.batch_size) for wanted in head.outputs]

    def _compute_alike(
        self,
        tensors: Sequence[Buffer],
        first: int,
        count: int,
        span_ns: tuple[int, int],
        answer: Answer,
    ) -> int:
        """Compute batches of `count` requests, beginning at `first`, which came at the first time and until
        the second one. Return the number of requests computed.
        """
        came_ns, ends_ns = span_ns
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
        for index in range(first, len(tensors) - count + 1, count):
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
            if not dispatcher.computed_here(computed_ns - started_ns, row_size) or ended_ns >= ends_ns:
                break
        if executions:
            phases_ns = waited_ns, input_ns, infer_ns, output_ns
            self._statistics.computed(executions, count, head.batch_size, phases_ns, ended_ns)
            self._polling.computed(came_ns, ended_ns, executions * count)
        return executions * count

    def _find(self, count: int) -> BoundRows | None:
        self._bound.pop(count, None)
        bound = self._kept.known(self.head, count * self.head.batch_size)
        if bound is None or not bound.alive:
            return None
        try:
            shapes = [tensor.shape for tensor in self.tensors(bound)]
        except ExecutionError:
            return None
        if self._shapes and shapes != self._shapes:
            return None
        self._shapes = shapes
        self._bound[count] = bound
        return bound

    def _gather(self, bound: BoundRows, tensors: Sequence[Buffer]) -> None:
        """Copy the tensors into the bound memory. Raises ValueError if the sizes differ."""
        if len(self._cuts) == 1:
            bound.inputs[0][:] = b"".join(tensors)
        else:
            for memory, cut in zip(bound.inputs, self._cuts, strict=True):
                memory[:] = b"".join([each[cut] for each in tensors])
