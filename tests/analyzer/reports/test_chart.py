"""The chart's layout: labels that do not touch, distinct styles, nothing drawn from nothing."""

from collections.abc import Callable, Sequence
from itertools import combinations

import pytest

from tests.analyzer.measuring import make_latency, make_measurement
from tpx.analyzer.objectives import RankedVariant, rank
from tpx.analyzer.reports.charts import load_chart as draw
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import LoadPoint
from tpx.analyzer.results.run import Run
from tpx.report.chart import STYLES, marker
from tpx.report.layout import CHAR_WIDTH_PX, Drawing, PlacedLabel

Replay = Callable[..., Run]


def box(label: PlacedLabel) -> tuple[float, float, float, float]:
    width = len(label.text) * CHAR_WIDTH_PX
    left = label.x - {"start": 0, "middle": width / 2, "end": width}[label.anchor]
    return left, label.y - 9, left + width, label.y


def drawn(
    shown: Sequence[RankedVariant],
    others: Sequence[RankedVariant],
    goals: Goals,
    *,
    compact: bool = False,
) -> Drawing:
    chart = draw(shown, others, goals)
    assert chart is not None
    return Drawing(chart, compact=compact)


@pytest.mark.parametrize("compact", [False, True])
def test_no_two_labels_overlap_and_none_leaves_the_drawing(replay: Replay, *, compact: bool) -> None:
    run = replay()
    drawing = drawn(rank(run.models[0], Goals()), (), Goals(), compact=compact)
    labels = [box(label) for series in drawing.series for label in series.labels]
    assert len(labels) > (5 if compact else 10)
    assert all(drawing.frame.left <= left and right <= drawing.frame.width for left, _, right, _ in labels)
    for a, b in combinations(labels, 2):
        assert not (a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3])


def test_every_point_lies_inside_the_axes(replay: Replay) -> None:
    run = replay(latency_budget=500.0)
    drawing = drawn(rank(run.models[0], run.started.goals), (), run.started.goals)
    frame, dots = drawing.frame, [dot for line in drawing.chart.lines for dot in line.dots]
    assert len(dots) == 41
    assert all(frame.left <= drawing.x(dot.x) <= frame.right for dot in dots)
    assert all(frame.top <= drawing.y(dot.y) <= frame.bottom for dot in dots)
    (limit,) = drawing.chart.marks
    assert frame.left <= drawing.x(limit.value) <= frame.right


def test_styles_differ_by_marker_and_lines_by_dashes_once_styles_run_out(replay: Replay) -> None:
    run = replay()
    ranking = rank(run.models[0], Goals())
    drawing = drawn([*ranking, *ranking], (), Goals())
    assert len({(s.style, s.dashed) for s in drawing.series}) == 12
    assert len({marker(style, 0, 0) for style in range(STYLES)}) == STYLES


def test_an_unstable_measurement_is_told_from_a_stable_one(replay: Replay) -> None:
    table = [
        make_measurement(
            variant=f"alexnet_config_{n}",
            load=LoadPoint(value=1),
            throughput=1.0,
            latency=make_latency(avg_ns=5_000_000),
            stable=n == "0",
        )
        for n in ("default", "0")
    ]
    run = replay(table, concurrency=(1,), run_config_search_max_instance_count=1)
    chart = draw(rank(run.models[0], Goals()), (), Goals())
    assert chart is not None
    assert [dot.stable for line in chart.lines for dot in line.dots] == [False, True]
    assert chart.lines[0].dots[0].title == (
        "alexnet_config_default at concurrency 1: 1.00 infer/s, 5.00 ms (not stable)"
    )


def test_measurements_without_a_latency_make_no_chart(replay: Replay) -> None:
    table = [
        make_measurement(variant=f"alexnet_config_{n}", load=LoadPoint(value=1), throughput=1.0)
        for n in ("default", "0")
    ]
    run = replay(table, concurrency=(1,), run_config_search_max_instance_count=1)
    assert draw(rank(run.models[0], Goals()), (), Goals()) is None
