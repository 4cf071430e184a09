"""Metrics that models make: shared by name, gone with their last holder."""

import pytest

from tpx.errors import AlreadyExists, InvalidRequest
from tpx.serving.custom_metrics import CustomMetrics
from tpx.serving.frontends.metrics.custom import CustomFamilies
from tpx.serving.frontends.metrics.text import render


def test_two_models_share_a_family_of_the_same_words() -> None:
    metrics = CustomMetrics()
    first, second = (metrics.hold_family("calls", "How often", "counter") for _ in range(2))
    assert first is second
    with pytest.raises(AlreadyExists, match="'calls' is there already, with kind counter"):
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
    assert 'level{a="1",b="2"} 7' in render(CustomFamilies(metrics).families())
    metrics.drop_series(family, key)
    metrics.drop_series(family, key)
    assert not metrics.families


@pytest.mark.parametrize("name", ["", "1st", "has space", "nv_mine", "naïve", 'a"b', "a\nb"])
def test_a_name_that_no_metric_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be the name"):
        CustomMetrics().hold_family(name, "", "counter")


@pytest.mark.parametrize("bounds", [[], [2, 1], [1, 1], [1, float("inf")], [float("nan")]])
def test_bounds_of_a_histogram_must_rise(bounds: list[float]) -> None:
    metrics = CustomMetrics()
    family = metrics.hold_family("sizes", "", "histogram")
    with pytest.raises(InvalidRequest, match="needs buckets"):
        metrics.hold_series(family, {}, bounds)


def test_an_observation_belongs_to_the_first_bound_that_is_not_below_it() -> None:
    metrics = CustomMetrics()
    family = metrics.hold_family("sizes", "a\\b\nc", "histogram")
    _, series = metrics.hold_series(family, {}, [1, 2.5])
    for value in (1, 1.5, 2.5, 3):
        series.observe(value)
    page = render(CustomFamilies(metrics).families())
    assert "# HELP sizes a\\\\b\\nc\n" in page
    for line in ("sizes_count 4", "sizes_sum 8", 'le="1"} 1', 'le="2.5"} 3', 'le="+Inf"} 4'):
        assert line in page
