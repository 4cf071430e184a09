"""Rows through shared memory."""

import numpy as np

from tpx.perf.loads.ring import Ring
from tpx.perf.records import ROW, Rows


def rows(*ends: int) -> Rows:
    out = np.zeros(len(ends), ROW)
    out["end_ns"] = ends
    return out


def test_rows_come_out_as_they_went_in_also_around_the_end_of_the_memory() -> None:
    ring = Ring(capacity=4)
    other = Ring(ring.name, capacity=4)
    try:
        for start in range(0, 30, 3):
            assert other.rows.put(rows(start, start + 1, start + 2)) == 3
            assert ring.rows.take()["end_ns"].tolist() == [start, start + 1, start + 2]
        assert len(ring.rows.take()) == 0
    finally:
        other.close()
        ring.close()


def test_what_finds_no_room_is_not_taken() -> None:
    ring = Ring(capacity=4)
    try:
        assert ring.rows.put(rows(1, 2, 3)) == 3
        assert ring.rows.put(rows(4, 5)) == 1
        assert ring.rows.take()["end_ns"].tolist() == [1, 2, 3, 4]
        assert ring.rows.put(rows(5)) == 1
    finally:
        ring.close()


def test_a_worker_tells_how_far_it_has_come_until_the_ring_is_cleared() -> None:
    ring = Ring(capacity=4)
    try:
        ring.report(complete_ns=7, processor_ns=5, skipped=3, connections=2)
        ring.finish()
        figures = ("complete_ns", "processor_ns", "skipped", "connections", "finished")
        assert [ring.said(figure) for figure in figures] == [7, 5, 3, 2, 1]
        ring.clear()
        assert [ring.said(figure) for figure in figures] == [0] * 5
    finally:
        ring.close()
