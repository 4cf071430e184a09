"""Tests of two samples against known p-values."""

import numpy as np
import pytest

from tpx.perf.statistics.differences import holm, mann_whitney


def test_mann_whitney_gives_the_textbooks_p_value() -> None:
    # U = 17 of 5 x 4, continuity-corrected: z = (17 - 10 - 0.5) / sqrt(5 * 4 * 10 / 12)
    assert mann_whitney(np.array([19, 22, 16, 29, 24]), np.array([20, 11, 17, 12])) == pytest.approx(
        0.1113, abs=1e-3
    )


def test_ties_are_shared_and_equal_samples_do_not_differ() -> None:
    assert mann_whitney(np.ones(10), np.ones(12)) == 1
    assert mann_whitney(np.array([1, 2, 2, 3]), np.array([1, 2, 2, 3])) == pytest.approx(1)


def test_it_rejects_as_rarely_as_it_says() -> None:
    rng = np.random.default_rng(7)
    rejected = sum(mann_whitney(rng.normal(size=25), rng.normal(size=25)) < 0.05 for _ in range(1000))
    assert 30 <= rejected <= 65


def test_holm_multiplies_the_smallest_most_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
