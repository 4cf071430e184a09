"""What the final rounds allow to be said, as figures and as sentences."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import pytest

from tests.analyzer.measuring import changed, make_latency, make_measurement, make_streaming, make_window
from tpx.analyzer.conclusion import Evidence, finalist_of
from tpx.analyzer.metrics import joules_per_inference
from tpx.analyzer.objectives import ModelConstraint, rank, score
from tpx.analyzer.results.goals import Constraint, Goals, ModelGoals, WeightedObjective
from tpx.analyzer.results.measurement import (
    Configuration,
    EnergyUse,
    GpuUse,
    HostUse,
    LoadPoint,
    Measurement,
    MemoryUse,
    TrialFailure,
    Variant,
)
from tpx.analyzer.results.pooled import pooled
from tpx.analyzer.results.run import ModelRun, VariantRun
from tpx.analyzer.verdict import Finding, ModelVerdict, article, judge
from tpx.perf.objectives import Compliance
from tpx.perf.statistics.intervals import Interval

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
        return make_measurement(
            variant=full,
            load=LoadPoint(value=8),
            throughput=throughput,
            latency=make_latency(p99_ns=round(p99 * 1e6)),
            round=number,
            memory=MemoryUse(rss_bytes=memory_mb * 1_000_000),
            host=host,
            cost_ns=4_000_000_000,
            windows=tuple(
                make_window(throughput=throughput * share, latency=make_latency(p99_ns=round(p99 * 1e6)))
                for share in (0.999, 1.0, 1.001)
                if number
            ),
        )

    return VariantRun(
        configuration=Configuration(
            variant=Variant(models=("m",), name=full, delta={} if name == "default" else {"x": name}),
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
    return judge(ModelRun(models=("m",), variants=variants, decisions=()), goals or Goals())


def test_a_gain_is_said_with_its_interval_and_by_the_repetitions() -> None:
    found = verdict(
        variant("default", [100, 101, 99], searched=100), variant("0", [160, 164, 156], searched=250)
    )
    assert found.finding is Finding.BETTER
    assert found.sentence == (
        "In 2 measurements across 2 configurations, `m_config_0` gives 160 infer/s, a 60% gain "
        "(99% interval 1.5x to 1.8x, 3 rounds) over the default configuration (100 infer/s)"
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


def test_of_those_that_are_certainly_as_good_the_cheapest_is_recommended() -> None:
    best = variant("4", [201, 203, 202], instances=5)
    cheaper = variant("1", [200, 202, 203], instances=2)
    found = verdict(variant("default", [100, 101, 99]), cheaper, best)
    assert found.best is not None
    assert found.best.name == "m_config_1"
    assert found.detail.endswith(
        "not told apart from: m_config_4; recommended: the cheapest that is certainly within 5% of the best"
    )


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
        variant("1", [160, 161, 159], instances=4),
    )
    assert found.recommended == "m_config_1"


def test_a_default_as_good_as_the_best_stays() -> None:
    found = verdict(variant("default", [100, 101, 99] * 2), variant("0", [100.5, 101, 99.5] * 2, instances=2))
    assert (found.finding, found.badge) == (Finding.DEFAULT, "Default is as good as the best")
    assert found.sentence.endswith("the default configuration is as good as the best: 100 infer/s")
    best = verdict(variant("default", [100, 101, 99]), variant("0", [80, 81, 79], instances=2))
    assert (best.finding, best.badge) == (Finding.DEFAULT, "Default is best")
    assert best.sentence.endswith("the default configuration is best: 100 infer/s")
    # what was not measured again is not known to be worse
    lucky = verdict(
        variant("default", [100, 101, 99]), variant("0", [80, 81, 79]), variant("1", [], searched=120)
    )
    assert lucky.badge == "Default is the best finalist"
    assert "the default configuration is the best finalist: 100 infer/s" in lucky.sentence
    assert "measured higher, but only once: `m_config_1` (120 infer/s)" in lucky.detail


def test_what_was_not_shown_to_be_worse_than_the_best_is_not_as_good_as_it() -> None:
    """The default at half the rate of another, on a machine that was loaded."""
    slow, fast = variant("default", [4770, 5200, 2900]), variant("4", [9840, 4100, 8200], instances=5)
    found = verdict(slow, fast)
    assert (found.finding, found.badge, found.tone) == (Finding.UNDECIDED, "Undecided", "warn")
    assert found.recommended == "m_config_default"
    assert found.sentence.endswith(
        "nothing was shown to beat the default configuration, which stays for now: 4,160 infer/s; "
        "fastest of the others: `m_config_4`, 6,920 infer/s, undecided: too noisy to bound within 50%"
    )
    assert re.search(r"about \d+ rounds in all would decide, .* more$", found.detail)
    assert found.caution.startswith("Keep the default for now.")


def test_what_is_certainly_better_is_recommended_though_it_costs_more() -> None:
    found = verdict(
        variant("default", [100, 101, 99]),
        variant("0", [190, 191, 190], instances=2),
        variant("1", [200, 201, 200], instances=5),
    )
    assert found.best is not None
    assert found.best.name == "m_config_1"
    assert found.alike == ()


def test_a_gain_that_may_be_none_is_undecided_with_its_interval_and_what_would_decide() -> None:
    found = verdict(variant("default", [100, 103, 98]), variant("0", [104, 110, 103], memory_mb=100))
    assert found.finding is Finding.UNDECIDED
    assert found.sentence.endswith(
        "nothing was shown to beat the default configuration, which stays for now: 100 infer/s; "
        "fastest of the others: `m_config_0`, 106 infer/s, undecided: +5% (95% interval -2 to 13%, 3 rounds)"
    )
    assert found.detail.endswith("; about 6 rounds in all would decide, 24 s more")
    assert found.gain_percent == 0


@pytest.mark.parametrize("rounds", [[], [90]])
def test_a_gain_that_no_two_final_rounds_have_seen_is_undecided(rounds: list[float]) -> None:
    variants = (variant("default", rounds, searched=100), variant("0", rounds, searched=186))
    found = judge(ModelRun(models=("m",), variants=variants, decisions=()), Goals())
    assert (found.finding, found.recommended) == (Finding.UNDECIDED, "m_config_default")
    assert found.candidate is not None
    assert found.candidate.name == "m_config_0"
    assert found.sentence.endswith(
        "fastest of the others: `m_config_0`, 186 infer/s, measured once, not again in final rounds (+86%)"
    )


def test_a_gain_over_a_default_that_failed_its_final_rounds_is_undecided() -> None:
    variants = (
        variant("default", [], searched=100),
        variant("0", [150, 151]),
        variant("1", [140, 141]),
    )
    found = judge(ModelRun(models=("m",), variants=variants, decisions=()), Goals())
    assert found.finding is Finding.UNDECIDED
    assert "measured once, not again in final rounds" in found.sentence


def test_what_the_budget_left_out_is_named_if_it_measured_higher() -> None:
    found = verdict(
        variant("default", [100, 101, 99]),
        variant("0", [150, 151, 149]),
        variant("1", [], searched=900),
        variant("2", [], searched=140),
    )
    assert found.recommended == "m_config_0"
    assert [r.name for r in found.left_out] == ["m_config_1"]
    assert "; measured higher, but only once: `m_config_1` (900 infer/s)" in found.detail


def test_a_busy_machine_is_told_beside_a_large_gain() -> None:
    busy_default = variant("default", [100, 100.5, 99.5], host=BUSY)
    large = verdict(busy_default, variant("0", [160, 161, 159], host=BUSY))
    assert large.finding is Finding.BETTER
    assert "The machine was not quiet: other programs took 60%" in large.caution


def test_one_noisy_configuration_is_no_drift_of_the_machine() -> None:
    found = verdict(variant("default", [100, 101, 99]), variant("0", [200, 90, 130]))
    assert found.conclusion is not None
    assert found.conclusion.noise == ()


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
    assert (found.finding, found.compliance) == (Finding.BETTER, Compliance.UNDECIDED)
    assert "it is not certain that `m_config_0` keeps p99 latency of at most 10 ms" in found.caution


def test_repetitions_that_break_a_constraint_take_a_configuration_out() -> None:
    goals = Goals(constraints=(Constraint(tag="perf_latency_p99", bound="max", limit=10.0),))
    lucky = variant("0", [200, 201, 202], p99_ms=[9.9, 14.0, 15.0])
    other = variant("1", [90, 91, 89], p99_ms=[5, 5, 5], instances=2)
    found = verdict(variant("default", [100, 101, 99], p99_ms=[5, 5, 5]), lucky, other, goals=goals)
    assert found.finding is Finding.DEFAULT


def test_several_objectives_are_one_gain() -> None:
    goals = Goals(
        objectives=(WeightedObjective(tag="perf_throughput"), WeightedObjective(tag="perf_latency_p99"))
    )
    fast = variant("0", [100, 100, 100], p99_ms=[5.0, 5.0, 5.0])
    found = verdict(variant("default", [100, 100, 100], p99_ms=[20.0, 20.0, 20.0]), fast, goals=goals)
    assert "better than the default configuration at maximizing throughput and minimizing p99" in (
        found.sentence
    )
    assert found.gain_percent == pytest.approx(100)


def test_a_models_own_goals_decide() -> None:
    own = ModelGoals(model="m", objectives=(WeightedObjective(tag="perf_latency_p99"),))
    slow = variant("0", [200, 200, 200], p99_ms=[50.0, 50.0, 50.0])
    assert verdict(variant("default", [100, 100, 100]), slow, goals=Goals(models=(own,))).finding is (
        Finding.DEFAULT
    )


def test_what_is_near_the_best_only_for_being_noisy_is_passed_over() -> None:
    noisy = variant("0", [150, 130, 118, 140, 125, 110])
    sure = variant("1", [130, 131, 129, 130, 131, 130], instances=4)
    found = verdict(variant("default", [100, 101, 99, 100, 100, 100]), noisy, sure)
    assert (found.finding, found.best and found.best.name) == (Finding.BETTER, "m_config_1")
    assert found.detail.endswith("not told apart from: m_config_0")


def test_a_gain_is_one_of_what_is_asked_for_wherever_it_is_told() -> None:
    """Of half the latency at nearly the same throughput nobody should hear that the two are equal."""
    goals = Goals(objectives=(WeightedObjective(tag="perf_latency_p99"),))
    found = verdict(
        variant("default", [100] * 3, p99_ms=[20.0] * 3),
        variant("0", [99] * 3, p99_ms=[10.0] * 3),
        goals=goals,
    )
    assert found.gain_percent == pytest.approx(100)
    assert found.finding is Finding.BETTER
    assert found.sentence.endswith(
        "`m_config_0` gives 99.0 infer/s and p99 latency 10.0 ms, 100% (99% interval 1.9x to 2.2x, 3 rounds) "
        "better than the default configuration at minimizing p99 latency "
        "(100 infer/s and p99 latency 20.0 ms)"
    )


def test_repetitions_are_pooled_in_everything_they_measure() -> None:
    def measured(scale: int) -> Measurement:
        spread = make_latency(min_ns=scale, max_ns=scale, avg_ns=scale, p99_ns=scale)
        return make_measurement(
            variant="m_config_0",
            load=LoadPoint(value=1),
            throughput=100,
            answers=make_streaming(first=spread, between=None, per_s=scale),
            breakdown={"queue_ns": scale},
            memory=MemoryUse(rss_bytes=scale),
            gpus=(GpuUse(uuid="g", used_bytes=scale, total_bytes=90, power_w=scale),),
            energy=EnergyUse(duration_ns=10**9, cpu_j=scale),
            cpu_percent=scale,
            throughput_range=Interval(value=0.0, low=1, high=2),
        )

    found = pooled([measured(30), measured(90), measured(60)])
    streaming, server = found.result.streaming, found.result.server
    assert streaming is not None
    first = streaming.times("ttft")
    assert first is not None
    assert (first.at(99.0), streaming.responses_per_s) == (60, 60)
    assert server is not None
    assert (server.mean_ns("queue"), found.cpu_percent) == (60, 60)
    assert found.memory == MemoryUse(rss_bytes=90)
    assert found.gpus == (GpuUse(uuid="g", used_bytes=90, total_bytes=90, power_w=60),)
    assert joules_per_inference(found) == pytest.approx(0.6)
    # that three agree exactly is chance: measurements of the same thing differ by some percent
    assert found.result.estimates is not None
    assert found.result.estimates.throughput.low == pytest.approx(94, abs=1)
    assert found.windows == ()


def test_nothing_of_what_there_should_be_little_is_best() -> None:
    goals = Goals(objectives=(WeightedObjective(tag="perf_server_queue"),))

    def queued(queue_ns: int | None) -> float:
        breakdown = {} if queue_ns is None else {"queue_ns": queue_ns}
        return score(
            make_measurement(variant="x", load=LoadPoint(value=1), throughput=1, breakdown=breakdown), goals
        )

    assert queued(0) == queued(900) > queued(2000) > queued(None)


@pytest.mark.parametrize(
    ("p99_ms", "limit", "text"),
    [
        (10.02, 10.0, "10.0 ms, 0.200% over"),
        (0.0044, 0.004, "4.40 \u00b5s, 10% over"),
        (12.4, 10.0, "12.4 ms, 24% over"),
    ],
)
def test_a_miss_is_told_with_as_many_digits_as_it_takes(p99_ms: float, limit: float, text: str) -> None:
    asked = ModelConstraint(constraint=Constraint(tag="perf_latency_p99", bound="max", limit=limit))
    latency = make_latency(p99_ns=round(p99_ms * 1e6))
    assert asked.miss(
        make_measurement(variant="x", load=LoadPoint(value=1), throughput=1, latency=latency)
    ) == (f"p99 latency {text}")


def test_goals_of_other_models_are_no_goals_of_this_one() -> None:
    limit = Constraint(tag="perf_latency_p99", bound="max", limit=1.0)
    goals = Goals(models=(ModelGoals(model="other", constraints=(limit,)),))
    assert not goals.of("m").all_constraints


def test_the_ratio_of_the_figures_is_the_gain_beside_them() -> None:
    """Also where rounds differ by so much that means of figures would not tell the same."""
    found = verdict(variant("default", [13096, 10925, 5922, 3898]), variant("0", [33836, 25821, 15585, 9987]))
    assert found.best is not None
    assert found.default is not None
    ratio = found.best.figures.throughput / found.default.figures.throughput
    assert found.gain_percent == pytest.approx((ratio - 1) * 100)
    assert found.finding is Finding.BETTER


def test_a_default_that_misses_a_constraint_only_perhaps_is_cautioned_about() -> None:
    goals = Goals(constraints=(Constraint(tag="perf_latency_p99", bound="max", limit=10.0),))
    kept = variant("0", [200, 201, 202], p99_ms=[5.0, 5.1, 5.2])
    for p99_ms, said in (([3.0, 20.0, 8.0], True), ([20.0, 20.1, 20.2], False)):
        run = ModelRun(
            models=("m",), variants=(variant("default", [100, 101, 99], p99_ms=p99_ms), kept), decisions=()
        )
        found = judge(run, goals)
        assert found.finding is Finding.DEFAULT_FAILS
        words = "Borderline: it is not certain that the default misses p99 latency of at most 10 ms"
        assert (words in found.caution) == said


def test_what_is_cheaper_but_perhaps_worse_than_the_default_does_not_take_its_place() -> None:
    found = verdict(variant("default", [100, 102], instances=2), variant("0", [98, 96], instances=1))
    assert found.recommended == "m_config_default"
    assert found.finding is not Finding.CHEAPER


def at_load(run: VariantRun, load: int, others: Mapping[int, float]) -> VariantRun:
    """A configuration that was best under another load, and what the search measured of it elsewhere."""
    best = LoadPoint(value=load)
    searched = [replace(run.measurements[0], load=best)]
    searched += [
        changed(replace(run.measurements[0], load=LoadPoint(value=at)), throughput_infer_per_s=t)
        for at, t in others.items()
    ]
    repetitions = tuple(replace(m, load=best) for m in run.repetitions)
    return replace(run, measurements=tuple(searched), repetitions=repetitions)


def test_a_gain_at_another_load_tells_its_price_and_what_is_left_at_equal_load() -> None:
    default = at_load(variant("default", [100, 101, 99]), 4, {8: 99.0})
    found = verdict(default, at_load(variant("0", [130, 131, 129], p99_ms=[29.0] * 3), 8, {4: 102.0}))
    assert found.sentence.endswith(
        "`m_config_0` gives 130 infer/s, a 30% gain (99% interval 20 to 41%, 3 rounds) over the default "
        "configuration (100 infer/s) at concurrency 8 instead of 4; p99 2.9x"
    )
    assert "under equal load, measured once each: +2% at concurrency 4, +31% at concurrency 8" in found.detail


def test_a_default_that_misses_a_limit_at_one_load_counts_where_it_keeps_it() -> None:
    goals = Goals(constraints=(Constraint(tag="perf_latency_p99", bound="max", limit=10.0),))
    default = at_load(variant("default", [150, 151, 149], p99_ms=[3.0, 20.0, 20.0]), 4, {2: 110.0})
    (searched, other) = default.measurements
    kept = changed(other, latency=make_latency(p99_ns=5_000_000))
    default = replace(default, measurements=(searched, kept))
    found = verdict(default, variant("0", [70, 71, 72], p99_ms=[5.0, 5.1, 5.2]), goals=goals)
    assert found.default is not None
    assert found.default.figures is kept
    assert "the default configuration, which stays for now: 110 infer/s" in found.sentence
    assert "misses it" not in found.sentence


def test_a_variant_that_is_certainly_as_good_as_the_default_and_cheaper_is_recommended() -> None:
    found = verdict(variant("default", [100, 101, 99] * 2, instances=2), variant("0", [101, 101, 100] * 2))
    assert (found.finding, found.tone) == (Finding.CHEAPER, "good")
    assert found.sentence.endswith(
        "`m_config_0` needs 1 instance instead of 2 and is certainly no more than 5% worse "
        "(99% interval -3 to 4%, 6 rounds) than the default: 101 infer/s and 100 infer/s"
    )
    lean = verdict(variant("default", [100, 101, 99] * 2, memory_mb=900), variant("0", [101, 101, 100] * 2))
    assert "`m_config_0` needs 400 MB less memory and is certainly" in lean.sentence


@pytest.mark.parametrize(
    ("share", "text"),
    [("8%", "an"), ("84%", "an"), ("11%", "an"), ("18%", "an"), ("80%", "an"), ("1%", "a"), ("70%", "a")],
)
def test_articles_are_those_of_the_number_as_it_is_read(share: str, text: str) -> None:
    assert article(share) == text


def test_a_badge_over_unstable_or_borderline_figures_is_not_green() -> None:
    default, better = variant("default", [100, 101, 99]), variant("0", [160, 161, 159])
    assert verdict(default, better).tone == "good"
    shaky = tuple(changed(m, stable=False) for m in better.repetitions)
    assert verdict(default, replace(better, repetitions=shaky)).tone == "warn"
    goals = Goals(constraints=(Constraint(tag="perf_latency_p99", bound="max", limit=10.0),))
    edge = variant("0", [160, 161, 159], p99_ms=[9.0, 10.5, 9.6])
    assert verdict(variant("default", [100, 101, 99], p99_ms=[5, 5, 5]), edge, goals=goals).tone == "warn"


def test_a_finalist_that_failed_a_round_is_not_recommended() -> None:
    """It ran twice and then died."""
    failed = variant("0", [160, 161, 159])
    failure = TrialFailure(variant="m_config_0", load=LoadPoint(value=8), round=4, reason="it died")
    found = verdict(
        variant("default", [100, 101, 99]),
        replace(failed, failures=(failure,)),
        variant("1", [130, 131, 129]),
    )
    assert found.recommended == "m_config_1"


@pytest.mark.parametrize(
    ("p99_ms", "compliance"),
    [
        ([9.0, 9.1, 9.2], Compliance.MET),
        ([9.0, 10.5, 9.6], Compliance.UNDECIDED),
        ([12.0, 12.1, 12.0], Compliance.VIOLATED),
    ],
)
def test_a_constraint_is_met_only_where_the_whole_interval_keeps_it(
    p99_ms: list[float], compliance: Compliance
) -> None:
    goals = Goals(constraints=(Constraint(tag="perf_latency_p99", bound="max", limit=10.0),))
    (ranked,) = rank(
        ModelRun(models=("m",), variants=(variant("0", [100, 101, 99], p99_ms=p99_ms),), decisions=()), goals
    )
    assert ranked.compliance is compliance
    assert ModelConstraint(constraint=goals.constraints[0]).compliance(ranked.figures) is compliance


def test_only_finalists_that_are_certainly_further_behind_than_asked_are_behind() -> None:
    runs = variant("default", [100, 101, 99]), variant("0", [140, 141, 139]), variant("1", [139, 140, 141])
    ranking = rank(ModelRun(models=("m",), variants=runs, decisions=()), Goals())
    evidence = Evidence([finalist_of(each) for each in ranking], Goals())
    assert [f.name for f in evidence.behind(0.02)] == ["m_config_default"]
    assert evidence.behind(0.5) == []
