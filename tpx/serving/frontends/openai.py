"""OpenAI's API: chat completions, completions, embeddings, what an engine answers by itself, and the models.

An engine's model takes and gives OpenAI's JSON as tensors, which pass through here unread. Any other model
with the tensors of Triton's vLLM backend is served too: its texts are put into OpenAI's form here.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import orjson
from msgspec.structs import replace

from tpx.errors import Code, InvalidRequest, NotFound, Overloaded, TpxError
from tpx.protocol.http1.request import JSON_TYPE, HttpRequest
from tpx.protocol.json_checks import param_of
from tpx.protocol.json_values import JsonObject
from tpx.protocol.openai import ENDPOINTS, MAX_BODY_BYTES, OWN, Endpoint, OpenAiRequest, decode
from tpx.protocol.tensors import Tensor, encode_bytes
from tpx.protocol.v2 import DecodedRequest, RequestedOutput
from tpx.serving.backpressure import ResponseBackpressure
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.access_log import log_tokens
from tpx.serving.frontends.forwarding import HeaderForwarding
from tpx.serving.frontends.http_verbs import Route, attempt, route
from tpx.serving.frontends.openai_texts import ComposedTexts, single_tensor
from tpx.serving.frontends.traced import trace_http
from tpx.serving.inference_plane import InferencePlane
from tpx.serving.offload import LONG_BYTES
from tpx.serving.request import InferRequest, InferResponse, response_like
from tpx.serving.served import Served
from tpx.serving.signature import Signature

_EVENTS = b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
_REQUEST, _RESPONSE = "openai_request", "openai_response"
_DONE = b"data: [DONE]\n\n"
_RETRY = b"Retry-After: 1\r\n"
_STATUS = {
    Code.NOT_FOUND: 404,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
    Code.PERMISSION_DENIED: 403,
}


def answer_openai_error(request: HttpRequest, error: TpxError, headers: bytes = b"") -> None:
    """Answer an error in OpenAI's form."""
    status, body = _render_error(error)
    retry = _RETRY if status in (429, 503) else b""
    request.respond(status, JSON_TYPE + retry + headers, (body,))


def _render_error(error: TpxError) -> tuple[int, bytes]:
    status = _STATUS.get(error.code, 400)
    if isinstance(error, Overloaded):
        status = 429
    kind, param, code = "invalid_request_error", param_of(error.message), None
    if status == 404:
        param, code = "model", "model_not_found"
    elif status == 429:
        kind, param, code = "rate_limit_error", None, "rate_limit_exceeded"
    elif status >= 500:
        kind, param = "server_error", None
    return status, error_body(error.message, kind, param, code)


