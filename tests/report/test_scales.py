"""Axes: round marks, and every value between them."""

import pytest

from tpx.report.chart import format_mark, linear_scale, log_scale, scale_for


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
    scale = linear_scale([greatest / 2, greatest])
    assert scale.marks == pytest.approx(marks)
    assert scale.share(0) == 0
    assert 0 < scale.share(greatest) <= 1


def test_a_wide_span_is_logarithmic_with_marks_at_one_two_five() -> None:
    scale = scale_for([2.6, 84.1])
    assert scale.logarithmic
    assert list(scale.marks) == [2, 5, 10, 20, 50, 100]
    assert [scale.share(2), scale.share(100)] == pytest.approx([0, 1])


def test_a_narrow_span_is_linear() -> None:
    assert not scale_for([3.0, 9.0]).logarithmic


@pytest.mark.parametrize("values", [[1.0], [0.5, 0.5], [10.0], [1e-3, 1e4], [7.0]])
def test_every_value_lies_on_the_axis(values: list[float]) -> None:
    for scale in (log_scale(values), linear_scale(values)):
        assert all(-1e-9 <= scale.share(v) <= 1 + 1e-9 for v in values)
        assert len(scale.marks) >= 2


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.5, "0.5"), (1500, "1,500"), (0.02, "0.02")])
def test_marks_have_no_more_digits_than_they_need(value: float, text: str) -> None:
    assert format_mark(value) == text
