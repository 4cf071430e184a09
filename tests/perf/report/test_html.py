"""The page of a run: complete, well-formed, from nowhere else, and of what was measured."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.perf.conftest import make_level, make_window
from tests.perf.report.test_summaries import DEAD, OVER, UNSTABLE, objective, report
from tests.report.blocks import blocks_of
from tests.report.reading import read
from tpx.argv import from_argv
from tpx.perf.levels import Level
from tpx.perf.measure.estimates import Sample, estimate
from tpx.perf.metrics_page import GpuFigures, MetricsFigures
from tpx.perf.objectives import Compliance
from tpx.perf.options import SessionSpec
from tpx.perf.report.model import Report
from tpx.perf.report.page import build
from tpx.perf.report.plots import curve, requests_chart, spectrum, timeline
from tpx.perf.results import ErrorCount, LevelResult, OpenLoop, RequestSpan, Streaming, Verdict
from tpx.perf.statistics.summaries import summarize
from tpx.report.document import Bullets, Facts, Group, Statement
from tpx.report.html import render


def measured(value: int, scale_us: float, count: int = 20_000) -> LevelResult:
    """A level of requests whose latencies scatter around so many microseconds."""
    latencies = (np.random.default_rng(value).gamma(4, scale_us / 4, count) * 1000).astype(np.int64) + 1000
    ends = np.linspace(0, 3e9, count).astype(np.int64)
    sample = Sample(start_ns=0, end_ns=3 * 10**9, ends=ends, latencies=latencies, ok=np.ones(count, bool))
    window = make_window(count / 3, scale_us)
    windows = tuple(
        replace(window, start_ns=(10 * value + i) * 10**9, end_ns=(10 * value + i + 1) * 10**9)
        for i in range(4)
    )
    return make_level(
        value,
        count / 3.0 * value,
        latency=summarize(latencies),
        estimates=estimate(sample, 1, None),
        windows=windows,
        kept_windows=3,
    )


MS = 1_000_000
LEVELS = tuple(measured(n, 100.0 * n) for n in (1, 2, 4, 8))


def page(made: Report) -> str:
    return render(build(made, ["-m", "net", "--header", "a b"]))


def options_of(made: Report) -> dict[str, str]:
    """Return the options that the page of a run tells."""
    (options,) = [b for b in blocks_of(build(made, [])) if isinstance(b, Group) and b.title == "Options"]
    (facts,) = [block for block in options.blocks if isinstance(block, Facts)]
    return dict(facts.facts)


def full() -> Report:
    gpus = (GpuFigures(uuid="GPU-1", utilization=0.5),)
    metrics = MetricsFigures(scrapes=3, failed=0, gpus=gpus, cpu_utilization=0.25)
    return report(
        *LEVELS, replace(UNSTABLE, metrics=metrics), OVER, DEAD, objective(Compliance.VIOLATED),
        words=("-l", "5"), interrupted=True,
    )  # fmt: skip


def test_the_page_is_well_formed_and_its_ids_are_unique() -> None:
    reader = read(page(full()))
    assert reader.closed
    assert len(reader.ids) == len(set(reader.ids))


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = page(full())
    assert read(text).urls == ["data:,", "#main"]
    assert not re.search(r"https?://|@import|url\(", text)
    assert len(text.encode()) < 2_000_000


@pytest.mark.slow
def test_a_sweep_of_two_hundred_levels_stays_below_two_megabytes() -> None:
    levels = [replace(LEVELS[0], level=Level("concurrency", n)) for n in range(1, 201)]
    assert len(page(report(*levels)).encode()) < 2_000_000


def test_every_level_has_its_row_with_its_verdict() -> None:
    rows = read(page(full())).rows["levels"]
    assert [row[0] for row in rows[1:]] == ["1", "2", "4", "8", "2", "4", "8", "1"]
    assert [row[-1] for row in rows[4:8]] == ["ok", "unstable", "over limit", "errors"]
    assert rows[1][1] == "6,670"


def test_objectives_metrics_errors_and_the_command_are_told() -> None:
    reader = read(page(full()))
    assert reader.rows["objectives"][1][1:3] == ["p99<1ms", "violated"]
    assert ["2", "GPU-1 utilization %", "50.0"] in reader.rows["metrics"]
    assert reader.rows["errors"][1][:3] == ["8", "3", "HTTP 500"]
    assert "tpx perf -m net --header 'a b'" in reader.text
    assert "This run was interrupted" in reader.text


def test_options_stand_on_the_page_as_they_are_written() -> None:
    text = (
        "-H A:b -H X-Token:abc --shape x:1,2 --declare y:fp32:-1,4 --input x=range:1:2 "
        "--request-parameter p:1:int --tolerance 1e-3 --max-errors 2% --bls-composing-models a:1 "
        "--slo p99<1s --request-rate-range 1:8:x2"
    )
    words = tuple(text.split())
    told = options_of(report(*LEVELS, words=words))
    assert {value for value in told.values() if "(" in value} == set()
    assert told["--header"] == "A:b, X-Token:***"
    assert (told["--shape"], told["--declare"]) == ("x:1,2", "y FP32 [-1, 4]")
    assert told["--request-parameter"] == "p:1"
    assert told["--request-rate-range"] == "1:8:x2"


def test_several_models_and_growing_loads_stand_on_the_page_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "gaps").write_text("1000")
    periodic = ("-i", "grpc", "--streaming", "--profile-export-file", str(tmp_path / "p"))
    for words, shown in (
        (("--models", "a:3,b"), "a:3, b:1"),
        (("-m", "a", "--request-intervals", str(tmp_path / "gaps")), str(tmp_path / "gaps")),
        (("-m", "a", "--periodic-concurrency-range", "1:9:2", *periodic), "1:9:2"),
    ):
        config = from_argv(SessionSpec, list(words))
        assert shown in options_of(replace(report(*LEVELS), config=config)).values()


def test_answers_stand_on_the_page_as_in_the_text() -> None:
    made = report(objective(Compliance.VIOLATED), words=("--slo", "p99<1ms"))
    text = read(page(made)).text
    assert "SLO p99<1ms: no measured load meets it." in text
    assert "Objective(" not in text


def test_a_servers_words_are_escaped() -> None:
    assert '<script>"a' not in page(report(DEAD))
    assert "&lt;script&gt;" in page(report(DEAD))


def test_each_drawing_is_valid_svg() -> None:
    drawings = re.findall(r'<svg class="plot".*?</svg>', page(full()), re.DOTALL)
    assert len(drawings) == 10
    for drawing in drawings:
        svg = ElementTree.fromstring(drawing)
        assert svg.find("title") is not None


def test_nothing_measured_still_makes_a_page() -> None:
    reader = read(page(report(error="the server has gone")))
    assert reader.closed
    assert "the server has gone" in reader.text


def test_the_curve_has_a_line_per_percentile_and_bars_where_it_is_not_sure() -> None:
    chart = curve(LEVELS, 5)
    assert chart is not None
    assert [line.name for line in chart.lines] == ["p50", "p90", "p99"]
    assert [len(line.dots) for line in chart.lines] == [4, 4, 4]
    intervals = [dot.interval for dot in chart.lines[2].dots]
    assert any(ends is not None and ends[0] < ends[1] for ends in intervals)
    assert [mark.text for mark in chart.marks] == ["limit 5 ms"]
    assert [dot.label for dot in chart.lines[2].dots] == ["1", "2", "4", "8"]
    assert curve(LEVELS[:1], 5) is None


def test_objectives_on_latencies_are_lines_of_the_curve() -> None:
    config = from_argv(SessionSpec, ["-m", "net", "--slo", "p99<2ms,throughput>5"])
    chart = curve(LEVELS, 0, config.answers.slo)
    assert chart is not None
    assert [(mark.value, mark.text) for mark in chart.marks] == [(2.0, "p99<2ms")]


def test_hollow_markers_of_the_curve_are_levels_that_did_not_become_stable() -> None:
    chart = curve([LEVELS[0], UNSTABLE, OVER], 5)
    assert chart is not None
    assert [dot.stable for dot in chart.lines[0].dots] == [True, False, True]


def test_a_spectrum_ends_where_too_few_requests_lie_beyond() -> None:
    chart = spectrum([measured(1, 100.0, 20_000), measured(2, 100.0, 300)])
    assert chart is not None
    many, few = (len(line.dots) for line in chart.lines)
    assert many > few
    assert chart.scales[0].labels == ("0 %", "50 %", "90 %", "99 %", "99.9 %")


def test_a_spectrum_rises() -> None:
    chart = spectrum(LEVELS[:1])
    assert chart is not None
    heights = [dot.y for dot in chart.lines[0].dots]
    assert heights == sorted(heights)


def test_requests_to_a_language_model_are_bars_in_rows_with_their_first_token() -> None:
    spans = [(0, 200, 900), (100, 400, 500), (600, 700, 800), (950, 990, 1000)]
    stream = Streaming(
        responses=9,
        responses_per_s=9.0,
        figures=(),
        spans=tuple(RequestSpan(due_ns=d * MS, first_ns=f * MS, end_ns=e * MS) for d, f, e in spans),
    )
    low, high = LEVELS[:2]
    chart = requests_chart([replace(low, streaming=stream), replace(high, streaming=stream)])
    assert chart is not None
    assert chart.title == "The last 4 requests at concurrency 2"
    bars, firsts = chart.lines
    # the third begins when the second is over, the last when all are
    rows = [(0, 1), (0.9, 1), (0.1, 2), (0.5, 2), (0.6, 2), (0.8, 2), (0.95, 1), (1, 1)]
    assert [(dot.x, dot.y) for dot in bars.dots] == rows
    assert [dot.apart for dot in bars.dots] == [True, False] * 4
    assert [(dot.x, dot.y) for dot in firsts.dots] == [(0.2, 1), (0.4, 2), (0.7, 2), (0.99, 1)]
    assert firsts.dots[1].title == "first token after 300 ms, all after 400 ms"
    assert "The last 4 requests at" in page(report(replace(high, streaming=stream)))
    assert requests_chart(LEVELS) is None


def test_every_window_is_on_the_timeline_and_those_left_out_are_hollow() -> None:
    chart = timeline(LEVELS, "throughput")
    assert chart is not None
    assert [[dot.stable for dot in line.dots] for line in chart.lines] == [[False, True, True, True]] * 4


def test_no_window_of_an_unstable_level_is_drawn_as_stable() -> None:
    chart = timeline((LEVELS[0], replace(LEVELS[1], verdict=Verdict.UNSTABLE)), "p99")
    assert chart is not None
    assert [{dot.stable for dot in line.dots} for line in chart.lines] == [{False, True}, {False}]


def test_failures_are_told_of_all_requests_of_the_level_as_they_are_counted() -> None:
    windows = tuple(make_window(100, 50, failed=n) for n in (6, 3, 0, 0))
    error = ErrorCount(code="HTTP 500", count=9, message="no")
    level = replace(LEVELS[0], windows=windows, kept_windows=3, errors=(error,), failed=9)
    statements = [block for block in blocks_of(build(report(level), [])) if isinstance(block, Statement)]
    (tile,) = [tile for tile in statements[0].tiles if tile.label == "Failed"]
    assert (tile.figure, tile.note) == ("9", "of 409 requests")


@pytest.mark.parametrize(("waited", "told"), [(1.0, 0), (1.02, 0), (1.5, 1)])
def test_a_rate_whose_requests_left_in_time_has_no_remark_on_that(waited: float, told: int) -> None:
    latency = LEVELS[0].latency
    assert latency is not None
    service = replace(
        latency, percentiles_ns={p: int(ns / waited) for p, ns in latency.percentiles_ns.items()}
    )
    pace = OpenLoop(service_latency=service, slip=service, delayed=0, sent_per_s=1.0)
    level = replace(LEVELS[0], level=Level("request_rate", 10), open_loop=pace)
    remarks = [block for block in blocks_of(build(report(level), [])) if isinstance(block, Bullets)]
    assert sum(len(block.items) for block in remarks) == told
