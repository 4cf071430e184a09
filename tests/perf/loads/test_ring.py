"""Rows through shared memory: the ring itself, a worker that tells, and a controller that gathers."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from tpx.perf.loads.ring import RowFlusher, RowMerger, RowRing
from tpx.perf.records import ROW, Records, Rows, response_times


def rows(*ends: int) -> Rows:
    out = np.zeros(len(ends), ROW)
    out["end_ns"] = ends
    return out


def test_rows_come_out_as_they_went_in_also_around_the_end_of_the_memory() -> None:
    ring = RowRing(capacity=4)
    other = RowRing(ring.name, capacity=4)
    try:
        for start in range(0, 30, 3):
            assert other.rows.put(rows(start, start + 1, start + 2)) == 3
            assert ring.rows.take()["end_ns"].tolist() == [start, start + 1, start + 2]
        assert len(ring.rows.take()) == 0
    finally:
        other.close()
        ring.close()


def test_what_finds_no_room_is_not_taken() -> None:
    ring = RowRing(capacity=4)
    try:
        assert ring.rows.put(rows(1, 2, 3)) == 3
        assert ring.rows.put(rows(4, 5)) == 1
        assert ring.rows.take()["end_ns"].tolist() == [1, 2, 3, 4]
        assert ring.rows.put(rows(5)) == 1
    finally:
        ring.close()


def test_a_worker_tells_how_far_it_has_come_until_the_ring_is_cleared() -> None:
    ring = RowRing(capacity=4)
    try:
        ring.report(complete_ns=7, processor_ns=5, skipped=3, connections=2)
        ring.finish()
        figures = ("complete_ns", "processor_ns", "skipped", "connections", "finished")
        assert [ring.said(figure) for figure in figures] == [7, 5, 3, 2, 1]
        ring.clear()
        assert [ring.said(figure) for figure in figures] == [0] * 5
    finally:
        ring.close()


class Teller:
    """One worker, without a process."""

    def __init__(self, ring: RowRing, *, streamed: bool = True) -> None:
        self.ring = ring
        self.records = Records()
        self._flusher = RowFlusher(ring, self.records, streamed=streamed)

    def had(self, sequence: int, *times_ns: int, units: int = 0) -> None:
        """A request whose responses came at these times."""
        self.records.arrivals.extend(times_ns)
        first, last = times_ns[0], times_ns[-1]
        self.records.append(0, 0, 0, first, last, 0, len(times_ns), 0, sequence, units)

    def lost(self, sequence: int, end_ns: int) -> None:
        self.records.append(0, 0, 0, end_ns, end_ns, -1, 0, 0, sequence)

    def tell(self, complete_ns: int = 0) -> bool:
        complete = self._flusher.tell()
        self.ring.report(complete_ns=complete_ns, processor_ns=0, skipped=0, connections=0)
        return complete


@contextmanager
def tellers(
    count: int, capacity: int = 64, *, streamed: bool = True
) -> Iterator[tuple[list[Teller], RowMerger]]:
    with ExitStack() as stack:
        rings = [RowRing(capacity=capacity) for _ in range(count)]
        for ring in rings:
            stack.callback(ring.close)
        yield [Teller(ring, streamed=streamed) for ring in rings], RowMerger(rings, streamed=streamed)


def gathered(records: Records) -> list[tuple[int, list[int]]]:
    """The sequence of each row, and when its responses came."""
    found = response_times(records, range(len(records)))
    borders = found.starts.tolist()
    numbers = records.since(0)["sequence"].tolist()
    return [(n, found.times_ns[borders[i] : borders[i + 1]].tolist()) for i, n in enumerate(numbers)]


def test_every_response_stays_with_its_request_when_the_rows_of_workers_are_put_in_order() -> None:
    with tellers(2) as ((one, two), gathering):
        one.had(1, 10, 20, 30)
        two.had(2, 5, 15)
        one.lost(3, 40)
        one.had(4, 50)
        two.had(5, 35, 36, 37, 45)
        one.tell(60)
        two.tell(60)
        gathering.gather()
        assert gathered(gathering.records) == [
            (2, [5, 15]),
            (1, [10, 20, 30]),
            (3, []),
            (5, [35, 36, 37, 45]),
            (4, [50]),
        ]
        assert gathering.failed == 1


def test_what_not_all_workers_have_told_of_waits_with_its_times() -> None:
    with tellers(2) as ((one, two), gathering):
        one.had(1, 10)
        one.had(2, 20, 30)
        one.tell(50)
        two.tell(25)
        gathering.gather()
        assert gathered(gathering.records) == [(1, [10])]
        two.had(3, 26, 28)
        two.tell(50)
        gathering.gather()
        assert gathered(gathering.records) == [(1, [10]), (3, [26, 28]), (2, [20, 30])]
        assert gathering.complete_ns == 50


def test_a_request_with_more_responses_than_there_is_room_for_comes_in_pieces() -> None:
    with tellers(1, capacity=8) as ((one,), gathering):
        long = tuple(range(100, 300))
        one.had(1, 50)
        one.had(2, *long)
        one.had(3, 400, 401)
        rounds = 0
        while not one.tell(500):
            gathering.gather()
            rounds += 1
        gathering.gather()
        assert rounds >= 200 // 32
        assert gathered(gathering.records) == [(1, [50]), (2, list(long)), (3, [400, 401])]


def test_units_stay_with_their_requests() -> None:
    with tellers(2, capacity=4) as ((one, two), gathering):
        for number in range(1, 30):
            one.had(2 * number, 20 * number, units=number)
            two.had(2 * number + 1, 20 * number + 10, units=100 + number if number % 2 else 0)
            one.tell(20 * number + 15)
            two.tell(20 * number + 15)
            gathering.gather()
        records = gathering.records
        units = records.since(0)["units"].tolist()
        expected = {n: n // 2 if n % 2 == 0 else (100 + n // 2) * (n // 2 % 2) for n in range(2, 60)}
        assert dict(zip(records.since(0)["sequence"].tolist(), units, strict=True)) == expected


@pytest.mark.parametrize("streamed", [False, True])
def test_nothing_is_lost_or_told_twice_however_little_room_there_is(*, streamed: bool) -> None:
    with tellers(3, capacity=5, streamed=streamed) as (all_of_them, gathering):
        time_ns = 0
        for turn in range(400):
            teller = all_of_them[turn * 7 % 3]
            time_ns += 1
            if streamed:
                teller.had(turn, *range(time_ns - turn % 9, time_ns + 1))
            else:
                teller.records.append(0, 0, 0, 0, time_ns, 0, 1, 0, turn)
            if turn % 4 == 0:
                for each in all_of_them:
                    each.tell(time_ns if each.tell() else 0)
                gathering.gather()
        while sum(each.tell(time_ns) for each in all_of_them) < len(all_of_them):
            gathering.gather()
        gathering.gather()
        records = gathering.records
        assert sorted(records.since(0)["sequence"].tolist()) == list(range(400))
        if streamed:
            assert all(times == list(range(times[0], times[-1] + 1)) for _, times in gathered(records))
            assert len(records.arrivals) == sum(turn % 9 + 1 for turn in range(400))
