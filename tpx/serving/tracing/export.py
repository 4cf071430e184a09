"""Export of traces as spans to an OpenTelemetry collector."""

from collections.abc import Callable

from tpx.errors import UsageError
from tpx.serving.tracing.queue import TraceOutput, TraceQueue
from tpx.serving.tracing.settings import SpanSettings, TraceSetting
from tpx.serving.tracing.trace import Trace


class SpanExport:
    """Implements TraceSink and, for any setting, TraceGroup."""

    def __init__(
        self, settings: SpanSettings, collector: TraceOutput[Trace], count: Callable[[Trace], int]
    ) -> None:
        """`count` returns the maximum number of spans of a trace."""
        self._count = count
        self._queue = TraceQueue(
            collector,
            f"'{settings.url}'",
            limit=settings.bsp_max_queue_size,
            full=settings.bsp_max_export_batch_size,
            delay_s=settings.bsp_schedule_delay / 1000,
        )
        self.close = self._queue.close

    def group(self, setting: TraceSetting) -> "SpanExport":  # noqa: ARG002 (all go to the same collector)
        return self

    def add(self, trace: Trace, *, complete: bool) -> None:  # noqa: ARG002 (no file ends with it)
        self._queue.put(trace, self._count(trace))

    def end(self) -> None:
        """Do nothing: spans are sent as they come."""


def open_export(setting: TraceSetting) -> SpanExport:
    """Return the exporter of a setting. Raises UsageError if the packages are missing."""
    try:
        from tpx.serving.tracing.spans import OtlpCollector, count_spans
    except ImportError as exc:
        raise UsageError(
            "--trace-config mode=opentelemetry needs the packages opentelemetry-sdk and "
            f"opentelemetry-exporter-otlp-proto-http: pip install 'tpx[otel]' ({exc})"
        ) from exc
    return SpanExport(setting.spans, OtlpCollector(setting.spans), count_spans)
