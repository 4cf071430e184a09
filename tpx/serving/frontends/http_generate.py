"""The generate extension: one flat JSON object in; one out, or many as server-sent events."""

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import orjson

from tpx.errors import InvalidRequest, TpxError
from tpx.protocol.http1.request import JSON_TYPE, HttpRequest
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.backpressure import ResponseBackpressure
from tpx.serving.frontends.forwarding import HeaderForwarding
from tpx.serving.frontends.generate_json import decode, encode, encoder_of_data
from tpx.serving.frontends.http_verbs import (
    MODEL,
    STATUS_OF_CODE,
    Route,
    answer_error,
    attempt,
    of_model,
    route,
)
from tpx.serving.frontends.load_report import LoadReport, format_of
from tpx.serving.frontends.outputs import takes_long
from tpx.serving.frontends.traced import trace_http
from tpx.serving.inference_plane import InferencePlane
from tpx.serving.offload import LONG_BYTES
from tpx.serving.request import InferRequest, InferResponse, response_like

log = logging.getLogger(__name__)

_EVENTS = b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates "
    "various number of responses"
)


class HttpGeneration:
    """Serves /generate and /generate_stream."""

    def __init__(
        self, plane: InferencePlane, load: LoadReport, forwarding: HeaderForwarding | None = None
    ) -> None:
        self._load = load
        self._plane = plane
        self._forwarding = forwarding

    def routes(self) -> list[Route]:
        return [
            route(MODEL + "/generate", "inference", POST=partial(self._serve_request, _Single)),
            route(MODEL + "/generate_stream", "inference", POST=partial(self._serve_request, _Events)),
        ]

    def _serve_request(
        self, kind: "type[_Single | _Events]", request: HttpRequest, match: re.Match[str]
    ) -> None:
        """Decode and compute. Raises RequestError."""
        answer, (name, version) = kind(request, self._load), of_model(match)
        if request.head.headers.get(b"content-encoding", b"identity").lower() not in (b"identity", b""):
            raise InvalidRequest("Unsupported content-encoding, only 'identity' is supported.")
        size = len(request.body)
        work = partial(
            decode, request.body, self._plane.signature(name, version), self._plane.max_string_elements
        )
        if size > LONG_BYTES:

            def go_on(decoded: DecodedRequest) -> None:
                attempt(request, partial(self._compute, request, answer, name, version, decoded))

            request.on_gone = self._plane.offload.decode(size, work, go_on, partial(answer_error, request))
        else:
            self._compute(request, answer, name, version, work())

    def _compute(
        self, request: HttpRequest, answer: "_Answer", name: str, version: str, decoded: DecodedRequest
    ) -> None:
        decoded.model_name, decoded.model_version = name, version
        if self._forwarding is not None:
            decoded.parameters.update(self._forwarding.of_head(request.head))
        infer = self._plane.bind(decoded).request(self._reply, answer)
        infer.backpressure = ResponseBackpressure()
        if isinstance(answer, _Events):
            infer.template_of = self._template_of
        request.on_gone, request.on_stall = infer.cancel, infer.stall
        if self._plane.tracer.on:
            trace_http(self._plane.tracer, infer, request)
        self._plane.infer(infer)

    def _reply(self, infer: InferRequest, response: InferResponse) -> None:
        answer: _Answer = infer.context
        if answer.over:  # a model may go on for long after its client has left
            return
        encode = partial(_encode_json, infer, response, self._plane.offload.limit_bytes)
        if answer.encoding or takes_long(infer.head, response.outputs):
            # encode later responses in the same thread to keep their order
            answer.encoding += 1
            take = partial(_take_encoded, infer, response)
            size = response.size_bytes
            self._plane.offload.encode(size, encode, take, lambda error: _fail_request(infer, error))
            return
        try:
            answer.take(response, encode())
        except TpxError as exc:
            _fail_request(infer, exc)
        except Exception:  # one request's boundary
            log.exception("encoding an answer failed")
            _fail_request(infer, TpxError("internal error: see the log of the server"))

    def _template_of(self, infer: InferRequest, response: InferResponse) -> Callable[[list[bytes]], None]:
        """Return what sends the tensors of responses like this one."""
        answer: _Events = infer.context
        [like] = response.outputs
        encode_data = encoder_of_data(infer.head, like, self._plane.offload.limit_bytes)

        def send(pieces: list[bytes]) -> None:
            if not (answer.over or answer.encoding):
                with suppress(TpxError):
                    answer.send_events(200, [encode_data(data) for data in pieces])
                    return
            for data in pieces:  # behind a large response, or up to one that cannot be encoded
                self._reply(infer, response_like(like, data))

        return send


