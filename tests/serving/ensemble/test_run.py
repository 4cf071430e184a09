"""Requests on their way through an ensemble, over models that answer when a test says so."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from tests.serving.fakes import signature_of
from tpx.errors import Cancelled, ExecutionError, NotFound, TpxError
from tpx.protocol import messages
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest, RequestedOutput
from tpx.serving.ensemble.composition import compose
from tpx.serving.ensemble.graph import graph_of
from tpx.serving.ensemble.model import Ensemble
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
    composed_of: frozenset[str] = frozenset()

    def __init__(
        self, name: str, compute: Compute = lambda row: [row], *, decoupled: bool = False, late: bool = False
    ) -> None:
        self.name = name
        self.decoupled = decoupled
        self.config = config_of(f"name: '{name}' {tensors('input', 'x')} {tensors('output', 'y')}")
        self.config.model_transaction_policy.decoupled = decoupled
        self.signature: Signature = signature_of(self.config)
        self.waiting: list[InferRequest] = []
        self._compute = compute
        self._late = late

    def bind(self, request: DecodedRequest) -> RequestHead:
        return self.signature.bind(self, request)

    def submit(self, request: InferRequest) -> None:
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
            response = InferResponse([Tensor.from_numpy("y", np.array(row, np.float32))])
            response.final = not self.decoupled
            request.reply(request, response)
        if self.decoupled:
            request.reply(request, InferResponse([]))


class Client:
    """Sends to an ensemble of these models, and keeps what comes."""

    def __init__(self, text: str, *models: Composing) -> None:
        config = config_of(text)
        self.models = by_name = {model.name: model for model in models}
        graph = graph_of(config)
        composition = compose(config, graph, [by_name[step.model_name] for step in graph.steps])
        config.model_transaction_policy.decoupled = composition.decoupled

        def resolve(name: str, version: str) -> Composing:
            if name not in by_name:
                raise NotFound(f"Request for unknown model: '{name}' is not found")
            return by_name[name]

        self.ensemble = Ensemble(config, 1, signature_of(config), composition, resolve)
        self.responses: list[InferResponse] = []

    def send(self, row: Sequence[float], outputs: Sequence[str] = ()) -> InferRequest:
        decoded = DecodedRequest(
            model_name="whole",
            request_id="7",
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


@pytest.mark.parametrize("late", [False, True])
def test_a_chain_computes_step_after_step(late: bool) -> None:
    first, second = Composing("plus", plus, late=late), Composing("twice", twice, late=late)
    client = Client(CHAIN, first, second)
    client.send([1, 2])
    if late:
        assert not client.responses
        first.answer()
        second.answer()
    assert client.rows() == [{"out": [4, 6]}]
    assert client.responses[0].final
    assert client.ensemble.in_flight == 0
    assert client.ensemble.statistics.execution_count == 1


def test_branches_run_side_by_side() -> None:
    models = [Composing("plus", plus), Composing("twice", twice, late=True), Composing("same", late=True)]
    client = Client(FORK, *models)
    client.send([1])
    assert [len(model.waiting) for model in models] == [0, 1, 1]
    models[2].answer()
    assert not client.responses
    models[1].answer()
    assert client.rows() == [{"a": [4], "b": [2]}]


def test_steps_that_no_wanted_output_needs_are_left_out() -> None:
    models = [Composing("plus", plus), Composing("twice", twice, late=True), Composing("same")]
    client = Client(FORK, *models)
    client.send([1], ["b"])
    assert client.rows() == [{"b": [2]}]
    assert not models[1].waiting


def test_an_error_names_the_ensemble_and_ends_the_other_steps() -> None:
    def fail(row: list[float]) -> list[list[float]]:
        raise ExecutionError("it broke")

    other = Composing("twice", twice, late=True)
    client = Client(FORK, Composing("plus", plus), other, Composing("same", fail))
    client.send([1])
    assert client.error.message == "in ensemble 'whole', it broke"
    assert isinstance(client.error, ExecutionError)
    assert other.waiting[0].cancelled
    other.answer()
    assert len(client.responses) == 1
    assert client.ensemble.in_flight == 0


def test_a_model_that_is_not_there_is_an_error_of_the_ensemble() -> None:
    client = Client(CHAIN, Composing("plus", plus), Composing("twice"))
    del client.models["twice"]
    client.send([1])
    assert client.error.message == "in ensemble 'whole', Request for unknown model: 'twice' is not found"


def test_cancelling_reaches_the_step_under_way_and_no_other_begins() -> None:
    first, second = Composing("plus", plus, late=True), Composing("twice", twice)
    client = Client(CHAIN, first, second)
    request = client.send([1])
    request.cancel()
    assert first.waiting[0].cancelled
    first.answer()
    assert isinstance(client.error, Cancelled)


def test_a_decoupled_step_makes_the_ensemble_decoupled() -> None:
    each = Composing("plus", lambda row: [[value] for value in row], decoupled=True)
    client = Client(CHAIN, each, Composing("twice", twice))
    client.send([1, 2, 3])
    assert client.rows() == [{"out": [2]}, {"out": [4]}, {"out": [6]}, {}]
    assert [response.final for response in client.responses] == [False, False, False, True]


def test_answers_of_a_decoupled_ensemble_keep_their_order_whatever_step_is_faster() -> None:
    each = Composing("plus", lambda row: [[value] for value in row], decoupled=True)
    second = Composing("twice", twice, late=True)
    client = Client(CHAIN, each, second)
    client.send([1, 2, 3])
    assert len(second.waiting) == 3
    second.answer(2)
    second.answer(1)
    assert not client.responses
    second.answer(0)
    assert client.rows() == [{"out": [2]}, {"out": [4]}, {"out": [6]}, {}]


def test_only_so_many_requests_of_a_step_are_under_way() -> None:
    each = Composing("plus", lambda row: [[value] for value in row], decoupled=True)
    second = Composing("twice", twice, late=True)
    limited = CHAIN.replace("ensemble_scheduling {", "ensemble_scheduling { max_inflight_requests: 2")
    client = Client(limited, each, second)
    client.send([1, 2, 3])
    assert len(second.waiting) == 2
    second.answer()
    assert len(second.waiting) == 2
    second.answer()
    second.answer()
    assert client.rows() == [{"out": [2]}, {"out": [4]}, {"out": [6]}, {}]


def test_no_response_of_a_decoupled_model_is_an_empty_answer() -> None:
    client = Client(CHAIN, Composing("plus", lambda _: [], decoupled=True), Composing("twice", twice))
    client.send([1])
    assert client.rows() == [{}]
    assert client.responses[0].final
