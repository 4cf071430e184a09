"""The HTTP API described by itself: the OpenAPI document, and the page of it."""

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from tpx.protocol.http1.server import JSON_TYPE, HttpRequest
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends import api_page, openapi
from tpx.serving.frontends.http_answers import answer_failure
from tpx.serving.frontends.http_routes import Route, route

_MOST_EXAMPLES = 100

_Made = tuple[bytes, bytes]
"""Headers and a body."""


class HttpDocumentation:
    """Serves /v2/openapi.json and /v2/docs about all routes that there are when somebody asks."""

    def __init__(self, plane: DataPlane, all_routes: Callable[[], Iterable[Route]]) -> None:
        self._plane = plane
        self._all_routes = all_routes

    def routes(self) -> list[Route]:
        return [
            route(r"/v2/openapi\.json", "metadata", GET=self._document),
            route(r"/v2/docs/?", "metadata", GET=self._page),
        ]

    def _document(self, request: HttpRequest, _: re.Match[str]) -> None:
        self._make(request, lambda document: (JSON_TYPE, orjson.dumps(document)))

    def _page(self, request: HttpRequest, _: re.Match[str]) -> None:
        self._make(request, _rendered)

    def _make(self, request: HttpRequest, form: Callable[[dict[str, Any]], _Made]) -> None:
        """Answer with a form of the document; it is made in another thread, for it takes a while."""
        models = sorted({entry.name for entry in self._plane.index(ready_only=True)})
        routes = list(self._all_routes())

        def work() -> _Made:
            return form(openapi.document(routes, models[:_MOST_EXAMPLES]))

        def done(future: asyncio.Future[_Made]) -> None:
            try:
                headers, body = future.result()
            except Exception as exc:  # noqa: BLE001 (one request's boundary)
                answer_failure(request, "describing the API", exc)
                return
            request.respond(200, headers, (body,))

        asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(done)


def _rendered(document: dict[str, Any]) -> _Made:
    page = api_page.render(document)
    headers = (
        "Content-Type: text/html; charset=utf-8\r\n"
        f"Content-Security-Policy: {page.content_security_policy}\r\n"
        "X-Content-Type-Options: nosniff\r\n"
    )
    return headers.encode(), page.html.encode()
