"""Axes: round marks, and every value between them."""

import pytest

from tpx.report.scales import axis_for, format_mark, linear_axis, log_axis


@pytest.mark.parametrize(
    ("greatest", "marks"),
    [
        (1676.0, (0, 500, 1000, 1500, 2000)),
        (100.0, (0, 20, 40, 60, 80, 100)),
        (3.2, (0, 1, 2, 3, 4)),
        (0.07, (0, 0.02, 0.04, 0.06, 0.08)),
    ],
)
def test_a_linear_axis_starts_at_zero_and_ends_at_a_round_value(
    greatest: float, marks: tuple[float, ...]
) -> None:
    axis = linear_axis([greatest / 2, greatest], 400, 0)
    assert axis.marks == pytest.approx(marks)
    assert axis.at(0) == 400
    assert 0 <= axis.at(greatest) < 400


def test_a_wide_span_is_logarithmic_with_marks_at_one_two_five() -> None:
    axis = axis_for([2.6, 84.1], 0, 100)
    assert axis.logarithmic
    assert list(axis.marks) == [2, 5, 10, 20, 50, 100]
    assert [axis.at(2), axis.at(100)] == [0, 100]


def test_a_narrow_span_is_linear() -> None:
    assert not axis_for([3.0, 9.0], 0, 100).logarithmic


@pytest.mark.parametrize("values", [[1.0], [0.5, 0.5], [10.0], [1e-3, 1e4], [7.0]])
def test_every_value_lies_on_the_axis(values: list[float]) -> None:
    for axis in (log_axis(values, 0, 100), linear_axis(values, 0, 100)):
        assert all(0 <= axis.at(v) <= 100 for v in values)
        assert len(axis.marks) >= 2


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.5, "0.5"), (1500, "1,500"), (0.02, "0.02")])
def test_marks_have_no_more_digits_than_they_need(value: float, text: str) -> None:
    assert format_mark(value) == text
