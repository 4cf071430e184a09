"""Streamed answers of a chat service, and turns of a conversation with it, each sent with all that was said
before it.

The history is the messages of every turn and, behind them, the message that answered it, whole or put
together from the pieces of a stream. perf_analyzer: session_concurrency/payload_json_utils.cc.
"""

from collections.abc import Callable, Iterator

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
    """An HTTP connection that also tells of a body while it is being read."""

    def __init__(self, heads: HeadCache, scratch: memoryview) -> None:
        super().__init__(heads, scratch)
        self.on_piece: Callable[[bytes], None] | None = None
        """Called with what has come, but for the last piece, which comes with the whole response."""
        self.told = 0
        """Bytes of the body that `on_piece` has had."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.on_piece is not None and self.busy:
            piece = self.body_so_far(self.told)
            if piece:
                self.told += len(piece)
                self.on_piece(piece)


class EventParser:
    """Cuts a stream of text into the data of its server-sent events (of the HTML standard)."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that a piece completes; several lines of one event are joined."""
        text = self._held + piece
        # a CR at the end may be half of a CRLF
        held_back = b"\r" if text.endswith(b"\r") else b""
        text = text.removesuffix(held_back).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *events, rest = text.split(b"\n\n")
        self._held = rest + held_back
        return [data for event in events if (data := _data(event)) is not None]


def _data(event: bytes) -> bytes | None:
    """The data of an event; None for a comment, or what has none."""
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


class ChatTurn:
    """One turn. It is written as soon as the turn before it is answered, so that sending it takes no time."""

    __slots__ = ("_answer", "_body", "_encode", "_number", "_session", "encoded")

    def __init__(self, body: JsonObject, session: list["ChatTurn"], encode: Callable[[bytes], bytes]) -> None:
        """The next turn of `session`, which it joins; `encode` makes a request of a body.

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
        """The whole request; of all turns but the first only while it is due."""
        session.append(self)

    @property
    def body(self) -> bytes:
        """Return the request's body with the history before it, known once the previous turn is answered."""
        return orjson.dumps({**self._body, "messages": list(self._messages())})

    def answered(self, body: Buffer, *, streamed: bool) -> bool:
        """Go on from a successful answer; False where it holds no message."""
        message = streamed_message(body) if streamed else whole_message(body)
        if message is None:
            return False
        self._answer = message
        if self._number:
            self.encoded = b""
        for following in self._session[self._number + 1 : self._number + 2]:
            following.encoded = self._encode(following.body)
        return True

    def _messages(self) -> Iterator[Message]:
        for turn in self._session[: self._number]:
            yield from turn._body["messages"]
            yield turn._answer
        yield from self._body["messages"]


def whole_message(body: Buffer) -> Message | None:
    """The message of an answer that is no stream; None where there is none."""
    try:
        message = orjson.loads(memoryview(body))["choices"][0]["message"]
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        return None
    return {"role": "assistant", **message} if isinstance(message, dict) else None


def streamed_message(body: Buffer) -> Message | None:
    """The message that the pieces of a stream are of: the texts of each member one behind the other; None
    where no event has a piece."""
    role = "assistant"
    texts: dict[str, list[str]] = {}
    found = False
    for delta in _deltas(body):
        found = True
        role = delta.get("role") or role
        for name, piece in delta.items():
            if isinstance(piece, str) and name != "role":
                texts.setdefault(name, []).append(piece)
    return {"role": role, "content": "", **{n: "".join(t) for n, t in texts.items()}} if found else None


def _deltas(body: Buffer) -> Iterator[JsonObject]:
    """The pieces of the first choice."""
    for data in EventParser().feed(bytes(body) + _END):
        try:
            choice = orjson.loads(data)["choices"][0]
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
            continue  # the end of the stream, or its usage
        if isinstance(choice, dict) and not choice.get("index") and isinstance(choice.get("delta"), dict):
            yield choice["delta"]
