"""Requests on their way through an ensemble whose steps give one response each."""

from typing import Any

import pytest

from tests.serving.ensemble.composing import CHAIN, FORK, Client, Composing, plus, tensors, twice
from tpx.errors import Cancelled, ExecutionError, InvalidRequest, Overloaded, TpxError
from tpx.serving.cache import ResponseCache
from tpx.serving.request import InferResponse


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


@pytest.mark.parametrize(
    "error",
    [ExecutionError("it broke"), Overloaded("full"), InvalidRequest("no START"), Cancelled("by the server")],
)
def test_a_failed_step_counts_once_and_as_another_reason_for_its_ensemble(error: TpxError) -> None:
    def fail(row: list[float]) -> list[list[float]]:
        raise error

    client = Client(FORK, Composing("plus", plus), Composing("twice", fail), Composing("same", fail))
    client.send([1])
    statistics = client.ensemble.statistics
    assert statistics.failures == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 1}
    assert statistics.durations()["fail"].count == 1


def test_an_ensemble_whose_client_left_counts_as_cancelled() -> None:
    first = Composing("plus", plus, late=True)
    client = Client(CHAIN, first, Composing("twice", twice))
    client.send([1]).cancel()
    first.answer()
    assert client.ensemble.statistics.failures == {"REJECTED": 0, "CANCELED": 1, "BACKEND": 0, "OTHER": 0}


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


OPTIONAL = (
    f"name: 'whole' platform: 'ensemble' {tensors('input', 'in', 'more')} {tensors('output', 'out')} "
    "ensemble_scheduling { step { model_name: 'sum' input_map { key: 'x' value: 'in' } "
    "input_map { key: 'z' value: 'more' } output_map { key: 'y' value: 'out' } } }"
).replace("name: 'more'", "name: 'more' optional: true")


@pytest.mark.parametrize(("optional", "answer"), [(True, [{"out": [3.0]}]), (False, None)])
def test_an_input_may_be_left_out_where_its_step_can_do_without(
    optional: bool, answer: list[dict[str, Any]] | None
) -> None:
    model = Composing("sum", lambda row: [[sum(row)]], more_inputs={"z": optional})
    client = Client(OPTIONAL, model)
    client.send([1, 2])
    if answer is not None:
        assert client.rows() == answer
    else:
        assert client.error.message == (
            "in ensemble 'whole', [request id: 7] expected 2 inputs but got 1 inputs for model 'sum'. Got "
            "input(s) ['x'], but missing required input(s) ['z']. Please provide all required input(s)."
        )


def test_an_output_that_its_step_leaves_out_is_not_in_the_answer() -> None:
    client = Client(FORK, Composing("plus", plus), Composing("twice", gives=""), Composing("same"))
    request = client.send([1])
    assert client.rows() == [{"b": [2]}]
    assert [bound.spec.name for bound in request.head.outputs] == ["b"]


def test_a_step_refuses_to_go_on_without_the_output_of_another() -> None:
    client = Client(CHAIN, Composing("plus", plus, gives=""), Composing("twice", twice))
    client.send([1])
    assert isinstance(client.error, InvalidRequest)
    assert "expected 1 inputs but got 0 inputs for model 'twice'" in client.error.message


def test_tensors_pass_from_step_to_step_as_they_are() -> None:
    first, second = Composing("plus", plus, late=True), Composing("twice", twice, late=True)
    client = Client(CHAIN, first, second)
    sent = client.send([1, 2])
    assert first.waiting[0].buffers[0] is sent.buffers[0]
    first.answer()
    assert second.waiting[0].buffers[0] is first.made[0].data
    second.answer()
    assert client.responses[0].outputs[0].data is second.made[0].data


def test_steps_have_the_id_and_the_parameters_of_the_request() -> None:
    models = [Composing("plus", plus, late=True), Composing("twice", twice, late=True)]
    client = Client(CHAIN, *models)
    parameters: dict[str, Any] = {"sequence_id": 5, "sequence_start": True, "timeout": 7, "priority": 2}
    for number in range(3):  # the second and third time the shapes are known
        client.send([1], request_id=f"r{number}", parameters=parameters if number else {})
        for model in models:
            head = model.waiting[0].head
            assert head.request_id == f"r{number}"
            assert head.parameters == (parameters if number else {})
            assert (head.timeout_ns, head.priority) == ((7000, 2) if number else (0, 0))
            model.answer()


def test_parameters_of_steps_keep_their_types_where_those_before_were_equal_numbers() -> None:
    model = Composing("twice", twice, late=True)
    client = Client(CHAIN, Composing("plus", plus), model)
    for word in (True, 1, 1.0, 1.0, True):
        client.send([1], parameters={"word": word})
        assert repr(model.waiting[0].head.parameters) == repr({"word": word})
        model.answer()


def test_a_model_that_was_replaced_computes_the_next_step() -> None:
    first, old, new = (Composing("plus", plus, late=True), Composing("twice"), Composing("twice", twice))
    client = Client(CHAIN, first, old)
    client.send([1])
    first.answer()
    client.send([1])
    client.models["twice"] = new
    first.answer()
    assert client.rows() == [{"out": [2]}, {"out": [4]}]


def test_the_phases_of_an_ensemble_are_the_sums_of_its_steps() -> None:
    class Phases:
        started_ns, gathered_ns, computed_ns, ended_ns = 10, 30, 60, 100

    first, second = Composing("plus", plus, late=True), Composing("twice", twice, late=True)
    client = Client(CHAIN, first, second)
    client.send([1])
    for model in (first, second):
        request = model.waiting[0]
        request.arrived_ns = 3
        assert request.trace is not None
        request.trace.computed(request, Phases(), InferResponse([]))
        model.answer()
    statistics = client.ensemble.statistics
    durations = {phase: (each.count, each.ns) for phase, each in statistics.durations().items()}
    del durations["success"]
    assert durations == {
        "fail": (0, 0),
        "queue": (1, 14),
        "compute_input": (1, 40),
        "compute_infer": (1, 60),
        "compute_output": (1, 80),
        "cache_hit": (0, 0),
        "cache_miss": (0, 0),
    }
    assert (statistics.inference_count, statistics.execution_count) == (1, 1)
    [sizes] = statistics.batches.values()
    assert (sizes.count, sizes.compute_infer_ns) == (1, 60)


def test_an_ensemble_that_may_answers_from_the_cache() -> None:
    model = Composing("plus", plus)
    client = Client(CHAIN, model, Composing("twice", twice), cache=ResponseCache(100_000))
    for _ in range(3):
        client.send([1])
    client.send([2])
    assert client.rows() == [{"out": [4]}] * 3 + [{"out": [6]}]
    assert len(model.made) == 2
    assert client.ensemble.in_flight == 0
    assert client.ensemble.statistics.durations()["cache_hit"].count == 2
