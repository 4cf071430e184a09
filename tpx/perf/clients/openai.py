"""Services with OpenAI's API: chat, completions, embeddings; whole responses, or streamed token by
token; and conversations, each turn of which is sent with the history before it.

Each event with output counts as a response, whether text, reasoning, a refusal, a tool call or audio: the
first one's time is the time to first token, and the time between two is the inter-token latency. The
number of tokens is taken from the service's `usage` or, if absent, is the number of these events. The
history of a conversation is the messages of every earlier turn, each followed by the message that answered
it: whole, or assembled from the pieces of a stream. Source: perf_analyzer,
session_concurrency/payload_json_utils.cc.
"""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns
from typing import NamedTuple, cast

import orjson

from tpx.errors import UsageError
from tpx.perf.clients.base import NO_USAGE, PLAIN, Failure, OnResponse, RequestFields, brief
from tpx.perf.clients.control import StaticControl
from tpx.perf.clients.endpoint import Connections, Endpoint
from tpx.perf.clients.http import HttpSlots, Send
from tpx.perf.clients.model import TensorDescription
from tpx.perf.clients.transport import HttpDialer, http_dialer
from tpx.protocol.http1.client import HttpCarrier, HttpClientConnection, HttpResponse
from tpx.protocol.http1.head import HeadCache, HttpError
from tpx.protocol.json_values import JsonObject, parse_json
from tpx.protocol.tensors import Buffer, Tensor, decode_bytes

INPUT = TensorDescription(name="payload", datatype="BYTES", shape=(1,))
"""A whole request body, as in genai-perf's data files, or only the text to answer."""
SESSION = TensorDescription(name="session_id", datatype="BYTES", shape=(1,))
DELAY = TensorDescription(name="delay", datatype="UINT64", shape=(1,), optional=True)
"""SESSION is the conversation of a turn, DELAY the milliseconds from its response to the next turn."""
REFUSED_IN_STREAM = -100
"""Status of a response that started successfully and then reported an error."""
_DONE = b"[DONE]"
_END = b"\n\n"
"""The end of an event, which a response's last event may lack."""
STREAM: JsonObject = {"stream": True, "stream_options": {"include_usage": True}}
"""Members that request a stream which ends with its token count."""
Message = JsonObject

NO_MESSAGE = "the response has no message to continue the conversation with: no choices[0].message"


