"""GET /metrics."""

import time
from collections.abc import Sequence

from tpx.protocol.http1.server import HttpRequest
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.metrics.base import Source
from tpx.serving.frontends.metrics.models import ModelFamilies
from tpx.serving.frontends.metrics.text import render

_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
_PATHS = (b"/metrics", b"/metrics/")


class MetricsFrontend:
    """Shows the models' counters and whatever other sources there are."""

    def __init__(self, plane: DataPlane, models: ModelFamilies, sources: Sequence[Source] = ()) -> None:
        self._plane = plane
        self._models = models
        self._sources = sources

    def serve(self, request: HttpRequest) -> None:
        """As Triton: any other path is an empty page."""
        if request.head.method not in (b"GET", b"HEAD"):
            request.respond(405, b"Allow: GET, HEAD\r\n")
        elif request.head.path not in _PATHS:
            request.respond(200, _TEXT)
        else:
            request.respond(200, _TEXT, (self.page().encode(),))

    def page(self) -> str:
        """All families in the text format."""
        families = self._models.of(self._plane.served(), time.perf_counter_ns())
        for source in self._sources:
            families += source.families()
        return render(families)
