"""A graph compiled for the outputs that a request asks for, with numbers instead of names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest, Parameter, RequestedOutput
from tpx.serving.ensemble.graph import EnsembleStep, Graph
from tpx.serving.host import Callee
from tpx.serving.model_id import ModelId
from tpx.serving.request import RequestHead

_KNOWN_HEADS = 256

Shape = tuple[int, ...]
SequenceParameters = dict[str, Parameter]
"""`sequence_id` if there is one, `sequence_start`, and `sequence_end`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """An input of a step, and its source."""

    name: str
    tensor: int
    rank: int


class Call:
    """Context of a request: the step and its iteration."""

    __slots__ = ("iteration", "sequence", "step")

    def __init__(self, step: int, iteration: int) -> None:
        self.step = step
        self.iteration = iteration
        self.sequence: SequenceParameters | None = None
        """Sequence parameters set by earlier steps."""


class PlanStep:
    """A step of a plan. Caches the heads of its requests, which are equal for equal shapes."""

    def __init__(self, step: EnsembleStep, numbers: Mapping[str, int]) -> None:
        self.model: ModelId = step.model
        self.version = step.version
        self.decoupled = step.decoupled
        self.inputs = tuple(
            StepInput(name=name, tensor=numbers[tensor], rank=step.ranks[name])
            for name, tensor in step.inputs.items()
        )
        self.outputs = {name: numbers[tensor] for name, tensor in step.outputs.items() if tensor in numbers}
        """Numbers of the required output tensors, by the model's names."""
        self.streamed: tuple[int, ...] = ()
        """Input tensors with iterations: the step is called once per iteration."""
        self.iterates = False
        """True if its outputs have iterations."""
        self._model: Callee | None = None
        self._heads: dict[tuple[Shape | None, ...], RequestHead] = {}

    def head(
        self,
        model: Callee,
        values: Sequence[Tensor | None],
        request_id: str,
        parameters: dict[str, Parameter],
    ) -> RequestHead:
        """Return the head of a request with these input values. Raises InvalidRequest.

        Datatypes were checked when the ensemble was composed, sizes when the tensors were created.
        """
        if model is not self._model:
            self._model = model
            self._heads.clear()
        key = tuple([None if value is None else value.shape for value in values])
        known = self._heads.get(key)
        if known is None:
            inputs = [
                Tensor(given.name, value.datatype, value.shape, value.data)
                for given, value in zip(self.inputs, values, strict=True)
                if value is not None
            ]
            known = model.bind(
                DecodedRequest(
                    model_name=self.model.name,
                    request_id=request_id,
                    parameters=parameters,
                    inputs=inputs,
                    outputs=[RequestedOutput(name=name) for name in self.outputs],
                    default_binary=True,
                )
            )
            if known.total_size >= 0:
                if len(self._heads) >= _KNOWN_HEADS:
                    self._heads.clear()
                self._heads[key] = known
        if (
            known.request_id == request_id
            and known.parameters == parameters
            # true == 1 in Python, but they differ for a model
            and (not parameters or _list_types(known.parameters) == _list_types(parameters))
        ):
            return known
        return RequestHead(known.model, request_id, known.inputs, known.outputs, known.batch_size, parameters)


def _list_types(parameters: Mapping[str, Parameter]) -> list[type]:
    return [type(value) for value in parameters.values()]


class EnsemblePlan:
    """The steps needed for some outputs. Tensors are numbered; they come once, or in iterations."""

    def __init__(self, graph: Graph, wanted: Sequence[str]) -> None:
        steps = graph.needed(wanted)
        read = {tensor for step in steps for tensor in step.inputs.values()}
        written = {tensor for step in steps for tensor in step.outputs.values()}
        numbers = {tensor: n for n, tensor in enumerate(sorted(read | set(wanted)))}
        self.steps = tuple(PlanStep(step, numbers) for step in steps)
        self.tensors = len(numbers)
        self.given = {name: numbers[name] for name in graph.inputs - written if name in numbers}
        """Numbers of the ensemble's inputs that are needed."""
        self.wanted = tuple(numbers[name] for name in wanted)
        self.consumers: list[list[int]] = [[] for _ in numbers]
        """Steps that consume each tensor, by number, once per input."""
        for number, step in enumerate(self.steps):
            for given in step.inputs:
                self.consumers[given.tensor].append(number)
        self.uses = [len(taken) for taken in self.consumers]
        for tensor in self.wanted:
            self.uses[tensor] += 1
        """How often a value is used, including by the response to the client."""
        streams: set[int] = set()
        for step in self.steps:  # in order: those behind a decoupled model have iterations
            step.streamed = tuple(dict.fromkeys(g.tensor for g in step.inputs if g.tensor in streams))
            step.iterates = step.decoupled or bool(step.streamed)
            if step.iterates:
                streams.update(step.outputs.values())
        self.streams = frozenset(streams)
        """Tensors with iterations."""
        for step in self.steps:
            for given in step.inputs if step.streamed else ():
                # used by any number of iterations
                self.uses[given.tensor] += given.tensor not in self.streams
        self.missing = [sum(given.tensor not in self.streams for given in step.inputs) for step in self.steps]
        """Number of inputs that come once, per step."""
        self.wanted_once = sum(tensor not in self.streams for tensor in self.wanted)
        self.wanted_streams = tuple(tensor for tensor in self.wanted if tensor in self.streams)
        self.max_inflight = graph.max_inflight
