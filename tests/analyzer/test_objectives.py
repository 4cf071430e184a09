"""Scores, constraints and the ranking of configurations."""

import math
from dataclasses import replace
from itertools import permutations

import pytest

from tests.analyzer.measuring import make_latency, make_measurement
from tpx.analyzer.metrics import METRICS, metric
from tpx.analyzer.objectives import failure_percent, rank, satisfies, score
from tpx.analyzer.results.goals import Constraint, Goals, WeightedObjective
from tpx.analyzer.results.measurement import Configuration, GpuUse, LoadPoint, Measurement, MemoryUse, Variant
from tpx.analyzer.results.run import ModelRun, VariantRun
from tpx.errors import UsageError


def measured(throughput: float, p99_ms: float = 10.0, variant: str = "m_config_0") -> Measurement:
    return make_measurement(
        variant=variant,
        load=LoadPoint(value=1),
        throughput=throughput,
        latency=make_latency(p99_ns=round(p99_ms * 1e6)),
    )


def model(*variants: tuple[str, list[Measurement]]) -> ModelRun:
    return ModelRun(
        models=("m",),
        variants=tuple(
            VariantRun(
                configuration=Configuration(
                    variant=Variant(models=("m",), name=name, delta={"x": name}),
                    text="",
                    instance_group="1:CPU",
                    instances=1,
                    max_batch_size=0,
                    dynamic_batching=False,
                ),
                measurements=tuple(
                    replace(m, load=LoadPoint(value=n)) for n, m in enumerate(measurements, start=1)
                ),
                failures=(),
            )
            for name, measurements in variants
        ),
        decisions=(),
    )


BUDGET = Constraint(tag="perf_latency_p99", bound="max", limit=20.0)


def test_the_greater_throughput_ranks_first() -> None:
    ranking = rank(model(("a", [measured(1002)]), ("b", [measured(900), measured(1676)])), Goals())
    assert [r.name for r in ranking] == ["b", "a"]
    assert ranking[0].figures.throughput == 1676


def test_ties_keep_the_order_of_the_search() -> None:
    ranking = rank(model(("a", [measured(10)]), ("b", [measured(10)])), Goals())
    assert [r.name for r in ranking] == ["a", "b"]


def test_a_configuration_is_judged_by_its_best_measurement_that_satisfies() -> None:
    fast_but_late = ("late", [measured(1000, 50.0), measured(100, 10.0)])
    steady = ("steady", [measured(500, 15.0)])
    ranking = rank(model(fast_but_late, steady), Goals(constraints=(BUDGET,)))
    assert [(r.name, r.figures.throughput) for r in ranking] == [("steady", 500), ("late", 100)]
    assert ranking[1].ordered[-1].throughput == 1000


def test_without_any_that_satisfies_the_smallest_miss_ranks_first() -> None:
    goals = Goals(constraints=(BUDGET,))
    ranking = rank(model(("far", [measured(900, 40.0)]), ("near", [measured(100, 22.4)])), goals)
    assert [r.name for r in ranking] == ["near", "far"]
    assert failure_percent(ranking[0].figures, goals) == pytest.approx(12.0)
    assert not ranking[0].satisfies


def test_a_bound_that_is_met_exactly_passes() -> None:
    least = Goals(constraints=(Constraint(tag="perf_throughput", bound="min", limit=100.0),))
    assert satisfies(measured(1, 20.0), Goals(constraints=(BUDGET,)))
    assert satisfies(measured(100), least)
    assert not satisfies(measured(99.9), least)


def test_a_figure_that_was_not_measured_satisfies_nothing() -> None:
    bare = make_measurement(variant="a", load=LoadPoint(value=1), throughput=5.0)
    goals = Goals(constraints=(BUDGET,))
    assert not satisfies(bare, goals)
    assert math.isinf(failure_percent(bare, goals))


def test_scores_of_mixed_objectives_do_not_depend_on_the_order_of_comparison() -> None:
    goals = Goals(
        objectives=(
            WeightedObjective(tag="perf_throughput", weight=2),
            WeightedObjective(tag="perf_latency_p99", weight=1),
        )
    )
    several = [measured(100, 10), measured(200, 30), measured(150, 12), measured(90, 4)]
    orders = {
        tuple(m.throughput for m in sorted(order, key=lambda m: -score(m, goals)))
        for order in permutations(several)
    }
    assert len(orders) == 1


def test_objectives_on_gpu_memory_count() -> None:
    def on_gpu(throughput: float, used: int) -> Measurement:
        gpus = (GpuUse(uuid="GPU-1", used_bytes=used, total_bytes=100_000_000_000),)
        return make_measurement(variant="a", load=LoadPoint(value=1), throughput=throughput, gpus=gpus)

    goals = Goals(
        objectives=(WeightedObjective(tag="perf_throughput"), WeightedObjective(tag="gpu_used_memory"))
    )
    assert score(on_gpu(100, 1_000_000), goals) > score(on_gpu(101, 2_000_000), goals)


def test_no_throughput_ranks_last_instead_of_failing() -> None:
    ranking = rank(model(("zero", [measured(0.0)]), ("some", [measured(0.1)])), Goals())
    assert [r.name for r in ranking] == ["some", "zero"]


def test_memory_of_several_gpus_is_summed_and_utilization_averaged() -> None:
    both = make_measurement(
        variant="a",
        load=LoadPoint(value=1),
        throughput=1.0,
        memory=MemoryUse(rss_bytes=5_000_000),
        gpus=(
            GpuUse(uuid="1", used_bytes=1_000_000, total_bytes=8_000_000, utilization_percent=20.0),
            GpuUse(uuid="2", used_bytes=2_000_000, total_bytes=8_000_000, utilization_percent=40.0),
        ),
    )
    values = {tag: METRICS[tag].value(both) for tag in METRICS}
    assert values["gpu_used_memory"] == 3.0
    assert values["gpu_free_memory"] == 13.0
    assert values["gpu_utilization"] == 30.0
    assert values["gpu_power_usage"] is None
    assert values["cpu_used_ram"] == 5.0


def test_an_unknown_metric_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'perf_throughput'"):
        metric("perf_throughputs")


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_not_above_zero_is_refused(limit: float) -> None:
    with pytest.raises(UsageError, match="must be above 0"):
        Constraint(tag="perf_latency_p99", bound="max", limit=limit)
