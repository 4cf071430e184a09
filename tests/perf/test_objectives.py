"""Objectives: what can be written, and when requests show that one is met."""

from dataclasses import replace

import numpy as np
import pytest

from tpx.errors import UsageError
from tpx.perf.objectives import (
    Assessment,
    Compliance,
    Counted,
    Objective,
    assess_count,
    assess_exact,
    assess_interval,
    parse_objectives,
)
from tpx.perf.statistics.intervals import Interval
from tpx.report.digits import duration

CONFIDENCE = 0.99


def one(text: str) -> Objective:
    (objective,) = parse_objectives(text)
    return objective


@pytest.mark.parametrize(
    ("text", "quantity", "percentile", "bound"),
    [
        ("p99<20ms", "percentile", 99.0, 20e6),
        ("p99.9 <= 1.5 s", "percentile", 99.9, 1.5e9),
        ("median<800us", "percentile", 50.0, 8e5),
        ("P50 < 800µs", "percentile", 50.0, 8e5),
        ("avg<3ms", "mean", 0.0, 3e6),
        ("max<100ms", "max", 0.0, 1e8),
        ("throughput>=500", "throughput", 0.0, 500.0),
        ("throughput>2e3 infer/sec", "throughput", 0.0, 2000.0),
        ("error_rate<0.1%", "error_rate", 0.0, 0.001),
        ("error_rate<=0.01", "error_rate", 0.0, 0.01),
    ],
)
def test_an_expression_is_read(text: str, quantity: str, percentile: float, bound: float) -> None:
    objective = one(text)
    assert (objective.quantity, objective.percentile) == (quantity, percentile)
    assert objective.bound == pytest.approx(bound)
    assert objective.below is ("<" in text)
    assert objective.inclusive is ("=" in text)


def test_several_in_one_expression_are_all_of_them() -> None:
    assert [o.text for o in parse_objectives("p99<20ms, error_rate<0.1%,")] == ["p99<20ms", "error_rate<0.1%"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        (" , ", "it is empty"),
        ("p99", "expected FIGURE < VALUE such as p99<20ms, throughput>=500 or error_rate<0.1%"),
        ("p99=20ms", "expected FIGURE < VALUE"),
        ("p99<<20ms", "expected FIGURE < VALUE"),
        ("p99<1.2.3ms", "'1.2.3' is not a number"),
        ("p99<20", "a unit is missing (ns, us, µs, usec, ms, msec, s, sec)"),
        ("p99<20%", "'%' is not a unit of p99 "),
        ("throughput>5ms", "'ms' is not a unit of throughput (known: /s, infer/sec, infer/s)"),
        ("p100<20ms", "a percentile must be between 0 and 100, not 100"),
        ("p0<20ms", "a percentile must be between 0 and 100"),
        ("latency<20ms", "unknown figure 'latency' (known: p50, p99.9, ..., median, mean, avg"),
        ("p99<20ms,speed>3", "--slo 'speed>3': unknown figure 'speed'"),
    ],
)
def test_a_wrong_expression_is_refused_with_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_objectives(text)
    assert reason in caught.value.message
    assert caught.value.message.startswith("--slo '")


def test_the_bound_itself_counts_only_where_it_is_included() -> None:
    latencies = np.array([1, 2, 3])
    outside = [one(f"p50{sign}2ns").outside(latencies).sum() for sign in ("<", "<=", ">", ">=")]
    assert outside == [2, 1, 2, 1]
    assert [one(f"max{sign}2ns").holds(2) for sign in ("<", "<=", ">", ">=")] == [False, True, False, True]


@pytest.mark.parametrize(
    ("requests", "late", "outcome"),
    [
        (459, 0, Compliance.MET),
        (458, 0, Compliance.UNDECIDED),
        (662, 1, Compliance.MET),
        (661, 1, Compliance.UNDECIDED),
        (2010, 10, Compliance.MET),
        (1000, 10, Compliance.UNDECIDED),
        (1000, 30, Compliance.VIOLATED),
        (10, 5, Compliance.VIOLATED),
        (0, 0, Compliance.UNDECIDED),
    ],
)
def test_a_percentile_is_settled_as_mlperf_settles_it(requests: int, late: int, outcome: Compliance) -> None:
    counted = Counted(violations=late, requests=requests, allowed=0.01)
    assert assess_count(one("p99<20ms"), 1e6, counted, CONFIDENCE).outcome is outcome


