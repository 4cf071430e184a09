"""What several responses to a request add to a level."""

import numpy as np

from tpx.perf.measure.collectors import streaming_figures
from tpx.perf.measure.estimates import sample_of
from tpx.perf.measure.ledger import index_after
from tpx.perf.records import Records, response_times

MS = 1_000_000


def streamed(*requests: tuple[int, list[int]], status: dict[int, int] | None = None) -> Records:
    """Requests that began and had responses at these ms; some with a status."""
    records = Records(block_rows=4)
    for number, (start, came) in enumerate(requests):
        times = [ms * MS for ms in came]
        end = times[-1] if times else start * MS
        records.arrivals.extend(times)
        code = (status or {}).get(number, 0)
        records.append(start * MS, start * MS, start * MS, (times or [end])[0], end, code, len(times))
    return records


def test_every_response_has_its_request_over_all_blocks() -> None:
    requests = [(i, [i + 1 + n for n in range(i % 4)]) for i in range(11)]
    records = streamed(*requests)
    for first in range(12):
        for last in range(first, 12):
            times = response_times(records, range(first, last))
            found = [
                (times.times_ns[a:b] // MS).tolist()
                for a, b in zip(times.starts, times.starts[1:], strict=False)
            ]
            assert found == [came for _, came in requests[first:last]]


def test_gaps_never_reach_from_one_request_to_another() -> None:
    records = streamed((0, [10, 13]), (5, []), (7, [50]), (8, [60, 61, 65]))
    assert (response_times(records, range(4)).gaps_ns() // MS).tolist() == [3, 1, 4]
    assert (response_times(records, range(1, 3)).gaps_ns()).tolist() == []


def test_first_responses_count_from_the_intended_time_and_failed_requests_not_at_all() -> None:
    records = streamed((0, [10, 20]), (5, [9, 90]), (7, []), (8, [28]), status={1: 100})
    figures = streaming_figures(records, range(4), sample_of(records.since(0), 0, 1_000_000_000))
    assert figures is not None
    assert (figures.responses, figures.responses_per_s) == (3, 3.0)
    first, between = figures.times("ttft"), figures.times("icl")
    assert first is not None
    assert between is not None
    assert (first.min_ns // MS, first.max_ns // MS) == (10, 20)
    assert (between.count, between.min_ns // MS) == (1, 10)


def test_without_a_response_there_are_no_figures() -> None:
    records = streamed((0, []), (1, [5]), status={1: 2})
    assert streaming_figures(records, range(2), sample_of(records.since(0), 0, 10**9)) is None


def test_requests_with_one_response_each_need_no_log() -> None:
    records = Records()
    for end, responses in ((10, 1), (20, 0), (30, 1)):
        records.append(0, 0, 0, end, end, 0, responses)
    times = response_times(records, range(3))
    assert (times.times_ns.tolist(), times.starts.tolist()) == ([10, 30], [0, 1, 1, 2])


def test_a_row_whose_last_response_came_long_before_it_was_over_stays_in_the_later_window() -> None:
    records = Records()
    for end in (10, 40, 20, 50):  # the third was over when its final flag came, after the second
        records.append(0, 0, 0, end, end, 0)
    assert [index_after(records, 0, at) for at in (5, 10, 25, 40, 60)] == [0, 1, 1, 3, 4]
    assert index_after(records, 2, 25) == 3


def test_the_log_can_be_read_while_it_grows() -> None:
    records = Records()
    records.append(0, 0, 0, 3, 3, 0, 3)
    records.arrivals.extend([1, 2, 3])
    seen = response_times(records, range(1)).times_ns
    records.arrivals.extend(range(10_000))
    assert (seen.tolist(), len(records.arrivals)) == ([1, 2, 3], 10_003)
    assert seen.dtype == np.int64