def error_body(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    """Return an error in OpenAI's form."""
    text = message.encode(errors="replace").decode()
    return orjson.dumps({"error": {"message": text, "type": kind, "param": param, "code": code}})


def refusal_body(status: int, message: str) -> bytes:
    """Return the body of a response that the head alone decides."""
    kind = "authentication_error" if status == 401 else "invalid_request_error"
    return error_body(message, kind, None, "invalid_api_key" if status == 401 else None)


def is_language_model(signature: Signature) -> bool:
    """Return whether a model is served here: by its tensors."""
    return _REQUEST in signature.inputs or (
        "text_input" in signature.inputs and "text_output" in signature.outputs
    )


def takes_messages(model: Served) -> bool:
    """Return whether a model takes chats, as engines do that do not compute embeddings."""
    parameters = model.config.parameters
    embeds = "embeddings" in parameters and parameters["embeddings"].string_value != "false"
    return _REQUEST in model.signature.inputs and not embeds


class OpenAiModels:
    """Serves /v1/models, and /health/ready as Triton's OpenAI frontend does."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._created = int(datetime.now(UTC).timestamp())

    def routes(self) -> list[Route]:
        return [
            openai(route("/health/ready", "health", GET=self._ready)),
            openai(route("/v1/models", "metadata", GET=self._list)),
            openai(route("/v1/models/{model}", "metadata", GET=self._show)),
        ]

    def _ready(self, request: HttpRequest, _: re.Match[str]) -> None:
        request.respond(200 if self._plane.ready() else 503, b"")

    def _list(self, request: HttpRequest, _: re.Match[str]) -> None:
        data = [self._describe(name) for name in self._names()]
        request.respond(200, JSON_TYPE, (orjson.dumps({"object": "list", "data": data}),))

    def _show(self, request: HttpRequest, match: re.Match[str]) -> None:
        name = match["model"]
        if name in self._names():
            request.respond(200, JSON_TYPE, (orjson.dumps(self._describe(name)),))
        else:
            answer_openai_error(request, _unknown(name))

    def _names(self) -> Iterable[str]:
        return dict.fromkeys(
            model.name for model in self._plane.served() if is_language_model(model.signature)
        )

    def _describe(self, name: str) -> JsonObject:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "tpx"}


def _unknown(name: str) -> NotFound:
    return NotFound(f"the model '{name}' does not exist, or makes no text")


def openai(plain: Route) -> Route:
    """Return the route as one of OpenAI's API, which has restrictions and errors of its own."""
    return replace(plain, openai=True)


class OpenAiInference:
    """Serves /v1/chat/completions, /v1/completions, /v1/embeddings, and endpoints that are the engine's."""

    def __init__(self, plane: InferencePlane, forwarding: HeaderForwarding | None = None) -> None:
        self._plane = plane
        self._forwarding = forwarding

    def routes(self) -> list[Route]:
        return [
            openai(route(f"/v1/{endpoint}", "inference", POST=partial(self._serve_request, endpoint)))
            for endpoint in ENDPOINTS
        ]

    def _serve_request(self, endpoint: Endpoint, request: HttpRequest, _: re.Match[str]) -> None:
        fail = partial(answer_openai_error, request)
        if request.head.headers.get(b"content-encoding", b"identity").lower() not in (b"identity", b""):
            fail(InvalidRequest("Unsupported content-encoding, only 'identity' is supported."))
            return
        size = len(request.body)
        if size > MAX_BODY_BYTES:  # before it is copied
            fail(InvalidRequest(f"the request has {size} bytes, more than {MAX_BODY_BYTES}"))
            return
        work = partial(decode, bytes(request.body), endpoint)

        def go_on(asked: OpenAiRequest) -> None:
            attempt(request, partial(self._compute, request, asked), fail=answer_openai_error)

        if size > LONG_BYTES:
            request.on_gone = self._plane.offload.decode(size, work, go_on, fail)
        else:
            attempt(request, lambda: go_on(work()), fail=answer_openai_error)

    def _compute(self, request: HttpRequest, asked: OpenAiRequest) -> None:
        signature = self._plane.signature(asked.model, "")
        if not is_language_model(signature):
            raise _unknown(asked.model)
        decoded = DecodedRequest(model_name=asked.model)
        form: _Form
        own = asked.endpoint in OWN
        if _REQUEST in signature.inputs:
            data = encode_bytes([orjson.dumps(asked.fields)])
            decoded.inputs = [single_tensor(signature, signature.inputs[_REQUEST], data)]
            decoded.outputs = [RequestedOutput(name=_RESPONSE)]
            form = _Passed()
        else:
            form = ComposedTexts(asked, signature)
            decoded.inputs = form.inputs()
        if self._forwarding is not None:
            decoded.parameters.update(self._forwarding.of_head(request.head))
        if own:
            decoded.parameters["openai_endpoint"] = asked.endpoint
        answer: _Answer = _OpenAiEvents(request, form, own) if asked.stream else _OpenAiSingle(request, form)
        infer = self._plane.bind(decoded).request(_reply, answer)
        if isinstance(answer, _OpenAiEvents):
            passes = isinstance(form, _Passed)
            infer.template_of = (lambda *_: answer.send_strings) if passes else _template_of
        infer.backpressure = ResponseBackpressure()
        request.on_gone, request.on_stall = infer.cancel, infer.stall
        if self._plane.tracer.on:
            trace_http(self._plane.tracer, infer, request)
        self._plane.infer(infer)


def _template_of(infer: InferRequest, response: InferResponse) -> Callable[[list[bytes]], None]:
    """Return what composes an event of the only tensor of each response."""
    [like] = response.outputs

    def send(pieces: list[bytes]) -> None:
        for data in pieces:
            _reply(infer, response_like(like, data))

    return send


def _reply(infer: InferRequest, response: InferResponse) -> None:
    answer: _Answer = infer.context
    if response.final and infer.tokens is not None:
        log_tokens(answer.request, infer.head.model.name, infer.tokens, infer.arrived_ns)
    if answer.over:  # a model may go on after its client has left
        return
    if response.error is not None:
        infer.cancel()
        answer.fail(response.error)
    else:
        try:
            answer.take(response.outputs, final=response.final)
        except TpxError as exc:
            infer.cancel()
            answer.fail(exc)


class _Form(Protocol):
    """Makes OpenAI's JSON of the outputs of a model."""

    def piece(self, outputs: list[Tensor]) -> bytes:
        """Return a chunk of a stream; empty if there is none."""

    def rest(self) -> bytes:
        """Return the last chunks of a stream; each with its prefix if there are several."""

    def whole(self, outputs: list[Tensor]) -> None:
        """Take a part of a response."""

    def joined(self) -> bytes:
        """Return the response."""


class _Passed:
    """The JSON that an engine has made."""

    def __init__(self) -> None:
        self._body = b""

    def piece(self, outputs: list[Tensor]) -> bytes:
        return bytes(outputs[0].data[4:])  # behind the length of the only string

    def rest(self) -> bytes:
        return b""

    def whole(self, outputs: list[Tensor]) -> None:
        self._body = self.piece(outputs)

    def joined(self) -> bytes:
        return self._body


@dataclass(slots=True, eq=False)
class _OpenAiSingle:
    """Answers with one JSON object."""

    request: HttpRequest
    _form: _Form

    @property
    def over(self) -> bool:
        return self.request.over

    def take(self, outputs: list[Tensor], *, final: bool) -> None:
        if outputs:
            self._form.whole(outputs)
        if final:
            self.request.respond(200, JSON_TYPE, (self._form.joined(),))

    def fail(self, error: TpxError) -> None:
        answer_openai_error(self.request, error)


@dataclass(slots=True, eq=False)
class _OpenAiEvents:
    """Answers with server-sent events; the status is that of the first response."""

    request: HttpRequest
    _form: _Form
    _own: bool
    """True if the engine writes the lines of an event, and the last one."""
    _begun: bool = False

    @property
    def over(self) -> bool:
        return self.request.over

    def send(self, event: bytes) -> None:
        """Send an event; dropped if the client is gone."""
        self._begin()
        self.request.send((b"%b\n\n" if self._own else b"data: %b\n\n") % event)

    def send_strings(self, tensors: list[bytes]) -> None:
        """Send the events in tensors of one string each."""
        between = b"\n\n" if self._own else b"\n\ndata: "
        self.send(between.join([data[4:] for data in tensors]))  # behind their lengths

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.request.begin(200, _EVENTS)

    def take(self, outputs: list[Tensor], *, final: bool) -> None:
        if outputs:
            self.send(self._form.piece(outputs))
        if final:
            self._begin()
            if not self._own:
                rest = self._form.rest()
                self.request.send(b"data: %b\n\n%b" % (rest, _DONE) if rest else _DONE)
            self.request.finish()

    def fail(self, error: TpxError) -> None:
        if self._begun:
            body = _render_error(error)[1]
            if self._own:  # by the type, as clients of Anthropic's and of responses expect it
                body = b'event: error\ndata: {"type":"error",%b' % body[1:]
            self.send(body)
            self.request.finish()
        else:
            answer_openai_error(self.request, error)


_Answer = _OpenAiSingle | _OpenAiEvents
