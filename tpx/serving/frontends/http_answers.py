"""HTTP responses: statuses, error bodies, compression."""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TypeVar

import orjson

from tpx.errors import Cancelled, Code, TpxError
from tpx.protocol.compression import ENCODINGS, deflate
from tpx.protocol.http1.server import JSON_TYPE, HttpRequest
from tpx.protocol.tensors import Buffer
from tpx.serving.repository.coordinator import NotLoaded

T = TypeVar("T")

log = logging.getLogger(__name__)

STATUS_OF_CODE = {
    Code.UNKNOWN: 400,
    Code.INTERNAL: 500,
    Code.NOT_FOUND: 404,
    Code.INVALID_ARGUMENT: 400,
    Code.UNAVAILABLE: 503,
    Code.UNSUPPORTED: 501,
    Code.ALREADY_EXISTS: 400,
    Code.CANCELLED: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.RESOURCE_EXHAUSTED: 400,
    Code.PERMISSION_DENIED: 403,
}

_SHORT_BYTES = 4 << 10
_ACCEPTED = re.compile(r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*(?:;\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*)?")


def answer_json(request: HttpRequest, value: object) -> None:
    """Answer with a value as JSON; dataclasses become objects."""
    request.respond(200, JSON_TYPE, (orjson.dumps(value),))


def answer_error(request: HttpRequest, error: TpxError, headers: bytes = b"") -> None:
    """Answer with the status of the error's code and its message, which may quote the client's input."""
    message = error.message.encode(errors="replace").decode()
    request.respond(STATUS_OF_CODE[error.code], JSON_TYPE + headers, (orjson.dumps({"error": message}),))


def answer_failure(request: HttpRequest, error: Exception) -> None:
    """Answer an internal error. The traceback is logged; the client only learns that the server failed."""
    log.error("an HTTP request failed", exc_info=error)
    request.respond(500, JSON_TYPE, (b'{"error":"internal error: see the log of the server"}',))


def answer_compressed(request: HttpRequest, headers: bytes, parts: Sequence[Buffer], encoding: str) -> None:
    """Answer 200 with a compressed body."""
    headers += f"Content-Encoding: {encoding}\r\n".encode()
    body = b"".join(parts)
    if len(body) <= _SHORT_BYTES:
        request.respond(200, headers, (deflate(body, encoding),))
    else:
        packing = asyncio.get_running_loop().run_in_executor(None, deflate, body, encoding)
        when_done(request, packing, lambda packed: request.respond(200, headers, (packed,)))


def attempt(request: HttpRequest, work: Callable[[], None], *, waits: bool = True) -> None:
    """Run one step of a request and answer its errors. If the model is not loaded, load it and retry once."""
    try:
        try:
            work()
        except NotLoaded as exc:
            if not waits:
                raise
            when_loaded(request, exc, work)
    except TpxError as exc:
        answer_error(request, exc)
    except Exception as exc:  # noqa: BLE001 (one request's boundary)
        answer_failure(request, exc)


def when_loaded(request: HttpRequest, absent: NotLoaded, work: Callable[[], None]) -> None:
    """Load a model, then attempt `work`. Raises Overloaded."""

    def again() -> None:
        request.on_gone = None
        attempt(request, work, waits=False)

    request.on_gone = absent.then(again, partial(answer_error, request))


def when_done(
    request: HttpRequest, future: "asyncio.Future[T]", work: Callable[[T], None]
) -> Callable[[], None]:
    """Attempt `work` with the result of another thread, where large bodies do not delay other clients.
    Returns a function that cancels it.
    """

    def done(future: "asyncio.Future[T]") -> None:
        if future.cancelled():
            answer_error(request, Cancelled("the request was cancelled"))
        else:
            attempt(request, lambda: work(future.result()))

    future.add_done_callback(done)

    def call_off() -> None:
        future.cancel()

    return call_off


async def answer_when_done(request: HttpRequest, work: Coroutine[object, object, None]) -> None:
    """Await `work`, which answers the request, and answer its errors."""
    try:
        await work
    except TpxError as exc:
        answer_error(request, exc)
    except Exception as exc:  # noqa: BLE001 (one request's boundary)
        answer_failure(request, exc)


def choose_encoding(accept: bytes) -> str:
    """Return the preferred encoding of an Accept-Encoding header; "" for identity or a malformed header."""
    best, best_weight = "", 0.0
    for item in accept.decode("latin-1").split(","):
        match = _ACCEPTED.fullmatch(item)
        if match is None:
            continue
        name, weight = match[1].lower(), float(match[2] or 1)
        if name in (*ENCODINGS, "identity") and weight > best_weight:
            best, best_weight = name, weight
    return "" if best == "identity" else best
