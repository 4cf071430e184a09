"""HTTP verbs: the paths that lead to them, and how they answer (statuses, error bodies, compression)."""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache, partial
from typing import TypeVar

import msgspec
import orjson

from tpx.errors import Cancelled, Code, InvalidRequest, NotFound, TpxError
from tpx.protocol.compression import ENCODINGS, deflate
from tpx.protocol.http1.head import HttpHead
from tpx.protocol.http1.request import JSON_TYPE, HttpRequest
from tpx.protocol.json_outline import LARGE_BYTES, check_flat
from tpx.protocol.json_values import JsonObject
from tpx.protocol.tensors import Buffer
from tpx.serving.deferred import NotLoaded
from tpx.serving.frontends.access import Category

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


Meaning = Callable[[HttpRequest], None]
"""Handler that a head resolves to: cached with the head, called for each request that has it."""

MODEL = "/v2/models/{model}[/versions/{version}]"
"""Path of a model; `of_model` reads the match."""
_SEGMENTS = {"version": "[0-9]+"}
"""Patterns of path segments by name; other segments match any text."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A path, and the verb of each method, which resolves a head to a handler."""

    template: str
    """Path template: {name} is a segment, {name*} one that may be empty, [part] is optional."""
    category: Category
    verbs: Mapping[bytes, Callable[[HttpHead, re.Match[str]], Meaning]]
    openai: bool = False
    """True for OpenAI's API, which has restrictions and errors of its own."""

    def match(self, path: str) -> re.Match[str] | None:
        """Match a whole path."""
        if not path.startswith(_beginning(self.template)):
            return None
        # compiled for the first path that begins like it: all patterns at once would take 4 ms of the start
        return _compile_template(self.template).fullmatch(path)

    @property
    def allowed(self) -> bytes:
        """Methods, formatted for the Allow header."""
        return b", ".join(self.verbs)


@cache
def _beginning(template: str) -> str:
    """Return a template up to its first variable or optional part."""
    return re.split(r"[\[{]", template, maxsplit=1)[0]


@cache
def _compile_template(template: str) -> re.Pattern[str]:
    """Return a pattern that matches the paths of a template."""

    def segment(found: re.Match[str]) -> str:
        name, star = found[1], found[2]
        return f"(?P<{name}>{_SEGMENTS.get(name, '[^/]*' if star else '[^/]+')})"

    escaped = re.escape(template).replace(r"\[", "(?:").replace(r"\]", ")?")
    return re.compile(re.sub(r"\\{(\w+)(\\\*)?\\}", segment, escaped))


class HttpRefusal(Exception):
    """Raised when the head alone decides the response, with an HTTP status that no error code maps to."""

    def __init__(self, status: int, message: str, headers: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


def route(path: str, category: Category, **verbs: Callable[[HttpRequest, re.Match[str]], None]) -> Route:
    """Return a route whose verbs, GET= and POST=, take the request and the match of its path."""

    def bound(verb: Callable[[HttpRequest, re.Match[str]], None]) -> Callable[..., Meaning]:
        return lambda _, match: lambda request: verb(request, match)

    return Route(
        template=path,
        category=category,
        verbs={method.encode(): bound(verb) for method, verb in verbs.items()},
    )


def paths_of(template: str) -> list[str]:
    """Return the paths of a template, with and without each optional part, but none that ends in a slash."""
    texts = [""]
    for number, part in enumerate(re.split(r"[][]", template.replace("*}", "}"))):
        texts = [text + each for text in texts for each in (("", part) if number % 2 else (part,))]
    return sorted({text for text in texts if not text.endswith("/")}, key=lambda text: (len(text), text))


def of_model(match: re.Match[str]) -> tuple[str, str]:
    """Return model name and version ("" if absent) of a matched path. Raises NotFound."""
    name = match["model"]
    if name in (".", ".."):
        raise NotFound(f"Request for unknown model: '{name}' is not found")
    return name, match["version"] or ""


def short_json_object(request: HttpRequest) -> JsonObject:
    """Parse the body of a verb other than inference and load, which the event loop handles at once."""
    if len(request.body) > LARGE_BYTES:
        raise InvalidRequest(
            "failed to parse the request JSON buffer: for this verb it takes at most "
            f"{LARGE_BYTES} bytes, got {len(request.body)}"
        )
    return json_object(request)


def json_object(request: HttpRequest) -> JsonObject:
    """Parse the body as a JSON object; an empty body is an empty object. Raises InvalidRequest."""
    if not len(request.body):
        return {}
    if len(request.body) > LARGE_BYTES:
        check_flat(request.body)
    try:
        value = orjson.loads(request.body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"failed to parse the request JSON buffer: {exc}") from exc
    if not isinstance(value, dict):
        raise InvalidRequest("the request body must be a JSON object")
    return value


def answer_json(request: HttpRequest, value: object) -> None:
    """Answer with a value as JSON; Structs become objects."""
    request.respond(200, JSON_TYPE, (orjson.dumps(value, default=msgspec.to_builtins),))


def answer_error(request: HttpRequest, error: TpxError, headers: bytes = b"", status: int = 0) -> None:
    """Answer with the error's message, which may quote the client's input, and the status of its code, or
    this one.
    """
    message = error.message.encode(errors="replace").decode()
    body = orjson.dumps({"error": message})
    request.respond(status or STATUS_OF_CODE[error.code], JSON_TYPE + headers, (body,))


Fail = Callable[[HttpRequest, TpxError], None]
"""Answers a request with an error."""


def answer_failure(request: HttpRequest, error: Exception, fail: Fail = answer_error) -> None:
    """Answer an internal error. The traceback is logged; the client only learns that the server failed."""
    log.error("an HTTP request failed", exc_info=error)
    fail(request, TpxError("internal error: see the log of the server"))


def answer_compressed(request: HttpRequest, headers: bytes, parts: Sequence[Buffer], encoding: str) -> None:
    """Answer 200 with a compressed body."""
    headers += f"Content-Encoding: {encoding}\r\n".encode()
    body = b"".join(parts)
    if len(body) <= _SHORT_BYTES:
        request.respond(200, headers, (deflate(body, encoding),))
    else:
        packing = asyncio.get_running_loop().run_in_executor(None, deflate, body, encoding)
        when_done(request, packing, lambda packed: request.respond(200, headers, (packed,)))


def attempt(
    request: HttpRequest, work: Callable[[], None], *, waits: bool = True, fail: Fail = answer_error
) -> None:
    """Run one step of a request and answer its errors. If the model is not loaded, load it and retry once."""
    try:
        try:
            work()
        except NotLoaded as exc:
            if not waits:
                raise
            when_loaded(request, exc, work, fail)
    except TpxError as exc:
        fail(request, exc)
    except Exception as exc:  # noqa: BLE001 (one request's boundary)
        answer_failure(request, exc, fail)


def when_loaded(
    request: HttpRequest, absent: NotLoaded, work: Callable[[], None], fail: Fail = answer_error
) -> None:
    """Load a model, then attempt `work`. Raises Overloaded."""

    def again() -> None:
        request.on_gone = None
        attempt(request, work, waits=False, fail=fail)

    request.on_gone = absent.then(again, partial(fail, request))


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


async def answer_when_done(
    request: HttpRequest, work: Coroutine[object, object, None], fail: Fail = answer_error
) -> None:
    """Await `work`, which answers the request, and answer its errors."""
    try:
        await work
    except TpxError as exc:
        fail(request, exc)
    except Exception as exc:  # noqa: BLE001 (one request's boundary)
        answer_failure(request, exc, fail)


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