class EventConnection(HttpClientConnection):
    """An HTTP connection that also reports a body while it is being read."""

    def __init__(self, heads: HeadCache, scratch: memoryview) -> None:
        super().__init__(heads, scratch)
        self.on_piece: Callable[[bytes], None] | None = None
        """Called with new body bytes, except the last, which are delivered with the whole response."""
        self.told = 0
        """Bytes of the body already passed to `on_piece`."""

    def data_received(self, data: bytes) -> None:
        # the hot path: a read that is one chunk, as most services send a token
        if self._chunks is not None and self.on_piece is not None:
            try:
                content = self._chunks.take_whole(data)
            except HttpError as exc:
                self._reject_message(exc)
                return
            if content is not None:
                self.told += len(content)
                self.on_piece(content)
                return
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
        whole = piece.startswith(b"data: ") and piece.endswith(_END) and piece.find(b"\n") == len(piece) - 2
        if whole and not self._held and b"\r" not in piece:
            return [piece[6:-2]]  # one event of one line, as most services send a token
        text = self._held + piece
        # a trailing CR may be the first half of a CRLF
        held_back = b"\r" if text.endswith(b"\r") else b""
        text = text.removesuffix(held_back).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *events, rest = text.split(b"\n\n")
        self._held = rest + held_back
        data = (
            [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            for event in events
        )
        return [b"\n".join(lines) for lines in data if lines]  # a comment has no data


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


def connect(endpoint: Endpoint) -> Connections:
    """Return the connections to a service with OpenAI's API."""
    dialer = http_dialer(endpoint, EventConnection)
    inputs = (INPUT, SESSION, DELAY) if endpoint.sessions else (INPUT,)
    return Connections(OpenAiClient(dialer, endpoint), StaticControl(dialer, "openai", *inputs))


class OpenAiAnswer:
    """Implements StreamedResponse."""

    __slots__ = (
        "_events", "_on_response", "_turn", "arrivals", "body", "end_ns", "error", "first_byte_ns", "status",
        "streamed", "units", "usage",
    )  # fmt: skip

    def __init__(self, on_response: OnResponse, turn: ChatTurn | None = None) -> None:
        self._on_response = on_response
        self._turn = turn
        self._events = EventParser()
        self.status = 0
        self.first_byte_ns = 0
        self.end_ns = 0
        self.arrivals: list[int] = []
        self.units = 0
        self.usage = NO_USAGE
        self.error = ""
        self.streamed = False
        self.body: Buffer = b""

    def take(self, piece: bytes) -> None:
        """Parse a piece of a streamed response."""
        now_ns = perf_counter_ns()
        for data in self._events.feed(piece):
            if data == _DONE:
                continue
            try:
                event = orjson.loads(data)
            except orjson.JSONDecodeError:
                event = None
            if not isinstance(event, dict):
                self.error = f"an event is not a JSON object: {data[:200].decode('utf-8', 'replace')}"
                continue
            if event.get("error"):
                self.error = _find_error_message(event)
            if has_output(event):
                self.arrivals.append(now_ns)
                if not self.usage[3] and not only_reasons(event):
                    self.usage = (*self.usage[:3], now_ns)
            if event.get("usage"):
                self._count(event)

    def finish(self, response: HttpResponse, told: int) -> None:
        """Complete the response; `take` has already parsed the first `told` bytes of its body."""
        self.status, self.body = response.status, response.body
        now_ns = perf_counter_ns()
        self.streamed = response.headers.get(b"content-type", b"").startswith(b"text/event-stream")
        if response.status != OpenAiClient.success:
            self.error = _find_error_message(_parse_object(response.body))
        elif self.streamed:
            self.take(bytes(memoryview(response.body)[told:]) + _END)
        else:
            self._count(_parse_object(response.body))
            self.arrivals.append(now_ns)
        if self.status == OpenAiClient.success:
            # the turn's response belongs to its conversation before the load sees it
            if not self.error and self._turn and not self._turn.answered(self.body, streamed=self.streamed):
                self.error = NO_MESSAGE
            if self.error:
                self.status = REFUSED_IN_STREAM
        arrivals = self.arrivals
        # no usage reported: count the pieces of a stream
        self.units = self.units or len(arrivals) * self.streamed
        self.first_byte_ns, self.end_ns = (arrivals[0], arrivals[-1]) if arrivals else (now_ns, now_ns)
        self._on_response(self)

    def _count(self, answer: JsonObject) -> None:
        """Take the numbers of tokens that the service reports; the last report of a stream counts."""
        counted = tokens(answer)
        self.units = counted.units or self.units
        self.usage = (counted.prompt, counted.cached, counted.reasoning, self.usage[3])


class OpenAiClient(HttpSlots):
    """Implements Client."""

    streams = True

    def __init__(self, dialer: HttpDialer, endpoint: Endpoint) -> None:
        super().__init__(dialer, endpoint)
        self._sessions: dict[bytes, list[ChatTurn]] = {}

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> bytes | ChatTurn:
        """Encode a request; a session's turns must be prepared in the order in which they are sent."""
        if fields.sequence or fields.shared_inputs or fields.outputs:
            raise UsageError("--service-kind openai supports neither sequences nor outputs nor shared memory")
        data = {tensor.name: tensor.data for tensor in tensors}
        (content,) = decode_bytes(data[INPUT.name], 1)
        body = payload(content, self.endpoint)
        if SESSION.name not in data:
            return self._encode(orjson.dumps(body))
        (session,) = decode_bytes(data[SESSION.name], 1)
        return ChatTurn(body, self._sessions.setdefault(session, []), self._encode)

    def failure(self, response: OpenAiAnswer) -> Failure:
        code = "OpenAI error" if response.status == REFUSED_IN_STREAM else f"HTTP {response.status}"
        return Failure(code, response.error or "(no message)")

    def send_on(self, connection: HttpCarrier) -> Send:
        events = cast("EventConnection", connection)

        def send(request: bytes | ChatTurn, on_response: OnResponse) -> None:
            answer = OpenAiAnswer(on_response, request if isinstance(request, ChatTurn) else None)
            events.told = 0
            body = request.encoded if isinstance(request, ChatTurn) else request
            connection.send(body, lambda response: answer.finish(response, events.told))
            events.on_piece = answer.take

        return send

    def _encode(self, body: bytes) -> bytes:
        path = f"/{self.endpoint.service.path}".removesuffix("/.") or "/"
        return b"".join(self.encode(path, {"Content-Type": "application/json"}, [body]))


def payload(content: bytes, endpoint: Endpoint) -> JsonObject:
    """Return a request's body: the user's JSON object completed with the model's name and the stream
    option, or one made from a text. Raises UsageError.
    """
    brought = _parse_object(content)
    if brought:
        named: JsonObject = {"model": endpoint.model.name}
        return named | brought | ({"stream": True} if endpoint.wire.streaming else {})
    return text_body(content.decode("utf-8", "replace"), endpoint)


def text_body(text: str, endpoint: Endpoint) -> JsonObject:
    """Return the body of a request with this text. Raises UsageError if the endpoint has no known form."""
    stream, path = endpoint.wire.streaming, endpoint.service.path
    if path.endswith("chat/completions"):
        made: JsonObject = {"messages": [{"role": "user", "content": text}]}
    elif path.endswith("completions"):
        made = {"prompt": text}
    elif path.endswith("embeddings") and not stream:
        made = {"input": text}
    else:
        raise UsageError(
            f"--endpoint {path}: the content of its requests is unknown; give bodies with --input-data "
            '{"data": [{"payload": [{...}]}]}'
        )
    return {"model": endpoint.model.name, **made, **(STREAM if stream else {})}


def has_output(event: JsonObject) -> bool:
    """Return True for an event with output: a text, or a delta with any value besides its role.

    Services name the parts of a delta as they like, so no list of names is complete. `text_output` is
    Triton's, from generate_stream.
    """
    choices = event.get("choices")
    if isinstance(choices, list):
        for choice in choices:  # a plain loop: this runs for every token
            if _brings_output(choice):
                return True
    return bool(event.get("text_output"))


_REASONING = ("role", "reasoning", "reasoning_content", "reasoning_details")
"""Members of a delta that are no part of the answer, as vLLM, DeepSeek and OpenRouter name them."""


def only_reasons(event: JsonObject) -> bool:
    """Return True for an event with output of which all is reasoning."""
    choices = event.get("choices")
    deltas = [choice.get("delta") for choice in choices] if isinstance(choices, list) else []
    return bool(deltas) and not any(
        not isinstance(delta, dict) or any(value for name, value in delta.items() if name not in _REASONING)
        for delta in deltas
    )


def _brings_output(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    if isinstance(delta, dict):
        if delta.get("content"):
            return True
        for name, value in delta.items():
            if value and name != "role":
                return True
    return bool(choice.get("text"))


def generated(body: Buffer) -> Iterator[bytes]:
    """Yield the events of a whole stream that have output, each on one line; one per arrival."""
    for data in EventParser().feed(bytes(body) + _END):
        if data != _DONE and has_output(_parse_object(data)):
            yield b"data: " + data.replace(b"\n", b" ") + _END


def sent(request: bytes | ChatTurn) -> bytes:
    """Return the body of a prepared request, which has more fields than the text that it was made from."""
    return request.body if isinstance(request, ChatTurn) else request.partition(b"\r\n\r\n")[2]


class Tokens(NamedTuple):
    """The numbers of tokens in a service's `usage`; 0 for those that it leaves out."""

    units: int
    """Generated tokens, with those of reasoning."""
    prompt: int
    cached: int
    reasoning: int


def tokens(answer: JsonObject) -> Tokens:
    """Return the numbers of tokens that the service reports."""
    usage = answer.get("usage") or {}
    prompt, completion = (usage.get(f"{name}_tokens_details") or {} for name in ("prompt", "completion"))
    found = (
        usage.get("completion_tokens"),
        usage.get("prompt_tokens"),
        prompt.get("cached_tokens"),
        completion.get("reasoning_tokens"),
    )
    return Tokens(*(int(number or 0) for number in found))


def _parse_object(body: Buffer) -> JsonObject:
    """Parse a JSON object; return an empty one for anything else."""
    try:
        answer = parse_json(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _find_error_message(answer: JsonObject) -> str:
    """Return an error's message, from any of the forms that services use."""
    error = answer.get("error") or answer.get("detail") or answer.get("message") or ""
    return str(error.get("message", error) if isinstance(error, dict) else error)
