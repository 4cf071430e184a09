"""The HTTP endpoint: which verb a request means."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol, cast
from urllib.parse import unquote_to_bytes

import orjson

from tpx.errors import TpxError
from tpx.protocol.http1.head import HttpError, HttpHead
from tpx.protocol.http1.request import JSON_TYPE, HttpRequest
from tpx.protocol.inflation import Inflater
from tpx.serving.dataplane import DataPlane, InferencePlane
from tpx.serving.frontends.access import Key, Restrictions
from tpx.serving.frontends.forwarding import HeaderForwarding
from tpx.serving.frontends.http_answers import answer_error, answer_failure, attempt, when_loaded
from tpx.serving.frontends.http_control import HttpControlPlane
from tpx.serving.frontends.http_generate import HttpGeneration
from tpx.serving.frontends.http_infer import HttpInference
from tpx.serving.frontends.http_routes import HttpRefusal, Meaning, Route
from tpx.serving.frontends.openapi import HttpDocumentation
from tpx.serving.repository.discovery import check_name
from tpx.serving.repository.on_demand import NotLoaded


class HttpRelay(Protocol):
    """Hands requests on to the process that can answer them."""

    def relayed_routes(self, routes: Sequence[Route]) -> list[Route]:
        """Return routes whose verbs hand the request on."""


class HttpFrontend:
    """Serves every HTTP request. What a head means is worked out once and remembered in its memo."""

    def __init__(
        self,
        plane: DataPlane | InferencePlane,
        max_input_bytes: int,
        inflater: Inflater,
        *,
        restrictions: Restrictions | None = None,
        forwarding: HeaderForwarding | None = None,
        relay: HttpRelay | None = None,
    ) -> None:
        """With a `relay`, another process answers all but inference; `plane` then infers and nothing else."""
        self._restrictions = restrictions
        every = cast("DataPlane", plane)  # with a relay these are asked for their routes only
        others = [
            *HttpControlPlane(every).routes(),
            *HttpDocumentation(every, lambda: self.routes).routes(),
        ]
        self.routes = [
            *HttpInference(plane, max_input_bytes, inflater, forwarding).routes(),
            *HttpGeneration(plane, forwarding).routes(),
            *(others if relay is None else relay.relayed_routes(others)),
        ]

    def serve(self, request: HttpRequest) -> None:
        """The boundary of a request: whatever happens, it is answered."""
        try:
            meaning = request.head.memo
            if meaning is None:
                meaning = request.head.memo = self._meaning(request.head)
            meaning(request)
        except NotLoaded as exc:
            attempt(request, partial(when_loaded, request, exc, partial(request.head.memo, request)))
        except TpxError as exc:
            answer_error(request, exc)
        except HttpRefusal as exc:
            body = orjson.dumps({"error": str(exc)})
            request.respond(exc.status, JSON_TYPE + exc.headers, (body,))
        except Exception as exc:  # noqa: BLE001 (one request's boundary)
            answer_failure(request, exc)

    def judge(self, head: HttpHead) -> HttpError | None:
        """Return why the body of this head is not read: its sender lacks a key."""
        if head.memo is None and self._restrictions is not None:
            try:
                head.memo = self._meaning(head)
            except HttpRefusal as exc:
                if exc.status == 403:
                    return HttpError(403, str(exc))
            except TpxError:
                pass  # said in the answer, which need not end the connection
        return None

    def _meaning(self, head: HttpHead) -> Meaning:
        """Return what a method and path ask for. Raises HttpRefusal, TpxError."""
        path = _decode_path(head.path)
        for route in self.routes:
            match = route.pattern.fullmatch(path)
            if match is None:
                continue
            if self._restrictions is not None:
                _admit(head, self._restrictions.key(route.category))
            method = b"GET" if head.method == b"HEAD" else head.method
            verb = route.verbs.get(method)
            if verb is None:
                raise HttpRefusal(405, "Method Not Allowed", b"Allow: " + route.allowed + b"\r\n")
            return verb(head, match)
        raise HttpRefusal(404, "Not Found")


def _admit(head: HttpHead, key: Key | None) -> None:
    """Raise HttpRefusal where the head must show a key and does not."""
    if key is not None and not key.fits(head.headers.get(key.name.lower().encode())):
        raise HttpRefusal(403, f"This API is restricted, expecting header '{key.name}'")


def _decode_path(path: bytes) -> str:
    """The path with its escapes decoded segment by segment, so that an escaped slash separates nothing."""
    segments = path.split(b"/")
    try:
        decoded = [unquote_to_bytes(segment).decode() for segment in segments]
    except UnicodeDecodeError as exc:
        raise HttpRefusal(404, "Not Found") from exc
    if any("/" in segment or "\0" in segment for segment in decoded):
        if decoded[:4] == ["", "v2", "repository", "models"]:
            check_name("".join(decoded[4:5]))  # what is meant there is a model that is to be, not a path
        raise HttpRefusal(404, "Not Found")
    return "/".join(decoded)
