"""Load of this server in the responses to clients that ask for it, as ORCA defines it: load balancers use
it to choose among servers (Open Request Cost Aggregation, xds/data/orca/v3/orca_load_report.proto).
"""

import time
from collections.abc import Callable

import orjson

from tpx.serving.frontends.metrics.machine import read_cpu_seconds, read_memory_bytes
from tpx.serving.inference_plane import ServerLoad

REQUEST_HEADER = b"endpoint-load-metrics-format"
_FORMATS = (b"text", b"json")
_FRESH_NS = 500_000_000
"""Age up to which a report is used again: reading the machine's counters takes 0.2 ms."""


def format_of(headers: dict[bytes, bytes]) -> bytes:
    """Return the format that a client asks for, or b""."""
    word = headers.get(REQUEST_HEADER, b"").strip().lower()
    return word if word in _FORMATS else b""


class LoadReport:
    """Utilization of the machine, and the requests of the server."""

    def __init__(
        self, load: Callable[[], ServerLoad], clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._load = load
        self._clock = clock
        self._before = read_cpu_seconds()
        self._lines: dict[bytes, bytes] = {}
        self._taken_ns = 0

    def line(self, form: bytes) -> bytes:
        """Return the header line in a format; b"" for b""."""
        if not form:
            return b""
        now_ns = self._clock()
        if not self._lines or now_ns - self._taken_ns > _FRESH_NS:
            self._taken_ns = now_ns
            self._lines = self._render()
        return self._lines[form]

    def _render(self) -> dict[bytes, bytes]:
        busy, total = read_cpu_seconds()
        before_busy, before_total = self._before
        figures: dict[str, float] = {}
        if total > before_total:
            figures["cpu_utilization"] = round(min(1.0, (busy - before_busy) / (total - before_total)), 4)
            self._before = busy, total
        memory_bytes, available_bytes = read_memory_bytes()
        figures["mem_utilization"] = round(1 - available_bytes / memory_bytes, 4)
        load = self._load()
        named = {"requests_in_flight": load.in_flight, "pending_requests": load.pending}
        texts = [f"{name}={value}" for name, value in figures.items()]
        texts += [f"named_metrics.{name}={value}" for name, value in named.items()]
        document = {**figures, "named_metrics": named}
        return {
            b"text": f"endpoint-load-metrics: TEXT {', '.join(texts)}\r\n".encode(),
            b"json": b"endpoint-load-metrics: JSON %b\r\n" % orjson.dumps(document),
        }
