"""The HTTP endpoint: maps each request to a verb."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import unquote_to_bytes

import msgspec
import orjson

from tpx.errors import TpxError
from tpx.protocol.compression import Inflater
from tpx.protocol.http1.head import HttpError, HttpHead
from tpx.protocol.http1.request import JSON_TYPE, HttpRequest
from tpx.serving.dataplane import DataPlane
from tpx.serving.deferred import NotLoaded
from tpx.serving.frontends.access import Key, Restrictions
from tpx.serving.frontends.browsers import BrowserPolicy, answer_preflight, is_preflight
from tpx.serving.frontends.forwarding import HeaderForwarding
from tpx.serving.frontends.http_control import HttpControlPlane
from tpx.serving.frontends.http_generate import HttpGeneration
from tpx.serving.frontends.http_infer import HttpInference, InferRoute
from tpx.serving.frontends.http_verbs import (
    HttpRefusal,
    Meaning,
    Route,
    answer_error,
    answer_failure,
    attempt,
    when_loaded,
)
from tpx.serving.frontends.load_report import LoadReport
from tpx.serving.frontends.openai import OpenAiInference, OpenAiModels, refusal_body
from tpx.serving.frontends.openapi import HttpDocumentation
from tpx.serving.frontends.overview import Overview, front_routes
from tpx.serving.inference_plane import InferencePlane
from tpx.serving.model_id import check_name

if TYPE_CHECKING:
    from tpx.serving.frontends.hosted import HostedPaths


class HttpAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Restrictions of clients and of pages in browsers."""

    restrictions: Restrictions | None = None
    openai: Restrictions | None = None
    """Keys of OpenAI's API; parts that it has none for need those of `restrictions`."""
    openai_only: bool = False
    """True if nothing but OpenAI's API is served."""
    pages: BrowserPolicy = msgspec.field(default_factory=BrowserPolicy)


class HttpRelay(Protocol):
    """Forwards requests to the process that can answer them."""

    def relayed_routes(self, routes: Sequence[Route]) -> list[Route]:
        """Return routes whose verbs forward the request."""


