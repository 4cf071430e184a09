"""Warm-up is cut off where there was one, and nothing where there was none."""

import numpy as np

from tpx.perf.measure.rules import steady_from, warm_windows


def test_a_high_beginning_is_cut_where_it_ends() -> None:
    rng = np.random.default_rng(4)
    values = np.concatenate((rng.normal(30, 1, 20), rng.normal(10, 1, 80)))
    assert 20 <= steady_from(values) <= 35


def test_a_decaying_beginning_is_cut_once_it_is_lost_in_the_noise() -> None:
    time = np.arange(200)
    values = 10 + 40 * np.exp(-time / 10) + np.random.default_rng(5).normal(0, 1, 200)
    assert 20 <= steady_from(values) <= 60


def test_at_most_half_is_cut() -> None:
    assert steady_from(np.arange(100.0)) <= 50
    assert steady_from(np.arange(9.0)) == 0


def test_of_steady_windows_none_is_dropped() -> None:
    rng = np.random.default_rng(6)
    dropped = 0
    for _ in range(200):
        values = rng.normal(100, 5, 120)
        windows = values.reshape(6, 20).mean(axis=1).tolist()
        dropped += warm_windows([windows], [steady_from(values) / 20], 0.05)
    assert dropped == 0


def test_leading_windows_that_differ_are_dropped_and_no_others() -> None:
    steady = [100.0, 101.0, 99.0, 100.0, 101.0, 99.0]
    assert warm_windows([[50.0, 80.0, *steady]], [2.0], 0.05) == 2
    assert warm_windows([[50.0, 99.0, *steady]], [2.0], 0.05) == 1
    assert warm_windows([[50.0, *steady]], [0.4], 0.05) == 0
    assert warm_windows([[100.0, *steady], [900.0, *steady]], [0.0, 1.0], 0.05) == 1
    assert warm_windows([[7.0]], [0.0], 0.05) == 0


def test_a_beginning_that_is_as_unlike_the_rest_as_the_rest_itself_is_kept() -> None:
    assert warm_windows([[70.0, 100.0, 140.0, 80.0, 110.0]], [1.0], 0.05) == 0
