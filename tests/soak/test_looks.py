"""What a soak calls growth."""

import psutil
import pytest

from tests.soak.looks import MEGABYTE, Bounds, Look, growth_per_minute
from tests.soak.report import summary

BOUNDS = Bounds(memory_per_minute=MEGABYTE)


def look(at_s: float, megabytes: float = 100, descriptors: int = 20, threads: int = 10) -> Look:
    return Look(at_s=at_s, rss_bytes=int(megabytes * MEGABYTE), descriptors=descriptors, threads=threads)


def test_growth_is_the_slope_of_the_line_through_the_looks() -> None:
    rising = [look(second, 100 + second / 30) for second in range(60)]
    assert growth_per_minute(rising) == pytest.approx(2 * MEGABYTE, rel=1e-3)
    assert growth_per_minute([look(second, 100 - second) for second in range(9)]) == pytest.approx(-60e6)
    assert growth_per_minute([look(5)]) == 0


def test_a_peak_in_the_middle_is_no_growth() -> None:
    peak = [look(second, 130 if second == 30 else 100) for second in range(61)]
    assert growth_per_minute(peak) == pytest.approx(0, abs=1)


def test_what_stays_within_its_bounds_is_no_problem() -> None:
    steady = [look(second, 100 + second % 2) for second in range(60)]
    assert BOUNDS.broken(steady, look(0), look(60, 150, descriptors=22, threads=8)) == []


@pytest.mark.parametrize(
    ("last", "problem"),
    [
        (look(60, descriptors=23), "descriptors went from 20 to 23, more than 2 apart"),
        (look(60, descriptors=17), "descriptors went from 20 to 17, more than 2 apart"),
        (look(60, threads=13), "threads went from 10 to 13, more than 2 apart"),
    ],
)
def test_what_grows_is_named(last: Look, problem: str) -> None:
    assert BOUNDS.broken([look(0), look(60)], look(0), last) == [problem]


def test_memory_that_grows_is_named_with_its_slope() -> None:
    rising = [look(second, 100 + second / 30) for second in range(60)]
    assert BOUNDS.broken(rising, look(0), look(60)) == ["memory grew by 2.00 MB/min, more than 1.00"]


def test_this_process_can_be_looked_at() -> None:
    seen = Look.at([psutil.Process()], 1.5)
    assert seen.at_s == 1.5
    assert seen.rss_bytes > 10 * MEGABYTE
    assert seen.descriptors >= 3
    assert seen.threads >= 1


def test_the_report_has_the_counts_the_slope_and_what_is_wrong() -> None:
    counts, deaths = {"gRPC": 1234, "HTTP": 1, "killed": 0}, {"killed": 7}
    text = summary(counts, deaths, [look(0), look(60, 101)], look(0), look(60), BOUNDS, ["it hangs"])
    assert text.splitlines() == [
        "soak: 1,235 answers checked, 60 s after the warm-up",
        "  HTTP                              1",
        "  gRPC                          1,234",
        "  killed                            7 deaths",
        "  memory 100.0 -> 101.0 MB, +1.00 MB/min (at most 1.0)",
        "  at rest: memory 100.0 -> 100.0 MB, descriptors 20 -> 20, threads 10 -> 10",
        "  WRONG: it hangs",
    ]
