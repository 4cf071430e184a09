"""Export of spans to a collector by OTLP over HTTP, in batches, from a separate thread.

A slow collector must not delay the event loop: traces wait in a bounded queue; when it is full, whole
traces are dropped. Both failures and drops are logged.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tpx.errors import UsageError
from tpx.serving.tracing.settings import SpanSettings, TraceSetting
from tpx.serving.tracing.trace import Trace

log = logging.getLogger(__name__)

_LIBRARY_LOG = "opentelemetry.exporter.otlp"
_CLOSE_S = 5.0
_FAILING_CLOSE_S = 1.0
_CALLED_OFF_S = 1.0
_LOG_EVERY = 1000


class SpanCollector(Protocol):
    """A collector of spans."""

    def send(self, traces: Sequence[Trace]) -> str:
        """Send the spans of traces; blocks. Return the reason of a failure, "" on success."""

    def call_off(self) -> None:
        """Make a running `send` return soon; it is the last one."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(eq=False)
class SpanExport:
    """Implements TraceSink and, for any setting, TraceGroup: a bounded queue of traces and the thread
    that sends them, which starts with the first.
    """

    _settings: SpanSettings
    _collector: SpanCollector
    _count: Callable[[Trace], int]

    def __post_init__(self) -> None:
        self._queue: deque[tuple[Trace, int]] = deque()
        self._changed = threading.Condition()
        self._waiting = 0
        self._on_its_way = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._given_up = False
        self._failing = False
        self._dropped = 0
        self._lost = 0

    def group(self, setting: TraceSetting) -> "SpanExport":  # noqa: ARG002 (all go to the same collector)
        return self

    def add(self, trace: Trace, *, complete: bool) -> None:  # noqa: ARG002 (no file ends with it)
        if self._closed:
            return
        count = self._count(trace)
        if self._waiting + count > self._settings.bsp_max_queue_size:
            self._count_dropped(count)
            return
        with self._changed:
            self._queue.append((trace, count))
            self._waiting += count
            if self._waiting >= self._settings.bsp_max_export_batch_size:
                self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._export_batches, name="span-export", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Do nothing: spans are sent as they come."""

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        thread, patience_s = self._thread, _FAILING_CLOSE_S if self._failing else _CLOSE_S
        if thread is not None:
            thread.join(patience_s)
        if thread is not None and thread.is_alive():
            with self._changed:
                self._given_up = True
                left = self._waiting + self._on_its_way
                self._queue.clear()
            self._collector.call_off()
            thread.join(_CALLED_OFF_S)
            where = self._settings.url
            log.error("%d spans are lost: '%s' did not accept them within %g s", left, where, patience_s)
        self._collector.close()

    def _export_batches(self) -> None:
        while batch := self._take_batch():
            try:
                why = self._collector.send(batch)
            except (OSError, ValueError, TypeError) as exc:  # the next batch may succeed
                log.debug("exporting spans failed", exc_info=True)
                why = str(exc) or type(exc).__name__
            if not self._given_up:
                self._log_outcome(why, self._on_its_way)

    def _take_batch(self) -> list[Trace]:
        """Return the next batch once it is due; an empty one means the end."""
        full = self._settings.bsp_max_export_batch_size
        with self._changed:
            while True:
                self._changed.wait_for(
                    lambda: self._closed or self._waiting >= full, self._settings.bsp_schedule_delay / 1000
                )
                if self._queue or self._closed:
                    break
            batch: list[Trace] = []
            size = 0
            while self._queue and (not batch or size + self._queue[0][1] <= full):
                trace, count = self._queue.popleft()
                batch.append(trace)
                size += count
            self._waiting -= size
            self._on_its_way = size
            return batch

    def _log_outcome(self, why: str, count: int) -> None:
        """Log a failure once, and its end once."""
        if why:
            self._lost += count
            if not self._failing:
                self._failing = True
                fault = "spans cannot be sent to '%s': %s; they are dropped until it accepts them again"
                log.error(fault, self._settings.url, why)
        elif self._failing:
            self._failing = False
            log.info("'%s' accepts spans again; %d were dropped meanwhile", self._settings.url, self._lost)
            self._lost = 0

    def _count_dropped(self, count: int) -> None:
        """Log the first dropped trace, and then every thousandth."""
        if self._dropped % _LOG_EVERY == 0:
            log.warning(
                "dropped a trace of %d spans: %d wait for '%s', bsp_max_queue_size is %d (%d before)",
                count,
                self._waiting,
                self._settings.url,
                self._settings.bsp_max_queue_size,
                self._dropped,
            )
        self._dropped += 1


class OtlpCollector:
    """Implements SpanCollector with OpenTelemetry's packages; logs the reason of a failure once.

    Raises ImportError if the packages are missing.
    """

    def __init__(self, settings: SpanSettings) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        from tpx.serving.tracing.spans import resource_of

        self._batch_size = settings.bsp_max_export_batch_size
        self._exporter = OTLPSpanExporter(endpoint=settings.url)
        self._called_off = False
        self._resource = resource_of(settings.resource)
        self._reasons = _Reasons()
        self._library_log = logging.getLogger(_LIBRARY_LOG)
        self._library_log.addHandler(self._reasons)
        self._library_log.propagate = False

    def send(self, traces: Sequence[Trace]) -> str:
        from opentelemetry.sdk.trace.export import SpanExportResult

        from tpx.serving.tracing.spans import spans_of

        offset_ns = time.time_ns() - time.perf_counter_ns()
        spans = [span for trace in traces for span in spans_of(trace, self._resource, offset_ns)]
        self._reasons.first = ""
        for start in range(0, len(spans), self._batch_size):
            result = self._exporter.export(spans[start : start + self._batch_size])
            if result is not SpanExportResult.SUCCESS:
                return self._reasons.first or "it did not say why"
        return ""

    def call_off(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        self._called_off = True

    def close(self) -> None:
        if not self._called_off:
            self.call_off()
        self._library_log.removeHandler(self._reasons)
        self._library_log.propagate = True


class _Reasons(logging.Handler):
    """Keeps the first log record, which has the reason; later ones only report failed retries."""

    first = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()


def open_export(setting: TraceSetting) -> SpanExport:
    """Return the exporter of a setting. Raises UsageError if the packages are missing."""
    try:
        collector = OtlpCollector(setting.spans)
        from tpx.serving.tracing.spans import count_spans
    except ImportError as exc:
        raise UsageError(
            "--trace-config mode=opentelemetry needs the packages opentelemetry-sdk and "
            f"opentelemetry-exporter-otlp-proto-http: pip install 'tpx[otel]' ({exc})"
        ) from exc
    return SpanExport(setting.spans, collector, count_spans)
