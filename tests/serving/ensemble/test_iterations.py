"""Requests on their way through an ensemble with a decoupled model: any number of responses."""

import asyncio

from tests.serving.ensemble.composing import CHAIN, FORK, Client, Composing, plus, twice
from tests.serving.virtual_time import run
from tpx.errors import Cancelled
from tpx.serving.backpressure import ResponseBackpressure
from tpx.serving.request import InferRequest


def test_a_decoupled_step_makes_the_ensemble_decoupled() -> None:
    each = Composing("plus", lambda row: [[value] for value in row], decoupled=True)
    client = Client(CHAIN, each, Composing("twice", twice))
    client.send([1, 2, 3])
    assert client.rows() == [{"out": [2]}, {"out": [4]}, {"out": [6]}]
    assert [response.final for response in client.responses] == [False, False, True]


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
    assert client.rows() == [{"out": [2]}, {"out": [4]}, {"out": [6]}]


def test_the_last_response_with_data_is_final_if_no_step_is_in_flight() -> None:
    each = Composing("plus", plus, decoupled=True, late=True)
    second = Composing("twice", twice, late=True)
    client = Client(CHAIN, each, second)
    client.send([1])
    request = each.waiting[0]
    each.give(request, [1.0])
    second.answer()  # more may come
    each.give(request, [2.0], final=True)
    second.answer()
    assert client.rows() == [{"out": [2.0]}, {"out": [4.0]}]
    assert [response.final for response in client.responses] == [False, True]
    assert client.ensemble.in_flight == 0


def test_only_so_many_requests_of_a_step_are_under_way() -> None:
    each = Composing("plus", lambda row: [[value] for value in row], decoupled=True)
    second = Composing("twice", twice, late=True)
    client = Client(limited_to(2), each, second)
    client.send([1, 2, 3])
    assert len(second.waiting) == 2
    second.answer()
    assert len(second.waiting) == 2
    second.answer()
    second.answer()
    assert client.rows() == [{"out": [2]}, {"out": [4]}, {"out": [6]}]


def test_no_response_of_a_decoupled_model_is_an_empty_answer() -> None:
    client = Client(CHAIN, Composing("plus", lambda _: [], decoupled=True), Composing("twice", twice))
    client.send([1])
    assert client.rows() == [{}]
    assert client.responses[0].final


def test_a_response_without_an_output_that_a_step_needs_is_an_error() -> None:
    each = Composing("plus", lambda row: [[value] for value in row], decoupled=True, gives="nothing")
    client = Client(CHAIN, each, Composing("twice", twice))
    client.send([1, 2])
    assert client.error.message.startswith(
        "in ensemble 'whole', [request id: 7] expected 1 inputs but got 0 inputs for model 'twice'."
    )


def test_a_model_that_has_become_decoupled_gives_its_first_response() -> None:
    each = Composing("plus", lambda row: [[value] for value in row], late=True)
    client = Client(CHAIN, each, Composing("twice", twice))
    client.send([1, 2, 3])
    each.decoupled = True
    request = each.waiting[0]
    each.answer()
    assert request.cancelled
    assert client.rows() == [{"out": [2]}]


def test_an_ensemble_with_a_decoupled_branch_that_nobody_wants_answers_once() -> None:
    models = [Composing("plus", plus), Composing("twice", twice, decoupled=True), Composing("same")]
    client = Client(FORK, *models)
    client.send([1], ["b"])
    assert client.rows() == [{"b": [2]}]
    assert client.responses[0].final


def test_what_comes_once_is_used_for_each_iteration() -> None:
    models = [
        Composing("plus", plus),
        Composing("twice", lambda row: [[2 * row[0]], [3 * row[0]]], decoupled=True),
        Composing("same"),
    ]
    client = Client(FORK, *models)
    client.send([1])
    assert client.rows() == [{"a": [4], "b": [2]}, {"a": [6], "b": [2]}]


async def test_a_decoupled_model_is_held_back_while_the_steps_behind_it_are_busy() -> None:
    each = Composing("plus", plus, decoupled=True, late=True)
    second = Composing("twice", twice, late=True)
    client = Client(limited_to(2), each, second)
    client.send([1])
    request = each.waiting[0]
    held = []
    for _ in range(6):
        held.append(stalled(request))
        each.give(request, [1.0])
    assert held == [False, False, False, False, True, True]
    assert len(second.waiting) == 2
    second.answer()
    second.answer()
    assert len(second.waiting) == 2
    while second.waiting:
        second.answer()
    assert not stalled(request)
    each.end(request)
    assert client.rows() == [{"out": [2.0]}] * 6 + [{}]


async def test_the_limit_is_for_each_request_alone_and_a_cancelled_one_leaves_nothing_behind() -> None:
    each = Composing("plus", plus, decoupled=True, late=True)
    second = Composing("twice", twice, late=True)
    client = Client(limited_to(2), each, second)
    sent = [client.send([1]), client.send([2])]
    first, other = each.waiting
    for request in (first, first, other, first, first):
        each.give(request, [1.0])
    assert len(second.waiting) == 3
    assert [stalled(first), stalled(other)] == [True, False]
    sent[0].cancel()
    assert [request.cancelled for request in (first, *second.waiting)] == [True, True, True, False]
    while second.waiting:
        second.answer()
    each.end(first)
    each.give(other, [5.0], final=True)
    second.answer()
    [refused] = [response.error for response in client.responses if response.error is not None]
    assert isinstance(refused, Cancelled)
    assert client.ensemble.in_flight == 0
    # one after the other: each has the whole limit
    each.waiting.clear()
    for _ in range(2):
        client.send([1])
        request = each.waiting.pop()
        for _ in range(3):
            each.give(request, [1.0])
        assert len(second.waiting) == 2
        assert not stalled(request)
        while second.waiting:
            second.answer()
        each.end(request)
    assert client.ensemble.in_flight == 0


def test_a_decoupled_model_is_not_held_back_for_ever() -> None:
    async def scene() -> None:
        each = Composing("plus", plus, decoupled=True, late=True)
        second = Composing("twice", twice, late=True)
        client = Client(limited_to(1), each, second)
        client.send([1])
        request = each.waiting[0]
        for _ in range(3):
            each.give(request, [1.0])
        assert stalled(request)
        assert len(second.waiting) == 1
        await asyncio.sleep(299)
        assert stalled(request)
        await asyncio.sleep(2)
        assert not stalled(request)
        assert len(second.waiting) == 3
        each.end(request)
        while second.waiting:
            second.answer()
        assert len(client.rows()) == 3

    run(scene)


def test_a_client_that_does_not_read_holds_back_the_decoupled_step() -> None:
    each = Composing("plus", plus, decoupled=True, late=True)
    client = Client(CHAIN, each, Composing("twice", twice))
    sent = client.send([1])
    sent.stall(True)
    assert stalled(each.waiting[0])
    sent.stall(False)
    assert not stalled(each.waiting[0])


def limited_to(most: int) -> str:
    """CHAIN with a limit."""
    return CHAIN.replace("ensemble_scheduling {", f"ensemble_scheduling {{ max_inflight_requests: {most}")


def stalled(request: InferRequest) -> bool:
    """Whether whoever makes its responses would have to wait."""
    assert isinstance(request.backpressure, ResponseBackpressure)
    return request.backpressure.stalled
