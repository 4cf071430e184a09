"""The answer of an engine that speaks HTTP, part by part, as a view takes it."""

import json
import re
from collections.abc import Callable

from tpx.protocol.json_values import JsonObject
from tpx.serving.backends.language.generation import Generation
from tpx.serving.backends.python.worker.errors import ErrorCode

_PIECE = re.compile(rb"event: (response\.[a-z_.]+\.delta|content_block_delta)\n")
"""Begins an event with a piece of the output."""
_CODES = {
    400: ErrorCode.INVALID_ARG,
    404: ErrorCode.INVALID_ARG,
    501: ErrorCode.UNSUPPORTED,
    503: ErrorCode.UNAVAILABLE,
}


class HttpAnswer:
    """Passes the whole body on, or each server-sent event; an error ends the request."""

    def __init__(self, generation: Generation, engine: str, leave: Callable[[], None]) -> None:
        """`leave` is called when the engine must stop."""
        self._generation = generation
        self._engine = engine
        self._leave = leave
        self._left = False
        self._status = 0
        self._events = False
        self._text = b""

    def begin(self, status: int, content_type: bytes) -> None:
        """Take the head."""
        self._status = status
        self._events = content_type.startswith(b"text/event-stream")

    def take(self, body: bytes, *, more: bool) -> None:
        """Take a part of the body; without `more`, the last one."""
        self._text += body
        if self._status != 200:
            if not more:
                self.refuse(_parse_error(self._text))
        elif self._events:
            *events, self._text = self._text.split(b"\n\n")
            for event in events:
                if not self._left:
                    self.take_event(event)
        elif not more:
            self.pass_on(self._text, token=False)

    def take_event(self, event: bytes) -> None:
        """Take an event, with its lines."""
        self.pass_on(event, token=_PIECE.match(event) is not None)

    def look(self) -> None:
        """Leave if the client has left."""
        self.pass_on(b"", token=False)

    def pass_on(self, data: bytes, *, token: bool = True) -> None:
        """Give a chunk to the request; about a token, unless `token` is false."""
        if self._generation.take(data, token=token):
            self._left = True
            self._leave()

    def refuse(self, answer: JsonObject) -> None:
        """End the request with an error of the engine."""
        error = answer.get("error", answer)
        message = str(error.get("message", f"{self._engine} answers {self._status}"))
        code = int(error.get("code") or self._status)
        self._generation.refuse(message, _CODES.get(code, ErrorCode.INTERNAL))


def _parse_error(body: bytes) -> JsonObject:
    """Return the error of a body, which has none or is a plain text where the engine itself fails."""
    try:
        answer = json.loads(body)
    except ValueError:
        return {"message": body.decode(errors="replace")} if body else {}
    return answer if isinstance(answer, dict) else {}
