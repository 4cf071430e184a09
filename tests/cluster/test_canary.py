"""Verdicts on canaries of simulated updates, and the counters that they are drawn from."""

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tpx.cluster.canary import Canary, CanaryCounters, Reading
from tpx.cluster.replica import ReplicaMeter
from tpx.cluster.spec import LATENCIES, ClusterSpec, Rollout
from tpx.perf.statistics.summaries import Floats

TICK_S = 0.5
UPDATES = int(os.environ.get("CANARY_UPDATES", "20"))
"""Simulated updates in each case."""
BOUNDS_US = tuple(
    float(bound)
    for word in ClusterSpec().serve_words("host")
    if word.startswith(f"--metrics-config=histogram_buckets={LATENCIES}:")
    for bound in word.rpartition(":")[2].split(",")
)


class Counted:
    """Counters of a simulated replica."""

    def __init__(self, bounds_us: Sequence[float] = BOUNDS_US) -> None:
        self._bounds_us = tuple(bounds_us)
        self._counts = np.zeros(len(bounds_us) + 1, np.int64)
        self._failed = 0

    def add(self, latencies_us: Floats, failed: int = 0) -> Reading:
        places = np.searchsorted(self._bounds_us, latencies_us)
        self._counts += np.bincount(places, minlength=len(self._counts))
        self._failed += failed
        answered, counts = int(self._counts.sum()), tuple(self._counts.tolist())
        counters = CanaryCounters(
            answered=answered, failed=self._failed, bounds_us=self._bounds_us, counts=counts
        )
        return {"net": counters}


class Simulated:
    """Replicas whose latencies vary by request, and by half-second as on a busy machine."""

    def __init__(self, seed: int, rate: float, noise: float = 0.2, stall: float = 0.05) -> None:
        self._rng = np.random.default_rng(seed)
        self._rate, self._noise, self._stall = rate, noise, stall

    def interval(self, slower: float) -> Floats:
        """Return the latencies of half a second in us; a stall delays a third of the requests."""
        rng, count = self._rng, self._rng.poisson(self._rate * TICK_S)
        level = np.log(5000 * slower) + rng.normal(0, self._noise)
        latencies: Floats = np.exp(rng.normal(level, 0.4, count))
        if rng.random() < self._stall:
            latencies += np.where(rng.random(count) < 0.3, 100_000.0, 0.0)
        return latencies

    def update(self, slower: float = 1.0, failing: tuple[float, float] = (0.0, 0.0), **limits: float) -> str:
        """Return the verdict on a canary that is this much slower than two old replicas."""
        rollout = Rollout(**limits)
        canary, replicas, now_s = Canary(rollout, 0.0), [Counted() for _ in range(3)], 0.0
        while not canary.ended:
            readings = []
            for number, replica in enumerate(replicas):
                latencies = self.interval(slower if number == 0 else 1.0)
                failed = int(self._rng.binomial(len(latencies), failing[number > 0]))
                readings.append(replica.add(latencies[failed:], failed))
            canary.observe(now_s, readings[0], {str(n): reading for n, reading in enumerate(readings[1:])})
            now_s += TICK_S
            fault = canary.fault(now_s)
            if fault:
                return fault
        return ""


@pytest.mark.parametrize("rate", [1, 10, 60, 400])
def test_identical_releases_are_kept_at_any_rate_on_a_noisy_machine(rate: float) -> None:
    simulated = [Simulated(seed, rate, noise=0.3).update(failing=(0.02, 0.02)) for seed in range(UPDATES)]
    rolled_back = [fault for fault in simulated if fault]
    assert len(rolled_back) <= UPDATES / 100, rolled_back


@pytest.mark.parametrize(("slower", "limit"), [(1.5, 1.1), (2.0, 1.5)])
def test_most_slower_releases_are_rolled_back(slower: float, limit: float) -> None:
    faults = [
        Simulated(seed, 200, noise=0.05, stall=0.0).update(slower, canary_latency_ratio=limit)
        for seed in range(UPDATES)
    ]
    found = [fault for fault in faults if "times that of the old replicas" in fault]
    assert len(found) > UPDATES * 3 / 4, faults


