"""Selects the requests to trace: the settings of the server and of models, and request counts.

Models without their own setting are counted together. Every change restarts the count; earlier traces
stay with the setting under which they were taken (Triton: server/src/tracer.cc).
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from tpx.errors import InvalidRequest, UsageError
from tpx.serving.tracing.queue import TraceOutput, TraceQueue
from tpx.serving.tracing.settings import NAMES, SpanSettings, TraceSetting, TraceUpdate, TraceValues
from tpx.serving.tracing.trace import Caller, Trace, ids_below
from tpx.serving.tracing.writer import TraceWriter


class TraceGroup(Protocol):
    """The traces of one setting."""

    def add(self, trace: Trace, *, complete: bool) -> None:
        """Add a trace, the last one of its setting if `complete`. Never blocks."""

    def end(self) -> None:
        """End the group: no further trace follows. Never blocks."""


class TraceSink(Protocol):
    """Receives traces, on the event loop."""

    def group(self, setting: TraceSetting) -> TraceGroup:
        """Return the group for the traces of a setting."""

    def close(self) -> None:
        """Write or export everything received; blocks for a bounded time."""


def open_sink(setting: TraceSetting) -> TraceSink:
    """Return the sink for the setting's mode. Raises UsageError if a package is missing."""
    if not setting.exports:
        return TraceWriter(Path(setting.trace_file))
    try:
        from tpx.serving.tracing.spans import OtlpCollector, count_spans
    except ImportError as exc:
        raise UsageError(
            "--trace-config mode=opentelemetry needs the packages opentelemetry-sdk and "
            f"opentelemetry-exporter-otlp-proto-http: pip install 'tpx[otel]' ({exc})"
        ) from exc
    return SpanExport(setting.spans, OtlpCollector(setting.spans), count_spans)


class SpanExport:
    """Sends traces as spans to a collector. Implements TraceSink and, for any setting, TraceGroup."""

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


class _Scope:
    """An active setting, of the server or of one model, and its counts."""

    def __init__(self, setting: TraceSetting, said: TraceValues, group: TraceGroup) -> None:
        self.said = said
        self.on = not setting.fault and (setting.exports or setting.trace_count != 0)
        self._setting = setting
        self._group = group
        self._remaining = setting.trace_count
        self._seen = self._taken = self._collected = 0
        self._replaced = False

    @property
    def setting(self) -> TraceSetting:
        """Return the current setting; `trace_count` is what remains."""
        return replace(self._setting, trace_count=self._remaining)

    @property
    def said_now(self) -> TraceValues:
        return {**self.said, "trace_count": self._remaining} if "trace_count" in self.said else self.said

    def sample(self, take_id: "itertools.count[int]", caller: Caller | None) -> Trace | None:
        if not self.on:
            return None
        self._seen += 1
        setting = self._setting
        if self._remaining and setting.trace_rate and not self._seen % setting.trace_rate:
            if self._remaining > 0:
                self._remaining -= 1
                self.on = setting.exports or self._remaining != 0
        elif caller is None or not caller.sampled:
            return None
        self._taken += 1
        ids = ids_below(caller) if setting.exports else None
        return Trace(take_id.__next__, setting.trace_level, self._collect, ids=ids)

    def _collect(self, trace: Trace) -> None:
        self._collected += 1
        complete = not self._remaining and self._collected == self._seen
        self._group.add(trace, complete=complete)
        self._end_if_done()

    def replace(self) -> None:
        """End the scope; requests in flight still belong to it."""
        self._replaced = True
        self.on = False
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._replaced and self._taken == self._collected:
            self.end()

    def end(self) -> None:
        if self._collected:
            self._group.end()


class Tracer:
    """Decides for each request whether it is traced. `on` is False while none can be."""

    def __init__(self, start: TraceSetting, sink: TraceSink) -> None:
        self._start = start
        self._sink = sink
        self.accepts_callers = start.exports
        """True if callers can request a trace through headers."""
        self._ids = itertools.count(1)
        self._server = self._make_scope(start, {})
        self._models: dict[str, _Scope] = {}
        self.on = self._server.on
        self._watchers: list[Callable[[], None]] = []

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` whenever `on` changes."""
        self._watchers.append(watcher)

    def sample(self, model: str, caller: Caller | None = None) -> Trace | None:
        """Return the trace of a request, None if it is not sampled and its caller does not trace it.

        `caller` is given only if `accepts_callers` is true.
        """
        trace = self._models.get(model, self._server).sample(self._ids, caller)
        if trace is not None:
            self._notify_if_switched()
        return trace

    def setting(self, model: str = "") -> TraceSetting:
        """Return the setting of a model; for an empty name, that of all models without their own."""
        return self._models.get(model, self._server).setting

    def update(self, update: TraceUpdate, model: str = "") -> None:
        """Change the setting of a model or of the server; models keep their own values.

        Raises InvalidRequest for a setting that can trace nothing, unless it says so.
        """
        if model:
            current = self._models.get(model)
            values = _apply(update, {} if current is None else current.said_now)
            self._set_scope(model, self._make_checked_scope(values, self._server.setting) if values else None)
        else:
            changed = self._make_checked_scope(_apply(update, self._server.said_now), self._start)
            inheriting = {
                name: self._make_checked_scope(scope.said_now, changed.setting)
                for name, scope in self._models.items()
                if len(scope.said) < len(NAMES)
            }
            self._server.replace()
            self._server = changed
            for name, scope in inheriting.items():
                self._set_scope(name, scope)
        self._notify_if_switched()

    def close(self) -> None:
        """Close all sinks; blocks until traces are on disk or at the collector."""
        self.on = False
        for scope in (self._server, *self._models.values()):
            scope.end()
        self._sink.close()

    def _set_scope(self, model: str, scope: _Scope | None) -> None:
        """Give a model its own setting, or the server's for None."""
        current = self._models.pop(model, None)
        if current is not None:
            current.replace()
        if scope is not None:
            self._models[model] = scope

    def _make_checked_scope(self, said: TraceValues, base: TraceSetting) -> _Scope:
        setting = replace(base, **said)  # type: ignore[arg-type]
        if setting.trace_level and setting.fault:
            raise InvalidRequest(f"Attempting to set invalid trace setting :{setting.fault}")
        return self._make_scope(setting, said)

    def _make_scope(self, setting: TraceSetting, said: TraceValues) -> _Scope:
        return _Scope(setting, said, self._sink.group(setting))

    def _notify_if_switched(self) -> None:
        on = self._server.on or any(scope.on for scope in self._models.values())
        if on is not self.on:
            self.on = on
            for watcher in self._watchers:
                watcher()


def _apply(update: TraceUpdate, values: TraceValues) -> TraceValues:
    return {name: value for name, value in {**values, **update}.items() if value is not None}
