"""Which distributions a model has, and that each is fed with its phase."""

import logging
from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.fakes import config_of, request_of
from tpx.errors import ConfigError
from tpx.serving.batch import Batch
from tpx.serving.distributions.latencies import HISTOGRAMS, SUMMARIES, Histogram, Latencies, latencies_of
from tpx.serving.distributions.settings import LatencySettings

EVERYTHING = LatencySettings(summary_latencies=True, histogram_latencies=True)
REQUEST, FIRST = "nv_inference_request_duration_histogram_us", "nv_inference_first_response_histogram_ms"


def kept(config: Any, settings: LatencySettings = EVERYTHING) -> Latencies:
    latencies = latencies_of(config, settings)
    assert latencies is not None
    return latencies


def controlled(family: str | None, buckets: list[float] | None) -> Any:
    """A configuration with one metric control; None leaves a part out."""
    config = config_of()
    control = config.model_metrics.metric_control.add()
    if family is not None:
        control.metric_identifier.family = family
        control.metric_identifier.SetInParent()
    if buckets is not None:
        control.histogram_options.buckets.extend(buckets)
        control.histogram_options.SetInParent()
    return config


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    assert latencies_of(config_of(), LatencySettings()) is None


def test_a_plain_model_has_no_series_of_a_cache() -> None:
    names = {family.name for family in (*SUMMARIES, *HISTOGRAMS) if "cache" not in family.name}
    assert set(kept(config_of()).by_family) == names


def test_a_model_with_a_cache_has_its_two_kinds_of_requests_apart() -> None:
    config = config_of()
    config.response_cache.enable = True
    names = set(kept(config).by_family)
    assert {"nv_cache_hit_summary_per_model", "nv_cache_miss_summary_per_model"} < names
    assert not {"nv_inference_request_summary_us", REQUEST} & names
    assert "nv_inference_queue_summary_us" in names


def test_each_phase_of_each_request_is_observed() -> None:
    latencies = kept(config_of(), LatencySettings(histogram_latencies=True))
    batch = Batch([request_of(1_000), request_of(2_000)])
    batch.started_ns, batch.gathered_ns, batch.computed_ns, batch.ended_ns = 5_000, 5_100, 6_100, 6_400
    latencies.executed(batch, 7_000)
    totals = {name: (each.count, each.total_ns) for name, each in latencies.by_family.items()}
    assert totals == {
        FIRST: (2, 6_000 + 5_000),
        REQUEST: (2, 6_000 + 5_000),
        "nv_inference_queue_duration_histogram_us": (2, 4_000 + 3_000),
        "nv_inference_compute_input_duration_histogram_us": (2, 200),
        "nv_inference_compute_infer_duration_histogram_us": (2, 2_000),
        "nv_inference_compute_output_duration_histogram_us": (2, 600),
    }


def test_a_first_response_counts_apart_from_its_request_if_more_may_follow() -> None:
    config = config_of()
    config.model_transaction_policy.decoupled = True
    latencies = kept(config, LatencySettings(histogram_latencies=True))
    latencies.executed(Batch([request_of(1_000)]), 7_000)
    latencies.observe("first_response", 3_000, 4_000)
    assert latencies.by_family[FIRST].total_ns == 3_000


def test_the_response_from_a_cache_is_a_first_response() -> None:
    config = config_of()
    config.response_cache.enable = True
    latencies = kept(config, LatencySettings(histogram_latencies=True))
    latencies.observe("cache_hit", 3_000, 4_000)
    latencies.executed(Batch([request_of(1_000)]), 7_000)
    assert latencies.by_family[FIRST].total_ns == 3_000 + 6_000


def test_a_phase_that_is_not_kept_may_be_observed() -> None:
    latencies = kept(config_of(), LatencySettings(summary_latencies=True))
    latencies.observe("first_response", 1, 2)
    assert {each.count for each in latencies.by_family.values()} == {0}