def test_most_releases_that_fail_more_requests_are_rolled_back() -> None:
    faults = [Simulated(seed, 60).update(failing=(0.1, 0.01)) for seed in range(UPDATES)]
    found = [fault for fault in faults if "of the requests failed, " in fault]
    assert len(found) > UPDATES * 3 / 4, faults


def test_few_requests_are_compared_by_a_lower_percentile() -> None:
    fault = Simulated(1, 10, noise=0.0, stall=0.0).update(4.0)
    assert fault.startswith(("model 'net': p50 of ", "model 'net': p90 of "))


def verdict(intervals: Sequence[tuple[Reading, Reading]], **limits: float) -> tuple[str, float]:
    """Return the first fault found in readings of a canary and an old replica, and its time."""
    canary, now_s = Canary(Rollout(**limits), 0.0), 0.0
    for new, old in intervals:
        canary.observe(now_s, new, {"old": old})
        if fault := canary.fault(now_s):
            return fault, now_s
        now_s += TICK_S
    return "", now_s


def answers(failed: int, answered: int, intervals: int = 25) -> list[Reading]:
    counted, latencies = Counted(), np.full(answered, 5000.0)
    return [counted.add(latencies, failed) for _ in range(intervals)]


def test_a_release_that_fails_every_request_is_stopped_early() -> None:
    fault, at_s = verdict(list(zip(answers(10, 0), answers(0, 10), strict=True)))
    assert fault == "model 'net': 100.0% of the requests failed, 0.0% on the old replicas"
    assert at_s < 5


def test_one_burst_of_failures_is_no_difference() -> None:
    burst = Counted()
    readings = [burst.add(np.full(20, 5000.0), 20 if number == 15 else 0) for number in range(25)]
    assert verdict(list(zip(readings, answers(0, 20), strict=True)))[0] == ""


def test_a_single_failed_request_is_no_difference() -> None:
    alone = Counted()
    readings = [alone.add(np.empty(0), int(number == 15)) for number in range(25)]
    assert verdict(list(zip(readings, answers(0, 1), strict=True)))[0] == ""


def test_what_was_counted_before_an_update_does_not_matter() -> None:
    slow, fast = Counted(), Counted()
    slow.add(np.full(100_000, 100.0))
    fast.add(np.full(100_000, 500_000.0))
    intervals = [(slow.add(np.full(100, 20_000.0)), fast.add(np.full(100, 5000.0))) for _ in range(25)]
    assert "p99 of 20 ms is at least 3." in verdict(intervals)[0]


def test_a_comparison_waits_for_enough_readings_on_a_slow_machine() -> None:
    canary = Canary(Rollout(canary_secs=4), 0.0)
    slow, fast = Counted(), Counted()
    for now_s in range(0, 16, 2):
        canary.observe(now_s, slow.add(np.full(50, 20_000.0)), {"old": fast.add(np.full(50, 5000.0))})
        if fault := canary.fault(now_s):
            break
    assert (now_s, canary.ended) == (10, True)
    assert "times that of the old replicas" in fault
    assert canary.summary == "250 requests in 5 intervals, 250 to the old replicas"


def test_a_restarted_server_counts_from_zero() -> None:
    same = [(a, b) for number in range(2) for a, b in zip(answers(0, 100), answers(1, 100), strict=True)]
    assert verdict(same)[0] == ""


def test_latencies_of_other_buckets_are_not_compared_but_failures_are() -> None:
    other = Counted((1000.0, 2000.0))
    readings = [other.add(np.full(100, 500.0)) for _ in range(25)]
    assert verdict(list(zip(answers(0, 100), readings, strict=True)))[0] == ""
    assert "failed" in verdict(list(zip(answers(50, 100), readings, strict=True)))[0]


def test_a_canary_without_requests_is_kept() -> None:
    assert verdict([({}, reading) for reading in answers(0, 100)])[0] == ""
    assert verdict(list(zip(answers(0, 0), answers(0, 100), strict=True)))[0] == ""


