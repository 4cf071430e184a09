"""What the final rounds allow to be said, as figures and as sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import pytest

from tpx.analyzer.objectives import ModelConstraint, joules_per_inference, rank, score
from tpx.analyzer.results.goals import Constraint, Goals, ModelGoals, WeightedObjective
from tpx.analyzer.results.measurement import (
    Configuration,
    EnergyUse,
    GpuUse,
    HostUse,
    Latency,
    LatencyBreakdown,
    LoadPoint,
    Measurement,
    MemoryUse,
    Range,
    ResponseFigures,
    Variant,
)
from tpx.analyzer.results.pooled import pooled
from tpx.analyzer.results.run import ModelRun, VariantRun
from tpx.analyzer.verdict import Finding, ModelVerdict, judge

QUIET = HostUse(load_average=0.5, cores=8, steal_percent=0.0, other_percent=1.0)
BUSY = HostUse(load_average=22.0, cores=8, steal_percent=0.0, other_percent=60.0)


def variant(
    name: str,
    rounds: Sequence[float],
    *,
    searched: float | None = None,
    instances: int = 1,
    p99_ms: Sequence[float] | None = None,
    memory_mb: int = 500,
    host: HostUse | None = QUIET,
) -> VariantRun:
    """A configuration whose repetitions have these throughputs, and whose search saw `searched`, or their
    mean."""
    full = f"m_config_{name}"
    latencies = p99_ms or [10.0] * len(rounds)

    def measured(throughput: float, p99: float, number: int) -> Measurement:
        return Measurement(
            variant=full,
            load=LoadPoint(value=8),
            throughput=throughput,
            latency=Latency(p99_ns=round(p99 * 1e6)),
            round=number,
            memory=MemoryUse(rss_bytes=memory_mb * 1_000_000),
            host=host,
        )

    return VariantRun(
        configuration=Configuration(
            variant=Variant(model="m", name=full, delta={} if name == "default" else {"x": name}),
            text="",
            instance_group=f"{instances}:CPU",
            instances=instances,
            max_batch_size=0,
            dynamic_batching=False,
        ),
        measurements=(measured(searched or fmean(rounds), fmean(latencies or [10.0]), 0),),
        failures=(),
        repetitions=tuple(
            measured(t, p, n) for n, (t, p) in enumerate(zip(rounds, latencies, strict=True), start=1)
        ),
    )


def verdict(*variants: VariantRun, goals: Goals | None = None) -> ModelVerdict:
    return judge(ModelRun(model="m", variants=variants, decisions=()), goals or Goals())


def test_a_gain_is_said_with_its_interval_and_by_the_repetitions() -> None:
    found = verdict(
        variant("default", [100, 101, 99], searched=100), variant("0", [160, 164, 156], searched=250)
    )
    assert found.finding is Finding.BETTER
    assert found.sentence == (
        "In 2 measurements across 2 configurations, `m_config_0` gives 160 infer/s, a 60% gain [54, 66] "
        "over the default configuration (100 infer/s)"
    )


def test_the_luckiest_of_the_search_does_not_win() -> None:
    lucky = variant("0", [120, 121, 119], searched=400, instances=2)
    steady = variant("1", [150, 151, 149], searched=155, instances=2)
    found = verdict(variant("default", [100, 101, 99]), lucky, steady)
    assert found.best is not None
    assert found.best.name == "m_config_1"


def test_what_was_only_searched_ranks_below_what_was_repeated() -> None:
    found = verdict(variant("default", [100, 101]), variant("0", [150, 151]), variant("1", [], searched=900))
    assert [r.name for r in found.ranking] == ["m_config_0", "m_config_1", "m_config_default"]


def test_of_a_tie_the_cheapest_is_recommended() -> None:
    best = variant("4", [201, 203, 202], instances=5)
    cheaper = variant("1", [200, 202, 203], instances=2)
    found = verdict(variant("default", [100, 101, 99]), cheaper, best)
    assert found.best is not None
    assert found.best.name == "m_config_1"
    assert found.detail.endswith("tied with: m_config_4; recommended: the cheapest of them")


@pytest.mark.parametrize(
    ("dear", "cheap"),
    [
        ({"memory_mb": 900}, {"memory_mb": 500}),
        ({"p99_ms": [20.0, 20.0, 20.0]}, {"p99_ms": [10.0, 10.0, 10.0]}),
        ({}, {}),
    ],
)
def test_with_as_many_instances_memory_counts_then_p99_then_the_order(dear: dict, cheap: dict) -> None:  # type: ignore[type-arg]
    found = verdict(
        variant("default", [100, 101, 99]),
        variant("3", [201, 202, 203], instances=2, **cheap),
        variant("10", [202, 203, 204], instances=2, **dear),
    )
    assert found.best is not None
    assert found.best.name == "m_config_3"


def test_what_surely_loses_to_the_default_is_not_recommended_for_being_cheap() -> None:
    found = verdict(
        variant("default", [100, 101, 100], instances=2),
        variant("0", [90, 91, 90], instances=1),
        variant("1", [60, 180, 110], instances=4),
    )
    assert found.conclusion is not None
    assert found.conclusion.recommended.name != "m_config_0"


def test_a_default_as_good_as_the_best_stays() -> None:
    found = verdict(variant("default", [100, 101, 99]), variant("0", [100.5, 101, 99.5], instances=2))
    assert found.finding is Finding.DEFAULT
    assert found.sentence.endswith("the default configuration is as good as the best: 100 infer/s")


def test_a_difference_that_is_certain_is_no_tie() -> None:
    found = verdict(
        variant("default", [100, 101, 99]),
        variant("0", [190, 191, 190], instances=2),
        variant("1", [200, 201, 200], instances=5),
    )
    assert found.best is not None
    assert found.best.name == "m_config_1"
    assert found.conclusion is not None
    assert found.conclusion.tied == ()


def test_a_gain_that_may_be_none_is_inconclusive() -> None:
    wild = variant("0", [200, 90, 130], instances=1, memory_mb=100)
    found = verdict(variant("default", [100, 101, 99]), wild)
    assert found.finding is Finding.INCONCLUSIVE
    assert "no configuration is certain to be better than the default: for `m_config_0`, the gain is +" in (
        found.sentence
    )
    assert "tied with: m_config_" in found.detail
    assert "recommended" not in found.detail
    assert found.caution.startswith("Measure again on a quiet machine")


@pytest.mark.parametrize("rounds", [[], [90]])
def test_a_gain_that_no_two_final_rounds_have_seen_is_the_searchs_alone(rounds: list[float]) -> None:
    variants = (variant("default", rounds, searched=100), variant("0", rounds, searched=186))
    model = ModelRun(model="m", variants=variants, decisions=(), final_rounds=5)
    found = judge(model, Goals())
    assert found.finding is Finding.INCONCLUSIVE
    assert found.sentence.endswith(
        "for `m_config_0`, only the search found the gain of 86%: "
        f"both were measured again in {len(rounds)} of 5 final rounds"
    )
    assert found.caution.startswith("Measure again on a quiet machine, or longer")
    assert judge(replace(model, final_rounds=0), Goals()).finding is Finding.BETTER


def test_a_gain_over_a_default_that_failed_its_final_rounds_is_the_searchs_alone() -> None:
    variants = (
        variant("default", [], searched=100),
        variant("0", [150, 151]),
        variant("1", [140, 141]),
    )
    found = judge(ModelRun(model="m", variants=variants, decisions=(), final_rounds=5), Goals())
    assert found.finding is Finding.INCONCLUSIVE
    assert "measured again in 0 of 5 final rounds" in found.inconclusive


def test_a_small_gain_on_a_busy_machine_is_not_believed_and_a_large_one_is() -> None:
    busy_default = variant("default", [100, 100.5, 99.5], host=BUSY)
    small = verdict(busy_default, variant("0", [104, 104.3, 103.7], host=BUSY))
    assert small.finding is Finding.INCONCLUSIVE
    large = verdict(busy_default, variant("0", [160, 161, 159], host=BUSY))
    assert large.finding is Finding.BETTER
    assert "The machine was not quiet: other programs took 60%" in large.caution


def test_steal_and_drift_are_noise() -> None:
    stolen = replace(QUIET, steal_percent=12.0)
    found = verdict(
        variant("default", [100, 70, 101], host=stolen), variant("0", [200, 140, 201], host=stolen)
    )
    assert found.conclusion is not None
    steal, drift = found.conclusion.noise
    assert steal == "other guests of the host took 12% of the processors' time"
    assert drift.startswith("the final rounds differ by 4")
    assert found.finding is Finding.BETTER  # the rounds drift together, the ratio stands


def test_a_constraint_within_the_scatter_is_borderline() -> None:
    goals = Goals(constraints=(Constraint(tag="perf_latency_p99", bound="max", limit=10.0),))
    edge = variant("0", [200, 201, 202], p99_ms=[9.0, 10.5, 9.6])
    found = verdict(variant("default", [100, 101, 99], p99_ms=[5, 5, 5]), edge, goals=goals)
    assert (found.finding, found.standing) == (Finding.BETTER, "borderline")
    assert "it is not certain that `m_config_0` keeps p99 latency of at most 10 ms" in found.caution


def test_repetitions_that_break_a_constraint_take_a_configuration_out() -> None:
    goals = Goals(constraints=(Constraint(tag="perf_latency_p99", bound="max", limit=10.0),))
    lucky = variant("0", [200, 201, 202], p99_ms=[9.9, 14.0, 15.0])
    found = verdict(variant("default", [100, 101, 99], p99_ms=[5, 5, 5]), lucky, goals=goals)
    assert found.finding is Finding.DEFAULT


def test_several_objectives_are_one_gain() -> None:
    goals = Goals(
        objectives=(WeightedObjective(tag="perf_throughput"), WeightedObjective(tag="perf_latency_p99"))
    )
    fast = variant("0", [100, 100, 100], p99_ms=[5.0, 5.0, 5.0])
    found = verdict(variant("default", [100, 100, 100], p99_ms=[20.0, 20.0, 20.0]), fast, goals=goals)
    assert "100% better than the default configuration at maximizing throughput and minimizing p99" in (
        found.sentence
    )


def test_a_models_own_goals_decide() -> None:
    own = ModelGoals(model="m", objectives=(WeightedObjective(tag="perf_latency_p99"),))
    slow = variant("0", [200, 200, 200], p99_ms=[50.0, 50.0, 50.0])
    assert verdict(variant("default", [100, 100, 100]), slow, goals=Goals(models=(own,))).finding is (
        Finding.DEFAULT
    )


def test_what_ties_with_the_best_only_for_being_noisy_is_passed_over() -> None:
    noisy = variant("0", [150, 85, 140, 95, 120])
    sure = variant("1", [120, 121, 119, 120, 121], instances=4)
    found = verdict(variant("default", [100, 101, 99, 100, 100]), noisy, sure)
    assert (found.finding, found.best and found.best.name) == (Finding.BETTER, "m_config_1")
    assert found.detail.endswith(
        "m_config_0; recommended: the cheapest of them that is certainly not worse than the default"
    )


def test_a_gain_is_one_of_what_is_asked_for_wherever_it_is_told() -> None:
    """Of half the latency at nearly the same throughput nobody should hear that the two are equal."""
    goals = Goals(objectives=(WeightedObjective(tag="perf_latency_p99"),))
    searched = [
        replace(variant(name, [throughput], p99_ms=[p99_ms]), repetitions=())
        for name, throughput, p99_ms in (("default", 100, 20.0), ("0", 99, 10.0))
    ]
    found = verdict(*searched, goals=goals)
    assert found.gain_percent == pytest.approx(100)
    assert found.finding is Finding.BETTER
    assert found.sentence.endswith(
        "`m_config_0` gives 99.0 infer/s and p99 latency 10.0 ms, 100% better than the default configuration "
        "at minimizing p99 latency (100 infer/s and p99 latency 20.0 ms)"
    )
    model = ModelRun(model="m", variants=tuple(searched), decisions=(), final_rounds=5)
    assert "only the search found the gain of 100%" in judge(model, goals).sentence


def test_repetitions_are_pooled_in_everything_they_measure() -> None:
    def measured(scale: int) -> Measurement:
        spread = Latency(min_ns=scale, max_ns=scale, avg_ns=scale, p99_ns=scale)
        return Measurement(
            variant="m_config_0",
            load=LoadPoint(value=1),
            throughput=100,
            answers=ResponseFigures(first=spread, between=None, throughput=scale),
            breakdown=LatencyBreakdown(queue_ns=scale),
            memory=MemoryUse(rss_bytes=scale),
            gpus=(GpuUse(uuid="g", used_bytes=scale, total_bytes=90, power_w=scale),),
            energy=EnergyUse(duration_ns=10**9, cpu_j=scale),
            cpu_percent=scale,
            throughput_range=Range(low=1, high=2),
        )

    found = pooled([measured(30), measured(90), measured(60)])
    assert found.answers is not None
    assert (found.answers.first.p99_ns, found.answers.throughput) == (60, 60)
    assert (found.breakdown.queue_ns, found.cpu_percent) == (60, 60)
    assert found.memory == MemoryUse(rss_bytes=90)
    assert found.gpus == (GpuUse(uuid="g", used_bytes=90, total_bytes=90, power_w=60),)
    assert joules_per_inference(found) == pytest.approx(0.6)
    assert found.throughput_range == Range(low=100.0, high=100.0)


def test_nothing_of_what_there_should_be_little_is_best() -> None:
    goals = Goals(objectives=(WeightedObjective(tag="perf_server_queue"),))

    def queued(queue_ns: int | None) -> float:
        breakdown = LatencyBreakdown(queue_ns=queue_ns)
        return score(
            Measurement(variant="x", load=LoadPoint(value=1), throughput=1, breakdown=breakdown), goals
        )

    assert queued(0) == queued(900) > queued(2000) > queued(None)


@pytest.mark.parametrize(
    ("p99_ms", "limit", "text"),
    [
        (10.02, 10.0, "10.0 ms, 0.200% over"),
        (0.0044, 0.004, "4.40 us, 10% over"),
        (12.4, 10.0, "12.4 ms, 24% over"),
    ],
)
def test_a_miss_is_told_with_as_many_digits_as_it_takes(p99_ms: float, limit: float, text: str) -> None:
    asked = ModelConstraint(constraint=Constraint(tag="perf_latency_p99", bound="max", limit=limit))
    latency = Latency(p99_ns=round(p99_ms * 1e6))
    assert asked.miss(Measurement(variant="x", load=LoadPoint(value=1), throughput=1, latency=latency)) == (
        f"p99 latency {text}"
    )


def test_goals_of_other_models_are_no_goals_of_this_one() -> None:
    limit = Constraint(tag="perf_latency_p99", bound="max", limit=1.0)
    goals = Goals(models=(ModelGoals(model="other", constraints=(limit,)),))
    assert not goals.of("m").all_constraints


def test_a_default_that_misses_a_constraint_only_perhaps_is_cautioned_about() -> None:
    goals = Goals(constraints=(Constraint(tag="perf_latency_p99", bound="max", limit=10.0),))
    kept = variant("0", [200, 201, 202], p99_ms=[5.0, 5.1, 5.2])
    for p99_ms, said in (([3.0, 20.0, 8.0], True), ([20.0, 20.1, 20.2], False)):
        run = ModelRun(
            model="m", variants=(variant("default", [100, 101, 99], p99_ms=p99_ms), kept), decisions=()
        )
        found = judge(run, goals)
        assert found.finding is Finding.DEFAULT_FAILS
        words = "Borderline: it is not certain that the default misses p99 latency of at most 10 ms"
        assert (words in found.caution) == said


def test_what_is_cheaper_but_falls_behind_the_default_does_not_take_its_place() -> None:
    worse = variant("0", [20, 90], instances=1)
    found = verdict(variant("default", [100, 102], instances=2), worse)
    assert found.finding is Finding.DEFAULT
    assert "tied with: m_config_0" in found.detail


def at_load(run: VariantRun, load: int, others: Mapping[int, float]) -> VariantRun:
    """A configuration that was best under another load, and what the search measured of it elsewhere."""
    best = LoadPoint(value=load)
    searched = [replace(run.measurements[0], load=best)]
    searched += [
        replace(run.measurements[0], load=LoadPoint(value=at), throughput=t) for at, t in others.items()
    ]
    repetitions = tuple(replace(m, load=best) for m in run.repetitions)
    return replace(run, measurements=tuple(searched), repetitions=repetitions)


def test_a_gain_between_different_loads_names_them_and_tells_what_is_left_at_equal_load() -> None:
    default = at_load(variant("default", [100, 101, 99]), 4, {8: 99.0})
    found = verdict(default, at_load(variant("0", [130, 131, 129]), 8, {4: 102.0}))
    assert found.sentence.endswith(
        "`m_config_0` gives 130 infer/s at concurrency 8, a 30% gain over the default configuration "
        "(100 infer/s at concurrency 4)"
    )
    assert "under equal load, measured once each: a tie at concurrency 4 (+2%), +31% at concurrency 8" in (
        found.detail
    )


def test_a_default_that_misses_a_limit_at_one_load_counts_where_it_keeps_it() -> None:
    goals = Goals(constraints=(Constraint(tag="perf_latency_p99", bound="max", limit=10.0),))
    default = at_load(variant("default", [150, 151, 149], p99_ms=[3.0, 20.0, 20.0]), 4, {2: 110.0})
    (searched, other) = default.measurements
    kept = replace(other, latency=Latency(p99_ns=5_000_000))
    default = replace(default, measurements=(searched, kept))
    found = verdict(default, variant("0", [70, 71, 72], p99_ms=[5.0, 5.1, 5.2]), goals=goals)
    assert found.default is not None
    assert found.default.figures is kept
    assert "the default configuration is best: 110 infer/s" in found.sentence
    assert "misses it" not in found.sentence


def test_a_variant_that_surely_is_as_good_as_the_default_is_tied_with_it() -> None:
    found = verdict(variant("default", [100, 101, 99], instances=2), variant("0", [101, 101, 100]))
    assert found.finding is Finding.TIED
    assert "`m_config_0` and the default configuration are tied within 5%: 101 infer/s and 100 infer/s" in (
        found.sentence
    )
    assert found.badge == "Tied with the default"


@pytest.mark.parametrize(
    ("p99_ms", "standing"),
    [([9.0, 9.1, 9.2], "met"), ([9.0, 10.5, 9.6], "borderline"), ([12.0, 12.1, 12.0], "missed")],
)
def test_a_constraint_is_met_only_where_the_whole_interval_keeps_it(
    p99_ms: list[float], standing: str
) -> None:
    goals = Goals(constraints=(Constraint(tag="perf_latency_p99", bound="max", limit=10.0),))
    (ranked,) = rank(
        ModelRun(model="m", variants=(variant("0", [100, 101, 99], p99_ms=p99_ms),), decisions=()), goals
    )
    assert ranked.standing == standing
    assert ModelConstraint(constraint=goals.constraints[0]).standing(ranked.figures) == standing
