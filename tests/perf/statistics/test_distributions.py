"""Distributions against values from tables."""

import math

import pytest

from tpx.perf.statistics.intervals import (
    binomial_at_most,
    incomplete_beta,
    normal_quantile,
    t_quantile,
    t_two_sided,
)


@pytest.mark.parametrize(
    ("degrees", "t"),
    [(1, 12.7062), (2, 4.30265), (4, 2.77645), (10, 2.22814), (24, 2.0639), (29, 2.04523), (1000, 1.96234)],
)
def test_t_quantiles_are_those_of_the_table(degrees: int, t: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(t, rel=1e-5)
    assert t_two_sided(t, degrees) == pytest.approx(0.05, rel=1e-4)


def test_with_many_degrees_t_is_normal() -> None:
    assert t_quantile(0.995, 10**7) == pytest.approx(normal_quantile(0.995), rel=1e-5)


@pytest.mark.parametrize(("n", "p", "k"), [(10, 0.3, 4), (50, 0.01, 0), (700, 0.05, 40), (300, 0.9, 280)])
def test_binomial_tails_equal_the_sum_of_their_terms(n: int, p: float, k: int) -> None:
    truth = math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))
    assert binomial_at_most(n, p, k) == pytest.approx(truth, rel=1e-9)


def test_binomial_tails_have_their_ends() -> None:
    assert binomial_at_most(10, 0.5, -1) == 0
    assert binomial_at_most(10, 0.5, 10) == 1
    assert binomial_at_most(100_000, 0.01, 1000) == pytest.approx(0.508, abs=0.002)


# the least number of queries that MLPerf's loadgen asks for, by how many of them were late
EARLY_STOPPING = [
    (0.90, (44, 63, 79, 94, 122, 187)),
    (0.95, (90, 129, 163, 195, 254, 388)),
    (0.99, (459, 661, 836, 998, 1302, 2000)),
    (0.999, (4603, 6635, 8401, 10039, 13100, 20130)),
]


@pytest.mark.parametrize(("percentile", "needed"), EARLY_STOPPING)
def test_the_bound_of_a_percentile_is_mlperfs(percentile: float, needed: tuple[int, ...]) -> None:
    for late, in_time in zip((0, 1, 2, 3, 5, 10), needed, strict=True):
        assert binomial_at_most(in_time + late, 1 - percentile, late) <= 0.01
        assert binomial_at_most(in_time - 1 + late, 1 - percentile, late) > 0.01


def test_the_beta_function_is_symmetric_and_bounded() -> None:
    assert incomplete_beta(3, 5, 0.0) == 0
    assert incomplete_beta(3, 5, 1.0) == 1
    assert incomplete_beta(3.5, 2.5, 0.3) == pytest.approx(1 - incomplete_beta(2.5, 3.5, 0.7))
    assert incomplete_beta(1, 1, 0.42) == pytest.approx(0.42)