def test_what_is_missing_is_said_and_suffices() -> None:
    counted = Counted(violations=4, requests=600, allowed=0.01)
    assessment = assess_count(one("p99<20ms"), 1e6, counted, CONFIDENCE)
    assert assessment.reason == (
        "4 of 600 requests outside, 1% allowed; "
        f"about {assessment.more_requests:,} more requests would decide"
    )
    timed = assess_count(one("p99<20ms"), 1e6, replace(counted, duration_ns=6e9), CONFIDENCE)
    assert timed.reason.endswith(f"; about {duration(assessment.more_requests * 1e7)} more would decide")
    scale = 1 + assessment.more_requests / 600
    enough = Counted(violations=round(4 * scale), requests=round(600 * scale) + 10, allowed=0.01)
    assert assess_count(one("p99<20ms"), 1e6, enough, CONFIDENCE).met


def test_at_the_bound_no_number_of_requests_settles_it() -> None:
    counted = Counted(violations=10, requests=1000, allowed=0.01)
    assessment = assess_count(one("p99<20ms"), 1e6, counted, CONFIDENCE)
    assert assessment.more_requests == 0
    assert assessment.reason.endswith("; too near the bound to tell")


def test_dependent_requests_count_for_less() -> None:
    independent = Counted(violations=0, requests=1000, allowed=0.01)
    dependent = Counted(violations=0, requests=1000, allowed=0.01, effect=4)
    assert assess_count(one("p99<20ms"), 0, independent, CONFIDENCE).met
    assessment = assess_count(one("p99<20ms"), 0, dependent, CONFIDENCE)
    assert assessment.outcome is Compliance.UNDECIDED
    assert "tell as much as 250 unrelated ones" in assessment.reason


@pytest.mark.slow
def test_a_safe_verdict_is_wrong_as_rarely_as_stated() -> None:
    rng = np.random.default_rng(11)
    at_the_bound = [
        assess_count(
            one("p95<1ms"),
            0,
            Counted(violations=int(rng.binomial(800, 0.05)), requests=800, allowed=0.05),
            CONFIDENCE,
        ).outcome
        for _ in range(3000)
    ]
    assert at_the_bound.count(Compliance.MET) <= 45
    assert at_the_bound.count(Compliance.VIOLATED) <= 45


def test_a_mean_is_settled_outside_of_its_uncertainty() -> None:
    def assessed(low: float, high: float | None) -> Assessment:
        return assess_interval(one("mean<10ms"), Interval(value=9.5e6, low=low, high=high))

    assert assessed(9e6, 9.9e6).outcome is Compliance.MET
    assert assessed(10e6, 11e6).outcome is Compliance.VIOLATED
    assert assessed(9e6, None).outcome is Compliance.UNDECIDED
    near = assessed(9e6, 10e6)
    assert near.outcome is Compliance.UNDECIDED
    assert near.reason == "between 9.00 ms and 10.0 ms; too near the bound to tell"


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.0, None, "too few requests to bound it"),
        (9e6, None, "at least 9.00 ms"),
        (0.0, 220e6, "at most 220 ms"),
        (9e6, 12e6, "between 9.00 ms and 12.0 ms"),
    ],
)
def test_a_bound_that_says_nothing_is_not_told(low: float, high: float | None, said: str) -> None:
    found = assess_interval(one("mean<10ms"), Interval(value=9.5e6, low=low, high=high))
    assert found.reason == f"{said}; too near the bound to tell"


def test_a_maximum_is_that_of_the_requests_seen() -> None:
    assert assess_exact(one("max<10ms"), 9e6).met
    assert assess_exact(one("max<10ms"), 10e6).outcome is Compliance.VIOLATED
    assert assess_exact(one("throughput>500"), 501).objective.show(501) == "501 infer/s"
    assert one("error_rate<1%").show(0.005) == "0.500%"
