"""One request on its way through an ensemble: which steps can go now, and what has come of them; and
the sequence that a step makes those behind it part of (Triton:
core/src/ensemble_scheduler/ensemble_scheduler.cc).

Everything here runs on the event loop; tensors pass from step to step as they are, uncopied.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpx.errors import Cancelled, Code, ExecutionError, TpxError
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import Parameter
from tpx.serving.backpressure import ResponseBackpressure
from tpx.serving.ensemble.flow import Flow
from tpx.serving.ensemble.plan import Call, Composing, EnsemblePlan, PlanStep, Shape, StepInput
from tpx.serving.model_id import ModelId
from tpx.serving.request import Computation, InferRequest, InferResponse, RequestTrace, TensorSpec
from tpx.serving.stacking.plain import client_shape

log = logging.getLogger(__name__)

Resolve = Callable[[ModelId, str], Composing]
"""Finds the model that serves a version. Raises NotFound, NotReady."""
Answer = Callable[["EnsembleRun", InferRequest, InferResponse], None]
"""Takes the responses of a run; the one that is final is the last."""


SequenceParameters = dict[str, Parameter]
"""`sequence_id`, where there is one, `sequence_start` and `sequence_end`."""

_FLAGS = ("sequence_start", "sequence_end")
_MOST = 2**64


def sequence_of(parameters: Mapping[str, Parameter]) -> SequenceParameters:
    """Return what an answer tells of the sequence of a request with these parameters: always all three."""
    return {
        "sequence_id": parameters.get("sequence_id", 0),
        "sequence_start": parameters.get("sequence_start", False),
        "sequence_end": parameters.get("sequence_end", False),
    }


def said_of_sequence(
    said: Mapping[str, Parameter], before: Mapping[str, Parameter]
) -> SequenceParameters | None:
    """Return what the parameters of a response make of the sequence of the step's own request, which has
    `before`.

    None where they say nothing of it; with any of the three, a flag that is not among them is off. Raises
    ExecutionError.
    """
    if "sequence_id" not in said and not any(flag in said for flag in _FLAGS):
        return None
    sequence: SequenceParameters = {flag: said.get(flag, False) for flag in _FLAGS}
    for flag in _FLAGS:
        if not isinstance(sequence[flag], bool):
            raise ExecutionError(
                f"expected response parameter '{flag}' to be a bool, got {sequence[flag]!r}",
                code=Code.INVALID_ARGUMENT,
            )
    identity = said.get("sequence_id", before.get("sequence_id", 0))
    whole = isinstance(identity, int) and not isinstance(identity, bool) and 0 <= identity < _MOST
    if not whole and not isinstance(identity, str):
        raise ExecutionError(
            f"expected response parameter 'sequence_id' to be a whole number or a string, got {identity!r}",
            code=Code.INVALID_ARGUMENT,
        )
    return {"sequence_id": identity, **sequence}


class Overrides:
    """Overrides by the steps of one run, by iteration, until all that read it have taken it.

    Readers are the steps right behind, by number, and behind the last one the answer to the client.
    """

    def __init__(self, plan: EnsemblePlan) -> None:
        steps, producers = plan.steps, plan.producers
        self._plan = plan
        self._answer = len(steps)
        read = [*([given.tensor for given in step.inputs] for step in steps), plan.wanted]
        self._sources = [
            tuple(dict.fromkeys(producers[tensor] for tensor in tensors if tensor in producers))
            for tensors in read
        ]
        """The steps right before each reader, in the order of what it reads."""
        self._readers = [sum(number in before for before in self._sources) for number in range(len(steps))]
        self._said: dict[tuple[int, int], list[Any]] = {}
        """[what was said, how many readers have still to take it]."""

    def put(self, step: int, iteration: int, sequence: SequenceParameters) -> None:
        """A response has said it, or the request that it answers had it."""
        if self._readers[step]:
            self._said[step, iteration] = [sequence, self._readers[step]]

    def take(self, call: Call) -> SequenceParameters | None:
        """Return what holds for a call; where steps before it disagree, what was said for its first input."""
        return self._take(call.step, call.iteration)

    def take_for_answer(self, iteration: int) -> SequenceParameters | None:
        """Return what holds for an answer; where steps disagree, what was said for its first output."""
        return self._take(self._answer, iteration)

    def _take(self, reader: int, iteration: int) -> SequenceParameters | None:
        found: SequenceParameters | None = None
        for source in self._sources[reader]:
            iterates = self._plan.steps[source].iterates
            key = source, iteration if iterates else 0
            kept = self._said.get(key)
            if kept is None:
                continue
            if iterates:  # what comes once may be wanted for any number of iterations
                kept[1] -= 1
                if not kept[1]:
                    del self._said[key]
            if found is None:
                found = kept[0]
            elif found != kept[0] and reader != self._answer:
                model = self._plan.steps[reader].model
                log.error("steps before '%s' say different things of its sequence: %s is used", model, found)
        return found


class _PhaseSums:
    """The sums of the phases of all steps, for the statistics of the ensemble."""

    __slots__ = ("infer_ns", "input_ns", "output_ns", "queue_ns")

    def __init__(self) -> None:
        self.queue_ns = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0

    def add(self, request: InferRequest, times: Computation) -> None:
        """Add a step, unless it was answered without being computed."""
        started_ns = times.started_ns
        if not started_ns:
            return
        self.queue_ns += started_ns - request.arrived_ns
        self.input_ns += times.gathered_ns - started_ns
        self.infer_ns += times.computed_ns - times.gathered_ns
        self.output_ns += times.ended_ns - times.computed_ns


class _StepTrace:
    """Implements RequestTrace for steps: adds their times up, and passes them on to the trace of a step."""

    __slots__ = ("_inner", "_times")

    def __init__(self, times: _PhaseSums, inner: RequestTrace | None) -> None:
        self._times = times
        self._inner = inner

    @property
    def context(self) -> str:
        return self._inner.context if self._inner is not None else ""

    def computed(self, request: InferRequest, times: Computation, response: InferResponse) -> None:
        if response.final:
            self._times.add(request, times)
        if self._inner is not None:
            self._inner.computed(request, times, response)

    def refused(self) -> None:
        if self._inner is not None:
            self._inner.refused()

    def child(self, request: InferRequest) -> RequestTrace:
        return _StepTrace(self._times, self._inner.child(request) if self._inner is not None else None)


class EnsembleRun:
    """Also the `backpressure` of its request: cancelling and stalling that reach the steps under way.

    What comes once is counted: a step is called when nothing that it needs is missing. A tensor behind a
    decoupled model has a value for each iteration, and its consumers are called once for each (`Flow`).
    """

    __slots__ = (
        "_advancing",
        "_calls",
        "_children",
        "_flow",
        "_head",
        "_missing",
        "_name",
        "_on_answer",
        "_overrides",
        "_plan",
        "_ready",
        "_request",
        "_resolve",
        "_trace",
        "_unanswered",
        "_values",
        "answered",
        "over",
        "times",
    )

    def __init__(
        self, plan: EnsemblePlan, resolve: Resolve, request: InferRequest, on_answer: Answer
    ) -> None:
        self.times = _PhaseSums()
        self._plan = plan
        self._name = request.head.model.name
        self._resolve = resolve
        self._request = request
        self._head = request.head
        """As it came: that of the request says which outputs the last response has."""
        self._on_answer = on_answer
        self._trace = _StepTrace(self.times, None)
        self._values: list[Tensor | None] = [None] * plan.tensors
        """What comes once, by its number."""
        self._missing = plan.missing.copy()
        self._unanswered = plan.wanted_once
        self._ready: deque[Call] = deque()
        self._children: set[InferRequest] = set()
        self._advancing = False
        self.over = False
        self.answered = False
        """A first response has been given."""
        self._overrides: Overrides | None = None
        """Most steps say nothing of sequences."""
        self._flow: Flow | None = None
        if plan.streams:
            self._flow = Flow(plan, self._missing, self._ready, self._children, self.advance)
        self._take_inputs()

    def _take_inputs(self) -> None:
        request, given = self._request, self._plan.given
        absent = len(given)
        for bound, data in zip(request.head.inputs, request.buffers, strict=True):
            number = given.get(bound.spec.name)
            if number is not None:
                absent -= 1
                self._put(number, Tensor(bound.spec.name, bound.spec.datatype, bound.shape, data))
        if absent:
            there = {bound.spec.name for bound in request.head.inputs}
            for name, number in given.items():
                if name not in there:
                    self._put(number, None)

    # what `backpressure` is to InferRequest

    def end(self) -> None:
        """Cancel the steps under way."""
        for child in list(self._children):
            child.cancel()

    def stall(self, stalled: bool) -> None:
        """Stop the steps, or let them go on again, as the client reads."""
        if self._flow is not None:
            self._flow.stall(stalled)
        else:
            for child in self._children:
                child.stall(stalled)

    def delivered(self, size: int) -> None:
        """Do nothing: the steps have backpressure of their own."""

    # steps

    def advance(self) -> None:
        """Call every step that can go, and end when nothing is left to do."""
        if self._advancing:
            return  # a step has answered at once: the loop below goes on with what that made possible
        self._advancing = True
        ready = self._ready
        while ready and not self.over:
            call = ready.popleft()
            try:
                self._issue(call)
            except TpxError as exc:
                self._fail(exc)
        self._advancing = False
        if not self.over and not self._children:
            self._finish()

    def _issue(self, call: Call) -> None:
        request, step = self._request, self._plan.steps[call.step]
        if request.cancelled:
            raise Cancelled("the request was cancelled")
        model = self._resolve(step.model, step.version)
        values = [self._take(given, call.iteration) for given in step.inputs]
        parameters = request.head.parameters
        if self._overrides is not None:
            call.sequence = self._overrides.take(call)
            parameters = parameters if call.sequence is None else {**parameters, **call.sequence}
        head = step.head(model, values, request.head.request_id, parameters)
        child = InferRequest(head, [v.data for v in values if v is not None], self._replied, call)
        trace = request.trace
        child.trace = self._trace if trace is None else _StepTrace(self.times, trace.child(child))
        self._children.add(child)
        if step.decoupled:
            child.backpressure = ResponseBackpressure()
        try:
            model.submit(child)
        except TpxError:
            self._children.discard(child)
            child.trace.refused()
            raise
        if self._flow is not None and child in self._children:
            self._flow.begin(call.step, child)

    def _take(self, given: StepInput, iteration: int) -> Tensor | None:
        number = given.tensor
        if self._flow is not None and number in self._plan.streams:
            value = self._flow.take(number, iteration)
        else:
            value = self._values[number]
            if self._plan.uses[number] == 1:
                self._values[number] = None
        if value is not None and len(value.shape) != given.rank:
            value = Tensor(value.name, value.datatype, _adapted(value.shape, given.rank), value.data)
        return value

    def _replied(self, child: InferRequest, response: InferResponse) -> None:
        if self.over or child not in self._children:
            return
        if response.final:
            self._children.discard(child)
        if response.error is not None:
            self._fail(response.error)
            return
        call: Call = child.context
        step = self._plan.steps[call.step]
        sequence = call.sequence
        if response.parameters:
            try:
                sequence = self._sequence_of(call, response.parameters)
            except TpxError as exc:
                self._fail(exc)
                return
        if self._flow is not None and step.iterates:
            self._take_iteration(self._flow, child, response, sequence)
        else:
            self._override(call.step, 0, sequence)
            self._take_outputs(step, response.outputs)
            if not response.final:  # its model has become decoupled since the ensemble was composed
                self._children.discard(child)
                child.cancel()
        if not self.over:
            if self._flow is not None:
                self._flow.balance()
            self.advance()

    def _take_outputs(self, step: PlanStep, outputs: Sequence[Tensor]) -> None:
        for tensor in outputs:
            self._put(step.outputs[tensor.name], tensor)
        if len(outputs) != len(step.outputs):
            there = {tensor.name for tensor in outputs}
            for name, number in step.outputs.items():
                if name not in there:
                    self._put(number, None)

    def _sequence_of(self, call: Call, said: Mapping[str, Parameter]) -> SequenceParameters | None:
        """Return what the steps behind a response have to be told, and the client, if it is not what they
        know."""
        before = self._request.head.parameters if call.sequence is None else call.sequence
        sequence = said_of_sequence(said, before)
        return call.sequence if sequence is None or sequence == sequence_of(before) else sequence

    def _override(self, step: int, iteration: int, sequence: SequenceParameters | None) -> None:
        if sequence is None:
            return
        if self._overrides is None:
            self._overrides = Overrides(self._plan)
        self._overrides.put(step, iteration, sequence)

    def _take_iteration(
        self, flow: Flow, child: InferRequest, response: InferResponse, sequence: SequenceParameters | None
    ) -> None:
        call: Call = child.context
        step = self._plan.steps[call.step]
        if response.outputs or not step.decoupled:
            given = {tensor.name: tensor for tensor in response.outputs}
            iteration = flow.index_of(call)
            self._override(call.step, iteration, sequence)
            for name, number in step.outputs.items():
                flow.put(number, iteration, given.get(name))
        if response.final:
            flow.finished(call.step, child)
        self._answer_iterations(flow)

    # values

    def _put(self, number: int, value: Tensor | None) -> None:
        """Take a tensor that comes once; None: the model has left it out, or the client.

        A step that cannot do without it refuses the request that then comes.
        """
        plan = self._plan
        self._values[number] = value
        for step in plan.consumers[number]:
            self._missing[step] -= 1
            if not self._missing[step]:
                self._enable(step)
        if number in plan.wanted:
            self._unanswered -= plan.wanted.count(number)
            if not self._unanswered:
                if self._flow is None:
                    self._answer()
                else:
                    self._answer_iterations(self._flow)

    def _enable(self, step: int) -> None:
        if self._flow is not None and self._plan.steps[step].streamed:
            self._flow.look(step)
        else:
            self._ready.append(Call(step, 0))

    # answers

    def _answer(self) -> None:
        values = [self._values[number] for number in self._plan.wanted]
        response = self._response(values, 0)
        if self._request.head.model.decoupled:
            response.final = False
            self._on_answer(self, self._request, response)
            response = InferResponse([])
        self._close(response)

    def _answer_iterations(self, flow: Flow) -> None:
        """Send every response whose outputs are all there, in order."""
        while not self.over and not self._unanswered:
            iteration = flow.answered
            values = flow.next_answer(self._values)
            if values is None:
                return
            response = self._response(values, iteration)
            response.final = False
            self._on_answer(self, self._request, response)

    def _response(self, values: Sequence[Tensor | None], iteration: int) -> InferResponse:
        """Make a response of the values, without those that a step has left out."""
        head = self._head
        batched = head.model.max_batch_size > 0
        given = [
            (bound, value) for bound, value in zip(head.outputs, values, strict=True) if value is not None
        ]
        response = InferResponse(
            [
                Tensor(bound.spec.name, v.datatype, _answered_shape(bound.spec, v.shape, batched), v.data)
                for bound, v in given
            ]
        )
        complete = len(given) == len(values)
        self._request.head = head if complete else head.with_outputs(tuple([bound for bound, _ in given]))
        if given:
            said = self._overrides.take_for_answer(iteration) if self._overrides is not None else None
            response.parameters = said if said is not None else sequence_of(head.parameters)
        return response

    def _finish(self) -> None:
        """End the request once nothing is under way and nothing can be called."""
        if self._flow is None or self._unanswered or self._flow.stuck:
            identity = self._request.head.request_id or "<id_unknown>"
            self._fail(
                ExecutionError(
                    f"[request id: {identity}] unexpected deadlock, at least one output is not set while no "
                    "more ensemble steps can be made"
                )
            )
            return
        self._close(InferResponse([]))

    def _fail(self, error: TpxError) -> None:
        """Answer with the first error; cancel the steps under way."""
        named = type(error)(f"in ensemble '{self._name}', {error.message}", code=error.code)
        self._close(InferResponse([], named))

    def _close(self, response: InferResponse) -> None:
        self.over = True
        if self._children:
            self.end()
        self._children.clear()
        if self._flow is not None:
            self._flow.close()
            self._flow = None  # they know each other: a cycle
        self._on_answer(self, self._request, response)


def _adapted(shape: Shape, rank: int) -> Shape:
    """A batch of one gets its dimension where a model batches, and loses it where one does not."""
    if len(shape) == rank - 1:
        return (1, *shape)
    if len(shape) == rank + 1 and shape[0] == 1:
        return shape[1:]
    return shape


def _answered_shape(spec: TensorSpec, shape: Shape, batched: bool) -> Shape:
    rank = len(spec.model_dims) + batched
    if len(shape) != rank:
        shape = _adapted(shape, rank)
    return shape if spec.model_dims is spec.dims else client_shape(spec, shape, batched=batched)
