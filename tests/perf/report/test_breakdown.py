"""Where the time goes: parts that add up."""

from dataclasses import replace

import pytest

from tests.perf.conftest import make_level
from tpx.perf.report.plots import COMPACT, WIDE, BarFrame, Part, breakdown_picture, lay_out, parts_of
from tpx.perf.results import LevelResult, OpenLoop, ServerBreakdown


def shares(result: LevelResult) -> dict[str, int]:
    return {part.kind: part.duration_ns for part in parts_of(result)}


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
    assert sum(shares(result).values()) == result.latency.mean_ns
    assert min(shares(result).values()) > 0


def test_the_servers_own_times_are_apart_from_the_network() -> None:
    found = shares(make_level())
    assert found["client"] == 26_700
    assert (found["queue"], found["input"], found["infer"], found["output"]) == (25_000, 5800, 63_500, 17_800)
    assert found["overhead"] == 1400
    assert found["network"] == 221_400 - 26_700 - 113_500


def test_what_a_late_request_waited_is_its_own_part() -> None:
    assert shares(late())["late"] == 21_400


def test_a_cache_counts_for_all_requests_not_only_those_it_answered() -> None:
    server = make_level().server
    assert server is not None
    cached = replace(server, cache_hit_count=1, cache_hit_ns=8152 * 300)
    assert shares(make_level(server=cached))["cache"] == 300


@pytest.mark.parametrize("frame", [WIDE, COMPACT])
def test_segments_lie_end_to_end_and_none_is_outside(frame: BarFrame) -> None:
    drawn = lay_out("k", [("1", parts_of(make_level(1))), ("late", parts_of(late()))], frame)
    for row in drawn.rows:
        for before, after in zip(row.segments, row.segments[1:], strict=False):
            assert after.x == pytest.approx(before.x + before.width, abs=0.11)
        assert row.segments[-1].x + row.segments[-1].width <= frame.right
    assert [segment.kind for segment in drawn.rows[1].segments][:2] == ["late", "client"]


def test_nothing_is_drawn_of_levels_without_a_latency() -> None:
    assert breakdown_picture("breakdown", [("1", make_level(latency=None, client=None))]) is None


def test_bars_are_labelled_as_tables_write_latencies_whatever_the_axis_counts() -> None:
    named = [
        ("a", [Part(kind="queue", duration_ns=870_000)]),
        ("b", [Part(kind="queue", duration_ns=1_260_000)]),
    ]
    drawn = lay_out("k", named, WIDE)
    assert drawn.x_title == "Mean latency (ms)"
    assert [row.total for row in drawn.rows] == ["870 \u00b5s", "1.26 ms"]
