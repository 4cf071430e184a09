"""One request in an ensemble: which steps can run, their results, and the sequence parameters that a
step sets for later steps.

Triton: core/src/ensemble_scheduler/ensemble_scheduler.cc. Everything runs on the event loop; tensors
pass between steps without a copy.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tpx.errors import Cancelled, Code, ExecutionError, TpxError
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import Parameter
from tpx.serving.backpressure import ResponseBackpressure
from tpx.serving.ensemble.flow import Flow
from tpx.serving.ensemble.plan import Call, EnsemblePlan, PlanStep, SequenceParameters, Shape, StepInput
from tpx.serving.host import Callee
from tpx.serving.model_id import ModelId
from tpx.serving.request import Computation, InferRequest, InferResponse, RequestTrace
from tpx.serving.stacking.plain import client_shape

log = logging.getLogger(__name__)

Resolve = Callable[[ModelId, str], Callee]
"""Finds the model that serves a version. Raises NotFound, NotReady."""
Answer = Callable[["EnsembleRun", InferRequest, InferResponse], None]
"""Receives the responses of a run; the final one is the last."""


_FLAGS = ("sequence_start", "sequence_end")
_MOST = 2**64


def sequence_of(parameters: Mapping[str, Parameter]) -> SequenceParameters:
    """Return the sequence parameters of a response to a request with these parameters: always all three."""
    return {
        "sequence_id": parameters.get("sequence_id", 0),
        "sequence_start": parameters.get("sequence_start", False),
        "sequence_end": parameters.get("sequence_end", False),
    }


def parse_sequence_parameters(
    said: Mapping[str, Parameter], before: Mapping[str, Parameter]
) -> SequenceParameters | None:
    """Return the sequence parameters that a response sets, given those of its own request in `before`.

    Returns None if it sets none of the three; if it sets any, missing flags are off. Raises
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
    is_number = isinstance(identity, int) and not isinstance(identity, bool) and 0 <= identity < _MOST
    if not is_number and not isinstance(identity, str):
        raise ExecutionError(
            f"expected response parameter 'sequence_id' to be a whole number or a string, got {identity!r}",
            code=Code.INVALID_ARGUMENT,
        )
    return {"sequence_id": identity, **sequence}


@dataclass(slots=True)
class _PhaseSums:
    """Sums of all steps' phases, for the statistics of the ensemble."""

    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0


@dataclass(frozen=True, slots=True)
class _StepTrace:
    """Implements RequestTrace for steps: sums their times, and forwards them to the step's trace."""

    _sums: _PhaseSums
    _inner: RequestTrace | None

    @property
    def context(self) -> str:
        return self._inner.context if self._inner is not None else ""

    def computed(self, request: InferRequest, times: Computation, response: InferResponse) -> None:
        started_ns, sums = times.started_ns, self._sums
        if response.final and started_ns:  # 0 if it was answered without being computed
            sums.queue_ns += started_ns - request.arrived_ns
            sums.input_ns += times.gathered_ns - started_ns
            sums.infer_ns += times.computed_ns - times.gathered_ns
            sums.output_ns += times.ended_ns - times.computed_ns
        if self._inner is not None:
            self._inner.computed(request, times, response)

    def refused(self) -> None:
        if self._inner is not None:
            self._inner.refused()

    def child(self, request: InferRequest) -> RequestTrace:
        return _StepTrace(self._sums, self._inner.child(request) if self._inner is not None else None)


