"""The seam between what is traced and whereto: a sink for each trace mode, imported when it is asked for."""

from importlib import import_module
from typing import Protocol

from tpx.serving.tracing.settings import Mode, TraceSetting
from tpx.serving.tracing.trace import Trace

_SINKS: dict[Mode, str] = {
    "triton": "tpx.serving.tracing.writer:open_files",
    "opentelemetry": "tpx.serving.tracing.export:open_export",
}


class TraceGroup(Protocol):
    """The traces of one setting."""

    def add(self, trace: Trace, *, complete: bool) -> None:
        """Take a trace, the last one of its setting if `complete`. Never waits."""

    def end(self) -> None:
        """Nothing more comes. Never waits."""


class TraceSink(Protocol):
    """Takes what was traced, on the event loop."""

    def group(self, setting: TraceSetting) -> TraceGroup:
        """For the traces of a setting."""

    def close(self) -> None:
        """Let go of everything that was taken; blocks, but not for ever."""


def open_sink(setting: TraceSetting) -> TraceSink:
    """The sink of the setting's mode. Raises UsageError where a package is missing."""
    module, _, function = _SINKS[setting.trace_mode].partition(":")
    sink: TraceSink = getattr(import_module(module), function)(setting)
    return sink
