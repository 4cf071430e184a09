"""The chart's layout: labels that do not touch, distinct styles, nothing drawn from nothing."""

from collections.abc import Callable
from itertools import combinations

from tpx.analyzer.objectives import rank
from tpx.analyzer.reports.chart import draw
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.measurement import Latency, Load, Measurement
from tpx.analyzer.results.run import Run
from tpx.report.labels import LABEL_CHAR_WIDTH, Label
from tpx.report.styles import STYLES, marker

Replay = Callable[..., Run]


def box(label: Label) -> tuple[float, float, float, float]:
    width = len(label.text) * LABEL_CHAR_WIDTH
    left = label.x - {"start": 0, "middle": width / 2, "end": width}[label.anchor]
    return left, label.y - 9, left + width, label.y


def test_no_two_labels_overlap(replay: Replay) -> None:
    run = replay()
    chart = draw("k", rank(run.models[0], Goals()), (), Goals())
    assert chart is not None
    labels = [box(label) for series in chart.series for label in series.labels]
    assert len(labels) > 10
    for a, b in combinations(labels, 2):
        assert not (a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3])


def test_every_point_lies_inside_the_axes(replay: Replay) -> None:
    run = replay(latency_budget=500.0)
    chart = draw("k", rank(run.models[0], run.started.goals), (), run.started.goals)
    assert chart is not None
    points = [p for series in chart.series for p in series.points]
    assert len(points) == 41
    assert all(
        chart.frame.left <= p.x <= chart.frame.right and chart.frame.top <= p.y <= chart.frame.bottom
        for p in points
    )
    assert chart.limit is not None
    assert chart.frame.left <= chart.limit.x <= chart.frame.right


def test_styles_differ_by_marker_and_lines_by_dashes_once_styles_run_out(replay: Replay) -> None:
    run = replay()
    ranking = rank(run.models[0], Goals())
    chart = draw("k", [*ranking, *ranking], (), Goals())
    assert chart is not None
    assert len({(s.style, s.dashed) for s in chart.series}) == 12
    assert len({marker(style, 0, 0) for style in range(STYLES)}) == STYLES


def test_an_unstable_measurement_is_told_from_a_stable_one(replay: Replay) -> None:
    table = [
        Measurement(
            variant=f"alexnet_config_{n}",
            load=Load(value=1),
            throughput=1.0,
            latency=Latency(avg_ns=5_000_000),
            stable=n == "0",
        )
        for n in ("default", "0")
    ]
    run = replay(table, concurrency=(1,), run_config_search_max_instance_count=1)
    chart = draw("k", rank(run.models[0], Goals()), (), Goals())
    assert chart is not None
    assert [p.stable for s in chart.series for p in s.points] == [False, True]
    assert chart.series[0].points[0].title == (
        "alexnet_config_default at concurrency 1: 1.0 infer/s, 5.00 ms (not stable)"
    )


def test_measurements_without_a_latency_make_no_chart(replay: Replay) -> None:
    table = [
        Measurement(variant=f"alexnet_config_{n}", load=Load(value=1), throughput=1.0)
        for n in ("default", "0")
    ]
    run = replay(table, concurrency=(1,), run_config_search_max_instance_count=1)
    assert draw("k", rank(run.models[0], Goals()), (), Goals()) is None
