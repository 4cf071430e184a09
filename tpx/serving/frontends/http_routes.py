"""Paths of the HTTP API: each protocol extension defines its own routes, and the frontend looks them up."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import orjson

from tpx.errors import InvalidRequest, NotFound
from tpx.protocol.http1.head import HttpHead
from tpx.protocol.http1.server import HttpRequest
from tpx.protocol.json_outline import LARGE_BYTES, check_flat
from tpx.protocol.json_values import JsonObject
from tpx.serving.frontends.access import Category

Meaning = Callable[[HttpRequest], None]
"""Handler that a head resolves to: cached with the head, called for each request that has it."""

MODEL = "/v2/models/{model}[/versions/{version}]"
"""Path of a model; `of_model` reads the match."""
_SEGMENTS = {"version": "[0-9]+"}
"""Patterns of path segments by name; other segments match any text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A path, and the verb of each method, which resolves a head to a handler."""

    template: str
    """Path template: {name} is a segment, {name*} one that may be empty, [part] is optional."""
    category: Category
    verbs: Mapping[bytes, Callable[[HttpHead, re.Match[str]], Meaning]]
    pattern: re.Pattern[str] = field(init=False)
    """Compiled template; matches the whole path."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", _pattern_of(self.template))

    @property
    def allowed(self) -> bytes:
        """Methods, formatted for the Allow header."""
        return b", ".join(self.verbs)


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


def _pattern_of(template: str) -> re.Pattern[str]:
    def segment(found: re.Match[str]) -> str:
        name, star = found[1], found[2]
        return f"(?P<{name}>{_SEGMENTS.get(name, '[^/]*' if star else '[^/]+')})"

    escaped = re.escape(template).replace(r"\[", "(?:").replace(r"\]", ")?")
    return re.compile(re.sub(r"\\{(\w+)(\\\*)?\\}", segment, escaped))


def paths_of(template: str) -> list[str]:
    """Return the paths of a template, with and without each optional part.

    Variants that end in a slash are omitted.
    """
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
