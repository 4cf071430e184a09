"""Answers in the order of their requests, whatever instance was faster (`preserve_ordering`)."""

from collections import deque
from collections.abc import Callable

from tpx.serving.request import InferRequest, InferResponse, RequestHead

Reply = Callable[[InferRequest, InferResponse], None]


class _Place:
    __slots__ = ("request", "responses")

    def __init__(self, request: InferRequest) -> None:
        self.request: InferRequest | None = request
        """None: it was answered before its turn, because nobody waited for it."""
        self.responses: deque[tuple[InferResponse, RequestHead]] = deque()
        """Each with the head of the outputs that it gives."""


class ReplyOrder:
    """Holds answers back until those of all earlier requests have gone, of decoupled models all of each."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._row: deque[_Place] = deque()
        self._by_request: dict[int, _Place] = {}

    def enter(self, request: InferRequest) -> None:
        """A request takes its place."""
        place = _Place(request)
        self._row.append(place)
        self._by_request[id(request)] = place

    def leave(self, request: InferRequest) -> None:
        """A request that was refused as soon as it came gives its place back, which is the last."""
        del self._by_request[id(request)]
        self._row.pop()

    def reply(self, request: InferRequest, response: InferResponse) -> None:
        """Answer now, or when it is this request's turn; of one that was cancelled its place waits alone."""
        if response.final and request.cancelled:
            place = self._by_request.pop(id(request))
            place.request = None
            place.responses.clear()
            self._reply(request, response)
        else:
            self._by_request[id(request)].responses.append((response, request.head))
        row = self._row
        while row:
            first = row[0].request
            if first is None:
                row.popleft()
                continue
            if not row[0].responses:
                return
            response, first.head = row[0].responses.popleft()
            if response.final:
                row.popleft()
                del self._by_request[id(first)]
            self._reply(first, response)
