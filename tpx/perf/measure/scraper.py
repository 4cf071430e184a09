"""Scrapes of a server's metrics page during a measurement, on a separate connection; one regular
expression finds the wanted series in the page's bytes.
"""

import asyncio
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from time import perf_counter_ns, thread_time_ns

from tpx.errors import MeasurementError, TpxError
from tpx.perf.clients.control import MAX_ANSWER_BYTES
from tpx.perf.clients.transport import HttpDialer
from tpx.perf.measure.ledger import MeasuredLevel
from tpx.perf.metrics_page import GpuFigures, MetricsAddress, MetricsFigures, SeriesFigures
from tpx.perf.results import LevelResult
from tpx.protocol.http1.client import HttpCarrier, encode_request, fetch

GPU_SERIES = {
    "nv_gpu_utilization": "utilization",
    "nv_gpu_power_usage": "power_w",
    "nv_gpu_memory_used_bytes": "memory_used_bytes",
    "nv_gpu_memory_total_bytes": "memory_total_bytes",
}
"""GPU gauges and their names in the figures."""
INFERENCES, EXECUTIONS = "nv_inference_count", "nv_inference_exec_count"
CPU, HOST_MEMORY, PROCESS_MEMORY = (
    "nv_cpu_utilization",
    "nv_cpu_memory_used_bytes",
    "process_resident_memory_bytes",
)
_ALWAYS = (*GPU_SERIES, INFERENCES, EXECUTIONS, CPU, HOST_MEMORY, PROCESS_MEMORY)
_UUID = re.compile(r'gpu_uuid="([^"]*)"')
_PIECE_BYTES = 16 << 10
"""Bytes of a page that are read at once, half a millisecond in which the load neither sends nor receives."""
_TYPES = re.compile(rb"^# TYPE (\S+) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One scrape; `gpus` has each GPU's gauges by uuid, `series` those that the user requested."""

    time_ns: int
    took_ns: int
    cost_ns: int = 0
    values: dict[str, float] = field(default_factory=dict)
    """Values by metric name, summed over its series."""
    gpus: dict[str, dict[str, float]] = field(default_factory=dict)
    series: dict[str, float] = field(default_factory=dict)


class PageReader:
    """Finds the wanted series on a page."""

    def __init__(self, wanted: Sequence[str] = ()) -> None:
        """`wanted` are regular expressions, searched for in the names of series including their labels."""
        names = "|".join(map(re.escape, _ALWAYS))
        requested = "".join(f"|(?=[^\\n]*(?:{text}))[^\\s#{{]+" for text in wanted)
        # known names, or any name on a line that matches a wanted expression (by lookahead); labels; value
        pattern = f"^((?:(?:{names})(?=[ {{])|(?!){requested})(?:\\{{[^\\n]*\\}})?)[ \\t]+(\\S+)"
        self._series = re.compile(pattern.encode(), re.MULTILINE)
        self._wanted = [re.compile(text) for text in wanted]
        self.counters: frozenset[str] = frozenset()
        """Names of the counters of the first page that has any."""

    def read(self, page: bytes, time_ns: int, took_ns: int) -> Scrape:
        """Return the wanted values of a page."""
        scrape = Scrape(time_ns=time_ns, took_ns=took_ns)
        for start, end in pieces(page):
            self.read_piece(page, start, end, scrape)
        return scrape

    def read_piece(self, page: bytes, start: int, end: int, scrape: Scrape) -> None:
        """Add the wanted values of some lines of a page."""
        if start == 0 and not self.counters:
            self.counters = frozenset(n.decode() for n, kind in _TYPES.findall(page) if kind == b"counter")
        for raw, text in self._series.findall(page, start, end):
            full = raw.decode("utf-8", "replace")
            try:
                value = float(text)
            except ValueError:
                continue
            name, _, labels = full.partition("{")
            uuid = _UUID.search(labels)
            if name in GPU_SERIES and uuid is not None and math.isfinite(value):
                scrape.gpus.setdefault(uuid[1], {})[GPU_SERIES[name]] = value
            elif name in _ALWAYS and math.isfinite(value):
                scrape.values[name] = scrape.values.get(name, 0.0) + value
            if any(wanted.search(full) for wanted in self._wanted):
                scrape.series[full] = value


def pieces(page: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of pieces of whole lines that are read at once."""
    start = 0
    while start < len(page):
        end = page.find(b"\n", start + _PIECE_BYTES) + 1 or len(page)
        yield start, end
        start = end


ANSWER_S = 10.0
"""Timeout of a scrape."""

Notice = Callable[[str], None]


class Scraper:
    """Implements Collector: scrapes from the first `begin` until `stop`.

    Failures are reported once; the run continues without metrics.
    """

    def __init__(self, address: MetricsAddress, dialer: HttpDialer, notice: Notice) -> None:
        self._address = address
        self._reader = PageReader(address.wanted)
        self._notice = notice
        self._reported: set[str] = set()
        self._dialer = dialer
        self._connection: HttpCarrier | None = None
        self._request = encode_request("GET", address.path, f"{address.host}:{address.port}", {})
        self._scrapes: list[Scrape] = []
        self._failed = 0
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def begin(self) -> None:
        """Start a level: drop earlier scrapes and scrape once."""
        self._scrapes, self._failed = [], 0
        await self.scrape()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def finish(self, measured: MeasuredLevel, result: LevelResult) -> LevelResult:
        await self.scrape()
        return replace(result, metrics=self.figures(measured.first.time_ns, measured.last.time_ns))

    def figures(self, start_ns: int, end_ns: int) -> MetricsFigures | None:
        """Return the figures between two times; None if there was no scrape."""
        if not self._scrapes:
            return None
        return summarize(self._scrapes, (start_ns, end_ns), self._failed, self._reader.counters)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()

    async def scrape(self) -> None:
        """Scrape the page now."""
        async with self._turn:
            began = perf_counter_ns()
            try:
                if self._connection is None or self._connection.closing:
                    self._connection = await self._dialer.connect()
                    self._connection.limit_response(MAX_ANSWER_BYTES)
                response = await fetch(self._connection, self._request, ANSWER_S)
                if response.status != 200:
                    raise MeasurementError(f"HTTP {response.status}")
                page = bytes(response.body)
            except TpxError as exc:
                self._failed += 1
                self._report_once(
                    str(exc), f"no metrics from {self._address}: {exc}; the run continues without metrics"
                )
                return
        # parsing costs this process, not the server: it is timed separately
        scrape = Scrape(time_ns=perf_counter_ns(), took_ns=perf_counter_ns() - began)
        cost_ns = 0
        for start, end in pieces(page):
            busy = thread_time_ns()
            self._reader.read_piece(page, start, end, scrape)
            cost_ns += thread_time_ns() - busy
            await asyncio.sleep(0)
        self._scrapes.append(replace(scrape, cost_ns=cost_ns))
        known = {what for gpu in scrape.gpus.values() for what in gpu}
        missing = next((name for name, what in GPU_SERIES.items() if what not in known), None)
        if missing is not None:
            why = "" if scrape.gpus else " The server reports no GPU."
            self._report_once("gpu", f"Unable to parse '{missing}' metric.{why}")
        for text in () if scrape.series else self._address.wanted:
            self._report_once(text, f"--metric {text}: no series of {self._address} matches")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._address.interval_s - self._last_took_s()))
            await self.scrape()
            took_ms = self._last_took_s() * 1000
            if took_ms > self._address.interval_s * 1000:
                self._report_once(
                    "slow",
                    f"Triton metrics endpoint latency ({took_ms:.0f}ms) is larger than the querying interval "
                    f"({self._address.interval_s * 1000:.0f}ms). Please try a larger querying interval via "
                    "`--metrics-interval`.",
                )

    def _last_took_s(self) -> float:
        return self._scrapes[-1].took_ns / 1e9 if self._scrapes else 0.0

    def _report_once(self, what: str, text: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            self._notice(text)


def summarize(
    scrapes: Sequence[Scrape], span_ns: tuple[int, int], failed: int, counters: frozenset[str]
) -> MetricsFigures:
    """Return the figures between two times.

    Gauges are taken from the scrapes between them. Counters grow from the last scrape before to the
    first one after, and rates are over the time between those two scrapes.
    """
    start, end = span_ns
    # without a scrape in the interval, the last one stands for it
    inside = [s for s in scrapes if start <= s.time_ns <= end] or list(scrapes[-1:])
    before = [s for s in scrapes if s.time_ns <= start][-1:]
    after = [s for s in scrapes if s.time_ns >= end][:1]
    around = [*before, *(s for s in inside if s not in before and s not in after), *after]
    values = [s.values for s in inside]
    return MetricsFigures(
        scrapes=len(inside),
        failed=failed,
        # each GPU is averaged over the scrapes that include it, as perf_analyzer does
        gpus=tuple(
            _summarize_gpu(uuid, [s.gpus[uuid] for s in inside if uuid in s.gpus])
            for uuid in sorted({uuid for s in inside for uuid in s.gpus})
        ),
        mean_batch=_compute_mean_batch(around),
        cpu_utilization=_fold_known(values, CPU, fmean),
        memory_used_bytes=_fold_known(values, PROCESS_MEMORY, max) or _fold_known(values, HOST_MEMORY, max),
        series=tuple(_iter_series(inside, around, counters)),
        scrape_ns=int(fmean(s.took_ns for s in inside)) if inside else 0,
        cost_ns=int(fmean(s.cost_ns for s in inside)) if inside else 0,
    )


def _fold_known(
    scraped: Sequence[Mapping[str, float]], name: str, fold: Callable[[Sequence[float]], float]
) -> float | None:
    known = [values[name] for values in scraped if name in values]
    return fold(known) if known else None


def _compute_mean_batch(scrapes: Sequence[Scrape]) -> float | None:
    known = [s.values for s in scrapes if INFERENCES in s.values and EXECUTIONS in s.values]
    if not known:
        return None
    executions, inferences = (known[-1][name] - known[0][name] for name in (EXECUTIONS, INFERENCES))
    return inferences / executions if executions > 0 else None


def _summarize_gpu(uuid: str, scraped: Sequence[Mapping[str, float]]) -> GpuFigures:
    return GpuFigures(
        uuid=uuid,
        utilization=_fold_known(scraped, "utilization", fmean),
        power_w=_fold_known(scraped, "power_w", fmean),
        memory_used_bytes=_fold_known(scraped, "memory_used_bytes", max),
        memory_total_bytes=_fold_known(scraped, "memory_total_bytes", lambda known: known[0]),
    )


def _iter_series(
    inside: Sequence[Scrape], around: Sequence[Scrape], counters: frozenset[str]
) -> Iterator[SeriesFigures]:
    """Yield the figures of each series, ignoring scrapes in which the value is not finite."""
    for name in dict.fromkeys(name for s in inside for name in s.series):
        values = [value for _, value in _list_values(inside, name)]
        if not values:
            continue
        per_s, grown = None, _list_values(around, name)
        if name.partition("{")[0] in counters and grown and grown[-1][0] > grown[0][0]:
            per_s = (grown[-1][1] - grown[0][1]) * 1e9 / (grown[-1][0] - grown[0][0])
        yield SeriesFigures(
            name=name, mean=fmean(values), low=min(values), high=max(values), last=values[-1], per_s=per_s
        )


def _list_values(scrapes: Sequence[Scrape], name: str) -> list[tuple[int, float]]:
    """Return the times and finite values of a series."""
    return [(s.time_ns, value) for s in scrapes if math.isfinite(value := s.series.get(name, math.nan))]
