"""Random graphs, answered in random order, against evaluating them one step after the other."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.serving.fakes import signature_of
from tpx.protocol import messages
from tpx.protocol.tensors import Tensor
from tpx.protocol.v2 import DecodedRequest, RequestedOutput
from tpx.serving.backpressure import ResponseBackpressure
from tpx.serving.ensemble.composition import compose
from tpx.serving.ensemble.graph import graph_of
from tpx.serving.ensemble.model import Ensemble
from tpx.serving.model_id import ModelId
from tpx.serving.request import InferRequest, InferResponse, RequestHead

Values = dict[str, float]


@dataclass
class Plan:
    """A random ensemble: per step the tensors that it takes and makes."""

    inputs: list[str]
    steps: list[tuple[list[str], list[str]]]
    outputs: list[str]
    wanted: list[str]
    decoupled: int
    """The step that gives several responses, -1 for none."""
    iterations: int
    limit: int

    def config(self) -> Any:
        """The configuration of the ensemble."""
        parts = ["name: 'whole' platform: 'ensemble'", *(_tensor("input", name) for name in self.inputs)]
        parts += [_tensor("output", name) for name in self.outputs]
        parts.append(f"ensemble_scheduling {{ max_inflight_requests: {self.limit}")
        for index, (taken, made) in enumerate(self.steps):
            maps = [f"input_map {{ key: 'i{n}' value: '{tensor}' }}" for n, tensor in enumerate(taken)]
            maps += [f"output_map {{ key: 'o{n}' value: '{tensor}' }}" for n, tensor in enumerate(made)]
            parts.append(f"step {{ model_name: 's{index}' {' '.join(maps)} }}")
        return text_format.Parse(" ".join([*parts, "}"]), messages.ModelConfig())

    def evaluate(self, values: Values) -> list[Values]:
        """What the client must get: one after the other."""
        answers = []
        streams: set[str] = set()
        for index, (taken, made) in enumerate(self.steps):
            if index == self.decoupled or streams.intersection(taken):
                streams.update(made)
        repeats = self.iterations if streams.intersection(self.wanted) else 1
        for iteration in range(repeats):
            known = dict(values)
            for index, (taken, made) in enumerate(self.steps):
                results = compute(index, [known[tensor] for tensor in taken], len(made))
                if index == self.decoupled:
                    results = [value + iteration for value in results]
                known.update(zip(made, results, strict=True))
            answers.append({name: known[name] for name in self.wanted})
        return answers


def _tensor(kind: str, name: str) -> str:
    return f"{kind} {{ name: '{name}' data_type: TYPE_FP64 dims: [1] }}"


def compute(step: int, values: list[float], outputs: int) -> list[float]:
    """Every output depends on every input, its place, and the step."""
    total = sum((n + 1) * value for n, value in enumerate(values))
    return [(total * (n + 2) + step) % 1009 for n in range(outputs)]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    tensors = [f"in{n}" for n in range(draw(st.integers(1, 3)))]
    steps: list[tuple[list[str], list[str]]] = []
    for index in range(draw(st.integers(1, 7))):
        taken = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3))
        made = [f"t{index}_{n}" for n in range(draw(st.integers(1, 2)))]
        steps.append((taken, made))
        tensors += made
    read = {tensor for taken, _ in steps for tensor in taken}
    made_all = [tensor for _, made in steps for tensor in made]
    outputs = [tensor for tensor in made_all if tensor not in read or draw(st.booleans())]
    order = draw(st.permutations(range(len(steps))))
    decoupled = draw(st.integers(-1, len(steps) - 1))
    return (
        Plan(
            inputs=[tensor for tensor in tensors if tensor.startswith("in") and tensor in read],
            steps=steps,
            outputs=outputs,
            wanted=draw(st.lists(st.sampled_from(outputs), min_size=1, unique=True)),
            decoupled=decoupled,
            iterations=draw(st.integers(0, 6)),
            limit=draw(st.sampled_from([0, 0, 1, 2])),
        )
        if order
        else draw(st.nothing())
    )


@dataclass
class Pending:
    """A request that a step's model has and has not answered, and how many responses it gave."""

    step: int
    request: InferRequest
    given: int = 0


class StepModel:
    """The model of one step; its requests wait in `pending` for the driver."""

    version, max_batch_size, retired, levels = 1, 0, False, 0
    composed_of: frozenset[ModelId] = frozenset()

    def __init__(self, index: int, taken: list[str], made: list[str], driver: "Driver") -> None:
        self.name = f"s{index}"
        self.model_id = ModelId(self.name)
        self.index = index
        self.decoupled = index == driver.plan.decoupled
        names = [_tensor("input", f"i{n}") for n in range(len(taken))]
        names += [_tensor("output", f"o{n}") for n in range(len(made))]
        self.config = text_format.Parse(f"name: '{self.name}' {' '.join(names)}", messages.ModelConfig())
        self.config.model_transaction_policy.decoupled = self.decoupled
        self.signature = signature_of(self.config)
        self._driver = driver

    def bind(self, request: DecodedRequest) -> RequestHead:
        return self.signature.bind(self, request)

    def cancelled(self) -> None:
        pass

    def submit(self, request: InferRequest) -> None:
        driver = self._driver
        driver.calls[self.index] += 1
        driver.pending.append(Pending(self.index, request))
        under_way = sum(pending.step == self.index for pending in driver.pending)
        if driver.plan.limit:
            assert under_way <= max(1, driver.plan.limit)
        if driver.chance.random() < 0.3:
            driver.answer(driver.pending[-1])  # a model may answer before `submit` returns


