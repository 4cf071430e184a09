"""Replies in request order, regardless of which instance finishes first (`preserve_ordering`)."""

from collections import deque
from collections.abc import Callable

import msgspec

from tpx.serving.request import InferRequest, InferResponse, RequestHead

Reply = Callable[[InferRequest, InferResponse], None]


class _Entry(msgspec.Struct, eq=False):
    request: InferRequest | None
    """The request; None if it was cancelled and answered before its turn."""
    responses: deque[tuple[InferResponse, RequestHead]] = msgspec.field(default_factory=deque)
    """Responses, each with the head that describes its outputs."""


class ReplyOrder:
    """Holds responses back until all responses to earlier requests have been sent."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._row: deque[_Entry] = deque()
        self._by_request: dict[int, _Entry] = {}

    def enter(self, request: InferRequest) -> None:
        """Add a request to the order."""
        entry = _Entry(request)
        self._row.append(entry)
        self._by_request[id(request)] = entry

    def leave(self, request: InferRequest) -> None:
        """Remove a request that was refused immediately; it is the last one."""
        del self._by_request[id(request)]
        self._row.pop()

    def reply(self, request: InferRequest, response: InferResponse) -> None:
        """Send a response now, or at the request's turn. A cancelled request leaves an empty entry."""
        if response.final and request.cancelled:
            entry = self._by_request.pop(id(request))
            entry.request = None
            entry.responses.clear()
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
