"""Answers in the order of their requests."""

from tests.serving.fakes import request_of
from tpx.serving.ordering import ReplyOrder
from tpx.serving.request import InferRequest, InferResponse


class Desk:
    """An order of so many requests, and what was answered."""

    def __init__(self, count: int) -> None:
        self.sent: list[tuple[int, InferResponse]] = []
        self.requests = [request_of() for _ in range(count)]
        self.order = ReplyOrder(self._send)
        for request in self.requests:
            self.order.enter(request)

    def answer(self, index: int, *, final: bool = True) -> None:
        response = InferResponse([])
        response.final = final
        self.order.reply(self.requests[index], response)

    @property
    def order_of_answers(self) -> list[int]:
        return [index for index, _ in self.sent]

    def _send(self, request: InferRequest, response: InferResponse) -> None:
        self.sent.append((self.requests.index(request), response))


def test_an_answer_that_is_early_waits_for_those_before_it() -> None:
    desk = Desk(4)
    desk.answer(2)
    desk.answer(1)
    assert not desk.sent
    desk.answer(0)
    assert desk.order_of_answers == [0, 1, 2]
    desk.answer(3)
    assert desk.order_of_answers == [0, 1, 2, 3]


def test_a_decoupled_request_keeps_its_turn_until_its_final_response() -> None:
    desk = Desk(2)
    desk.answer(0, final=False)
    desk.answer(1, final=False)
    desk.answer(0, final=False)
    assert desk.order_of_answers == [0, 0]
    desk.answer(0)
    desk.answer(1)
    assert desk.order_of_answers == [0, 0, 0, 1, 1]
    assert [response.final for _, response in desk.sent] == [False, False, True, False, True]


def test_a_request_that_was_refused_at_once_holds_up_nobody() -> None:
    desk = Desk(2)
    refused = request_of()
    desk.order.enter(refused)
    desk.order.leave(refused)
    desk.answer(1)
    desk.answer(0)
    assert desk.order_of_answers == [0, 1]


def test_an_answer_that_brings_another_request_finds_everything_in_order() -> None:
    desk = Desk(2)
    sent: list[InferRequest] = []

    def send(request: InferRequest, response: InferResponse) -> None:
        sent.append(request)
        if len(sent) == 1:
            order.reply(desk.requests[1], InferResponse([]))

    order = ReplyOrder(send)
    for request in desk.requests:
        order.enter(request)
    order.reply(desk.requests[0], InferResponse([]))
    assert sent == desk.requests
