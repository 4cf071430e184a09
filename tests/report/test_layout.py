"""Charts within their frames: nothing outside, nothing on top of another."""

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import pytest

from tpx.report.chart import Axis, Bar, BarPart, Chart, Dot, Line, Mark, Scale, format_mark
from tpx.report.html import legend, svg
from tpx.report.layout import BAR_PX, CHAR_WIDTH_PX, COMPACT, FRAMES, ChartFrame, Drawing


def chart(*lines: Line, x: Axis | None = None, marks: tuple[Mark, ...] = ()) -> Chart:
    return Chart(
        title="t",
        description="d",
        x=x or Axis(title="x"),
        y=Axis(title="Latency (ms)", auto=True),
        lines=lines,
        marks=marks,
    )


def line(*heights: float, **more: object) -> Line:
    dots = tuple(Dot(x=i, y=y, title="", label=f"config_{i} @ 16") for i, y in enumerate(heights))
    return Line(**{"name": "n", "dots": dots, **more})  # type: ignore[arg-type]


def uncertain_line(*heights: tuple[float, float, float]) -> Line:
    """Return a line through these heights, each with the ends of its interval."""
    dots = (Dot(x=i, y=y, title="", interval=(low, high)) for i, (y, low, high) in enumerate(heights))
    return Line(name="n", dots=tuple(dots))


@pytest.mark.parametrize("compact", [False, True])
def test_intervals_and_limits_end_within_the_axes(*, compact: bool) -> None:
    uncertain = uncertain_line((2, 0.5, 90.0), (4, 1.0, 5.0))
    drawing = Drawing(chart(uncertain, marks=(Mark(value=200, text="limit"),)), compact=compact)
    frame = drawing.frame
    paths = drawing.whiskers(uncertain).split("M")[1:]
    ends = [float(end) for path in paths for end in path.split(",")[1].split(" V")]
    assert len(ends) == 4
    assert all(frame.top <= end <= frame.bottom for end in (*ends, drawing.y(200)))


def test_a_series_without_dots_is_not_in_the_legend() -> None:
    drawing = Drawing(chart(line(1, 2, name="front"), line(name="the others")))
    assert [entry.name for entry in legend(drawing)] == ["front"]


@pytest.mark.parametrize("compact", [False, True])
def test_texts_of_an_axis_do_not_touch(*, compact: bool) -> None:
    marks = tuple(float(1000 * i) for i in range(21))
    scale = Scale(low=0, high=20_000, logarithmic=False, marks=marks)
    drawing = Drawing(chart(line(1, 2), x=Axis(title="x", scale=scale)), compact=compact)
    ticks = list(drawing.x_ticks())
    shown = [(at, text) for at, text in ticks if text]
    assert len(ticks) == 21
    assert 4 <= len(shown) < 21
    for (before_at, before), (after_at, after) in pairwise(shown):
        assert after_at - before_at > (len(before) + len(after)) * CHAR_WIDTH_PX / 2


@pytest.mark.parametrize(
    "frame", [frames[size] for frames in (FRAMES, COMPACT) for size in frames if size != "bars"]
)
def test_the_texts_of_an_upright_axis_fit_left_of_it(frame: ChartFrame) -> None:
    # chart.svg.j2 ends them 10 px left of the axis
    assert len(format_mark(1_000_000)) * CHAR_WIDTH_PX + 10 <= frame.left


@pytest.mark.parametrize("size", ["tall", "low", "half"])
@pytest.mark.parametrize("compact", [False, True])
def test_the_last_text_of_an_axis_is_within_the_drawing(
    size: Literal["tall", "low", "half"], *, compact: bool
) -> None:
    scale = Scale(low=0, high=125_000, logarithmic=False, marks=(0.0, 125_000.0))
    drawing = Drawing(replace(chart(line(1, 2), x=Axis(title="x", scale=scale)), size=size), compact=compact)
    *_, (at, text) = drawing.x_ticks()
    assert text == "125,000"
    assert at + len(text) * CHAR_WIDTH_PX / 2 <= drawing.frame.width


def test_a_label_at_the_left_end_does_not_cover_the_axis() -> None:
    drawing = Drawing(chart(line(5, 5, 5)))
    label = drawing.series[0].labels[0]
    assert label.anchor == "start"
    assert label.x >= drawing.frame.left


def test_steps_go_on_to_the_right_end_and_dots_alone_are_not_joined() -> None:
    steps, dots = line(1, 2, shape="steps"), line(1, 2, shape="dots", faint=True)
    drawing = Drawing(chart(steps, dots))
    first, second = ((drawing.x(dot.x), drawing.y(dot.y)) for dot in steps.dots)
    corners = (first, (second[0], first[1]), second, (drawing.frame.right, second[1]))
    assert drawing.path(steps) == "M" + " L".join(f"{x:g},{y:g}" for x, y in corners)
    assert drawing.path(dots) == ""


def test_a_narrow_screen_has_every_chart_at_its_own_size() -> None:
    assert COMPACT.keys() == FRAMES.keys()
    assert all(frame.width <= 440 and frame.right <= frame.width for frame in COMPACT.values())


def test_a_logarithmic_axis_says_so() -> None:
    drawn = svg(Drawing(chart(line(1, 50))))
    assert ">x</text>" in drawn
    assert ">Latency (ms), logarithmic scale</text>" in drawn


@pytest.mark.parametrize(("heights", "flat"), [((67.2, 67.4, 66.4), True), ((67, 60), False), ((0, 0), True)])
def test_a_chart_is_flat_where_its_values_hardly_differ(heights: tuple[float, ...], *, flat: bool) -> None:
    assert chart(line(*heights), x=Axis(title="x")).is_flat is flat


def test_an_interval_that_says_nothing_does_not_press_the_points_to_the_bottom() -> None:
    uncertain = uncertain_line((2, 0.0, 15e6), (4, 3.0, 5.0))
    drawing = Drawing(chart(uncertain))
    assert drawing.chart.scales[1].high == 8
    whiskers = drawing.whiskers(uncertain)
    assert whiskers.startswith(f"M{drawing.x(0):g},{drawing.frame.bottom} V{drawing.frame.top} ")


@pytest.mark.parametrize("compact", [False, True])
def test_bars_lie_within_the_axis_one_above_the_other(*, compact: bool) -> None:
    part = BarPart(color=0, start=0.0, end=21.4, title="")
    bars = (Bar(name="n", total="", parts=(part,)),) * 2
    made = Chart(title="t", description="d", x=Axis(title="x"), bars=bars, size="bars")
    drawing = Drawing(made, compact=compact)
    assert drawing.x(part.start) == drawing.frame.left
    assert drawing.x(part.end) <= drawing.frame.right
    assert drawing.bar_top(0) + BAR_PX < drawing.bar_top(1)
    assert drawing.bar_top(1) + BAR_PX <= drawing.frame.bottom
