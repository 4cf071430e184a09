"""Steps that say which sequence the steps behind them are part of."""

from typing import Any

import pytest

from tests.serving.ensemble.composing import CHAIN, FORK, Client, Composing, step, tensors, twice
from tpx.errors import Code, ExecutionError
from tpx.protocol.v2 import Parameter

THREE = (
    f"name: 'whole' platform: 'ensemble' {tensors('input', 'in')} {tensors('output', 'out')} "
    f"ensemble_scheduling {{ {step('plus', 'in', 'm')} {step('same', 'm', 'n')} "
    f"{step('twice', 'n', 'out')} }}"
)
OFF = {"sequence_start": False, "sequence_end": False}


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ({"sequence_id": 9}, {"sequence_id": 9, **OFF}),
        ({"sequence_id": "nine", "n": 1}, {"sequence_id": "nine", **OFF}),
        ({"sequence_end": True}, {"sequence_id": 7, **OFF, "sequence_end": True}),
        ({"n": 1}, {"sequence_id": 7, "sequence_start": True}),
    ],
)
def test_what_a_step_says_of_the_sequence_holds_for_all_steps_behind_it(
    said: dict[str, Parameter], heard: dict[str, Parameter]
) -> None:
    """An id that is not said stays, a flag that is not said does not."""
    first, second, third = Composing("plus"), Composing("same"), Composing("twice", twice)
    first.says = [said]
    client = Client(THREE, first, second, third)
    sent: dict[str, Any] = {"sequence_id": 7, "sequence_start": True, "priority": 1}
    client.send([1], parameters=sent)
    assert client.rows() == [{"out": [2]}]
    assert first.heard == [sent]
    assert second.heard == third.heard == [{**heard, "priority": 1}]


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({}, {"sequence_id": 0, **OFF}),
        ({"sequence_id": 7, "sequence_end": True}, {"sequence_id": 7, **OFF, "sequence_end": True}),
        ({"sequence_id": "seven"}, {"sequence_id": "seven", **OFF}),
    ],
)
def test_an_answer_tells_the_sequence_of_its_request(
    sent: dict[str, Parameter], told: dict[str, Parameter]
) -> None:
    client = Client(CHAIN, Composing("plus"), Composing("twice", twice))
    client.send([1], parameters=sent)
    [response] = client.responses
    assert list((response.parameters or {}).items()) == list(told.items())


@pytest.mark.parametrize("says", [0, 1, 2])
def test_an_answer_tells_what_a_step_has_said_of_the_sequence(says: int) -> None:
    models = [Composing("plus"), Composing("same"), Composing("twice", twice)]
    models[says].says = [{"sequence_id": 9, "sequence_end": True}]
    client = Client(THREE, *models)
    for _ in range(2):
        client.send([1], parameters={"sequence_id": 7, "sequence_start": True})
    assert [response.parameters for response in client.responses] == [
        {"sequence_id": 9, **OFF, "sequence_end": True},
        {"sequence_id": 7, **OFF, "sequence_start": True},
    ]


def test_what_an_ensemble_in_an_ensemble_tells_of_the_same_sequence_changes_nothing() -> None:
    first, second = Composing("plus"), Composing("twice", twice)
    first.says = [{"sequence_id": 0, **OFF}]
    client = Client(CHAIN, first, second)
    client.send([1], parameters={"n": 1})
    assert second.heard == [{"n": 1}]


def test_an_error_tells_nothing_of_a_sequence() -> None:
    client = Client(CHAIN, Composing("plus", gives=""), Composing("twice", twice))
    client.send([1], parameters={"sequence_id": 7})
    [response] = client.responses
    assert (response.error is None, response.parameters) == (False, None)


def test_requests_after_it_have_their_own_sequence() -> None:
    first, second = Composing("plus"), Composing("twice", twice)
    first.says = [{"sequence_id": 9}]
    client = Client(CHAIN, first, second)
    for _ in range(2):
        client.send([1], parameters={"sequence_id": 7})
    assert [heard["sequence_id"] for heard in second.heard] == [9, 7]


def test_each_iteration_has_the_sequence_of_its_response() -> None:
    each = Composing("plus", lambda row: [[value] for value in row], decoupled=True)
    each.says = [{"sequence_id": 1, "sequence_start": True}, {}, {"sequence_id": 3, "sequence_end": True}]
    second, third = Composing("same", late=True), Composing("twice", twice)
    client = Client(THREE, each, second, third)
    client.send([1, 2, 3], parameters={"sequence_id": 7})
    for _ in range(3):
        second.answer(len(second.waiting) - 1)
    assert [heard["sequence_id"] for heard in second.heard] == [1, 7, 3]
    assert [heard["sequence_id"] for heard in third.heard] == [1, 7, 3]
    assert client.rows() == [{"out": [2]}, {"out": [4]}, {"out": [6]}]
    assert [response.parameters for response in client.responses] == [
        {"sequence_id": 1, **OFF, "sequence_start": True},
        {"sequence_id": 7, **OFF},
        {"sequence_id": 3, **OFF, "sequence_end": True},
    ]


def test_branches_have_it_both() -> None:
    first, branches = Composing("plus"), [Composing("twice", twice), Composing("same")]
    first.says = [{"sequence_id": 9}]
    client = Client(FORK, first, *branches)
    client.send([1])
    assert [branch.heard[0]["sequence_id"] for branch in branches] == [9, 9]


@pytest.mark.parametrize(
    "said", [{"sequence_id": True}, {"sequence_id": -1}, {"sequence_id": 1.5}, {"sequence_start": 1}]
)
def test_what_no_sequence_can_have_is_an_error(said: dict[str, Parameter]) -> None:
    first, second = Composing("plus"), Composing("twice", twice)
    first.says = [said]
    client = Client(CHAIN, first, second)
    client.send([1])
    assert (type(client.error), client.error.code) == (ExecutionError, Code.INVALID_ARGUMENT)
    assert next(iter(said)) in client.error.message
    assert not second.heard
