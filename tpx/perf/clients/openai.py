"""Services with OpenAI's API: chat, completions, embeddings; whole responses, or streamed token by
token.

Each nonempty piece of text counts as a response, so that the first one's time is the time to first
token, and the time between two is the inter-token latency. The number of tokens is taken from the
service's `usage` or, if absent, is the number of pieces.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter_ns
from typing import cast

import orjson

from tpx.errors import UsageError
from tpx.perf.clients.base import PLAIN, Failure, OnResponse, RequestFields
from tpx.perf.clients.chat import NO_MESSAGE, ChatTurn, EventConnection, EventParser
from tpx.perf.clients.control import StaticControl
from tpx.perf.clients.endpoint import Connections, Endpoint
from tpx.perf.clients.http import HttpSlots, Send, http_connector
from tpx.perf.clients.model import TensorDescription
from tpx.protocol.http1.client import HttpClientConnection, HttpConnector, HttpResponse
from tpx.protocol.json_values import JsonObject
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


def connect(endpoint: Endpoint) -> Connections:
    """Return the connections to a service with OpenAI's API."""
    connector = http_connector(endpoint, EventConnection)
    inputs = (INPUT, SESSION, DELAY) if endpoint.sessions else (INPUT,)
    return Connections(OpenAiClient(connector, endpoint), StaticControl(connector, "openai", *inputs))


class OpenAiAnswer:
    """Implements StreamedResponse."""

    __slots__ = (
        "_events", "_on_response", "arrivals", "body", "end_ns", "error", "first_byte_ns", "status",
        "streamed", "units",
    )  # fmt: skip

    def __init__(self, on_response: OnResponse) -> None:
        self._on_response = on_response
        self._events = EventParser()
        self.status = 0
        self.first_byte_ns = 0
        self.end_ns = 0
        self.arrivals: list[int] = []
        self.units = 0
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
            if has_text(event):
                self.arrivals.append(now_ns)
            self.units = tokens(event) or self.units

    def refuse(self, reason: str) -> None:
        """Turn a successful response into a failure."""
        self.status, self.error = REFUSED_IN_STREAM, reason

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
            self.units = tokens(_parse_object(response.body))
            self.arrivals.append(now_ns)
        if self.error and self.status == OpenAiClient.success:
            self.refuse(self.error)
        arrivals = self.arrivals
        # no usage reported: count the pieces of a stream
        self.units = self.units or len(arrivals) * self.streamed
        self.first_byte_ns, self.end_ns = (arrivals[0], arrivals[-1]) if arrivals else (now_ns, now_ns)
        self._on_response(self)


class OpenAiClient(HttpSlots):
    """Implements Client."""

    streams = True

    def __init__(self, connector: HttpConnector, endpoint: Endpoint) -> None:
        super().__init__(connector, endpoint)
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

    def send_on(self, connection: HttpClientConnection) -> Send:
        events = cast("EventConnection", connection)

        def send(request: bytes | ChatTurn, on_response: OnResponse) -> None:
            if isinstance(request, ChatTurn):
                on_response = partial(_record_turn, request, on_response)
                request = request.encoded
            answer = OpenAiAnswer(on_response)
            events.told = 0
            connection.send(request, lambda response: answer.finish(response, events.told))
            events.on_piece = answer.take

        return send

    def _encode(self, body: bytes) -> bytes:
        path = f"/{self.endpoint.service.path}".removesuffix("/.") or "/"
        return b"".join(self.encode(path, {"Content-Type": "application/json"}, [body]))


def _record_turn(turn: ChatTurn, on_response: OnResponse, answer: OpenAiAnswer) -> None:
    """Add a turn's response to its conversation before the load sees it."""
    succeeded = answer.status == OpenAiClient.success
    if succeeded and not turn.answered(answer.body, streamed=answer.streamed):
        answer.refuse(NO_MESSAGE)
    on_response(answer)


def payload(content: bytes, endpoint: Endpoint) -> JsonObject:
    """Return a request's body: the user's JSON object completed with the model's name and the stream
    option, or one made from a text.

    Raises UsageError if the endpoint does not tell how to make a body from a text.
    """
    stream = endpoint.wire.streaming
    brought = _parse_object(content)
    if brought:
        asked = {"model": endpoint.model.name} | dict(brought)
        return asked | {"stream": True} if stream else asked
    text, path = content.decode("utf-8", "replace"), endpoint.service.path
    if path.endswith("chat/completions"):
        made: JsonObject = {"messages": [{"role": "user", "content": text}]}
    elif path.endswith("completions"):
        made = {"prompt": text}
    elif path.endswith("embeddings") and not stream:
        return {"model": endpoint.model.name, "input": text}
    else:
        raise UsageError(
            f"--endpoint {path}: the content of its requests is unknown; give bodies with --input-data "
            '{"data": [{"payload": [{...}]}]}'
        )
    made["model"] = endpoint.model.name
    return made | dict(STREAM) if stream else made


def has_text(event: JsonObject) -> bool:
    """Return True for an event with generated text; `text_output` is Triton's, from generate_stream."""
    if event.get("text_output"):
        return True
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or any(
            delta.get(key) for key in ("content", "reasoning_content", "tool_calls")
        ):
            return True
    return False


def generated(body: Buffer) -> Iterator[bytes]:
    """Yield the events of a whole stream that have text, each on one line; one per arrival."""
    for data in EventParser().feed(bytes(body) + _END):
        if data != _DONE and has_text(_parse_object(data)):
            yield b"data: " + data.replace(b"\n", b" ") + _END


def sent(request: bytes | ChatTurn) -> bytes:
    """Return the body of a prepared request, which has more fields than the text that it was made from."""
    return request.body if isinstance(request, ChatTurn) else request.partition(b"\r\n\r\n")[2]


def tokens(answer: JsonObject) -> int:
    """Return the number of generated tokens that the service reports; 0 if it reports none."""
    usage = answer.get("usage") or {}
    return int(usage.get("completion_tokens") or 0)


def _parse_object(body: Buffer) -> JsonObject:
    """Parse a JSON object; return an empty one for anything else."""
    try:
        answer = json.loads(bytes(body))
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _find_error_message(answer: JsonObject) -> str:
    """Return an error's message, from any of the forms that services use."""
    error = answer.get("error") or answer.get("detail") or answer.get("message") or ""
    return str(error.get("message", error) if isinstance(error, dict) else error)
