"""Streamed responses of a chat service, and conversation turns, each sent with the history before it.

The history is the messages of every earlier turn, each followed by the message that answered it: whole,
or assembled from the pieces of a stream. Source: perf_analyzer,
session_concurrency/payload_json_utils.cc.
"""

from collections.abc import Callable

import orjson

from tpx.errors import UsageError
from tpx.perf.clients.base import brief
from tpx.protocol.http1.client import HttpClientConnection
from tpx.protocol.http1.head import HeadCache
from tpx.protocol.json_values import JsonObject
from tpx.protocol.tensors import Buffer

Message = JsonObject

NO_MESSAGE = "the answer holds no message that the conversation could go on with: no choices[0].message"
_END = b"\n\n"


class EventConnection(HttpClientConnection):
    """An HTTP connection that also reports a body while it is being read."""

    def __init__(self, heads: HeadCache, scratch: memoryview) -> None:
        super().__init__(heads, scratch)
        self.on_piece: Callable[[bytes], None] | None = None
        """Called with new body bytes, except the last, which are delivered with the whole response."""
        self.told = 0
        """Bytes of the body already passed to `on_piece`."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.on_piece is not None and self.busy:
            piece = self.body_so_far(self.told)
            if piece:
                self.told += len(piece)
                self.on_piece(piece)


class EventParser:
    """Splits a stream of text into the data of its server-sent events, as the HTML standard defines them."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of the events that a piece completes; the data lines of one event are joined."""
        text = self._held + piece
        # a trailing CR may be the first half of a CRLF
        held_back = b"\r" if text.endswith(b"\r") else b""
        text = text.removesuffix(held_back).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *events, rest = text.split(b"\n\n")
        self._held = rest + held_back
        return [data for event in events if (data := _read_event_data(event)) is not None]


def _read_event_data(event: bytes) -> bytes | None:
    """Return an event's data; None if it has none, as in a comment."""
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


class ChatTurn:
    """One turn of a conversation, encoded when the previous one is answered: sending it takes no time."""

    __slots__ = ("_answer", "_body", "_encode", "_number", "_session", "encoded")

    def __init__(self, body: JsonObject, session: list["ChatTurn"], encode: Callable[[bytes], bytes]) -> None:
        """Append the turn to `session`; `encode` makes a request from a body.

        Raises UsageError for a body without messages.
        """
        if not isinstance(body.get("messages"), list):
            raise UsageError(
                "--session-concurrency: Request body must be an object and it must have a 'messages' field "
                f"that is an array, got {brief(orjson.dumps(body))}"
            )
        self._body = body
        self._session = session
        self._number = len(session)
        self._encode = encode
        self._answer: Message = {}
        self.encoded = b"" if session else encode(orjson.dumps(body))
        """The encoded request; turns but the first hold it only between the previous response and theirs."""
        session.append(self)

    @property
    def body(self) -> bytes:
        """Request body with the history before it, complete once the previous turn is answered."""
        messages: list[Message] = []
        for turn in self._session[: self._number]:
            messages += (*turn._body["messages"], turn._answer)
        return orjson.dumps({**self._body, "messages": [*messages, *self._body["messages"]]})

    def answered(self, body: Buffer, *, streamed: bool) -> bool:
        """Record a successful response and encode the next turn; return False if it contains no message."""
        message = streamed_message(body) if streamed else whole_message(body)
        if message is None:
            return False
        self._answer = message
        if self._number:
            self.encoded = b""
        for following in self._session[self._number + 1 : self._number + 2]:
            following.encoded = self._encode(following.body)
        return True


def whole_message(body: Buffer) -> Message | None:
    """Return the message of a response that is not streamed; None if it has none."""
    try:
        message = orjson.loads(memoryview(body))["choices"][0]["message"]
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        return None
    return {"role": "assistant", **message} if isinstance(message, dict) else None


def streamed_message(body: Buffer) -> Message | None:
    """Join the texts of each member of a stream's pieces to a message; None if no event has a piece."""
    role = "assistant"
    texts: dict[str, list[str]] = {}
    found = False
    for data in EventParser().feed(bytes(body) + _END):
        try:
            choice = orjson.loads(data)["choices"][0]
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
            continue  # [DONE], or the usage event
        if not isinstance(choice, dict) or choice.get("index") or not isinstance(choice.get("delta"), dict):
            continue
        found, delta = True, choice["delta"]
        role = delta.get("role") or role
        for name, piece in delta.items():
            if isinstance(piece, str) and name != "role":
                texts.setdefault(name, []).append(piece)
    return {"role": role, "content": "", **{n: "".join(t) for n, t in texts.items()}} if found else None