@dataclass
class Driver:
    """Answers what is pending, in random order."""

    plan: Plan
    chance: random.Random
    pending: list[Pending] = field(default_factory=list)
    calls: Counter[int] = field(default_factory=Counter)

    def answer(self, pending: Pending) -> None:
        """One response, or the last one."""
        plan, request = self.plan, pending.request
        taken, made = plan.steps[pending.step]
        by_name = {
            bound.spec.name: float(np.frombuffer(data, np.float64)[0])
            for bound, data in zip(request.head.inputs, request.buffers, strict=True)
        }
        results = compute(pending.step, [by_name[f"i{n}"] for n in range(len(taken))], len(made))
        decoupled = pending.step == plan.decoupled
        if decoupled and pending.given == plan.iterations:
            self.pending.remove(pending)
            request.reply(request, InferResponse([]))
            return
        values = {f"o{n}": value + pending.given * decoupled for n, value in enumerate(results)}
        response = InferResponse(
            [
                Tensor.from_numpy(bound.spec.name, np.array([values[bound.spec.name]]))
                for bound in request.head.outputs
            ]
        )
        pending.given += 1
        response.final = not decoupled
        if not decoupled:
            self.pending.remove(pending)
        request.reply(request, response)

    def may_go_on(self, pending: Pending) -> bool:
        held = pending.request.backpressure
        return not (isinstance(held, ResponseBackpressure) and held.stalled)

    async def run(self) -> None:
        """Until nothing is pending; somebody must be able to go on all the time."""
        while self.pending:
            able = [pending for pending in self.pending if self.may_go_on(pending)]
            assert able, "everybody waits for somebody else"
            self.answer(self.chance.choice(able))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(plans(), st.randoms(use_true_random=False))
def test_every_tensor_gets_where_it_belongs_and_no_step_is_called_too_often(
    plan: Plan, chance: random.Random
) -> None:
    async def scene() -> list[InferResponse]:
        note(repr(plan))
        config = plan.config()
        graph = graph_of(config)
        driver = Driver(plan, chance)
        models = {f"s{n}": StepModel(n, taken, made, driver) for n, (taken, made) in enumerate(plan.steps)}
        composition = compose(config, graph, [cast("Any", models[step.model.name]) for step in graph.steps])
        config.model_transaction_policy.decoupled = composition.decoupled
        ensemble = Ensemble(config, 1, signature_of(config), composition, lambda model, _: models[model.name])
        values = {name: float(n + 3) for n, name in enumerate(plan.inputs)}
        decoded = DecodedRequest(
            model_name="whole",
            inputs=[Tensor.from_numpy(name, np.array([value])) for name, value in values.items()],
            outputs=[RequestedOutput(name=name) for name in plan.wanted],
        )
        responses: list[InferResponse] = []
        request = InferRequest(
            ensemble.bind(decoded),
            [tensor.data for tensor in decoded.inputs],
            lambda _, response: responses.append(response),
            None,
        )
        ensemble.submit(request)
        await driver.run()
        assert ensemble.in_flight == 0
        assert [response.error for response in responses] == [None] * len(responses)
        needed = {step.index for step in graph.needed(plan.wanted)}
        assert driver.calls.keys() == needed - _never_called(plan)
        for step, count in driver.calls.items():
            assert count == (plan.iterations if _iterates(plan, step) else 1)
        check(plan, responses, plan.evaluate(values), decoupled=composition.decoupled)
        return responses

    asyncio.run(scene())


def _streams(plan: Plan) -> set[str]:
    streams: set[str] = set()
    for index, (taken, made) in enumerate(plan.steps):
        if index == plan.decoupled or streams.intersection(taken):
            streams.update(made)
    return streams


def _iterates(plan: Plan, step: int) -> bool:
    """Whether a step is called for each response of the decoupled one."""
    return bool(_streams(plan).intersection(plan.steps[step][0]))


def _never_called(plan: Plan) -> set[int]:
    if plan.iterations:
        return set()
    return {step for step in range(len(plan.steps)) if _iterates(plan, step)}


def check(plan: Plan, responses: list[InferResponse], expected: list[Values], *, decoupled: bool) -> None:
    """The answers, in order; only the last is final, which may be empty if the ensemble is decoupled."""
    assert [response.final for response in responses] == [False] * (len(responses) - 1) + [True]
    is_empty_at_end = decoupled and not responses[-1].outputs
    full = responses[:-1] if is_empty_at_end else responses
    got = [{t.name: float(t.numpy()[0]) for t in response.outputs} for response in full]
    assert got == expected
    assert [list(values) for values in got] == [plan.wanted] * len(got)