def test_buckets_are_the_models_own_where_it_has_some() -> None:
    by_family = kept(controlled(REQUEST, [-1, 0.5, 7])).by_family
    chosen, other = by_family[REQUEST], by_family["nv_inference_queue_duration_histogram_us"]
    assert isinstance(chosen, Histogram)
    assert isinstance(other, Histogram)
    assert list(chosen.bounds) == [-1, 0.5, 7]
    assert list(other.bounds) == [100, 1000, 5000, 10_000, 50_000]


def test_buckets_of_the_settings_hold_where_a_model_has_none() -> None:
    settings = LatencySettings(histogram_latencies=True, histogram_buckets={REQUEST: (1.0, 2.0)})
    for config, bounds in ((config_of(), (1, 2)), (controlled(REQUEST, [3]), (3,))):
        histogram = kept(config, settings).by_family[REQUEST]
        assert isinstance(histogram, Histogram)
        assert histogram.bounds == bounds


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (controlled(None, [1]), "metric control must specify 'metric_identifier' for net"),
        (controlled("", [1]), "metric identifier must specify non-empty 'family' for net"),
        (controlled(REQUEST, None), "metric control must specify 'histogram_options' for net"),
        (controlled(REQUEST, []), "histogram options must specify non-empty 'buckets' for net"),
        (controlled(REQUEST, [2, 1]), "each larger than the one before"),
        (controlled(REQUEST, [1, 1]), "each larger than the one before"),
        (controlled(REQUEST, [1, float("inf")]), "finite 'buckets'"),
        (controlled(REQUEST, [float("nan")]), "finite 'buckets'"),
    ],
)
def test_a_wrong_metric_control_is_told_even_if_it_is_not_used(config: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        latencies_of(config, LatencySettings())
    assert words in caught.value.message


def test_a_control_of_an_unknown_family_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert latencies_of(controlled("nv_other", [1]), LatencySettings()) is None
        assert latencies_of(controlled(f"{REQUEST}s", [1]), LatencySettings()) is None
    assert caplog.messages == [
        "Metric family 'nv_other' in 'metric_identifier' of model 'net' is not a customizable metric",
        f"Metric family '{REQUEST}s' in 'metric_identifier' of model 'net' is not a customizable metric "
        f"(did you mean '{REQUEST}'?)",
    ]


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram([1, 2.5, 10], 1000)
    for ns in (0, 999, 1000, 1001, 2500, 2501, 10_000, 10_001, 5_000_000):
        histogram.observe(ns, 1, 0)
    assert histogram.cumulative() == [3, 5, 7]
    assert histogram.count == 9
    assert histogram.total_ns == 0 + 999 + 1000 + 1001 + 2500 + 2501 + 10_000 + 10_001 + 5_000_000


def test_many_of_one_duration_count_with_one_call() -> None:
    histogram = Histogram([1, 2], 1000)
    histogram.observe(1500, 40, 0)
    assert (histogram.cumulative(), histogram.count, histogram.total_ns) == ([0, 40], 40, 60_000)


def test_bounds_may_be_negative_and_are_shown_as_they_were_given() -> None:
    histogram = Histogram([-1, 0.0, 1, 2.5], 1_000_000)
    histogram.observe(0, 1, 0)
    assert list(histogram.bounds) == [-1, 0.0, 1, 2.5]
    assert histogram.cumulative() == [0, 1, 1, 1]


@pytest.mark.slow
@given(
    st.lists(st.integers(-1000, 10**6), min_size=1, unique=True).map(sorted),
    st.lists(st.integers(0, 10**9), max_size=50),
)
def test_each_bucket_counts_what_does_not_exceed_its_bound(bounds: list[int], durations: list[int]) -> None:
    histogram = Histogram(bounds, 1000)
    for ns in durations:
        histogram.observe(ns, 1, 0)
    ordered = sorted(durations)
    assert histogram.cumulative() == [bisect_left(ordered, bound * 1000 + 1) for bound in bounds]
