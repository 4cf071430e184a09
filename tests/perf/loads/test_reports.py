"""Rows that workers report over pipes, and a controller that merges them."""

import asyncio
import os
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import thread_time_ns
from typing import TypeVar

import pytest

from tests.perf.conftest import FakeClient
from tests.perf.loads.test_workers import Empty
from tpx.perf.inputs.feed import RoundRobin
from tpx.perf.loads.base import LoadRequest
from tpx.perf.loads.closed import ClosedLoop
from tpx.perf.loads.worker import MOST_ROWS, Go, Reporter, Stop, Worker, WorkerReport
from tpx.perf.loads.workers import PoolLoad
from tpx.perf.loops import event_loop
from tpx.perf.records import Records, response_times

T = TypeVar("T")


class Teller:
    """Implements RunningWorker without a process: both ends of a pipe, and a load with the test's rows."""

    headstart_ns = 0

    def __init__(self) -> None:
        self.load = ClosedLoop(FakeClient(), [], RoundRobin([]))
        self.records = self.load.records
        theirs, ours = Pipe()
        self._pipe: Connection = ours
        self._reporter = Reporter(theirs, self.load)

    def had(self, sequence: int, *times_ns: int, units: int = 0) -> None:
        """A request whose responses came at these times."""
        self.records.arrivals.extend(times_ns)
        first, last = times_ns[0], times_ns[-1]
        self.records.append(0, 0, 0, first, last, 0, len(times_ns), 0, sequence, units, 0, 0, 0, 0)

    def lost(self, sequence: int, end_ns: int) -> None:
        self.records.append(0, 0, 0, end_ns, end_ns, -1, 0, 0, sequence)

    def tell(self, monkeypatch: pytest.MonkeyPatch, now_ns: int) -> None:
        """Report at this time, as far as the pipe takes it."""
        monkeypatch.setattr("tpx.perf.loads.worker.perf_counter_ns", lambda: now_ns)
        self._reporter.report()

    def take(self) -> Sequence[WorkerReport]:
        reports = []
        while self._pipe.poll():
            reports.append(self._pipe.recv())
        return reports

    def check(self) -> None: ...

    def send(self, command: LoadRequest | Go | Stop) -> None: ...

    async def answer(self, kind: type[T], patience_s: float) -> T:
        return kind()

    def take_notices(self) -> Sequence[str]:
        return ()

    async def close(self) -> None: ...


def pool(count: int) -> tuple[list[Teller], PoolLoad]:
    tellers = [Teller() for _ in range(count)]
    return tellers, PoolLoad(tellers, 0, open_loop=False)


def gathered(records: Records) -> list[tuple[int, list[int]]]:
    """The sequence of each row, and when its responses came."""
    found = response_times(records, range(len(records)))
    borders = found.starts.tolist()
    numbers = records.since(0)["sequence"].tolist()
    return [(n, found.times_ns[borders[i] : borders[i + 1]].tolist()) for i, n in enumerate(numbers)]


def test_every_response_stays_with_its_request_when_the_rows_of_workers_are_put_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (one, two), load = pool(2)
    one.had(1, 10, 20, 30)
    two.had(2, 5, 15)
    one.lost(3, 40)
    one.had(4, 50)
    two.had(5, 35, 36, 37, 45)
    one.tell(monkeypatch, 60)
    two.tell(monkeypatch, 60)
    load.gather()
    assert gathered(load.records) == [
        (2, [5, 15]),
        (1, [10, 20, 30]),
        (3, []),
        (5, [35, 36, 37, 45]),
        (4, [50]),
    ]
    assert load.failed == 1


def test_what_not_all_workers_have_told_of_waits_with_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    (one, two), load = pool(2)
    one.had(1, 10)
    one.had(2, 20, 30)
    one.tell(monkeypatch, 50)
    two.tell(monkeypatch, 25)
    load.gather()
    assert gathered(load.records) == [(1, [10])]
    two.had(3, 26, 28)
    two.tell(monkeypatch, 50)
    load.gather()
    assert gathered(load.records) == [(1, [10]), (3, [26, 28]), (2, [20, 30])]
    assert load.complete_ns == 50


def test_units_stay_with_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    (one, two), load = pool(2)
    for number in range(1, 30):
        one.had(2 * number, 20 * number, units=number)
        two.had(2 * number + 1, 20 * number + 10, units=100 + number if number % 2 else 0)
        one.tell(monkeypatch, 20 * number + 15)
        two.tell(monkeypatch, 20 * number + 15)
        load.gather()
    units = load.records.since(0)["units"].tolist()
    expected = {n: n // 2 if n % 2 == 0 else (100 + n // 2) * (n // 2 % 2) for n in range(2, 60)}
    assert dict(zip(load.records.since(0)["sequence"].tolist(), units, strict=True)) == expected


@pytest.mark.parametrize("streamed", [False, True])
def test_a_full_pipe_holds_up_no_worker_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, *, streamed: bool
) -> None:
    tellers, load = pool(2)
    count = 20 * MOST_ROWS
    for number in range(count):
        teller = tellers[number % 2]
        if streamed:
            teller.had(number, *range(number - number % 9, number + 1))
        else:
            teller.records.append(0, 0, 0, 0, number, 0, 1, 0, number)
    for teller in tellers:
        teller.tell(monkeypatch, count)  # returns, although nobody reads
    load.gather()
    assert 0 < load.complete_ns < count
    assert load.records.since(0)["sequence"].tolist() == list(range(load.complete_ns + 1))
    while load.complete_ns < count:
        for teller in tellers:
            teller.tell(monkeypatch, count)
        load.gather()
    assert load.records.since(0)["sequence"].tolist() == list(range(count))
    if streamed:
        times = [times for _, times in gathered(load.records)]
        assert times == [list(range(number - number % 9, number + 1)) for number in range(count)]


def test_the_cpu_time_before_a_load_is_not_the_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,), load = pool(1)
    one.had(1, 10)
    one.tell(monkeypatch, 20)
    load.gather()
    assert 0 < load.processor_ns < thread_time_ns() / 2  # this thread has imported all modules


def test_a_worker_sends_whole_reports_also_with_uvloop() -> None:
    async def scene() -> None:
        theirs, ours = Pipe()
        serving = asyncio.create_task(Worker(Empty(), theirs).serve())
        while not serving.done() and not ours.poll():
            ours.send(Stop(0))
            await asyncio.sleep(0.001)
        assert os.get_blocking(theirs.fileno())
        ours.close()
        async with asyncio.timeout(5):
            await serving

    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(scene())


def test_a_request_with_more_responses_than_fit_into_a_report_keeps_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (one,), load = pool(1)
    long = tuple(range(100, 6000))
    one.had(1, 50)
    one.had(2, *long)
    one.had(3, 7000, 7001)
    one.tell(monkeypatch, 8000)
    load.gather()
    assert gathered(load.records) == [(1, [50]), (2, list(long)), (3, [7000, 7001])]
