"""Models that answer when a test says so, and a client of an ensemble of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from google.protobuf import text_format

from tests.serving.fakes import signature_of
from tpx.errors import Cancelled, NotFound, TpxError
from tpx.protocol import messages
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest, Parameter, RequestedOutput
from tpx.serving.cache import ResponseCache
from tpx.serving.ensemble.composition import compose
from tpx.serving.ensemble.graph import graph_of
from tpx.serving.ensemble.model import Ensemble
from tpx.serving.model_id import ModelId
from tpx.serving.request import InferRequest, InferResponse, RequestHead
from tpx.serving.signature import Signature

Compute = Callable[[list[float]], Sequence[Sequence[float]]]


def config_of(text: str) -> Any:
    return text_format.Parse(text, messages.ModelConfig())


def tensors(kind: str, *names: str) -> str:
    return " ".join(f"{kind} {{ name: '{n}' data_type: TYPE_FP32 dims: [-1] }}" for n in names)


class Composing:
    """A model with one input `x` and one output `y`; `answer` lets its oldest request go."""

    version, max_batch_size, retired, levels = 1, 0, False, 0
    composed_of: frozenset[ModelId] = frozenset()

    def __init__(
        self,
        name: str,
        compute: Compute = lambda row: [row],
        *,
        decoupled: bool = False,
        late: bool = False,
        more_inputs: Mapping[str, bool] | None = None,
        gives: str = "y",
    ) -> None:
        """`more_inputs`: names, and whether they are optional. `gives`: the name of what responses have;
        empty: they have no output."""
        self.name = name
        self.model_id = ModelId(name)
        self.made: list[Tensor] = []
        self._gives = gives
        self.decoupled = decoupled
        self.says: list[dict[str, Parameter]] = []
        """The parameters of its next responses."""
        self.heard: list[dict[str, Parameter]] = []
        """Those of the requests that it has had."""
        self.config = config_of(f"name: '{name}' {tensors('input', 'x')} {tensors('output', 'y')}")
        for more, optional in (more_inputs or {}).items():
            self.config.input.add(name=more, data_type=11, dims=[-1], optional=optional)
        self.config.model_transaction_policy.decoupled = decoupled
        self.signature: Signature = signature_of(self.config)
        self.waiting: list[InferRequest] = []
        self._compute = compute
        self._late = late

    def bind(self, request: DecodedRequest) -> RequestHead:
        return self.signature.bind(self, request)

    def cancelled(self) -> None:
        pass

    def submit(self, request: InferRequest) -> None:
        self.heard.append(request.head.parameters)
        self.waiting.append(request)
        if not self._late:
            self.answer()

    def answer(self, index: int = 0) -> None:
        request = self.waiting.pop(index)
        if request.cancelled:
            request.reply(request, InferResponse([], Cancelled("the request was cancelled")))
            return
        try:
            rows = self._compute(np.frombuffer(request.buffers[0], np.float32).tolist())
        except TpxError as exc:
            request.reply(request, InferResponse([], exc))
            return
        for row in rows:
            self.give(request, row)
        if self.decoupled:
            self.end(request)

    def give(self, request: InferRequest, row: Sequence[float], *, final: bool = False) -> None:
        """One response."""
        tensor = Tensor.from_numpy(self._gives, np.array(row, np.float32))
        self.made.append(tensor)
        response = InferResponse([tensor] if self._gives else [])
        response.final = final or not self.decoupled
        response.parameters = self.says.pop(0) if self.says else None
        request.reply(request, response)

    def end(self, request: InferRequest) -> None:
        """No more responses."""
        request.reply(request, InferResponse([]))


class Client:
    """Sends to an ensemble of these models, and keeps what comes."""

    def __init__(self, text: str, *models: Composing, cache: ResponseCache | None = None) -> None:
        config = config_of(text)
        self.models = by_name = {model.name: model for model in models}
        graph = graph_of(config)
        composition = compose(config, graph, [cast("Any", by_name[step.model.name]) for step in graph.steps])
        config.model_transaction_policy.decoupled = composition.decoupled

        def resolve(model: ModelId, version: str) -> Composing:
            if model.name not in by_name:
                raise NotFound(f"Request for unknown model: '{model}' is not found")
            return by_name[model.name]

        self.ensemble = Ensemble(config, 1, signature_of(config), composition, resolve, cache)
        self.responses: list[InferResponse] = []

    def send(
        self,
        row: Sequence[float],
        outputs: Sequence[str] = (),
        request_id: str = "7",
        parameters: dict[str, Any] | None = None,
    ) -> InferRequest:
        decoded = DecodedRequest(
            model_name="whole",
            request_id=request_id,
            parameters=parameters or {},
            inputs=[Tensor.from_numpy("in", np.array(row, np.float32))],
            outputs=[RequestedOutput(name=name) for name in outputs],
        )
        head = self.ensemble.bind(decoded)
        infer = InferRequest(head, [t.data for t in decoded.inputs], self._reply, None)
        self.ensemble.submit(infer)
        return infer

    def _reply(self, request: InferRequest, response: InferResponse) -> None:
        self.responses.append(response)

    def rows(self) -> list[dict[str, Any]]:
        return [{t.name: t.numpy().tolist() for t in r.outputs} for r in self.responses]

    @property
    def error(self) -> TpxError:
        [response] = self.responses
        assert response.error is not None
        return response.error


def step(model: str, inputs: str, outputs: str) -> str:
    return (
        f"step {{ model_name: '{model}' input_map {{ key: 'x' value: '{inputs}' }} "
        f"output_map {{ key: 'y' value: '{outputs}' }} }}"
    )


CHAIN = (
    f"name: 'whole' platform: 'ensemble' {tensors('input', 'in')} {tensors('output', 'out')} "
    f"ensemble_scheduling {{ {step('plus', 'in', 'middle')} {step('twice', 'middle', 'out')} }}"
)
FORK = (
    f"name: 'whole' platform: 'ensemble' {tensors('input', 'in')} {tensors('output', 'a', 'b')} "
    f"ensemble_scheduling {{ {step('plus', 'in', 'middle')} {step('twice', 'middle', 'a')} "
    f"{step('same', 'middle', 'b')} }}"
)


def plus(row: list[float]) -> list[list[float]]:
    return [[value + 1 for value in row]]


def twice(row: list[float]) -> list[list[float]]:
    return [[value * 2 for value in row]]
