"""A running server in `tpx doctor --metrics-url`: what two readings of its metrics page show."""

import math
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException

from rich.table import Table

from tpx.errors import MeasurementError
from tpx.perf.clients.control import MAX_ANSWER_BYTES
from tpx.perf.clients.proxies import open_page
from tpx.perf.measure.scraper import PageReader
from tpx.perf.options.output import parse_metrics_url

_BETWEEN_S = 1.0
"""Time between the two readings, for the rates."""
_TIMEOUT_S = 10.0
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUse:
    """Use of a running server; None for what its page does not have."""

    url: str
    models: int
    requests_per_s: float
    failures_per_s: float
    in_flight: float | None
    waiting: float | None
    """Requests in queues."""
    event_loop: float | None
    """Share of a core."""
    frontends: int
    """Frontends in processes of their own."""
    advised_frontends: int
    """Value of --frontends that would relieve the event loop, or 0."""
    cpu: float | None
    """Share of all cores of its machine."""
    resident_bytes: float | None
    files: float | None
    """Open file descriptors."""
    max_files: float | None

    @property
    def remedy(self) -> str:
        """The option that would help, and why; "" if none would."""
        if not self.advised_frontends:
            return ""
        return f"--frontends {self.advised_frontends} (its event loop fills a core while others are idle)"


def examine(metrics_url: str) -> ServerUse:
    """Read a metrics page twice, a second apart. Raises UsageError, MeasurementError."""
    host, port, path = parse_metrics_url(metrics_url)
    url = f"http://[{host}]:{port}{path}" if ":" in host else f"http://{host}:{port}{path}"
    first_s, first = time.perf_counter(), _read(url)
    time.sleep(_BETWEEN_S)
    passed_s, last = time.perf_counter() - first_s, _read(url)
    before, sums = _sum(first), _sum(last)
    growth = {name: value - before.get(name, 0.0) for name, value in sums.items()}
    return ServerUse(
        url=url,
        models=len({_model(name) for name in last if name.startswith("nv_inference_request_success{")}),
        requests_per_s=growth.get("nv_inference_request_success", 0.0) / passed_s,
        failures_per_s=growth.get("nv_inference_request_failure", 0.0) / passed_s,
        in_flight=sums.get("tpx_requests_in_flight"),
        waiting=sums.get("nv_inference_pending_request_count"),
        event_loop=sums.get("tpx_event_loop_utilization"),
        frontends=sum(name.startswith("tpx_frontend_connections{") for name in last),
        advised_frontends=int(sums.get("tpx_advised_frontends", 0)),
        cpu=sums.get("nv_cpu_utilization"),
        resident_bytes=sums.get("process_resident_memory_bytes"),
        files=sums.get("process_open_fds"),
        max_files=sums.get("process_max_fds"),
    )


def make_server_table(use: ServerUse) -> Table:
    """Return the table that a person reads."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for row in _rows(use):
        table.add_row(*row)
    return table


def _rows(use: ServerUse) -> Iterator[tuple[str, str]]:
    yield "Server", f"{use.url}, {use.models} model{'s' if use.models != 1 else ''}"
    yield "Requests", f"{use.requests_per_s:,.0f} per second, {use.failures_per_s:,.0f} failed"
    if use.in_flight:  # what the loop computes at once is never seen in flight
        yield "In flight", f"{use.in_flight:,.0f}, of which {use.waiting or 0:,.0f} wait"
    if use.event_loop is not None:
        beside = f"; --frontends {use.frontends}" if use.frontends else ""
        yield "Event loop", f"{use.event_loop:.0%} of a core{beside}"
    if use.cpu is not None:
        yield "CPU", f"{use.cpu:.0%} of its machine"
    if use.resident_bytes is not None:
        yield "Memory", f"{use.resident_bytes / _GIB:.2f} GiB resident"
    if use.files is not None:
        yield "Files", f"{use.files:,.0f} open, at most {use.max_files or 0:,.0f}"


def _read(url: str) -> Mapping[str, float]:
    """Return the series of a page by name and labels."""
    try:
        with open_page(url, _TIMEOUT_S) as answer:
            page = answer.read(MAX_ANSWER_BYTES)
    except (OSError, ValueError, HTTPException) as exc:
        why = "no page of metrics" if isinstance(exc, HTTPException) else getattr(exc, "reason", exc)
        raise MeasurementError(
            f"--metrics-url {url}: {why}; it is the address of the server's metrics, port 8002 unless "
            "--metrics-port chose another"
        ) from exc
    series = PageReader(("^(?:nv|tpx|process)_",)).read(page, 0, 0).series
    if not series:
        raise MeasurementError(f"--metrics-url {url}: the page has no metrics of an inference server")
    return {name: value for name, value in series.items() if math.isfinite(value)}


def _model(series: str) -> str:
    """Return the model of a series."""
    found = re.search(r'\bmodel="((?:[^"\\]|\\.)*)"', series)
    return found[1] if found else ""


def _sum(series: Mapping[str, float]) -> Mapping[str, float]:
    """Add up the series of each metric."""
    sums: dict[str, float] = defaultdict(float)
    for name, value in series.items():
        sums[name.partition("{")[0]] += value
    return sums