class EnsembleRun:
    """One run of an ensemble; also the `backpressure` of its request, forwarding cancellation and
    stalls to the steps.

    Inputs that come once are counted: a step is called when none is missing. A tensor behind a
    decoupled model has a value per iteration, and its consumers are called once for each (`Flow`).
    """

    def __init__(
        self, plan: EnsemblePlan, resolve: Resolve, request: InferRequest, on_answer: Answer
    ) -> None:
        self.times = _PhaseSums()
        self._plan = plan
        self._name = request.head.model.name
        self._resolve = resolve
        self._request = request
        self._head = request.head
        """Head of the request as it arrived; the request's own head describes its last response's outputs."""
        self._on_answer = on_answer
        self._trace = _StepTrace(self.times, None)
        self._values: list[Tensor | None] = [None] * plan.tensors
        """Values of tensors that come once, by number."""
        self._missing = plan.missing.copy()
        self._unanswered = plan.wanted_once
        self._ready: deque[Call] = deque()
        self._children: set[InferRequest] = set()
        self._advancing = False
        self.over = False
        self.answered = False
        """True after the first response."""
        self._sequences: dict[int, SequenceParameters] | None = None
        """Sequence parameters set by steps, by tensor that comes once; None until any step sets some."""
        self._flow: Flow | None = None
        if plan.streams:
            self._flow = Flow(plan, self._missing, self._ready, self._children, self.advance)
        inputs = zip(request.head.inputs, request.buffers, strict=True)
        self._put_values(
            plan.given, [Tensor(i.spec.name, i.spec.datatype, i.shape, data) for i, data in inputs]
        )

    # the `backpressure` of InferRequest

    def end(self) -> None:
        """Cancel the steps in flight."""
        for child in list(self._children):
            child.cancel()

    def stall(self, stalled: bool) -> None:
        """Pause or resume the steps, depending on whether the client reads."""
        if self._flow is not None:
            self._flow.stall(stalled)
        else:
            for child in self._children:
                child.stall(stalled)

    def delivered(self, size: int) -> None:
        """Do nothing: the steps have their own backpressure."""

    # steps

    def advance(self) -> None:
        """Call every step that can run, and end when nothing is left to do."""
        if self._advancing:
            return  # a step answered at once: the loop below continues with what it made ready
        self._advancing = True
        ready = self._ready
        while ready and not self.over:
            call = ready.popleft()
            try:
                self._issue_call(call)
            except TpxError as exc:
                self._fail(exc)
        self._advancing = False
        if not self.over and not self._children:
            self._finish()

    def _issue_call(self, call: Call) -> None:
        request, step = self._request, self._plan.steps[call.step]
        if request.cancelled:
            raise Cancelled("the request was cancelled")
        model = self._resolve(step.model, step.version)
        parameters = request.head.parameters
        if self._sequences is not None:
            call.sequence = self._find_sequence([given.tensor for given in step.inputs], call.iteration, step)
            if call.sequence is not None:
                parameters = {**parameters, **call.sequence}
        values = [self._take_input(given, call.iteration) for given in step.inputs]
        head = step.head(model, values, request.head.request_id, parameters)
        child = InferRequest(head, [v.data for v in values if v is not None], self._handle_reply, call)
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

    def _take_input(self, given: StepInput, iteration: int) -> Tensor | None:
        number = given.tensor
        if self._flow is not None and number in self._plan.streams:
            value = self._flow.take(number, iteration)
        else:
            value = self._values[number]
            if self._plan.uses[number] == 1:
                self._values[number] = None
        if value is not None and len(value.shape) != given.rank:
            value = Tensor(value.name, value.datatype, _adapt_shape(value.shape, given.rank), value.data)
        return value

    def _handle_reply(self, child: InferRequest, response: InferResponse) -> None:
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
                sequence = self._update_sequence(call, response.parameters)
            except TpxError as exc:
                self._fail(exc)
                return
        if self._flow is not None and step.iterates:
            self._take_iteration(self._flow, child, response, sequence)
        else:
            self._put_values(step.outputs, response.outputs, sequence)
            if not response.final:  # its model became decoupled after the ensemble was composed
                self._children.discard(child)
                child.cancel()
        if not self.over:
            if self._flow is not None:
                self._flow.balance()
            self.advance()

    def _update_sequence(self, call: Call, said: Mapping[str, Parameter]) -> SequenceParameters | None:
        """Return the sequence parameters for later steps and the client, None if they are unchanged."""
        before = self._request.head.parameters if call.sequence is None else call.sequence
        sequence = parse_sequence_parameters(said, before)
        if sequence is None or sequence == sequence_of(before):
            return call.sequence
        self._sequences = self._sequences or {}
        return sequence

    def _find_sequence(
        self, tensors: Sequence[int], iteration: int, reader: PlanStep | None = None
    ) -> SequenceParameters | None:
        """Return what the steps that made these tensors have set; if they disagree, those of the first."""
        found: SequenceParameters | None = None
        if self._sequences is None:
            return found
        for tensor in tensors:
            if self._flow is not None and tensor in self._plan.streams:
                sequence = self._flow.sequence(tensor, iteration)
            else:
                sequence = self._sequences.get(tensor)
            if found is None:
                found = sequence
            elif sequence is not None and found != sequence and reader is not None:
                log.error("steps before '%s' disagree about its sequence: %s is used", reader.model, found)
        return found

    def _take_iteration(
        self, flow: Flow, child: InferRequest, response: InferResponse, sequence: SequenceParameters | None
    ) -> None:
        call: Call = child.context
        step = self._plan.steps[call.step]
        if response.outputs or not step.decoupled:
            given = {tensor.name: tensor for tensor in response.outputs}
            iteration = flow.index_of(call)
            for name, number in step.outputs.items():
                flow.put(number, iteration, given.get(name), sequence)
        if response.final:
            flow.finished(call.step, child)
        self._answer_iterations(flow)

    # values

    def _put_values(
        self,
        numbers: Mapping[str, int],
        tensors: Sequence[Tensor],
        sequence: SequenceParameters | None = None,
    ) -> None:
        """Store tensors that come once, and None for those that the model or the client has left out.

        A step that requires them refuses the resulting request.
        """
        if sequence is not None:
            self._sequences = {**(self._sequences or {}), **dict.fromkeys(numbers.values(), sequence)}
        absent = len(numbers)
        for tensor in tensors:
            number = numbers.get(tensor.name)
            if number is not None:
                absent -= 1
                self._put_value(number, tensor)
        if absent:
            present = {tensor.name for tensor in tensors}
            for name, number in numbers.items():
                if name not in present:
                    self._put_value(number, None)

    def _put_value(self, number: int, value: Tensor | None) -> None:
        plan, flow = self._plan, self._flow
        self._values[number] = value
        for step in plan.consumers[number]:
            self._missing[step] -= 1
            if self._missing[step]:
                continue
            if flow is not None and plan.steps[step].streamed:
                flow.issue_calls(step)
            else:
                self._ready.append(Call(step, 0))
        if number in plan.wanted:
            self._unanswered -= plan.wanted.count(number)
            if not self._unanswered:
                if flow is None:
                    values = [self._values[number] for number in plan.wanted]
                    self._close(self._build_response(values, self._find_sequence(plan.wanted, 0)))
                else:
                    self._answer_iterations(flow)

    # answers

    def _answer_iterations(self, flow: Flow) -> None:
        """Send every response whose outputs have all arrived, in order.

        The last one is final if no step is in flight and none can be called.
        """
        while not self.over and not self._unanswered and flow.has_answer:
            sequence = self._find_sequence(self._plan.wanted, flow.answered)
            response = self._build_response(flow.next_answer(self._values), sequence)
            if not self._children and not self._ready and not flow.stuck:
                self._close(response)
                return
            response.final = False
            self._on_answer(self, self._request, response)

    def _build_response(
        self, values: Sequence[Tensor | None], sequence: SequenceParameters | None
    ) -> InferResponse:
        """Return a response with these values, without those that a step has left out."""
        head = self._head
        batched = head.model.max_batch_size > 0
        given = []
        response = InferResponse([])
        for bound, value in zip(head.outputs, values, strict=True):
            if value is None:
                continue
            spec, shape = bound.spec, _adapt_shape(value.shape, len(bound.spec.model_dims) + batched)
            if spec.model_dims is not spec.dims:
                shape = client_shape(spec, shape, batched=batched)
            given.append(bound)
            response.outputs.append(Tensor(spec.name, value.datatype, shape, value.data))
        self._request.head = head if len(given) == len(values) else head.with_outputs(tuple(given))
        if given:
            response.parameters = sequence if sequence is not None else sequence_of(head.parameters)
        return response

    def _finish(self) -> None:
        """End the request once nothing is in flight and nothing can be called."""
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
        """Respond with the first error and cancel the steps in flight."""
        named = type(error)(f"in ensemble '{self._name}', {error.message}", code=error.code)
        self._close(InferResponse([], named))

    def _close(self, response: InferResponse) -> None:
        self.over = True
        if self._children:
            self.end()
        self._children.clear()
        if self._flow is not None:
            self._flow.close()
            self._flow = None  # break the reference cycle
        self._on_answer(self, self._request, response)


def _adapt_shape(shape: Shape, rank: int) -> Shape:
    """Add a dimension to a batch of one for a model that batches, or remove it for one that does not."""
    if len(shape) == rank - 1:
        return (1, *shape)
    if len(shape) == rank + 1 and shape[0] == 1:
        return shape[1:]
    return shape
