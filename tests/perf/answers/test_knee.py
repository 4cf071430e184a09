"""The knee and the peak of curves that are known."""

import numpy as np
import pytest

from tests.perf.conftest import make_level
from tpx.perf.answers.knee import Scalability, find_knee, fit
from tpx.perf.results import LevelResult
from tpx.perf.statistics.summaries import LatencySummary


def level(load: int, throughput: float, p99_us: float) -> LevelResult:
    ns = int(p99_us * 1000)
    latency = LatencySummary(
        count=1000,
        mean_ns=ns // 2,
        std_ns=1.0,
        min_ns=1,
        max_ns=ns,
        percentiles_ns={50.0: ns // 2, 90.0: ns, 95.0: ns, 99.0: ns, 99.9: ns},
    )
    return make_level(load, throughput, latency=latency)


def curve(*points: tuple[int, float, float]) -> list[LevelResult]:
    return [level(*point) for point in points]


SATURATING = curve((1, 100, 10), (2, 198, 10), (4, 390, 11), (8, 700, 14), (16, 800, 30), (32, 805, 80))


def test_the_bend_is_before_latency_grows_and_throughput_does_not() -> None:
    knee = find_knee(SATURATING)
    assert knee.bend is not None
    assert knee.bend.level.value == 8
    assert knee.power is not None
    assert knee.power.level.value == 8


def test_the_last_level_that_paid_is_the_one_before_too_little_was_gained() -> None:
    worthwhile = find_knee(SATURATING).worthwhile
    assert worthwhile is not None
    assert worthwhile.level.value == 16


def test_a_line_has_no_bend_and_two_levels_have_none() -> None:
    assert find_knee(curve((1, 100, 10), (2, 200, 20), (3, 300, 30))).bend is None
    assert find_knee(curve((1, 100, 10), (2, 200, 11))).bend is None
    assert find_knee(curve((1, 100, 10), (2, 100, 10), (3, 100, 10))).bend is None
    assert find_knee([]).power is None


@pytest.mark.parametrize(
    ("rate", "contention", "coherency", "peak"), [(100, 0.05, 0.001, 30.8), (995, 0.02671, 0.000769, 35.6)]
)
def test_the_law_is_found_again_from_its_own_curve(
    rate: float, contention: float, coherency: float, peak: float
) -> None:
    truth = Scalability(rate=rate, contention=contention, coherency=coherency, fit_error=0.0)
    loads = [1, 2, 4, 8, 16, 32, 64]
    law = fit(loads, [truth.throughput(n) for n in loads])
    assert law is not None
    assert law.rate == pytest.approx(rate)
    assert law.contention == pytest.approx(contention)
    assert law.coherency == pytest.approx(coherency)
    assert law.fit_error == pytest.approx(0, abs=1e-9)
    assert law.peak_load == pytest.approx(peak, abs=0.1)
    assert law.peak_throughput == pytest.approx(max(truth.throughput(n) for n in np.arange(1, 100, 0.1)))


def test_noise_is_the_fit_error_and_moves_the_peak_little() -> None:
    truth = Scalability(rate=100, contention=0.05, coherency=0.001, fit_error=0.0)
    rng = np.random.default_rng(1)
    loads = [1, 2, 4, 8, 16, 24, 32, 48, 64]
    law = fit(loads, [truth.throughput(n) * (1 + rng.normal(0, 0.02)) for n in loads])
    assert law is not None
    assert 0.005 < law.fit_error < 0.03
    assert law.peak_load == pytest.approx(30.8, rel=0.15)


def test_without_a_peak_there_is_a_limit() -> None:
    law = fit([1, 2, 4, 8], [100 * n / (1 + 0.1 * (n - 1)) for n in (1, 2, 4, 8)])
    assert law is not None
    assert law.peak_load is None
    assert law.peak_throughput == pytest.approx(1000)
    proportional = fit([1, 2, 4, 8], [100, 200, 400, 800])
    assert proportional is not None
    assert proportional.peak_throughput > 1e6


def test_three_loads_are_too_few_for_three_parameters() -> None:
    assert fit([1, 2, 4], [1, 2, 3]) is None
