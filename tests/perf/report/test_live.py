"""The dashboard: what was told of a run, as lines that fit a terminal."""

from dataclasses import replace

import pytest

from tests.perf.conftest import make_level
from tpx.argv import from_argv
from tpx.perf.levels import Level
from tpx.perf.observer import LevelProgress
from tpx.perf.options import SessionSpec
from tpx.perf.report.live import Dashboard, planned, sure
from tpx.perf.results import ServerBreakdown, Verdict

SECOND = 1_000_000_000


def look(throughput: float = 5123.4, p99_us: int = 812, failed: int = 0) -> LevelProgress:
    return LevelProgress(
        level=Level("concurrency", 4),
        window=2,
        max_windows=10,
        throughput_infer_per_s=throughput,
        percentiles_ns={50.0: 200_000, 90.0: 300_000, 99.0: p99_us * 1000},
        failed=failed,
        failures=("HTTP 500: out of\nmemory",) if failed else (),
        server=make_level().server,
    )


def board(*words: str, looks: int = 5) -> Dashboard:
    dashboard = Dashboard(from_argv(SessionSpec, ["-m", "net", *words]))
    dashboard.level_started(Level("concurrency", 4), 10 * SECOND)
    for n in range(looks):
        dashboard.add_progress(look(5000 + n))
    return dashboard


def lines(dashboard: Dashboard, width: int = 140, at_s: float = 12) -> list[str]:
    return dashboard.text(width, int(at_s * SECOND)).plain.split("\n")


def test_it_tells_load_window_time_and_what_is_left() -> None:
    shown = lines(board("--concurrency-range", "4:6", "-p", "1000"))
    assert shown[0] == "concurrency 4  level 1 of 3  window 2, at most 10  0:02  about 0:08 left"


def test_figures_have_their_mean_with_its_interval_and_a_curve() -> None:
    through, p50, p90, p99 = lines(board())[1:5]
    assert through.startswith("  infer/s      5,000   mean 5,000 \u00b1 1.96")
    assert through.endswith("\u2581\u2583\u2585\u2587\u2588")
    assert p99.startswith("  p99         812 \u00b5s   mean 812 \u00b5s \u00b1 0 \u00b5s")
    assert (p50[:6], p90[:6]) == ("  p50 ", "  p90 ")


def test_the_servers_parts_are_told_and_drawn() -> None:
    server = lines(board())[5]
    assert server.startswith(
        "  server 113 \u00b5s  queue 25  input 5  compute 63  output 17  rest 3  batch 1.00"
    )
    assert server.count("\u2588") == pytest.approx(40, abs=3)


def test_the_servers_parts_are_in_ms_where_their_sum_is_and_fit_80_columns() -> None:
    server = ServerBreakdown(
        model="net",
        version="1",
        inference_count=1170,
        execution_count=100,
        success_count=100,
        success_ns=210_000_000,
        queue_ns=124_000_000,
        compute_input_ns=400_000,
        compute_infer_ns=13_800_000,
        compute_output_ns=1_700_000,
    )
    shown = board()
    shown.add_progress(replace(look(), server=server))
    line = lines(shown, 80)[5]
    words = "  server 2.10 ms  queue 1.24  compute 0.14  output 0.02  rest 0.70  batch 11.70"
    assert line.rstrip() == words


def test_failures_are_told_on_one_line_with_the_first_ones_words() -> None:
    dashboard = board()
    dashboard.add_progress(look(failed=3))
    assert "  3 failed  HTTP 500: out of memory" in lines(dashboard)
    assert not any("failed" in line for line in lines(board()))


def test_verdicts_of_levels_so_far_stay() -> None:
    dashboard = board()
    for n in range(10):
        dashboard.level_finished(replace(make_level(n + 1), verdict=Verdict.UNSTABLE), 13 * SECOND)
    rows = [line for line in lines(dashboard) if line.endswith("unstable")]
    assert len(rows) == 8
    assert rows[-1].split() == ["concurrency", "10", "4,480", "212", "\u00b5s", "340", "\u00b5s", "unstable"]


def test_the_level_after_begins_with_nothing_of_the_one_before() -> None:
    dashboard = board()
    dashboard.level_started(Level("concurrency", 8), 20 * SECOND)
    assert lines(dashboard)[1] == "  no answers yet"


@pytest.mark.parametrize("width", [40, 80, 140])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    dashboard = board("--concurrency-range", "1:64", looks=150)
    dashboard.add_progress(look(failed=12))
    dashboard.level_finished(make_level(1), 13 * SECOND)
    assert all(len(line) <= width for line in lines(dashboard, width))


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("--concurrency-range", "4"), 1),
        (("--concurrency-range", "1:4"), 4),
        (("--concurrency-range", "1:64:x2"), 7),
        (("--concurrency-range", "1,5,9"), 3),
        (("--concurrency-range", "1:0", "-l", "5"), None),
        (("--concurrency-range", "1:8", "-l", "5", "--binary-search"), None),
    ],
)
def test_how_many_levels_there_will_be(words: tuple[str, ...], count: int | None) -> None:
    assert planned(from_argv(SessionSpec, ["-m", "net", *words]).levels) == count


def test_what_is_left_is_not_told_where_nobody_knows() -> None:
    assert "left" not in lines(board("--concurrency-range", "1:0", "-l", "5"))[0]
    assert "left" not in lines(board("--request-count", "5000"))[0]


def test_levels_take_as_long_as_those_before() -> None:
    dashboard = board("--concurrency-range", "1:3", "-p", "1000")
    dashboard.level_finished(make_level(1), 20 * SECOND)
    dashboard.level_started(Level("concurrency", 2), 20 * SECOND)
    assert dashboard.left_ns(21 * SECOND) == 19 * SECOND


def test_an_interval_needs_three_looks() -> None:
    assert sure([1.0, 2.0]) is None
    assert sure([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2.484), abs=1e-3)


def test_a_warm_up_is_told_and_none_of_it_is_in_the_figures_of_the_level() -> None:
    dashboard = board(looks=0)
    for _ in range(4):
        dashboard.add_progress(replace(look(9000), window=0))
    assert lines(dashboard)[0].startswith("concurrency 4  level 1 of 1  warming up  0:02")
    assert "mean 9,000" in lines(dashboard)[1]
    for _ in range(3):
        dashboard.add_progress(replace(look(5000), window=1))
    assert "window 1, at most 10" in lines(dashboard)[0]
    assert "mean 5,000 \u00b1 0" in lines(dashboard)[1]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("-p 1000", "0:01"),
        ("-p 1000 --warmup-seconds 20", "0:21"),
        ("--measurement-mode count_windows", "0:01"),
        ("-p 1000 --concurrency-range 1:2", "0:05"),
    ],
)
def test_what_is_left_counts_all_that_a_level_takes(words: str, left: str) -> None:
    assert lines(board(*words.split()))[0].endswith(f"about {left} left")


@pytest.mark.parametrize("width", range(60, 140, 7))
def test_the_servers_bar_never_leaves_its_line(width: int) -> None:
    assert all("\u2026" not in line for line in lines(board(), width) if "\u2588\u2588" in line)
