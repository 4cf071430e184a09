"""The generate extension: one flat JSON object in, one or, as server-sent events, many out."""

import logging
import re

import orjson

from tpx.errors import InvalidRequest, TpxError
from tpx.protocol.http1.server import JSON_TYPE, HttpRequest
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.forwarding import HeaderForwarding
from tpx.serving.frontends.generate_json import decode, encode
from tpx.serving.frontends.http_answers import STATUS_OF_CODE, answer_error
from tpx.serving.frontends.http_routes import MODEL, Route, of_model, route
from tpx.serving.frontends.traced import trace_http
from tpx.serving.pace import Pace
from tpx.serving.request import InferRequest, InferResponse

log = logging.getLogger(__name__)

_EVENTS = b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates "
    "various number of responses"
)


class HttpGeneration:
    """Serves /generate and /generate_stream."""

    def __init__(self, plane: DataPlane, forwarding: HeaderForwarding | None = None) -> None:
        self._plane = plane
        self._forwarding = forwarding

    def routes(self) -> list[Route]:
        return [
            route(MODEL + "/generate", "inference", POST=self._generate),
            route(MODEL + "/generate_stream", "inference", POST=self._generate_stream),
        ]

    def _generate(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._serve(request, _Single(request), *of_model(match))

    def _generate_stream(self, request: HttpRequest, match: re.Match[str]) -> None:
        self._serve(request, _Events(request), *of_model(match))

    def _serve(self, request: HttpRequest, answer: "_Single | _Events", name: str, version: str) -> None:
        """Decode and compute. Raises RequestError."""
        if request.head.headers.get(b"content-encoding", b"identity").lower() not in (b"identity", b""):
            raise InvalidRequest("Unsupported content-encoding, only 'identity' is supported.")
        decoded = decode(request.body, self._plane.signature(name, version))
        decoded.model_name, decoded.model_version = name, version
        if self._forwarding is not None:
            decoded.parameters.update(self._forwarding.of_head(request.head))
        head = self._plane.bind(decoded)
        infer = InferRequest(head, [tensor.data for tensor in decoded.inputs], _reply, answer)
        infer.pace = Pace()
        request.on_gone, request.on_stall = infer.cancel, infer.stall
        if self._plane.tracer.on:
            trace_http(self._plane.tracer, infer, request)
        self._plane.infer(infer)


def _reply(infer: InferRequest, response: InferResponse) -> None:
    answer: _Single | _Events = infer.context
    if answer.over:
        return
    try:
        answer.take(infer, response)
    except TpxError as exc:
        infer.cancel()
        answer.fail(exc)
    except Exception:  # one request's boundary
        log.exception("encoding an answer failed")
        infer.cancel()
        answer.fail(TpxError("internal error: see the log of the server"))


class _Single:
    """One JSON object: the model must produce exactly one response."""

    def __init__(self, request: HttpRequest) -> None:
        self.over = False
        self._request = request
        self._body = b""

    def take(self, infer: InferRequest, response: InferResponse) -> None:
        """Take a response. Raises TpxError."""
        if response.error is not None:
            raise response.error
        if response.says_something:
            if self._body:
                raise InvalidRequest(_NOT_ONE)
            self._body = encode(infer.head, response)
        if response.final:
            if not self._body:
                raise InvalidRequest(_NOT_ONE)
            self.over = True
            self._request.respond(200, JSON_TYPE, (self._body,))

    def fail(self, error: TpxError) -> None:
        self.over = True
        answer_error(self._request, error)


class _Events:
    """Server-sent events. The status is that of the first response, be it an error; others are events."""

    def __init__(self, request: HttpRequest) -> None:
        self.over = False
        self._request = request
        self._begun = False

    def take(self, infer: InferRequest, response: InferResponse) -> None:
        """Take a response. Raises TpxError."""
        if response.error is not None:
            self._error(response.error)
        elif response.says_something:
            self._event(200, encode(infer.head, response))
        if response.final:
            self._end()

    def fail(self, error: TpxError) -> None:
        self._error(error)
        self._end()

    def _error(self, error: TpxError) -> None:
        text = error.message.encode(errors="replace").decode()  # a client's own words may be in it
        self._event(STATUS_OF_CODE[error.code], orjson.dumps({"error": text}))

    def _event(self, status: int, data: bytes) -> None:
        self._begin(status)
        self._request.send(b"data: %b\n\n" % data)

    def _begin(self, status: int) -> None:
        if not self._begun:
            self._begun = True
            self._request.begin(status, _EVENTS)

    def _end(self) -> None:
        self._begin(200)
        self.over = True
        self._request.finish()
