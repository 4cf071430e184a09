"""GET /metrics: the page, and the families of the response cache and of custom metrics."""

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import accumulate, chain

from tpx.protocol.http1.request import HttpRequest
from tpx.serving.cache import ResponseCache
from tpx.serving.custom_metrics import CustomFamily, CustomMetrics
from tpx.serving.dataplane import DataPlane
from tpx.serving.frontends.http_verbs import answer_when_done
from tpx.serving.frontends.metrics.models import ModelFamilies
from tpx.serving.frontends.metrics.text import Family, Line, bound, labels, render, single
from tpx.serving.offload import Coalesced, in_steps


def custom_families(metrics: CustomMetrics) -> Sequence[Family]:
    """Return the families of metrics that models define."""
    return [
        Family(
            name=family.name,
            kind=family.kind,
            help=family.help.replace("\\", r"\\").replace("\n", r"\n"),
            lines=_format_lines(family),
        )
        for _, family in sorted(metrics.families.items())
    ]


def _format_lines(family: CustomFamily) -> list[Line]:
    lines: list[Line] = []
    for key, series in family.series.items():
        inner = labels(dict(key))
        if family.kind != "histogram":
            lines.append((f"{{{inner}}}" if inner else "", series.value))
            continue
        comma = "," if inner else ""
        counts = list(accumulate(series.counts))
        braced = f"{{{inner}}}" if inner else ""
        lines.append((f"_count{braced}", counts[-1]))
        lines.append((f"_sum{braced}", series.sum))
        for limit, count in zip((*map(bound, series.bounds), "+Inf"), counts, strict=True):
            lines.append((f'_bucket{{{inner}{comma}le="{limit}"}}', count))
    return lines


def cache_families(cache: ResponseCache) -> Sequence[Family]:
    """Return gauges of the cache as a whole; each model has its own counters."""
    values = (
        ("util", "Cache utilization [0.0 - 1.0]", cache.used_bytes / cache.size_bytes),
        ("num_entries", "Number of responses stored in response cache", len(cache)),
        ("num_lookups", "Number of cache lookups in response cache", cache.hits + cache.misses),
        ("num_hits", "Number of cache hits in response cache", cache.hits),
        ("num_misses", "Number of cache misses in response cache", cache.misses),
        ("num_evictions", "Number of cache evictions in response cache", cache.evictions),
        (
            "lookup_duration",
            "Total cache lookup duration (hit and miss), in microseconds",
            cache.lookup_ns // 1000,
        ),
        (
            "insertion_duration",
            "Total cache insertion duration, in microseconds",
            cache.insertion_ns // 1000,
        ),
    )
    return [single(f"nv_cache_{name}", text, value) for name, text, value in values]


_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
_PATHS = (b"/metrics", b"/metrics/")


class MetricsFrontend:
    """Serves the counters of the models and all other metric sources."""

    def __init__(
        self, plane: DataPlane, models: ModelFamilies, sources: Sequence[Callable[[], Sequence[Family]]] = ()
    ) -> None:
        self._plane = plane
        self._models = models
        self._sources = sources
        self._page = Coalesced(self._make_page)
        self._sending = asyncio.Lock()

    def serve(self, request: HttpRequest) -> None:
        """Answer with the page. / redirects to it; any other path is an empty page, as in Triton."""
        if request.head.method not in (b"GET", b"HEAD"):
            request.respond(405, b"Allow: GET, HEAD\r\n")
        elif request.head.path == b"/":
            request.respond(302, b"Location: /metrics\r\n")
        elif request.head.path not in _PATHS:
            request.respond(200, _TEXT)
        else:
            self._plane.tasks.start(answer_when_done(request, self._answer_page(request)))

    async def _answer_page(self, request: HttpRequest) -> None:
        page = await self._page.get()
        async with self._sending:  # one per iteration: many may wait for the same page, which can be large
            request.respond(200, _TEXT, (page,))
            await asyncio.sleep(0)

    async def _make_page(self) -> bytes:
        """Render all families as text."""
        rows = await in_steps(self._models.rows(self._plane.served()))
        others = (family for source in self._sources for family in source())
        families = chain(self._models.of(rows, time.perf_counter_ns()), others)
        return "".join(await in_steps(render(families))).encode()
