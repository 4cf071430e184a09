"""One request on its way through an ensemble: which steps can go now, and what has come of them.

Everything here runs on the event loop; tensors pass from step to step as they are, uncopied.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from tpx.errors import Cancelled, ExecutionError, TpxError
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest, RequestedOutput
from tpx.serving.ensemble.graph import Graph, Step
from tpx.serving.request import (
    Computation,
    InferRequest,
    InferResponse,
    RequestHead,
    RequestTrace,
)


class Composing(Protocol):
    """A model as a step uses it."""

    decoupled: bool

    def bind(self, request: DecodedRequest) -> RequestHead:
        """Raises InvalidRequest."""

    def submit(self, request: InferRequest) -> None:
        """Raises RequestError."""


Resolve = Callable[[str, str], Composing]
"""The model that serves a name and version. Raises NotFound, NotReady."""
Answer = Callable[["EnsembleRun", InferRequest, InferResponse], None]
"""Takes the responses of a run; one that is empty or an error is the last."""


class Times:
    """What the steps of a request took, summed: what the statistics of an ensemble have."""

    __slots__ = ("infer_ns", "input_ns", "output_ns", "queue_ns")

    def __init__(self) -> None:
        self.queue_ns = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0

    def add(self, request: InferRequest, times: Computation) -> None:
        if not times.started_ns:
            return
        self.queue_ns += times.started_ns - request.arrived_ns
        self.input_ns += times.gathered_ns - times.started_ns
        self.infer_ns += times.computed_ns - times.gathered_ns
        self.output_ns += times.ended_ns - times.computed_ns


class _Value:
    """A tensor, or that a model has left it out, and how many will still use it."""

    __slots__ = ("tensor", "uses")

    def __init__(self, tensor: Tensor | None, uses: int) -> None:
        self.tensor = tensor
        self.uses = uses


class StepTrace:
    """Implements RequestTrace for a step: adds its times up, and tells the trace of the request, if any."""

    __slots__ = ("_inner", "_times")

    def __init__(self, times: Times, inner: RequestTrace | None) -> None:
        self._times = times
        self._inner = inner

    def computed(self, request: InferRequest, times: Computation, response: InferResponse) -> None:
        if response.final:
            self._times.add(request, times)
        if self._inner is not None:
            self._inner.computed(request, times, response)

    def refused(self) -> None:
        if self._inner is not None:
            self._inner.refused()

    def child(self, request: InferRequest) -> RequestTrace:
        return StepTrace(self._times, self._inner.child(request) if self._inner is not None else None)


class _Progress:
    """How far a step has come with this request."""

    __slots__ = ("inflight", "issued", "produced", "step")

    def __init__(self, step: Step) -> None:
        self.step = step
        self.issued = 0
        """How many times it was called: with the first, second ... tensors of its inputs."""
        self.produced = 0
        """How many responses it has given, if its model is decoupled."""
        self.inflight = 0


class EnsembleRun:
    """Also the `pace` of its request: cancelling and stalling that reach the steps under way.

    A tensor has a value for each iteration: one, but behind a decoupled model as many as its responses. A
    step is called once for each iteration that all of its inputs have.
    """

    def __init__(self, graph: Graph, resolve: Resolve, request: InferRequest, on_answer: Answer) -> None:
        self.times = Times()
        self._graph = graph
        self._resolve = resolve
        self._request = request
        self._on_answer = on_answer
        self._wanted = [bound.spec.name for bound in request.head.outputs]
        self._progress = [_Progress(step) for step in graph.needed(self._wanted)]
        self._iterated: set[str] = set()
        """Tensors with any number of iterations."""
        self._uses: dict[str, int] = {}
        """How often each value of a tensor is used."""
        for step in (progress.step for progress in self._progress):
            for tensor in step.inputs.values():
                self._uses[tensor] = self._uses.get(tensor, 0) + 1
        for tensor in self._wanted:
            self._uses[tensor] = self._uses.get(tensor, 0) + 1
        self._values: dict[str, dict[int, _Value]] = {tensor: {} for tensor in self._uses}
        self._children: set[InferRequest] = set()
        self._answered = 0
        self._advancing = self._again = False
        self.over = False
        for bound, data in zip(request.head.inputs, request.buffers, strict=True):
            value = Tensor(bound.spec.name, bound.spec.datatype, bound.shape, data)
            self._put(bound.spec.name, 0, value)
        for name in graph.inputs - {bound.spec.name for bound in request.head.inputs}:
            self._put(name, 0, None)

    # what `pace` is to InferRequest

    def end(self) -> None:
        """Nobody waits for the answer any more."""
        for child in list(self._children):
            child.cancel()

    def stall(self, stalled: bool) -> None:
        """The client does not take the responses that it has, or does again."""
        for child in list(self._children):
            child.stall(stalled)

    def delivered(self, size: int) -> None:
        """A response is with whoever sends it; the steps have their own pace."""

    # steps

    def advance(self) -> None:
        """Call every step that can go, answer what is complete, and end when nothing is left to do."""
        if self._advancing:
            self._again = True  # a step has answered at once: the loop below goes on with it
            return
        self._advancing = True
        try:
            self._again = True
            while self._again and not self.over:
                self._again = False
                for progress in self._progress:
                    self._call(progress)
                self._answer()
        finally:
            self._advancing = False
        if not self.over and not self._children:
            self._finish()

    def _call(self, progress: _Progress) -> None:
        limit = self._graph.max_inflight
        while not self.over and self._is_ready(progress):
            if limit and progress.inflight >= limit:
                return
            iteration = progress.issued
            progress.issued += 1
            if self._request.cancelled:
                self._fail(Cancelled("the request was cancelled"))
                return
            try:
                self._issue(progress, iteration)
            except TpxError as exc:
                self._fail(exc)

    def _is_ready(self, progress: _Progress) -> bool:
        """Whether all inputs have a value for the next iteration; a step without a decoupled model before it
        has one."""
        iterates = False
        for tensor in progress.step.inputs.values():
            if tensor in self._iterated:
                iterates = True
                if progress.issued not in self._values[tensor]:
                    return False
            elif 0 not in self._values[tensor]:
                return False
        return iterates or not progress.issued

    def _issue(self, progress: _Progress, iteration: int) -> None:
        step, head = progress.step, self._request.head
        model = self._resolve(step.model_name, step.version)
        if model.decoupled or any(tensor in self._iterated for tensor in step.inputs.values()):
            self._iterated.update(step.outputs.values())
        inputs = []
        for name, tensor in step.inputs.items():
            value = self._take(tensor, iteration)
            if value is not None:
                inputs.append(Tensor(name, value.datatype, value.shape, value.data))
        decoded = DecodedRequest(
            model_name=step.model_name,
            request_id=head.request_id,
            parameters=head.parameters,
            inputs=inputs,
            outputs=[RequestedOutput(name=name) for name in step.outputs],
            default_binary=True,
        )
        reply = partial(self._replied, progress, iteration, decoupled=model.decoupled)
        child = InferRequest(model.bind(decoded), [tensor.data for tensor in inputs], reply, None)
        inner = self._request.trace
        child.trace = StepTrace(self.times, inner.child(child) if inner is not None else None)
        progress.inflight += 1
        self._children.add(child)
        try:
            model.submit(child)
        except TpxError:
            progress.inflight -= 1
            self._children.discard(child)
            child.trace.refused()
            raise

    def _replied(
        self,
        progress: _Progress,
        iteration: int,
        child: InferRequest,
        response: InferResponse,
        *,
        decoupled: bool,
    ) -> None:
        if response.final:
            progress.inflight -= 1
            self._children.discard(child)
        if self.over:
            return
        if response.error is not None:
            self._fail(response.error)
            return
        if response.outputs or not decoupled:
            index = progress.produced if decoupled else iteration
            progress.produced += 1
            given = {tensor.name: tensor for tensor in response.outputs}
            for name, tensor in progress.step.outputs.items():
                self._put(tensor, index, given.get(name))
        self.advance()

    # values

    def _put(self, tensor: str, iteration: int, value: Tensor | None) -> None:
        if tensor in self._uses:
            self._values[tensor][iteration] = _Value(value, self._uses[tensor])

    def _take(self, tensor: str, iteration: int) -> Tensor | None:
        """A value for one of its uses; after the last one it is let go, but one for all iterations stays."""
        if tensor not in self._iterated:
            return self._values[tensor][0].tensor
        value = self._values[tensor][iteration]
        value.uses -= 1
        if not value.uses:
            del self._values[tensor][iteration]
        return value.tensor

    # answers

    def _answer(self) -> None:
        """Send every response whose outputs are all there, in order."""
        while not self.over:
            index = self._answered
            iterates = any(name in self._iterated for name in self._wanted)
            if index and not iterates:
                return
            if any((index if n in self._iterated else 0) not in self._values[n] for n in self._wanted):
                return
            values = [(name, self._take(name, index)) for name in self._wanted]
            if any(value is None for _, value in values):
                return  # a model has left an output out: nothing more can come of it
            outputs = [Tensor(n, v.datatype, v.shape, v.data) for n, v in values if v is not None]
            self._answered += 1
            self._on_answer(self, self._request, InferResponse(outputs))

    def _finish(self) -> None:
        """Nothing is under way, and nothing can be called."""
        if not self._answered and not self._iterated:
            identity = self._request.head.request_id or "<id_unknown>"
            self._fail(
                ExecutionError(
                    f"[request id: {identity}] unexpected deadlock, at least one output is not set while no "
                    "more ensemble steps can be made"
                )
            )
            return
        self.over = True
        self._on_answer(self, self._request, InferResponse([]))

    def _fail(self, error: TpxError) -> None:
        """The first error is the answer; steps under way are given up."""
        self.over = True
        self.end()
        named = type(error)(f"in ensemble '{self._graph.name}', {error.message}", code=error.code)
        self._on_answer(self, self._request, InferResponse([], named))
