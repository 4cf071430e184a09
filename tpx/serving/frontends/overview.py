"""The page at /: the models, their load over time, and errors, on one screen.

The page asks the public verbs every two seconds and keeps ten minutes of answers itself: a server that nobody
looks at does nothing for it.
"""

import re
from collections.abc import Callable
from functools import cache

import msgspec

from tpx import __version__
from tpx.protocol.http1.request import HttpRequest
from tpx.serving.frontends.http_verbs import Route, route
from tpx.serving.frontends.page import build_page


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Server state that the page shows besides the answers of the verbs."""

    controlled: bool
    """True if clients may load and unload models."""
    metrics: Callable[[HttpRequest], None] | None
    """Answers with the metrics; None if the server has none."""


def front_routes(overview: Overview | None) -> list[Route]:
    """Return the routes of the page, or without one of a redirection from / to the API."""
    if overview is None:
        return [
            route("/", "metadata", GET=lambda request, _: request.respond(302, b"Location: /v2/docs\r\n"))
        ]
    metrics, controlled = overview.metrics, overview.controlled

    def answer_page(request: HttpRequest, _: re.Match[str]) -> None:
        headers, body = _page(controlled)
        request.respond(200, headers, (body,))

    routes = [route("/", "metadata", GET=answer_page)]
    if metrics is not None:
        routes.append(route("/metrics", "statistics", GET=lambda request, _: metrics(request)))
    return routes


@cache
def _page(controlled: bool) -> tuple[bytes, bytes]:
    return build_page("overview", "charts", title="tpx serve", version=__version__, controlled=controlled)