class HttpFrontend:
    """Serves every HTTP request. A head is resolved once and its meaning cached in its memo."""

    def __init__(
        self,
        plane: DataPlane | InferencePlane,
        max_input_bytes: int,
        inflater: Inflater,
        *,
        access: HttpAccess | None = None,
        forwarding: HeaderForwarding | None = None,
        relay: HttpRelay | None = None,
        front: "HostedPaths | Overview | None" = None,
    ) -> None:
        """With a `relay`, another process answers everything except inference, and `plane` only infers.
        `front` is a platform, whose paths are the only ones then, or the page at /.
        """
        self._hosted = None if front is None or isinstance(front, Overview) else front
        self._plane = plane
        self._fail = self._hosted.fail if self._hosted is not None else answer_error
        self._access = access or HttpAccess()
        every = cast("DataPlane", plane)  # with a relay only their routes are used
        self._served = every.served if relay is None else None
        load = LoadReport(plane.server_load)
        others = [
            *HttpControlPlane(every).routes(),
            *OpenAiModels(every).routes(),
            *HttpDocumentation(every, lambda: self.routes).routes(),
            *front_routes(front if isinstance(front, Overview) else None),
        ]
        if self._hosted is not None and self._hosted.models:
            from tpx.serving.frontends.hosted_models import HostedModels  # late: few servers are hosted so

            others += HostedModels(every, self._hosted).routes()
        self.routes = [
            *HttpInference(plane, max_input_bytes, inflater, load, forwarding, self._fail).routes(),
            *HttpGeneration(plane, load, forwarding).routes(),
            *OpenAiInference(plane, forwarding).routes(),
            *(others if relay is None else relay.relayed_routes(others)),
        ]
        if self._access.openai_only:
            self.routes = [route for route in self.routes if route.openai]

    def serve(self, request: HttpRequest) -> None:
        """Handle one request. Every error is answered; nothing is raised."""
        try:
            meaning = request.head.memo
            if meaning is None or self._is_outdated(meaning):
                meaning = request.head.memo = self._resolve_route(request.head)
            meaning(request)
        except NotLoaded as exc:
            attempt(request, partial(when_loaded, request, exc, partial(request.head.memo, request)))
        except TpxError as exc:
            self._fail(request, exc)
        except HttpRefusal as exc:
            if request.head.path.startswith(b"/v1/"):
                body = refusal_body(exc.status, str(exc))
            else:
                body = orjson.dumps({"error": str(exc)})
            request.respond(exc.status, JSON_TYPE + exc.headers, (body,))
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            answer_failure(request, exc)

    def _is_outdated(self, meaning: Meaning) -> bool:
        """Return whether the only model, which a platform's path means, may be another one by now."""
        if self._hosted is None or self._hosted.model or not isinstance(meaning, InferRoute):
            return False
        return meaning.generation not in (-1, self._plane.generation)

    def judge(self, head: HttpHead) -> HttpError | None:
        """Return the error for a head of a page that may not send it, or without the required key, whose
        body is then not read, or None.
        """
        if head.memo is None:
            try:
                head.memo = self._resolve_route(head)
            except HttpRefusal as exc:
                if exc.status in (401, 403):
                    return HttpError(exc.status, str(exc))
            except TpxError:
                pass  # answered after the body is read, which keeps the connection open
        return None

    def _resolve_route(self, head: HttpHead) -> Meaning:
        """Resolve a method and path. Raises HttpRefusal, TpxError."""
        self._access.pages.check(head)
        path = _decode_path(head.path)
        if self._hosted is not None:
            assert self._served is not None
            names = (model.name for model in self._served())
            head = self._hosted.translate(head, path, self.routes, names)
            path = _decode_path(head.path)
        for route in self.routes:
            match = route.match(path)
            if match is None:
                continue
            if is_preflight(head):
                return partial(answer_preflight, methods=route.allowed)
            self._check_access(head, route)
            method = b"GET" if head.method == b"HEAD" else head.method
            verb = route.verbs.get(method)
            if verb is None:
                raise HttpRefusal(405, "Method Not Allowed", b"Allow: " + route.allowed + b"\r\n")
            meaning = verb(head, match)
            if self._hosted is not None and isinstance(meaning, InferRoute):
                meaning.media_type = self._hosted.media_type
            return meaning
        raise HttpRefusal(404, "Not Found")

    def _check_access(self, head: HttpHead, route: Route) -> None:
        """Raise HttpRefusal if the head lacks the key of its part of the API."""
        access = self._access
        own = access.openai.get(route.category) if access.openai is not None and route.openai else None
        if own is not None:
            _check_key(head, own, 401)
        elif access.restrictions is not None:
            _check_key(head, access.restrictions.get(route.category))


def _check_key(head: HttpHead, key: Key | None, status: int = 403) -> None:
    """Raise HttpRefusal if the head lacks a required key."""
    if key is None:
        return
    shown, token = head.headers.get(key.name.lower().encode()), head.headers.get(b"x-api-key")
    if key.bearer and shown is None and token is not None:  # from clients of Anthropic's API
        shown = b"Bearer " + token
    if not key.fits(shown):
        raise HttpRefusal(status, f"This API is restricted, expecting header '{key.name}'")


def _decode_path(path: bytes) -> str:
    """Decode a path segment by segment, so that an escaped slash is no separator."""
    segments = path.split(b"/")
    try:
        decoded = [unquote_to_bytes(segment).decode() for segment in segments]
    except UnicodeDecodeError as exc:
        raise HttpRefusal(404, "Not Found") from exc
    if any("/" in segment or "\0" in segment for segment in decoded):
        if decoded[:4] == ["", "v2", "repository", "models"]:
            check_name("".join(decoded[4:5]))  # a model to load, not a path: report an invalid name
        raise HttpRefusal(404, "Not Found")
    return "/".join(decoded)
