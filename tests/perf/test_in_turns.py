"""Servers in turns: drift cancels, the same server shows no difference, a slower one is found."""

import numpy as np
import pytest

from tests.perf.conftest import make_level
from tests.perf.noise import MEAN_S, wandering
from tpx.perf.in_turns import Figures, Rounds, differences, figures_of, turns
from tpx.perf.options.measuring import Strictness

ROUNDS = 12
BLOCK = 500
"""Requests of a block."""


def test_the_order_turns_with_every_round() -> None:
    assert [list(order) for order in turns(3, 3)] == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]


def block(times: np.ndarray) -> Figures:
    return {
        "throughput": len(times) / times.sum(),
        "p50": float(np.median(times)) * 1e9,
        "p99": float(np.quantile(times, 0.99)) * 1e9,
    }


def session(seed: int, slower: float = 1.0, drift: float = 0.3) -> Rounds:
    """Two servers in turns on a machine that wanders by 5%, and gets slower by `drift` from begin to end."""
    rng = np.random.default_rng(seed)
    count = ROUNDS * 2 * BLOCK
    times = rng.lognormal(0, 0.4, count) * MEAN_S * wandering(rng, count, 0.05)
    times *= np.linspace(1, 1 + drift, count)
    times[rng.random(count) < 0.0005] += 0.02
    blocks = iter(np.split(times, ROUNDS * 2))
    rounds = []
    for order in turns(2, ROUNDS):
        found = {number: next(blocks) * (slower if number else 1.0) for number in order}
        rounds.append((block(found[0]), block(found[1])))
    return Rounds(load="concurrency 1", blocks=tuple(rounds))


def test_the_same_server_twice_is_different_in_at_most_5_of_100() -> None:
    different = sum(
        any(d.contrast.different for d in differences([session(seed)], 1, Strictness()))
        for seed in range(100)
    )
    assert different <= 7


def test_the_same_server_twice_is_the_same_where_the_margin_allows_it() -> None:
    wide = Strictness(min_effect=0.3)
    assert {d.finding for seed in range(20) for d in differences([session(seed)], 1, wide)} == {"same"}
    narrow = [d for seed in range(20) for d in differences([session(seed)], 1, Strictness(min_effect=0.001))]
    assert sum(d.finding == "undecided" for d in narrow) >= 0.9 * len(narrow)
    # twelve blocks of half a second were too few
    assert all(d.more_s >= 0.5 for d in narrow if d.finding == "undecided")


def test_a_tenth_is_found_although_the_machine_drifts_by_three() -> None:
    for seed in range(10):
        found = {d.figure: d for d in differences([session(seed, slower=1.1)], 1, Strictness())}
        assert found["throughput"].finding == "worse"
        assert found["throughput"].low < -0.09 < found["throughput"].high
        assert found["p50"].finding == "worse"


def test_loads_with_too_few_rounds_are_left_out() -> None:
    short = Rounds(load="concurrency 2", blocks=session(1).blocks[:3])
    assert {d.load for d in differences([session(1), short], 1, Strictness())} == {"concurrency 1"}


def test_blocks_that_are_all_equal_do_not_differ() -> None:
    same = block(np.full(10, 0.001))
    found = differences([Rounds(load="x", blocks=((same, same),) * 5)], 1, Strictness())
    assert [d.p_value for d in found] == [1.0, 1.0, 1.0]


def test_a_block_gives_its_figures_and_a_dead_one_none() -> None:
    figures = figures_of(make_level())
    assert figures["p99"] == pytest.approx(340_000)
    assert figures_of(make_level(latency=None, requests=0)) == {}
