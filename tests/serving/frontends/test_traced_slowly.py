"""Traced requests whose clients take their time to read the answer."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from tests.serving.tracing.requests import request_for
from tests.serving.virtual_time import run
from tests.waiting import until
from tpx.protocol.http1.request import HttpRequest
from tpx.serving.frontends.traced import trace_http
from tpx.serving.request import InferResponse
from tpx.serving.tracing.settings import TraceSetting
from tpx.serving.tracing.trace import Trace
from tpx.serving.tracing.tracer import TraceGroup, Tracer


class Kept:
    """Keeps traces instead of writing them."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []

    def group(self, setting: TraceSetting) -> TraceGroup:
        return self

    def add(self, trace: Trace, *, complete: bool) -> None:
        self.traces.append(trace)

    def end(self) -> None: ...
    def close(self) -> None: ...


class SlowReader:
    """An answered request whose answer is taken when the test says so; counts who asks."""

    def __init__(self) -> None:
        self.left = 1
        self.asked = 0
        self.began_ns = self.received_ns = 1
        self.on_answered: Callable[[Any], None] | None = None

    def unsent(self) -> int:
        self.asked += 1
        return self.left


def test_a_client_that_reads_slowly_is_looked_at_seldom_and_its_trace_ends_when_it_has_read() -> None:
    async def scene() -> None:
        sink, reader = Kept(), SlowReader()
        setting = TraceSetting(trace_file="x", trace_level=("TIMESTAMPS",), trace_rate=1)
        infer = request_for([[1, 2]])
        trace_http(Tracer(setting, sink), infer, cast("HttpRequest", reader))
        infer.reply(infer, InferResponse([]))
        assert reader.on_answered is not None
        reader.on_answered(200)
        await asyncio.sleep(60)
        assert 4 < reader.asked < 400
        assert not sink.traces
        reader.left = 0
        await until(lambda: len(sink.traces) == 1)

    run(scene)
