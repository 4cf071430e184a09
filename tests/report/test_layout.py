"""Charts within their frames: nothing outside, nothing on top of another."""

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import pytest

from tpx.report.chart import Axis, Bar, BarPart, Chart, Dot, Line, Mark, Scale, format_mark
from tpx.report.html import chart_picture
from tpx.report.layout import BAR_PX, CHAR_WIDTH_PX, COMPACT, FRAMES, ChartFrame, lay_out


def chart(*lines: Line, x: Axis | None = None, marks: tuple[Mark, ...] = ()) -> Chart:
    return Chart(
        key="k",
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


@pytest.mark.parametrize("compact", [False, True])
def test_intervals_and_limits_end_within_the_axes(*, compact: bool) -> None:
    spread = ((0.5, 90.0), (1.0, 5.0))
    drawing = lay_out(
        chart(line(2, 4, spread=spread), marks=(Mark(value=200, text="limit"),)), compact=compact
    )
    frame = drawing.frame
    ends = [
        float(end)
        for path in drawing.series[0].whiskers.split("M")[1:]
        for end in path.split(",")[1].split(" V")
    ]
    assert len(ends) == 4
    assert all(frame.top <= end <= frame.bottom for end in (*ends, drawing.rules[0].at))


def test_a_series_without_dots_is_not_in_the_legend() -> None:
    picture = chart_picture(chart(line(1, 2, name="front"), line(name="the others")))
    assert picture is not None
    assert [entry.name for entry in picture.legend] == ["front"]


@pytest.mark.parametrize("compact", [False, True])
def test_texts_of_an_axis_do_not_touch(*, compact: bool) -> None:
    marks = tuple(float(1000 * i) for i in range(21))
    scale = Scale(low=0, high=20_000, logarithmic=False, marks=marks)
    drawing = lay_out(chart(line(1, 2), x=Axis(title="x", scale=scale)), compact=compact)
    shown = [tick for tick in drawing.x_ticks if tick.label]
    assert len(drawing.x_ticks) == 21
    assert 4 <= len(shown) < 21
    for before, after in pairwise(shown):
        assert after.at - before.at > (len(before.label) + len(after.label)) * CHAR_WIDTH_PX / 2


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
    drawing = lay_out(replace(chart(line(1, 2), x=Axis(title="x", scale=scale)), size=size), compact=compact)
    last = drawing.x_ticks[-1]
    assert last.label == "125,000"
    assert last.at + len(last.label) * CHAR_WIDTH_PX / 2 <= drawing.frame.width


def test_a_label_at_the_left_end_does_not_cover_the_axis() -> None:
    drawing = lay_out(chart(line(5, 5, 5)))
    label = drawing.series[0].labels[0]
    assert label.anchor == "start"
    assert label.x >= drawing.frame.left


def test_steps_go_on_to_the_right_end_and_dots_alone_are_not_joined() -> None:
    drawing = lay_out(chart(line(1, 2, shape="steps"), line(1, 2, shape="dots", faint=True)))
    assert drawing.series[0].path.endswith(f" H{drawing.frame.right}")
    assert drawing.series[1].path == ""
    assert drawing.series[1].line.faint


def test_a_narrow_screen_has_every_chart_at_its_own_size() -> None:
    assert COMPACT.keys() == FRAMES.keys()
    assert all(frame.width <= 440 and frame.right <= frame.width for frame in COMPACT.values())


def test_a_logarithmic_axis_says_so() -> None:
    drawing = lay_out(chart(line(1, 50)))
    assert (drawing.x_title, drawing.y_title) == ("x", "Latency (ms), logarithmic scale")


@pytest.mark.parametrize(("heights", "flat"), [((67.2, 67.4, 66.4), True), ((67, 60), False), ((0, 0), True)])
def test_a_chart_is_flat_where_its_values_hardly_differ(heights: tuple[float, ...], *, flat: bool) -> None:
    assert chart(line(*heights), x=Axis(title="x")).is_flat is flat


def test_an_interval_that_says_nothing_does_not_press_the_points_to_the_bottom() -> None:
    drawing = lay_out(chart(line(2, 4, spread=((0.0, 15e6), (3.0, 5.0)))))
    assert drawing.chart.scales[1].high == 8
    assert drawing.series[0].whiskers.startswith(f"M{drawing.series[0].points[0].x:g},{drawing.frame.bottom}")
    assert f" V{drawing.frame.top} " in drawing.series[0].whiskers


@pytest.mark.parametrize("compact", [False, True])
def test_the_parts_of_a_bar_lie_end_to_end_and_within_the_axis(*, compact: bool) -> None:
    bars = [
        Bar(name="n", total="", parts=tuple(BarPart(color=0, length=n, title="") for n in lengths))
        for lengths in ((0.3, 1.1, 20.0), (7.0,))
    ]
    made = Chart(key="k", title="t", description="d", x=Axis(title="x"), bars=tuple(bars), size="bars")
    drawing = lay_out(made, compact=compact)
    first, second = drawing.bars
    for before, after in pairwise(first.segments):
        assert after.x == pytest.approx(before.x + before.width, abs=0.11)
    assert first.segments[0].x == drawing.frame.left
    assert first.end <= drawing.frame.right
    assert first.y + BAR_PX < second.y
    assert second.y + BAR_PX <= drawing.frame.bottom
