"""A collector of OpenTelemetry's: takes OTLP over HTTP, decodes it, and can be slow or refuse."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True, slots=True)
class Span:
    """A span as it arrived; ids are hexadecimal, "" for none."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    events: tuple[str, ...]
    times: tuple[int, ...]
    started_ns: int
    ended_ns: int
    attributes: Mapping[str, Any]
    error: str
    kind: int


class Collector:
    """What has come, and how the next requests are answered."""

    def __init__(self) -> None:
        self.status = 200
        self.open = threading.Event()
        """While it is not set, requests wait."""
        self.open.set()
        self.asked = 0
        """Requests that were answered, in whatever way."""
        self.batches: list[int] = []
        self.resources: list[dict[str, Any]] = []
        self.url = ""
        self._spans: list[Span] = []
        self._changed = threading.Condition()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            for of_resource in request.resource_spans:
                self.resources.append(_values(of_resource.resource.attributes))
                spans = [_span(span) for scope in of_resource.scope_spans for span in scope.spans]
                self.batches.append(len(spans))
                self._spans += spans
            self._changed.notify_all()

    def spans(self, count: int) -> list[Span]:
        """All spans, once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._spans) >= count, 20), self._spans
            return list(self._spans)

    def named(self, count: int) -> dict[str, Span]:
        """Exactly so many spans, whose names differ."""
        spans = self.spans(count)
        by_name = {span.name: span for span in spans}
        assert len(by_name) == len(spans) == count, [span.name for span in spans]
        return by_name


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Intake(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.open.wait(30)
            collector.asked += 1
            if collector.status == 200 and self.path == "/v1/traces":
                collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(collector.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the server's name)
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Intake) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        collector.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        try:
            yield collector
        finally:
            collector.open.set()
            server.shutdown()
            thread.join(10)


def _span(span: Any) -> Span:
    return Span(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        state=span.trace_state,
        events=tuple(event.name for event in span.events),
        times=tuple(event.time_unix_nano for event in span.events),
        started_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        error=span.status.message if span.status.code == 2 else "",
        kind=span.kind,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in attributes}
