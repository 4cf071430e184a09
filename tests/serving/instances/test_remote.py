"""Which process gets a batch, and how many are handed over before they can be begun."""

from collections.abc import Callable
from typing import Any

import pytest

from tpx.errors import TpxError
from tpx.serving.backends.contract import CompletionSink
from tpx.serving.batch import Batch
from tpx.serving.instances.remote import Outcomes, RemoteInbox, RemoteInstance
from tpx.serving.stacking.base import Stacking


class FakeRemote:
    """Implements RemoteExecutor: keeps what it is given."""

    def __init__(self) -> None:
        self.alive = True
        self.doomed = ""
        self.opinionated = False
        self.on_change: Callable[[], None] = lambda: None
        self.given: list[Batch] = []

    def use(self, stacking: Stacking) -> None: ...

    def submit(self, batch: Batch, sink: CompletionSink) -> None:
        self.given.append(batch)

    def wait_until_started(self) -> None: ...

    async def ready(self) -> bool:
        return self.alive

    def close(self) -> None: ...


def _nothing(_: object) -> None: ...


class Bench:
    """Two processes, and what becomes of their batches."""

    def __init__(self) -> None:
        self.refused: list[tuple[Batch, TpxError]] = []
        self.inbox = RemoteInbox(lambda batch, error: self.refused.append((batch, error)))
        self.remotes = [FakeRemote(), FakeRemote()]
        outcomes = Outcomes(_nothing, _nothing, _nothing, _nothing)
        loop: Any = None
        self.instances = [
            RemoteInstance(f"m_0_{n}", remote, loop, outcomes, self.inbox)
            for n, remote in enumerate(self.remotes)
        ]
        self.inbox.instances += self.instances

    def put(self, count: int) -> list[Batch]:
        batches = [Batch([]) for _ in range(count)]
        for batch in batches:
            self.inbox.put(batch)
        return batches

    def compute(self, number: int, took_ns: int) -> None:
        """The first batch of an instance was computed."""
        batch = self.remotes[number].given.pop(0)
        batch.started_ns = batch.gathered_ns = 1
        batch.computed_ns = 1 + took_ns
        self.instances[number].released(batch)


def test_the_one_that_holds_fewest_gets_the_next() -> None:
    bench = Bench()
    bench.put(3)
    assert [instance.held for instance in bench.instances] == [2, 1]
    bench.compute(0, 10)
    bench.compute(0, 10)
    bench.put(1)
    assert [instance.held for instance in bench.instances] == [1, 1]


def test_batches_wait_while_nobody_is_alive_and_are_refused_when_all_are_doomed() -> None:
    bench = Bench()
    for remote in bench.remotes:
        remote.alive = False
    [batch] = bench.put(1)
    assert not bench.refused
    bench.remotes[0].doomed = "dead again and again"
    bench.inbox.look()
    assert not bench.refused
    bench.remotes[1].doomed = "this one, too"
    bench.inbox.look()
    [(refused, error)] = bench.refused
    assert refused is batch
    assert error.message == "dead again and again"


@pytest.mark.parametrize(("took_ns", "depth"), [(20_000, 8), (1_000_000, 2), (50_000_000, 1)])
def test_the_shorter_a_model_the_more_is_handed_over(took_ns: int, depth: int) -> None:
    bench = Bench()
    assert bench.inbox.depth == 2
    for _ in range(40):
        bench.put(1)
        bench.compute(0, took_ns)
    assert bench.inbox.depth == depth


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
    bench.inbox.look()
    assert bench.remotes[1].given == [second, first, third, fourth]
    assert (first.started_ns, bench.instances[0].held) == (0, 0)