PAGE = """
nv_inference_request_success{{model="a\\"b",version="1"}} {0}
nv_inference_request_success{{model="a\\"b",version="2"}} {0}
nv_inference_request_failure{{model="a\\"b",reason="BACKEND",version="1"}} 3
nv_inference_request_failure{{model="a\\"b",reason="CANCELED",version="1"}} 5
nv_inference_request_success{{model="c",version="1"}} 0
tpx_requests_in_flight{{model="c",version="1"}} 2
nv_inference_request_duration_histogram_us_count{{model="a\\"b",version="1"}} {0}
nv_inference_request_duration_histogram_us_bucket{{model="a\\"b",version="1",le="1000"}} {0}
nv_inference_request_duration_histogram_us_bucket{{model="a\\"b",version="1",le="2000"}} {1}
nv_inference_request_duration_histogram_us_bucket{{model="a\\"b",version="1",le="+Inf"}} {1}
process_cpu_seconds_total {2}
"""


def test_a_metrics_page_is_read_by_model_over_all_versions() -> None:
    meter = ReplicaMeter(2.0)
    assert meter.sample(PAGE.format(0, 0, 1.0).encode(), 100.0).p99_ms is None
    sample = meter.sample(PAGE.format(50, 100, 2.0).encode(), 101.0)
    assert (sample.requests_per_s, sample.utilization) == (100.0, 0.5)
    assert sample.p99_ms == pytest.approx(2.0, rel=0.02)
    assert meter.models == {
        'a\\"b': CanaryCounters(answered=100, failed=3, bounds_us=(1000.0, 2000.0), counts=(50, 50, 0)),
        "c": CanaryCounters(in_flight=2),
    }


def test_the_p99_of_a_replica_forgets_what_is_older_than_a_minute() -> None:
    meter = ReplicaMeter(1.0)
    for second in range(200):
        slow, fast = min(second, 50) * 10, max(0, second - 50) * 10
        sample = meter.sample(PAGE.format(fast, slow + fast, 1.0).encode(), 1000.0 + second)
        if second == 100:
            assert sample.p99_ms == pytest.approx(2.0, rel=0.1)
    assert sample.p99_ms == pytest.approx(1.0, rel=0.02)


def in_flight(reading: Reading, count: int) -> Reading:
    return {name: replace(counters, in_flight=count) for name, counters in reading.items()}


@pytest.mark.parametrize("answered", [0, 5])
def test_a_release_that_hangs_is_stopped_although_no_request_fails(answered: int) -> None:
    hanging, fast = answers(0, 0, intervals=40), [r for r in answers(0, 20, 4) for _ in range(10)]
    hanging[0] = {name: replace(each, answered=answered) for name, each in hanging[0].items()}
    fault, at_s = verdict([(in_flight(new, 3), old) for new, old in zip(hanging, fast, strict=True)])
    assert fault.startswith("model 'net': no request has been answered for ")
    assert "3 are in flight; the slowest on the old replicas took 0.005 s at most" in fault
    assert at_s < 5


def test_slow_requests_do_not_hang_as_long_as_the_slowest_of_the_old_release() -> None:
    """Of the old release some take 5 s; requests of the canary have been in flight for 4 s at its end."""
    slow, fast = Counted(), Counted()
    fast.add(np.full(1000, 5e6))
    intervals = [(slow.add(np.full(20, 5000.0)), fast.add(np.full(20, 5000.0))) for _ in range(15)]
    intervals += [(in_flight(slow.add(np.empty(0)), 2), fast.add(np.full(20, 5000.0))) for _ in range(9)]
    assert verdict(intervals)[0] == ""
    more = [(in_flight(slow.add(np.empty(0)), 2), fast.add(np.full(20, 5000.0))) for _ in range(20)]
    fault, at_s = verdict(intervals + more)
    assert "no request has been answered" in fault
    assert 7 + 1.5 * 5 < at_s < 7 + 2 * 5


def test_requests_that_take_longer_than_the_histogram_do_not_hang() -> None:
    new, old = Counted(), Counted()
    old.add(np.full(100, 60e6))
    readings = [(in_flight(new.add(np.empty(0)), 2), old.add(np.full(1, 60e6))) for _ in range(25)]
    assert verdict(readings)[0] == ""
