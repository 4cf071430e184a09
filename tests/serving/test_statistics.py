"""The counters of a model: exact sums of what happened."""

import pytest

from tests.serving.fakes import request_of
from tpx.errors import Cancelled, Code, ExecutionError, InvalidRequest, NotReady, Overloaded, TpxError
from tpx.serving.batch import Batch
from tpx.serving.statistics import ModelStatistics


def executed(arrivals: list[int], rows: int, times: tuple[int, int, int, int]) -> Batch:
    """A batch of requests that arrived then, with these times of its phases."""
    batch = Batch([request_of(at, rows) for at in arrivals])
    batch.started_ns, batch.gathered_ns, batch.computed_ns, batch.ended_ns = times
    return batch


def test_durations_are_the_sums_over_requests_and_counts_are_of_requests() -> None:
    statistics = ModelStatistics()
    statistics.executed(executed([100, 150], 3, (200, 210, 260, 280)), 300)
    statistics.executed(executed([400], 3, (500, 500, 500, 510)), 520)
    durations = {name: (each.count, each.ns) for name, each in statistics.durations().items()}
    phases = "success fail queue compute_input compute_infer compute_output cache_hit cache_miss"
    assert list(durations) == phases.split()
    assert durations == {
        "success": (3, 200 + 150 + 120),
        "fail": (0, 0),
        "queue": (3, 100 + 50 + 100),
        "compute_input": (3, 10 + 10 + 0),
        "compute_infer": (3, 50 + 50 + 0),
        "compute_output": (3, 20 + 20 + 10),
        "cache_hit": (0, 0),
        "cache_miss": (0, 0),
    }
    assert statistics.inference_count == 9
    assert statistics.execution_count == 2


def test_each_batch_size_has_its_executions_and_the_sums_of_their_phases() -> None:
    statistics = ModelStatistics()
    for arrivals in ([0, 0], [0, 0], [0]):
        statistics.executed(executed(arrivals, 2, (10, 11, 13, 17)), 20)
    sizes = {
        size: (each.count, each.compute_input_ns, each.compute_infer_ns, each.compute_output_ns)
        for size, each in statistics.batches.items()
    }
    assert sizes == {4: (2, 2, 4, 8), 2: (1, 1, 2, 4)}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Overloaded("full"), "REJECTED"),
        (NotReady("gone"), "REJECTED"),
        (Cancelled(""), "CANCELED"),
        (ExecutionError("boom"), "BACKEND"),
        (InvalidRequest("bad"), "OTHER"),
        (TpxError("odd", code=Code.UNKNOWN), "OTHER"),
    ],
)
def test_failures_are_counted_by_their_reason(error: TpxError, reason: str) -> None:
    statistics = ModelStatistics()
    statistics.failed(error, 2, 30)
    statistics.failed(error, 1, 5)
    assert {name for name, count in statistics.failures.items() if count} == {reason}
    fail = statistics.durations()["fail"]
    assert (statistics.failures[reason], fail.count, fail.ns) == (3, 3, 35)
    assert statistics.durations()["success"].count == 0


def test_the_time_of_the_last_inference_is_on_the_wall_clock_and_does_not_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, wall_ms = 10**9, 1_700_000_000_000
    monkeypatch.setattr("time.time_ns", lambda: wall_ms * 1_000_000)
    monkeypatch.setattr("time.perf_counter_ns", lambda: now)
    statistics = ModelStatistics()
    assert statistics.last_inference_ms == 0
    later = now + 5_000_000
    statistics.executed(executed([now], 1, (now, now, now, now)), later)
    assert statistics.last_inference_ms == wall_ms + 5
    monkeypatch.setattr("time.time_ns", lambda: 0)
    monkeypatch.setattr("time.perf_counter_ns", lambda: now + 10**12)
    assert statistics.last_inference_ms == wall_ms + 5


def test_pieces_that_are_sent_together_count_by_their_index_each() -> None:
    statistics = ModelStatistics()
    statistics.streamed(2, 3, 700)
    statistics.streamed(999, 4, 30)
    statistics.streamed(3, 1, 5)
    counted = {
        index: tuple((each["count"], each["ns"]) for name, each in kept.as_dict().items() if each["count"])
        for index, kept in statistics.responses.items()
    }
    assert counted == {
        2: ((1, 700), (1, 0), (1, 700)),
        3: ((2, 5), (2, 0), (2, 5)),
        4: ((1, 0), (1, 0), (1, 0)),
        999: ((1, 30), (1, 0), (1, 30)),
        1000: ((3, 0), (3, 0), (3, 0)),
    }
