"""Metrics that models make: shared by name, gone with their last holder."""

import pytest

from tpx.errors import AlreadyExists, InvalidRequest
from tpx.serving.custom_metrics import CustomMetrics
from tpx.serving.frontends.metrics.endpoint import custom_families
from tpx.serving.frontends.metrics.text import render


def test_two_models_share_a_family_of_the_same_name_and_kind() -> None:
    metrics = CustomMetrics()
    first, second = (metrics.hold_family("calls", words, "counter") for words in ("How often", "How many"))
    assert first is second
    assert first.help == "How often"
    with pytest.raises(AlreadyExists, match="'calls' exists already, with kind counter"):
        metrics.hold_family("calls", "How often", "gauge")
    metrics.drop_family(first)
    assert metrics.families
    metrics.drop_family(second)
    assert not metrics.families
    metrics.hold_family("calls", "Now something else", "gauge")


def test_a_series_keeps_its_family_and_its_value() -> None:
    metrics = CustomMetrics()
    family = metrics.hold_family("level", "How high", "gauge")
    key, series = metrics.hold_series(family, {"b": "2", "a": "1"}, [])
    metrics.drop_family(family)
    series.value = 7
    assert metrics.hold_series(family, {"a": "1", "b": "2"}, [])[1] is series
    assert 'level{a="1",b="2"} 7' in "".join(render(custom_families(metrics)))
    metrics.drop_series(family, key)
    metrics.drop_series(family, key)
    assert not metrics.families


@pytest.mark.parametrize("name", ["", "1st", "has space", "nv_mine", "naïve", 'a"b', "a\nb"])
def test_a_name_that_no_metric_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="Invalid metric name"):
        CustomMetrics().hold_family(name, "", "counter")


@pytest.mark.parametrize("bounds", [[2, 1], [1, 1], [float("inf"), 1], [float("nan")], [float("-inf")]])
def test_bounds_of_a_histogram_must_rise(bounds: list[float]) -> None:
    metrics = CustomMetrics()
    family = metrics.hold_family("sizes", "", "histogram")
    with pytest.raises(InvalidRequest, match="Bucket Boundaries must be strictly sorted"):
        metrics.hold_series(family, {}, bounds)


@pytest.mark.parametrize("bounds", [[], [float("inf")]])
def test_a_histogram_without_bounds_counts_everything_in_one_bucket(bounds: list[float]) -> None:
    metrics = CustomMetrics()
    family = metrics.hold_family("sizes", "", "histogram")
    _, series = metrics.hold_series(family, {}, bounds)
    series.observe(3)
    buckets = [line for line in "".join(render(custom_families(metrics))).splitlines() if "_bucket" in line]
    assert buckets == ['sizes_bucket{le="+Inf"} 1']


@pytest.mark.parametrize("name", ["", "a b", "1st", "__name__", 'a"', "a\n", "naïve"])
def test_a_label_that_would_break_the_page_is_refused(name: str) -> None:
    metrics = CustomMetrics()
    family = metrics.hold_family("level", "", "gauge")
    with pytest.raises(InvalidRequest, match="Invalid label name"):
        metrics.hold_series(family, {name: "x"}, [])


def test_an_observation_belongs_to_the_first_bound_that_is_not_below_it() -> None:
    metrics = CustomMetrics()
    family = metrics.hold_family("sizes", "a\\b\nc", "histogram")
    _, series = metrics.hold_series(family, {}, [1, 2.5])
    for value in (1, 1.5, 2.5, 3):
        series.observe(value)
    page = "".join(render(custom_families(metrics)))
    assert "# HELP sizes a\\\\b\\nc\n" in page
    for line in ("sizes_count 4", "sizes_sum 8", 'le="1"} 1', 'le="2.5"} 3', 'le="+Inf"} 4'):
        assert line in page