def _encode_json(infer: InferRequest, response: InferResponse, limit_bytes: int) -> bytes:
    """Encode a response as JSON; return b"" if it carries nothing to send. Raises as `encode`."""
    says = response.has_content or not infer.head.model.decoupled
    return encode(infer.head, response, limit_bytes) if response.error is None and says else b""


def _take_encoded(infer: InferRequest, response: InferResponse, data: bytes) -> None:
    answer: _Answer = infer.context
    answer.encoding -= 1
    if answer.over:
        return
    try:
        answer.take(response, data)
    except TpxError as exc:
        _fail_request(infer, exc)


def _fail_request(infer: InferRequest, error: TpxError) -> None:
    answer: _Answer = infer.context
    if not answer.over:
        infer.cancel()
        answer.fail(error)


class _Single:
    """Answers with one JSON object: the model must produce exactly one response."""

    def __init__(self, request: HttpRequest, load: LoadReport) -> None:
        self.encoding = 0
        """Number of responses being encoded in another thread."""
        self._request = request
        self._load = load
        self._body = b""

    @property
    def over(self) -> bool:
        """True if no response is needed any more."""
        return self._request.over

    def take(self, response: InferResponse, data: bytes) -> None:
        """Take a response and its JSON. Raises TpxError."""
        if response.error is not None:
            raise response.error
        if data:
            if self._body:
                raise InvalidRequest(_NOT_ONE)
            self._body = data
        if response.final:
            if not self._body:
                raise InvalidRequest(_NOT_ONE)
            line = self._load.line(format_of(self._request.head.headers))
            self._request.respond(200, JSON_TYPE + line, (self._body,))

    def fail(self, error: TpxError) -> None:
        answer_error(self._request, error)


class _Events:
    """Answers with server-sent events. The HTTP status is that of the first response, even if it is an
    error; later errors are events.
    """

    def __init__(self, request: HttpRequest, load: LoadReport) -> None:
        self.encoding = 0
        """Number of responses being encoded in another thread."""
        self._request = request
        self._load = load
        self._begun = False

    @property
    def over(self) -> bool:
        """True if no response is needed any more."""
        return self._request.over

    def take(self, response: InferResponse, data: bytes) -> None:
        """Take a response and its JSON."""
        if response.error is not None:
            self._send_error(response.error)
        elif data:
            self.send_events(200, [data])
        if response.final:
            self._end_response()

    def fail(self, error: TpxError) -> None:
        self._send_error(error)
        self._end_response()

    def _send_error(self, error: TpxError) -> None:
        text = error.message.encode(errors="replace").decode()  # it may quote invalid text of the client
        self.send_events(STATUS_OF_CODE[error.code], [orjson.dumps({"error": text})])

    def send_events(self, status: int, events: list[bytes]) -> None:
        """Send each JSON as an event; the first one of all has the status."""
        self._begin_response(status)
        self._request.send(b"data: %b\n\n" % b"\n\ndata: ".join(events))

    def _begin_response(self, status: int) -> None:
        if not self._begun:
            self._begun = True
            line = self._load.line(format_of(self._request.head.headers))
            self._request.begin(status, _EVENTS + line)

    def _end_response(self) -> None:
        self._begin_response(200)
        self._request.finish()


_Answer = _Single | _Events
