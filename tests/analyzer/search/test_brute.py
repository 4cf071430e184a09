"""The brute search against surfaces given by a formula: order, names, stop rules, size of the space."""

from collections.abc import Callable

import pytest

from tests.analyzer.measuring import make_measurement
from tests.analyzer.search.exploring import space
from tpx.analyzer.results.measurement import LoadPoint, Outcome, Trial, TrialFailure
from tpx.analyzer.search.driver import SearchDriver
from tpx.analyzer.search.spec import Limits, SearchSpace, SearchSpec
from tpx.analyzer.variants import ModelFacts

Surface = Callable[[Trial], float | None]


def brute(facts: ModelFacts, space: SearchSpace) -> SearchDriver:
    limits = Limits(final_rounds=0)
    return SearchDriver("brute", SearchSpec(facts=facts, default={}, space=space, limits=limits))


def walk(search: SearchDriver, surface: Surface) -> list[Trial]:
    """All trials of a search; the surface gives a trial's throughput, None for a failure."""
    trials = []
    while (trial := search.ask()) is not None:
        trials.append(trial)
        search.tell(trial, outcome(trial, surface(trial)))
    return trials


def outcome(trial: Trial, throughput: float | None) -> Outcome:
    if throughput is None:
        return TrialFailure(variant=trial.variant.name, load=trial.load, reason="out of memory")
    return make_measurement(variant=trial.variant.name, load=trial.load, throughput=throughput)


def names(trials: list[Trial]) -> list[str]:
    return list(dict.fromkeys(t.variant.name for t in trials))


def size_of(trial: Trial) -> int:
    return int(trial.variant.delta.get("max_batch_size", 1))


def growing(trial: Trial) -> float:
    """Strictly more throughput with every step in any direction."""
    instances = trial.variant.delta.get("instance_group", [{"count": 1}])[0]["count"]
    return float(instances * 1_000_000 + size_of(trial) * 5000 + trial.load.value * 10)


BATCHING = ModelFacts(model="m", max_batch_size=8)
FIXED = ModelFacts(model="m", max_batch_size=0)


def test_the_full_space_of_a_batching_model_is_451_measurements() -> None:
    def steep(trial: Trial) -> float:
        return growing(trial) * trial.load.value

    trials = walk(brute(BATCHING, space()), steep)
    assert len(trials) == 451
    assert len(names(trials)) == 41


def test_the_default_comes_first_and_variants_are_numbered_in_order() -> None:
    search = brute(BATCHING, space(loads=(1,), instances=(1, 2), max_batch_sizes=(1, 4)))
    trials = walk(search, growing)
    assert [(t.variant.name, t.variant.delta) for t in trials] == [
        ("m_config_default", {}),
        *(
            (
                f"m_config_{number}",
                {
                    "instance_group": [{"count": count, "kind": "KIND_CPU"}],
                    "max_batch_size": size,
                    "dynamic_batching": {},
                },
            )
            for number, (count, size) in enumerate([(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)])
        ),
    ]


def test_a_model_without_batching_varies_only_its_instances() -> None:
    trials = walk(brute(FIXED, space(loads=(1,))), growing)
    assert names(trials) == ["m_config_default", *(f"m_config_{i}" for i in range(5))]
    assert trials[-1].variant.delta == {"instance_group": [{"count": 5, "kind": "KIND_CPU"}]}


def test_a_sequence_model_gets_no_dynamic_batching() -> None:
    facts = ModelFacts(model="m", max_batch_size=4, can_batch_dynamically=False)
    trials = walk(brute(facts, space(loads=(1,), instances=(1, 1), max_batch_sizes=(1, 1))), growing)
    assert "dynamic_batching" not in trials[-1].variant.delta


def test_minimum_batch_sizes_are_doubled_up_to_the_maximum() -> None:
    search = brute(BATCHING, space(loads=(1,), instances=(1, 1), max_batch_sizes=(3, 15)))
    assert [size_of(t) for t in walk(search, growing)[1:]] == [3, 6, 12]


def test_larger_batch_sizes_are_not_tried_once_one_brings_nothing() -> None:
    def flat_from_four(trial: Trial) -> float:
        return float(min(size_of(trial), 4) * 100)

    search = brute(BATCHING, space(loads=(1,), instances=(1, 2)))
    trials = walk(search, flat_from_four)
    assert [size_of(t) for t in trials[1:]] == [1, 2, 4, 8, 1, 2, 4, 8]
    assert search.history.decisions[-1].text == (
        "larger batch sizes not tried with this instance count: max_batch_size 8 gives 400 infer/s, "
        "a smaller one gave 400"
    )


def test_a_failed_variant_ends_the_walk_over_batch_sizes_but_not_the_search() -> None:
    def breaks_at_two(trial: Trial) -> float | None:
        return None if size_of(trial) == 2 else growing(trial)

    search = brute(BATCHING, space(loads=(1, 2), instances=(1, 2)))
    trials = walk(search, breaks_at_two)
    assert [size_of(t) for t in trials[2:]] == [1, 1, 2, 1, 1, 2]
    assert [d.text for d in search.history.decisions if d.variant == "m_config_1"] == [
        "stopped at concurrency 1: out of memory",
        "larger batch sizes not tried with this instance count: this one failed",
    ]


def test_preferred_batch_sizes_that_do_not_fit_a_variant_are_dropped_from_it() -> None:
    facts = ModelFacts(model="m", max_batch_size=8, preferred_batch_sizes=(2, 4))
    search = brute(facts, space(loads=(1,), instances=(1, 1), max_batch_sizes=(1, 4)))
    trials = walk(search, growing)
    assert [t.variant.delta.get("dynamic_batching") for t in trials] == [
        None,
        {"preferred_batch_size": []},
        {"preferred_batch_size": [2]},
        {},
    ]
    assert [d.text for d in search.history.decisions if "preferred" in d.text] == [
        "without preferred_batch_size 2, 4: max_batch_size is 1",
        "without preferred_batch_size 4: max_batch_size is 2",
    ]


def test_client_batches_above_max_batch_size_are_left_out_and_the_walk_goes_on() -> None:
    facts = ModelFacts(model="m", max_batch_size=4)
    chosen = space(loads=(1,), batch_sizes=(4,), instances=(1, 1), max_batch_sizes=(1, 4))
    trials = walk(brute(facts, chosen), growing)
    assert [(t.variant.name, t.load.batch_size) for t in trials] == [
        ("m_config_default", 4),
        ("m_config_2", 4),
    ]


def test_the_announced_size_of_the_space_is_never_exceeded() -> None:
    search = brute(BATCHING, space())
    trials = walk(search, growing)
    assert len(names(trials)) <= search.history.configurations_at_most == 41


def test_telling_what_was_not_asked_is_refused() -> None:
    search = brute(FIXED, space())
    trial = search.ask()
    assert isinstance(trial, Trial)
    other = Trial(variant=trial.variant, load=LoadPoint(value=999))
    with pytest.raises(ValueError, match="asked for"):
        search.tell(other, outcome(other, 1.0))
