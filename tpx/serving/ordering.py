"""Answers in the order of their requests, whatever instance was faster (`preserve_ordering`)."""

from collections import deque
from collections.abc import Callable

from tpx.serving.request import InferRequest, InferResponse

Reply = Callable[[InferRequest, InferResponse], None]


class _Turn:
    __slots__ = ("request", "response")

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self.response: InferResponse | None = None


class ReplyOrder:
    """Holds answers back until those of all earlier requests have gone."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._turns: deque[_Turn] = deque()
        self._by_request: dict[int, _Turn] = {}

    def enter(self, request: InferRequest) -> None:
        """A request takes its place."""
        turn = _Turn(request)
        self._turns.append(turn)
        self._by_request[id(request)] = turn

    def leave(self, request: InferRequest) -> None:
        """A request that was refused at once gives its place back: it is the last."""
        del self._by_request[id(request)]
        self._turns.pop()

    def reply(self, request: InferRequest, response: InferResponse) -> None:
        """Answer now, or when it is this request's turn."""
        self._by_request[id(request)].response = response
        turns = self._turns
        while turns:
            request, ready = turns[0].request, turns[0].response
            if ready is None:
                break
            turns.popleft()
            del self._by_request[id(request)]
            self._reply(request, ready)
