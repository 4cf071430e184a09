"""Where the time goes: parts that add up."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.perf.conftest import make_level
from tpx.perf.report.plots import breakdown, parts_of
from tpx.perf.results import LevelResult, OpenLoop, ServerBreakdown
from tpx.perf.statistics.summaries import summarize


def late() -> LevelResult:
    level = make_level()
    assert level.latency is not None
    service = replace(level.latency, mean_ns=200_000)
    return replace(
        level, open_loop=OpenLoop(service_latency=service, slip=service, delayed=0, sent_per_s=1.0)
    )


def greedy(server: ServerBreakdown | None) -> ServerBreakdown:
    assert server is not None
    return replace(server, queue_ns=10**12)


@pytest.mark.parametrize(
    "result",
    [
        make_level(),
        make_level(server=None),
        make_level(server=greedy(make_level().server)),
        make_level(server=replace(greedy(make_level().server), success_count=0)),
        late(),
    ],
)
def test_the_parts_add_up_to_the_mean_latency(result: LevelResult) -> None:
    assert result.latency is not None
    assert sum(parts_of(result).values()) == result.latency.mean_ns
    assert min(parts_of(result).values()) > 0


def test_the_servers_own_times_are_apart_from_the_network() -> None:
    found = parts_of(make_level())
    assert found["client"] == 26_700
    assert (found["queue"], found["input"], found["infer"], found["output"]) == (25_000, 5800, 63_500, 17_800)
    assert found["overhead"] == 1400
    assert found["network"] == 221_400 - 26_700 - 113_500


def test_what_a_late_request_waited_is_its_own_part() -> None:
    assert parts_of(late())["late"] == 21_400


def test_a_cache_counts_for_all_requests_not_only_those_it_answered() -> None:
    server = make_level().server
    assert server is not None
    cached = replace(server, cache_hit_count=1, cache_hit_ns=8152 * 300)
    assert parts_of(make_level(server=cached))["cache"] == 300


def test_bars_are_the_parts_in_the_order_of_time() -> None:
    chart = breakdown([("1", make_level(1)), ("late", late())])
    assert chart is not None
    assert [chart.part_names[part.color] for part in chart.bars[1].parts][:2] == [
        "waiting to be sent",
        "client sends and reads",
    ]
    assert chart.bars[1].parts[0].title == "late, waiting to be sent: 21.4 \u00b5s"
    for bar in chart.bars:
        assert bar.parts[0].start == 0
        assert all(before.end == after.start for before, after in pairwise(bar.parts))


def test_nothing_is_drawn_of_levels_without_a_latency() -> None:
    assert breakdown([("1", make_level(latency=None, client=None))]) is None


def test_bars_are_labelled_as_tables_write_latencies_whatever_the_axis_counts() -> None:
    levels = [make_level(latency=summarize(np.array([ns]))) for ns in (870_000, 1_260_000)]
    chart = breakdown([("a", levels[0]), ("b", levels[1])])
    assert chart is not None
    assert chart.x.title == "Mean latency (ms)"
    assert [bar.total for bar in chart.bars] == ["870 \u00b5s", "1.26 ms"]
