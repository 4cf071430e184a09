"""The live line."""

from tpx.perf.observer import Progress
from tpx.perf.report.live import live_line
from tpx.perf.settings import Level


def line(p99_ns: int | None = 812_345, failed: int = 0) -> str:
    return live_line(
        Progress(
            level=Level("concurrency", 4),
            window=2,
            max_windows=10,
            throughput_infer_per_s=5123.4,
            p99_ns=p99_ns,
            failed=failed,
        )
    ).plain


def test_it_tells_level_window_throughput_and_p99() -> None:
    assert line() == "concurrency 4  window 2/10  5123.4 infer/sec  p99 812 usec"


def test_it_tells_failures_only_where_there_are_some() -> None:
    assert line(failed=3).endswith("  3 failed")


def test_it_has_no_p99_before_the_first_answer() -> None:
    assert line(p99_ns=None).endswith("p99 -")
