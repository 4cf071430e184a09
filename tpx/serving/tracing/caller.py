"""The place of a trace among spans: the span of its caller above, and its own ids.

W3C Trace Context: what the headers `traceparent` and `tracestate` say, and what is handed on in them.
"""

import json
import random
import re
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_VERSION = "ff"
_SAMPLED = 1
_MAX_STATE = 512


@dataclass(frozen=True, slots=True)
class Caller:
    """The span that a request was sent from."""

    trace_id: int
    span_id: int
    sampled: bool
    """It is recorded there."""
    state: str = ""
    """Words of other tracing systems, handed on."""


@dataclass(frozen=True, slots=True)
class SpanPlace:
    """The place of a trace among spans: the id of its model's span, and of the span above that, which is the
    request's or, for a request of another model, that model's."""

    trace_id: int
    span_id: int
    above_id: int
    caller: Caller | None = None

    def child(self) -> "SpanPlace":
        """Below this one."""
        return SpanPlace(self.trace_id, new_span_id(), self.span_id, self.caller)

    @property
    def state(self) -> str:
        return self.caller.state if self.caller is not None else ""

    @property
    def context(self) -> str:
        """Trace context for Python models that make spans below this one, as JSON."""
        words = {"traceparent": f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED:02x}"}
        if self.state:
            words["tracestate"] = self.state
        return json.dumps(words)


def place_below(caller: Caller | None) -> SpanPlace:
    """The place of a request's trace."""
    trace_id = caller.trace_id if caller is not None else random.getrandbits(128) or 1
    return SpanPlace(trace_id, new_span_id(), new_span_id(), caller)


def read_caller(traceparent: str, tracestate: str = "") -> Caller | None:
    """Read the headers of a request; None if they are missing or invalid."""
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == _NO_VERSION or (more and version == "00"):
        return None
    caller = Caller(
        int(trace_id, 16),
        int(span_id, 16),
        bool(int(flags, 16) & _SAMPLED),
        tracestate.strip() if len(tracestate) <= _MAX_STATE and tracestate.isascii() else "",
    )
    return caller if caller.trace_id and caller.span_id else None


def new_span_id() -> int:
    """An id that no other span has."""
    return random.getrandbits(64) or 1
