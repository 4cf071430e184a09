"""What a few requests say, and how surely."""

import numpy as np
import pytest

from tests.perf.conftest import make_level
from tpx.perf.measure.estimates import Estimator, Sample, estimate
from tpx.perf.report.level_text import extra_lines

RUNS = 400
MEAN_NS = 1000.0


def drawn(count: int, rng: np.random.Generator) -> Sample:
    """Requests at any time of a second, whose latencies are skewed as latencies are."""
    ends = np.sort(rng.uniform(0, 1e9, count)).astype(np.int64)
    latencies = rng.gamma(4, MEAN_NS / 4, count)
    return Sample(start_ns=0, end_ns=10**9, ends=ends, latencies=latencies, ok=np.ones(count, bool))


@pytest.mark.parametrize("count", [2, 3, 5, 9, 10, 20])
def test_the_interval_of_the_mean_holds_the_truth_also_of_few_requests(count: int) -> None:
    rng = np.random.default_rng(count)
    held = sum(Estimator(drawn(count, rng)).mean().holds(MEAN_NS) for _ in range(RUNS))
    assert held / RUNS >= 0.92


def test_nothing_is_known_of_the_mean_of_a_single_request() -> None:
    found = estimate(drawn(1, np.random.default_rng(1)), 1, None)
    assert found is not None
    mean = found.at(None)
    assert mean is not None
    assert (mean.interval.low, mean.interval.high) == (0.0, None)
    assert mean.note == "n too small for the mean (need >= 2)"
    told = " ".join(extra_lines(make_level(estimates=found)))
    # a bound of zero says nothing
    assert "mean" not in told
    assert "infer/s" not in told
    assert "p99 at least 1.37 \u00b5s (n too small for p99)" in told
