"""HdrHistogram's encoding, read back by HdrHistogram's own Python package."""

from pathlib import Path

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from tests.perf.conftest import make_records
from tpx.perf.levels import Level
from tpx.perf.records import LevelRecords
from tpx.perf.report.recorders import HdrLog, encode

SECOND_NS = 1_000_000_000


def read(values: list[int]) -> HdrHistogram:
    return HdrHistogram.decode(encode(np.asarray(values, np.int64)))


@pytest.mark.parametrize("value", [0, 1, 1023, 2047, 2048, 4095, 4096, 123_456_789, 3600 * SECOND_NS])
def test_a_value_comes_back_within_three_digits(value: int) -> None:
    found = read([value])
    assert found.get_total_count() == 1
    assert found.get_value_at_percentile(100) == pytest.approx(value, rel=1e-3, abs=1)


def test_many_values_have_the_percentiles_they_had() -> None:
    values = np.random.default_rng(3).lognormal(12, 2, 50_000).astype(np.int64)
    found = HdrHistogram.decode(encode(values))
    assert found.get_total_count() == len(values)
    for percentile in (1, 50, 90, 99, 99.9):
        wanted = int(np.sort(values)[int(percentile / 100 * len(values) + 0.5) - 1])
        assert found.get_value_at_percentile(percentile) == pytest.approx(wanted, rel=2e-3)


def test_no_value_is_a_histogram_too() -> None:
    assert read([]).get_total_count() == 0


def test_a_count_that_needs_many_bytes_is_not_cut() -> None:
    assert read([77] * 300_000).get_count_at_value(77) == 300_000


def test_a_log_has_a_line_for_every_window_with_its_level_as_tag(tmp_path: Path) -> None:
    path = tmp_path / "a.hlog"
    log = HdrLog(path, offset_ns=10**18)
    records = make_records([1, 2, 3, 4, 5, 6], latency_ms=1.0, failed_at=[5])
    level = Level("concurrency", 4)
    borders = (0, 3_500_000, 7_000_000)
    log.begin(records)
    log.record(LevelRecords(level=level, records=records, borders_ns=borders, indices=(0, 3, 6), failures={}))
    log.close()
    reader = HistogramLogReader(str(path), HdrHistogram(1, 2**62, 3))
    first, second = reader.get_next_interval_histogram(), reader.get_next_interval_histogram()
    assert (first.get_total_count(), second.get_total_count()) == (3, 2)
    assert first.get_value_at_percentile(50) == pytest.approx(1_000_000, rel=1e-3)
    assert first.get_tag() == "concurrency=4"
    assert reader.get_next_interval_histogram() is None
    reader.input_file.close()
    assert path.read_text().splitlines()[4].startswith("Tag=concurrency=4,1000000000.000,0.004,1.000,HIST")


def test_a_run_without_a_level_leaves_a_log_without_lines(tmp_path: Path) -> None:
    log = HdrLog(tmp_path / "a.hlog", offset_ns=0)
    log.close()
    assert len((tmp_path / "a.hlog").read_text().splitlines()) == 4
