"""Which process gets a batch, and what becomes of the batches of one that has ended."""

from typing import Any, cast

from tests.serving.fakes import request_of
from tests.serving.virtual import FakeInstance, VirtualLoop
from tpx.errors import TpxError
from tpx.serving.backends.contract import Needs
from tpx.serving.batch import Batch, EarlyResponse
from tpx.serving.dispatcher import Dispatcher
from tpx.serving.request import InferRequest
from tpx.serving.scheduling.direct import DirectScheduler
from tpx.serving.scheduling.inline import Arrivals, InlinePolicy
from tpx.serving.scheduling.limiter import NoLimiter


class Kept:
    """Implements ResponseSink: keeps the errors."""

    def __init__(self) -> None:
        self.errors: list[tuple[Batch, TpxError | None]] = []

    def answered(self, batch: Batch) -> None:
        self.errors.append((batch, batch.error))

    def responded(self, early: EarlyResponse) -> None: ...
    def streamed(
        self, request: InferRequest, pieces: list[bytes], index: int, begun_ns: int, now_ns: int
    ) -> None: ...
    def refused(self, request: InferRequest, error: TpxError) -> None: ...


class Bench:
    """Two processes of one instance queue, and what becomes of their batches."""

    def __init__(self) -> None:
        self.kept = Kept()
        arrivals = Arrivals()
        dispatcher = Dispatcher(
            DirectScheduler(),
            cast("Any", VirtualLoop()),
            self.kept,
            NoLimiter(),
            inline=InlinePolicy(0, arrivals),
            arrivals=arrivals,
        )
        self.queue = dispatcher.pool.queue_for(Needs())
        self.instances = [FakeInstance(), FakeInstance()]
        for instance in self.instances:
            dispatcher.pool.add(self.queue, instance)

    def put(self, count: int) -> list[Batch]:
        batches = [Batch([request_of()]) for _ in range(count)]
        for batch in batches:
            self.queue.submit(batch)
        return batches


def test_the_one_that_holds_fewest_gets_the_next() -> None:
    bench = Bench()
    bench.put(3)
    assert [instance.held for instance in bench.instances] == [2, 1]
    bench.instances[0].finish()
    bench.instances[0].finish()
    bench.put(1)
    assert [instance.held for instance in bench.instances] == [1, 1]


def test_batches_wait_while_nobody_is_alive_and_are_refused_when_all_have_failed() -> None:
    bench = Bench()
    for instance in bench.instances:
        instance.alive = False
    [batch] = bench.put(1)
    bench.instances[0].failure = "dead again and again"
    bench.queue.dispatch()
    assert not bench.kept.errors
    bench.instances[1].failure = "this one, too"
    bench.queue.dispatch()
    [(refused, error)] = bench.kept.errors
    assert refused is batch
    assert error is not None
    assert error.message == "dead again and again"
    assert not bench.queue.held


def test_what_a_dead_process_gives_back_goes_before_what_waits() -> None:
    bench = Bench()
    first, second, third = bench.put(3)
    dead, other = bench.instances
    assert dead.batches == [first, third]
    dead.alive = other.alive = False
    [fourth] = bench.put(1)
    for batch in (third, first):
        dead.batches.remove(batch)
        bench.queue.returned(batch)
    other.alive = True
    bench.queue.dispatch()
    assert other.batches == [second, first, third, fourth]
