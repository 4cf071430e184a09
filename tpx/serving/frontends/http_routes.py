"""The paths of the HTTP API: each extension of the protocol brings its own, the frontend looks them up."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tpx.errors import InvalidRequest, NotFound
from tpx.protocol.http1.head import Head
from tpx.protocol.http1.server import HttpRequest
from tpx.protocol.json_outline import LARGE_BYTES, check_flat
from tpx.serving.frontends.access import Category

Meaning = Callable[[HttpRequest], None]
"""What a head asks for: remembered with the head, called for each request that has it."""

MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
"""The path of a model; `of_model` reads the match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Paths that match `pattern` as a whole, and what each method makes of a head with such a path."""

    pattern: re.Pattern[str]
    category: Category
    verbs: Mapping[bytes, Callable[[Head, re.Match[str]], Meaning]]

    @property
    def allowed(self) -> bytes:
        """The methods, as the Allow header lists them."""
        return b", ".join(self.verbs)


class Refusal(Exception):
    """An answer that is decided by the head alone, with a status of HTTP's own."""

    def __init__(self, status: int, message: str, headers: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


def route(path: str, category: Category, **verbs: Callable[[HttpRequest, re.Match[str]], None]) -> Route:
    """A route whose verbs, GET= and POST=, take the request and the match of its path."""

    def bound(verb: Callable[[HttpRequest, re.Match[str]], None]) -> Callable[..., Meaning]:
        return lambda _, match: lambda request: verb(request, match)

    return Route(
        pattern=re.compile(path),
        category=category,
        verbs={method.encode(): bound(verb) for method, verb in verbs.items()},
    )


def of_model(match: re.Match[str]) -> tuple[str, str]:
    """Name and version of the model in a matched path, "" for none. Raises NotFound."""
    name = match["model"]
    if name in (".", ".."):
        raise NotFound(f"Request for unknown model: '{name}' is not found")
    return name, match["version"] or ""


def json_object(request: HttpRequest) -> dict[str, Any]:
    """The body as a JSON object; an empty body is an empty object. Raises InvalidRequest."""
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
