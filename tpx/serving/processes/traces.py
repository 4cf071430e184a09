"""Traces of requests whose connection is in a frontend and whose model is in the engine.

A frontend records timestamps of the connection and sends them: the first ones with the request, the
others after the response. The engine decides which requests are traced, and writes the traces.
"""

import time
from collections.abc import Callable

from tpx.serving.processes import wire
from tpx.serving.request import Computation, InferRequest, InferResponse, RequestTrace
from tpx.serving.tracing.trace import Caller


class RemoteTrace:
    """Implements WireTrace in a frontend: collects timestamps for the engine."""

    context = ""

    def __init__(self, caller: Caller | None, tracer: "RemoteTracer") -> None:
        self._caller = caller
        self._tracer = tracer
        self._stamps: wire.WireStamps = []
        self._number: int | None = None

    def stamp(self, name: str, ns: int = 0) -> None:
        """Record an event at `ns`, by default now."""
        self._stamps.append((name, ns or time.perf_counter_ns()))

    def begin(self, request: InferRequest) -> None:
        """Register the trace of a request that is about to be sent to the engine."""
        self._tracer.begun[request] = self

    def started(self, number: int, meta: bytes) -> bytes:
        """Return the metadata of the request with this trace; `number` is the one in the channel."""
        self._number = number
        stamps, self._stamps = self._stamps, []
        caller = self._caller
        parent, state = ("", "") if caller is None else (caller.traceparent, caller.state)
        return wire.encode(wire.TraceStart(meta, parent, state, stamps))

    def computed(self, request: InferRequest, times: Computation, response: InferResponse) -> None:
        """Do nothing: the engine records this."""

    def refused(self) -> None:
        """Do nothing: the engine records this."""

    def child(self, request: InferRequest) -> RequestTrace:  # noqa: ARG002 (RequestTrace's signature)
        """Return this trace: ensembles run in the engine."""
        return self

    def end(self) -> None:
        """Send the remaining timestamps, if the request was sent."""
        if self._number is not None:
            self._tracer.send(self._number, wire.encode(self._stamps))


class RemoteTracer:
    """Implements TraceSource in a frontend; the engine decides what is traced."""

    def __init__(self, send: Callable[[int, bytes], None]) -> None:
        """`send` is called with the number of a request and the last timestamps of its trace."""
        self.on = self.accepts_callers = False
        self.send = send
        self.begun: dict[InferRequest, RemoteTrace] = {}
        """Traces of requests that are about to be sent."""
        self._watchers: list[Callable[[], None]] = []

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` whenever `on` changes."""
        self._watchers.append(watcher)

    def set(self, *, on: bool, accepts_callers: bool) -> None:
        """Apply the engine's trace settings."""
        self.accepts_callers = accepts_callers
        if on is not self.on:
            self.on = on
            for watcher in self._watchers:
                watcher()

    def sample(self, model: str, caller: Caller | None = None) -> RemoteTrace:  # noqa: ARG002 (the engine knows)
        """Return the trace of a request, which the engine may discard."""
        return RemoteTrace(caller, self)

    def started(self, infer: InferRequest, number: int, meta: bytes) -> bytes:
        """Return the metadata of a request with the beginning of its trace."""
        return self.begun.pop(infer).started(number, meta)
