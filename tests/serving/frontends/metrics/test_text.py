"""The text format: what Prometheus' parser reads is what was written."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tpx.serving.frontends.metrics.text import Family, bound, labels, number, render

names = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,8}", fullmatch=True)


def page_of(*families: Family) -> str:
    return "".join(render(families))


def test_a_family_without_series_still_says_what_it_is() -> None:
    page = page_of(Family(name="a", kind="gauge", help="words"))
    assert page == "# HELP a words\n# TYPE a gauge\n"
    assert page_of(Family(name="a", kind="gauge", help="words", optional=True)) == ""


def test_each_series_is_a_line() -> None:
    lines = (("", 1), ('{x="1"}', 0.5), ("_sum", 2**60))
    page = page_of(Family(name="a", kind="gauge", help="words", lines=lines))
    assert page.splitlines()[2:] == ["a 1", 'a{x="1"} 0.5', f"a_sum {2**60}"]


def test_numbers_are_prometheus_numbers() -> None:
    assert [number(each) for each in (math.nan, math.inf, -math.inf, 0, 0.1, 1e300)] == [
        "NaN",
        "+Inf",
        "-Inf",
        "0",
        "0.1",
        "1e+300",
    ]


def test_bounds_are_written_as_they_are_read() -> None:
    assert [bound(each) for each in (-1.0, 0.0, 2.5, 100.0, 1e20)] == ["-1", "0", "2.5", "100", "1e+20"]


def test_labels_are_sorted_and_their_names_allowed() -> None:
    assert labels({"version": "1", "_b-c": "x", "model": "m"}) == '_b_c="x",model="m",version="1"'


def test_a_name_with_prometheus_own_underscores_loses_one() -> None:
    assert labels({"__team": "x", "_-": "y"}) == '_="y",_team="x"'


def test_names_that_become_the_same_stay_apart() -> None:
    assert labels({"_a-b": "1", "_a.b": "2", "_a_b": "3"}) == '_a_b="1",_a_b2="2",_a_b3="3"'


@given(st.dictionaries(st.text().map(lambda key: f"_{key}"), st.text(), min_size=1))
def test_any_tags_make_a_page_that_can_be_read(tags: dict[str, str]) -> None:
    lines = ((f"{{{labels({'model': 'm', **tags})}}}", 1),)
    [family] = text_string_to_metric_families(page_of(Family(name="a", kind="gauge", help="h", lines=lines)))
    [sample] = family.samples
    assert sorted(sample.labels.values()) == sorted(["m", *tags.values()])


@pytest.mark.slow
@given(st.dictionaries(names, st.text(), min_size=1))
def test_any_value_of_a_label_comes_back(pairs: dict[str, str]) -> None:
    page = page_of(Family(name="a", kind="gauge", help="h", lines=((f"{{{labels(pairs)}}}", 1),)))
    [family] = text_string_to_metric_families(page)
    assert [sample.labels for sample in family.samples] == [pairs]


@given(st.floats() | st.integers(-(2**60), 2**60))
def test_any_number_comes_back(value: float) -> None:
    [family] = text_string_to_metric_families(
        page_of(Family(name="a", kind="gauge", help="h", lines=(("", value),)))
    )
    [sample] = family.samples
    assert sample.value == value or (math.isnan(sample.value) and math.isnan(value))
