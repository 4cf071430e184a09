"""Traces as OpenTelemetry spans: of the request, of each model, and of each computation; sent by OTLP over
HTTP.
"""

import logging
import time
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from tpx.serving.tracing.settings import SpanSettings
from tpx.serving.tracing.trace import SpanIds, Trace, TraceStamp, new_span_id

ROOT = "InferRequest"
"""Triton's name for the span of a request."""
COMPUTE = "compute"
SERVICE = "triton-inference-server"
_SCOPE = InstrumentationScope("triton-server")
_UNNAMED = "unknown_service"
_OF_MODEL = ("REQUEST_", "QUEUE_")
_OF_COMPUTING = "COMPUTE_"
_LIBRARY_LOG = logging.getLogger("opentelemetry.exporter.otlp")


def resource_of(attributes: Sequence[tuple[str, str]]) -> Resource:
    """Return the resource of spans: these attributes, else OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME."""
    made = Resource.create(dict(attributes))
    if str(made.attributes.get("service.name", _UNNAMED)).startswith(_UNNAMED):
        made = made.merge(Resource({"service.name": SERVICE}))
    return made


def spans_of(trace: Trace, resource: Resource, offset_ns: int) -> list[ReadableSpan]:
    """Return the spans of a trace and its children; `offset_ns` leads to the time of day."""

    def span(
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        stamps: Sequence[TraceStamp],
        attributes: Mapping[str, str | int],
        error: str,
    ) -> ReadableSpan:
        times = [stamp.ns + offset_ns for stamp in stamps]
        return ReadableSpan(
            name,
            context=context,
            parent=parent,
            resource=resource,
            attributes=attributes,
            events=[Event(stamp.name, timestamp=ns) for stamp, ns in zip(stamps, times, strict=True)],
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, error) if error else Status(),
            start_time=min(times),
            end_time=max(times),
            instrumentation_scope=_SCOPE,
        )

    ids = trace.ids
    assert ids is not None
    # inner ones first
    made = [each for child in trace.children for each in spans_of(child, resource, offset_ns)]
    stamps = [event for event in trace.events if isinstance(event, TraceStamp)]
    of_computing = [stamp for stamp in stamps if stamp.name.startswith(_OF_COMPUTING)]
    of_model = [stamp for stamp in stamps if stamp.name.startswith(_OF_MODEL)]
    of_wire = [stamp for stamp in stamps if not stamp.name.startswith((*_OF_MODEL, _OF_COMPUTING))]
    below, above = _make_span_context(ids, ids.span_id), _make_span_context(ids, ids.above_id)
    if of_computing:
        made.append(span(COMPUTE, _make_span_context(ids, new_span_id()), below, of_computing, {}, ""))
    if of_model and trace.head is not None:
        model, request_id = trace.head.model, trace.head.request_id
        about: dict[str, str | int] = {
            "triton.model_name": model.name,
            "triton.model_version": model.version,
            "triton.trace_id": trace.id,
            "triton.trace_parent_id": trace.parent_id,
            **({"triton.request_id": request_id} if request_id else {}),
        }
        if trace.tokens is not None:  # names of OpenTelemetry's conventions for generative models
            names = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
            about.update(zip(names, trace.tokens, strict=True))
        made.append(span(model.name, below, above, of_model, about, trace.error))
    if not trace.parent_id and of_wire:
        caller = ids.caller
        parent = None if caller is None else SpanContext(caller.trace_id, caller.span_id, is_remote=True)
        made.append(span(ROOT, above, parent, of_wire, {}, trace.error))
    return made


def count_spans(trace: Trace) -> int:
    """Return the maximum number of spans of a trace."""
    return (0 if trace.parent_id else 1) + 2 + sum(map(count_spans, trace.children))


def _make_span_context(ids: SpanIds, span_id: int) -> SpanContext:
    return SpanContext(
        ids.trace_id,
        span_id,
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
        trace_state=TraceState.from_header([ids.state]) if ids.state else None,
    )


class OtlpCollector:
    """Implements TraceOutput with OpenTelemetry's exporter, whose log has the reasons of failures."""

    def __init__(self, settings: SpanSettings) -> None:
        self._batch_size = settings.bsp_max_export_batch_size
        self._exporter = OTLPSpanExporter(endpoint=settings.url)
        self._resource = resource_of(settings.resource)
        self._called_off = False
        self._reasons = _Reasons()
        _LIBRARY_LOG.addHandler(self._reasons)
        _LIBRARY_LOG.propagate = False

    def write(self, batch: Sequence[Trace]) -> bool:
        offset_ns = time.time_ns() - time.perf_counter_ns()
        spans = [span for trace in batch for span in spans_of(trace, self._resource, offset_ns)]
        self._reasons.first = ""
        for start in range(0, len(spans), self._batch_size):
            result = self._exporter.export(spans[start : start + self._batch_size])
            if result is not SpanExportResult.SUCCESS:
                raise OSError(self._reasons.first or "it did not say why")
        return True

    def call_off(self) -> None:
        if not self._called_off:
            self._called_off = True
            self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self.call_off()
        _LIBRARY_LOG.removeHandler(self._reasons)
        _LIBRARY_LOG.propagate = True


class _Reasons(logging.Handler):
    """Keeps the first log record, which has the reason; later ones only report failed retries."""

    first = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()
