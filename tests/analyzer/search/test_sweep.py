"""The load sweep: when more load is worth trying."""

import pytest

from tests.analyzer.measuring import make_measurement
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Decision, Trial, TrialFailure, Variant
from tpx.analyzer.search.history import History
from tpx.analyzer.search.ranges import LoadSpace
from tpx.analyzer.search.sweep import Swept, plateau_gain, sweep

VARIANT = Variant(models=("m",), name="m_config_default")
DOUBLING = tuple(2**i for i in range(11))


def run(
    throughputs: list[float | None], loads: LoadSpace, max_batch_size: int = 0
) -> tuple[list[Trial], Swept, list[Decision]]:
    """The trials that a sweep asks for when told these throughputs in order; None is a failure."""
    history = History(Goals())
    steps = sweep(VARIANT, (loads,), (max_batch_size,), history)
    trials = []
    try:
        trial = next(steps)
        for throughput in throughputs:
            trials.append(trial)
            name, load = trial.variant.name, trial.load
            trial = steps.send(
                TrialFailure(variant=name, load=load, reason="the server died")
                if throughput is None
                else make_measurement(variant=name, load=load, throughput=throughput)
            )
    except StopIteration as end:
        return trials, end.value, history.decisions
    raise AssertionError(f"the sweep wants more than {len(throughputs)} trials")


@pytest.mark.parametrize(
    ("throughputs", "gain"),
    [
        ([100.0, 100.0, 100.0], None),
        ([100.0, 110.0, 120.0, 130.0], 0.3),
        ([1.0, 100.0, 104.0, 105.0, 103.0], 0.05),
        ([100.0, 90.0, 80.0, 70.0], 0.0),
    ],
)
def test_the_gain_is_the_best_of_the_last_four_over_their_first(
    throughputs: list[float], gain: float | None
) -> None:
    assert plateau_gain(throughputs) == (None if gain is None else pytest.approx(gain))


def test_a_gain_of_exactly_five_percent_ends_the_sweep() -> None:
    trials, swept, decisions = run([100.0, 101.0, 105.0, 104.0], LoadSpace(values=DOUBLING))
    assert [t.load.value for t in trials] == [1, 2, 4, 8]
    assert swept == Swept(best=105.0)
    assert decisions[0].text == "plateau after concurrency 8: +5.0% over the last 4 loads"


def test_a_gain_above_five_percent_goes_on() -> None:
    trials, _, _ = run([100.0, 101.0, 105.1, 104.0, 104.0, 103.0], LoadSpace(values=DOUBLING))
    assert len(trials) == 5


def test_listed_loads_are_all_measured_whatever_they_bring() -> None:
    trials, swept, _ = run([9.0] * 6, LoadSpace(values=(1, 2, 3, 4, 5, 6), until_plateau=False))
    assert len(trials) == 6
    assert swept == Swept(best=9.0)


def test_the_list_ends_where_throughput_still_grows() -> None:
    trials, _, decisions = run([1.0, 2.0, 4.0, 8.0], LoadSpace(values=(1, 2, 4, 8)))
    assert len(trials) == 4
    assert decisions[-1].text == "no plateau: all 4 loads were measured"


def test_a_failure_ends_the_sweep_and_keeps_the_best_before_it() -> None:
    trials, swept, decisions = run([10.0, None], LoadSpace(values=DOUBLING))
    assert len(trials) == 2
    assert swept == Swept(best=10.0, failed=True)
    assert decisions[0].text == "stopped at concurrency 2: the server died"


def test_no_throughput_is_a_failure_not_a_division_by_zero() -> None:
    _, swept, decisions = run([0.0], LoadSpace(values=DOUBLING))
    assert swept == Swept(failed=True)
    assert decisions[0].text == "stopped at concurrency 1: no inference was completed"


def test_batch_sizes_are_swept_in_order_and_those_the_model_cannot_take_are_left_out() -> None:
    loads = LoadSpace(values=(1, 2), batch_sizes=(4, 1, 16))
    trials, swept, decisions = run([1.0, 2.0, 3.0, 4.0], loads, max_batch_size=8)
    assert [(t.load.batch_size, t.load.value) for t in trials] == [(1, 1), (1, 2), (4, 1), (4, 2)]
    assert swept.best == 4.0
    assert decisions[-1].text == "batch size 16 left out: max_batch_size is 8"


def test_a_model_without_batching_takes_batch_size_one_only() -> None:
    _, swept, decisions = run([], LoadSpace(values=(1,), batch_sizes=(2,)))
    assert swept == Swept()
    assert decisions[0].text == "batch size 2 left out: max_batch_size is 0"
