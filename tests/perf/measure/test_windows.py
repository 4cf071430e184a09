"""Which requests belong to a window, where a count window ends, and what windows say together."""

import numpy as np
import pytest

from tests.perf.conftest import make_records
from tpx.perf.levels import Level
from tpx.perf.measure.collectors import ended_sequences
from tpx.perf.measure.ledger import Ending, LevelLedger, WindowBorder, client_times, full_at, index_after, p99
from tpx.perf.records import Records
from tpx.perf.results import Window
from tpx.perf.settings import LevelSettings

MS = 1_000_000
PLAIN = LevelSettings()
COUNTED = LevelSettings(request_count=1)


def window_between(
    records: Records,
    first: WindowBorder,
    last: WindowBorder,
    settings: LevelSettings = PLAIN,
    batch_size: int = 1,
) -> Window:
    """The one window of a level."""
    ledger = LevelLedger(records, settings, Level("concurrency", 1), batch_size)
    ledger.begin(first)
    ledger.close(last)
    return ledger.windows[0]


def at(time_ms: float, index: int) -> WindowBorder:
    return WindowBorder(
        time_ns=int(time_ms * MS), index=index, server=None, cpu_ns=0, read_ns=int(time_ms * MS)
    )


def test_a_sequence_counts_where_its_last_request_ended() -> None:
    records = Records()
    for n, sequence in enumerate([1, 2, 1, 3, 2, 0, 3, 4]):
        records.append(n, n, n, n, n, 0, 1, 0, sequence)
    assert ended_sequences(records, range(8), set()) == 4
    assert ended_sequences(records, range(8), {4, 9}) == 3
    assert ended_sequences(records, range(2, 5), set()) == 2
    assert ended_sequences(Records(), range(0), set()) == 0


def test_a_request_counts_in_the_window_of_its_end_even_if_it_began_before() -> None:
    records = make_records([5, 12, 20, 25], latency_ms=10)
    first = index_after(records, 0, 10 * MS)
    second = index_after(records, first, 20 * MS)
    assert (first, second) == (1, 3)
    window = window_between(records, at(10, first), at(20, second))
    assert window.requests == 2


def test_an_end_on_the_border_counts_once() -> None:
    records = make_records([10, 10, 20, 20, 30])
    borders = [0]
    for end_ms in (10, 20, 30):
        borders.append(index_after(records, borders[-1], end_ms * MS))
    assert borders == [0, 2, 4, 5]


def test_throughput_is_successes_times_batch_over_the_windows_whole_length() -> None:
    records = make_records(range(1, 101), failed_at=[7, 8])
    window = window_between(records, at(0, 0), at(200, 100), batch_size=4)
    assert (window.requests, window.failed) == (98, 2)
    assert window.throughput_infer_per_s == pytest.approx(98 * 4 / 0.2)


def test_three_windows_as_one_equal_the_sum_of_three() -> None:
    records = make_records([1, 4, 6, 12, 13, 14, 18, 25, 29], latency_ms=0.5)
    ledger = LevelLedger(records, LevelSettings(), Level("concurrency", 1), 1)
    ledger.begin(at(0, 0))
    for t in (10, 20, 30):
        ledger.close(at(t, index_after(records, 0, t * MS)))
    parts = ledger.windows
    merged = ledger.measured(lambda *_: None, Ending(failures={}, failed=0, interrupted=False)).merged
    assert [w.requests for w in parts] == [3, 4, 2]
    assert merged.requests == sum(w.requests for w in parts)
    assert merged.duration_ns == sum(w.duration_ns for w in parts)
    assert merged.throughput_infer_per_s == pytest.approx(9 / 0.03)


def test_a_request_count_is_timed_from_the_first_start_to_the_last_end() -> None:
    records = make_records([1010 + 10 * i for i in range(100)], latency_ms=10)
    window = window_between(records, at(0, 0), at(5000, 100), COUNTED)
    assert window.throughput_infer_per_s == pytest.approx(100.0)
    assert window.start_ns == 1000 * MS


def test_the_last_end_is_the_latest_one_where_ends_are_told_late() -> None:
    records = make_records([10, 30, 20], latency_ms=5)
    assert window_between(records, at(0, 0), at(40, 3), COUNTED).duration_ns == 25 * MS


def test_a_window_without_success_has_no_latency_and_is_dead() -> None:
    records = make_records([1, 2], failed_at=[0, 1])
    window = window_between(records, at(0, 0), at(10, 2))
    assert window.latency is None
    assert (window.latency_ns, window.dead) == (0, True)


def test_a_count_window_ends_with_the_request_that_fills_it() -> None:
    rows = make_records([1, 2, 3, 4, 5]).since(0)
    assert full_at(rows, 3, 0) == 3 * MS
    assert full_at(rows, 6, 0) is None


def test_a_count_window_does_not_end_before_its_floor_where_ends_are_told_late() -> None:
    rows = make_records([10, 20, 30, 40], latency_ms=1).since(0)
    rows["end_ns"][3] = 5 * MS
    assert full_at(rows, 4, 25 * MS) == 30 * MS


def test_a_count_window_is_not_filled_by_failures() -> None:
    rows = make_records([1, 2, 3, 4, 5], failed_at=[0, 2]).since(0)
    assert full_at(rows, 3, 0) == 5 * MS


def test_a_count_window_lasts_until_its_floor_too() -> None:
    rows = make_records([1, 2, 3, 4, 9]).since(0)
    assert full_at(rows, 2, 4 * MS) == 4 * MS
    assert full_at(rows, 2, 5 * MS) == 9 * MS
    assert full_at(rows, 2, 10 * MS) is None


def test_client_times_split_the_latency_without_rest() -> None:
    rows = make_records([10, 20], latency_ms=1, failed_at=[1]).since(0)
    times = client_times(rows)
    assert times is not None
    assert (times.send_ns, times.receive_ns, times.total_ns) == (10, 20, MS)
    assert client_times(rows[1:]) is None


def test_the_p99_is_the_value_that_one_in_a_hundred_exceeds() -> None:
    assert p99(np.asarray([5 if i % 50 == 0 else 0 for i in range(200)])) == 5
    assert p99(np.asarray([])) == 0


def test_busy_is_the_share_of_processor_time() -> None:
    first = WindowBorder(time_ns=0, index=0, server=None, cpu_ns=100, read_ns=0)
    last = WindowBorder(time_ns=10, index=0, server=None, cpu_ns=400, read_ns=1000)
    window = window_between(make_records([]), first, last)
    assert window.client_busy == pytest.approx(0.3)
