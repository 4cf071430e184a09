"""Looks at a server's metrics page from time to time while it is measured, on a connection of its own."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter_ns, thread_time_ns

from tpx.errors import MeasurementError, TpxError
from tpx.perf.metrics.figures import MetricsFigures
from tpx.perf.metrics.page import GPU_SERIES, PageReader, Scrape
from tpx.perf.metrics.place import MetricsPlace
from tpx.perf.metrics.summary import summarize
from tpx.protocol.http1.client import HttpClientConnection, HttpConnector, encode_request, fetch

ANSWER_S = 10.0
"""A page that takes longer counts as not answered."""

Notice = Callable[[str], None]


class Scraper:
    """Runs from `start` to `stop`. What fails is told once and costs the figures, never the run."""

    def __init__(self, place: MetricsPlace, notice: Notice) -> None:
        self._place = place
        self._reader = PageReader(place.wanted)
        self._notice = notice
        self._told: set[str] = set()
        self._connector = HttpConnector(place.host, place.port)
        self._connection: HttpClientConnection | None = None
        self._request = encode_request("GET", place.path, f"{place.host}:{place.port}", {})
        self._scrapes: list[Scrape] = []
        self._failed = 0
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def begin(self) -> None:
        """A level begins: what was seen before is forgotten, and the page is looked at once."""
        self._scrapes, self._failed = [], 0
        await self.look()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def figures(self, span_ns: tuple[int, int]) -> MetricsFigures | None:
        """Of the level, between two times; None where nothing was seen of it."""
        if not self._scrapes:
            return None
        return summarize(self._scrapes, span_ns, self._failed, self._reader.counters)

    @property
    def latest(self) -> Scrape | None:
        """What was seen last."""
        return self._scrapes[-1] if self._scrapes else None

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()

    async def look(self) -> None:
        """Look at the page now."""
        async with self._turn:
            began = perf_counter_ns()
            try:
                page = await self._fetch()
            except TpxError as exc:
                self._failed += 1
                self._tell(
                    str(exc),
                    f"no metrics from {self._place}: {exc}; measuring goes on without",
                )
                return
        took = perf_counter_ns() - began
        busy = thread_time_ns()
        scrape = self._reader.read(page, perf_counter_ns(), took)
        self._scrapes.append(replace(scrape, cost_ns=thread_time_ns() - busy))
        self._check(self._scrapes[-1])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._place.interval_s - self._last_took_s()))
            await self.look()
            took_ms = self._last_took_s() * 1000
            if took_ms > self._place.interval_s * 1000:
                self._tell(
                    "slow",
                    f"Triton metrics endpoint latency ({took_ms:.0f}ms) is larger than the querying interval "
                    f"({self._place.interval_s * 1000:.0f}ms). Please try a larger querying interval via "
                    "`--metrics-interval`.",
                )

    def _last_took_s(self) -> float:
        return self._scrapes[-1].took_ns / 1e9 if self._scrapes else 0.0

    async def _fetch(self) -> bytes:
        if self._connection is None or self._connection.closing:
            self._connection = await self._connector.connect()
        response = await fetch(self._connection, self._request, ANSWER_S)
        if response.status != 200:
            raise MeasurementError(f"HTTP {response.status}")
        return bytes(response.body)

    def _check(self, scrape: Scrape) -> None:
        known = {what for gpu in scrape.gpus.values() for what in gpu}
        missing = next((name for name, what in GPU_SERIES.items() if what not in known), None)
        if missing is not None:
            self._tell("gpu", f"Unable to parse '{missing}' metric.")
        for text in self._missing_series(scrape):
            self._tell(text, f"--metric {text}: no series of {self._place} matches")

    def _missing_series(self, scrape: Scrape) -> Sequence[str]:
        if scrape.series:
            return ()
        return self._place.wanted

    def _tell(self, what: str, text: str) -> None:
        """Once for each thing that is the matter."""
        if what not in self._told:
            self._told.add(what)
            self._notice(text)
