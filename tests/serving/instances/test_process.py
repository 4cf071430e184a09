"""Which process gets a batch, and how many are handed over before they can be begun."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.serving.fakes import request_of
from tpx.errors import TpxError
from tpx.serving.backends.contract import CompletionSink, Needs
from tpx.serving.batch import Batch, EarlyResponse
from tpx.serving.dispatcher import Dispatcher
from tpx.serving.instances.process import ProcessInstance
from tpx.serving.polling import NO_POLLING
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.direct import DirectScheduler
from tpx.serving.scheduling.inline import Arrivals
from tpx.serving.scheduling.limiter import NoLimiter
from tpx.serving.stacking.base import Stacking


class FakeRemote:
    """Implements RemoteExecutor: keeps what it is given."""

    def __init__(self) -> None:
        self.alive = True
        self.failure = ""
        self.has_readiness_hook = False
        self.on_change: Callable[[], None] = lambda: None
        self.given: list[Batch] = []

    def use(self, stacking: Stacking) -> None: ...

    def submit(self, batch: Batch, sink: CompletionSink) -> None:
        self.given.append(batch)

    def wait_until_started(self) -> None: ...

    async def ready(self) -> bool:
        return self.alive

    def close(self) -> None: ...


class Kept:
    """Implements ResponseSink: keeps the errors."""

    def __init__(self) -> None:
        self.errors: list[tuple[Batch, TpxError | None]] = []

    def answered(self, batch: Batch) -> None:
        self.errors.append((batch, batch.error))

    def responded(self, early: EarlyResponse) -> None: ...
    def refused(self, request: InferRequest, error: TpxError) -> None: ...


class Bench:
    """Two processes of one instance queue, and what becomes of their batches."""

    def __init__(self) -> None:
        loop = SimpleNamespace(call_soon_threadsafe=lambda _: None)
        self.kept = Kept()
        dispatcher = Dispatcher(
            DirectScheduler(),
            cast("Any", loop),
            self.kept,
            NoLimiter(),
            inline_below_ns=0,
            arrivals=Arrivals(),
        )
        self.queue = dispatcher.queue_for(Needs())
        self.remotes = [FakeRemote(), FakeRemote()]
        self.instances = [
            ProcessInstance(f"m_0_{n}", remote, cast("Any", loop), NO_POLLING, self.queue.look)
            for n, remote in enumerate(self.remotes)
        ]
        for instance in self.instances:
            dispatcher.join(self.queue, instance)

    def put(self, count: int) -> list[Batch]:
        batches = [Batch([request_of()]) for _ in range(count)]
        for batch in batches:
            self.queue.submit(batch)
        return batches

    def compute(self, number: int, took_ns: int) -> None:
        """The first batch of an instance was computed."""
        batch = self.remotes[number].given.pop(0)
        batch.started_ns = batch.gathered_ns = 1
        batch.computed_ns = 1 + took_ns
        self.instances[number].computed(batch)


def test_the_one_that_holds_fewest_gets_the_next() -> None:
    bench = Bench()
    bench.put(3)
    assert [instance.held for instance in bench.instances] == [2, 1]
    bench.compute(0, 10)
    bench.compute(0, 10)
    bench.put(1)
    assert [instance.held for instance in bench.instances] == [1, 1]


def test_batches_wait_while_nobody_is_alive_and_are_refused_when_all_have_failed() -> None:
    bench = Bench()
    for remote in bench.remotes:
        remote.alive = False
    [batch] = bench.put(1)
    bench.remotes[0].failure = "dead again and again"
    bench.remotes[0].on_change()
    assert not bench.kept.errors
    bench.remotes[1].failure = "this one, too"
    bench.remotes[1].on_change()
    [(refused, error)] = bench.kept.errors
    assert refused is batch
    assert error is not None
    assert error.message == "dead again and again"
    assert not bench.queue.held


@pytest.mark.parametrize(("took_ns", "depth"), [(20_000, 8), (1_000_000, 2), (50_000_000, 1)])
def test_the_shorter_a_model_the_more_is_handed_over(took_ns: int, depth: int) -> None:
    bench = Bench()
    assert bench.instances[0].depth == 2
    for _ in range(40):
        bench.put(1)
        bench.compute(0, took_ns)
    assert bench.instances[0].depth == depth


def test_what_a_dead_process_gives_back_goes_before_what_waits() -> None:
    bench = Bench()
    first, second, third = bench.put(3)
    assert bench.remotes[0].given == [first, third]
    bench.remotes[0].alive = False
    bench.remotes[1].alive = False
    [fourth] = bench.put(1)
    for batch in (third, first):
        bench.instances[0].returned(batch)
    bench.remotes[1].alive = True
    bench.remotes[1].on_change()
    assert bench.remotes[1].given == [second, first, third, fourth]
    assert (first.started_ns, bench.instances[0].held) == (0, 0)
