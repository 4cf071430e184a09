"""Spans on their way: bounded, in batches, and what becomes of them when nobody takes them."""

import itertools
import sys
import threading
from collections.abc import Callable, Sequence

import pytest

from tests.serving.tracing.requests import request_for
from tpx.errors import UsageError
from tpx.serving.tracing import queue
from tpx.serving.tracing.settings import SpanSettings, TraceSetting
from tpx.serving.tracing.trace import Trace, ids_below
from tpx.serving.tracing.tracer import SpanExport, open_sink

SPANS_EACH = 3


class FakeCollector:
    """Takes traces once `release` is called, or fails with a reason."""

    def __init__(self, why: str = "") -> None:
        self.why = why
        self.asked = threading.Semaphore(0)
        self.released = threading.Semaphore(0)
        self.batches: list[list[int]] = []
        self.error: Exception | None = None
        self.called_off = False
        self.closed = False

    def write(self, batch: Sequence[Trace]) -> bool:
        why = self.why
        self.asked.release()
        self.released.acquire()
        if self.called_off:
            raise OSError("called off")
        if self.error is not None:
            raise self.error
        if why:
            raise OSError(why)
        self.batches.append([trace.id for trace in batch])
        return True

    def call_off(self) -> None:
        self.called_off = True
        self.released.release(1000)

    def close(self) -> None:
        self.closed = True


def opened(collector: FakeCollector, queue: int = 12, batch: int = 6, delay: int = 3_600_000) -> SpanExport:
    settings = SpanSettings(
        bsp_max_queue_size=queue, bsp_max_export_batch_size=batch, bsp_schedule_delay=delay
    )
    return SpanExport(settings, collector, lambda trace: SPANS_EACH)


@pytest.fixture
def add() -> Callable[[SpanExport, int], None]:
    ids = itertools.count(1)

    def adding(exporting: SpanExport, count: int) -> None:
        for _ in range(count):
            trace = Trace(ids.__next__, ("TIMESTAMPS",), lambda _: None, ids=ids_below(None))
            trace.begin(request_for([[1, 2]]))
            exporting.add(trace, complete=False)

    return adding


Add = Callable[[SpanExport, int], None]


def test_a_full_batch_leaves_before_its_delay_and_what_is_left_at_the_end(add: Add) -> None:
    collector = FakeCollector()
    exporting = opened(collector)
    add(exporting, 2)
    assert collector.asked.acquire(timeout=10)
    add(exporting, 1)
    collector.released.release(2)
    exporting.close()
    assert collector.batches == [[1, 2], [3]]


def test_a_batch_that_is_not_full_leaves_after_its_delay(add: Add) -> None:
    collector = FakeCollector()
    exporting = opened(collector, delay=1)
    add(exporting, 1)
    assert collector.asked.acquire(timeout=10)
    collector.released.release()
    exporting.close()
    assert collector.batches == [[1]]


def test_whole_traces_are_dropped_when_the_queue_is_full(add: Add, caplog: pytest.LogCaptureFixture) -> None:
    collector = FakeCollector()
    exporting = opened(collector)
    add(exporting, 2)
    assert collector.asked.acquire(timeout=10)
    add(exporting, 7)  # 21 spans, of which 12 can wait
    collector.released.release(9)
    exporting.close()
    assert collector.batches == [[1, 2], [3, 4], [5, 6]]
    [told] = caplog.messages
    assert told == "dropped a trace: the queue of 'http://localhost:4318/v1/traces' is full (0 before)"


def test_a_trace_larger_than_a_batch_is_a_batch(add: Add) -> None:
    collector = FakeCollector()
    exporting = opened(collector, batch=2)
    add(exporting, 2)
    collector.released.release(2)
    exporting.close()
    assert collector.batches == [[1], [2]]


def test_a_collector_that_fails_is_told_once_and_that_it_is_over(
    add: Add, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tpx.serving.tracing")
    collector = FakeCollector("not today")
    exporting = opened(collector, batch=3)
    collector.released.release()
    for _ in range(3):
        add(exporting, 1)
        assert collector.asked.acquire(timeout=10)
        collector.released.release()
    collector.why = ""
    add(exporting, 1)
    exporting.close()
    assert [message.partition(": ")[2].partition(";")[0] for message in caplog.messages[:1]] == ["not today"]
    assert len(caplog.messages) == 2
    assert "accepts traces again" in caplog.messages[1]


def test_what_cannot_be_encoded_does_not_end_the_thread(add: Add, caplog: pytest.LogCaptureFixture) -> None:
    collector = FakeCollector()
    collector.error = ValueError("odd")
    exporting = opened(collector, batch=3)
    add(exporting, 1)
    assert collector.asked.acquire(timeout=10)
    collector.released.release()
    while not caplog.messages:
        threading.Event().wait(0.01)
    collector.error = None
    add(exporting, 1)
    collector.released.release()
    exporting.close()
    assert collector.batches == [[2]]
    assert "odd" in caplog.messages[0]


def test_the_end_does_not_wait_for_ever(
    add: Add, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_CLOSE_S", 0.05)
    collector = FakeCollector()
    exporting = opened(collector)
    add(exporting, 3)
    assert collector.asked.acquire(timeout=10)
    exporting.close()
    assert collector.batches == []
    assert (collector.called_off, collector.closed) == (True, True)
    [told] = caplog.messages
    assert told == ("traces are lost: 'http://localhost:4318/v1/traces' did not accept them within 0.05 s")


def test_the_last_batch_tells_that_it_failed(add: Add, caplog: pytest.LogCaptureFixture) -> None:
    collector = FakeCollector("not today")
    exporting = opened(collector)
    add(exporting, 1)
    collector.released.release()
    exporting.close()
    [told] = caplog.messages
    assert "not today" in told
    assert (collector.called_off, collector.closed) == (False, True)


def test_nothing_is_taken_after_the_end(add: Add) -> None:
    collector = FakeCollector()
    exporting = opened(collector)
    exporting.close()
    add(exporting, 5)
    assert collector.batches == []
    assert not collector.asked.acquire(blocking=False)


@pytest.mark.parametrize("package", ["opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"])
def test_a_missing_package_says_what_brings_it(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for name in list(sys.modules):
        if name.startswith((package, "tpx.serving.tracing.spans")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        UsageError, match=r"mode=opentelemetry needs the packages .*pip install 'tpx\[otel\]'"
    ):
        open_sink(TraceSetting(trace_mode="opentelemetry"))
