"""Rules of stability on made-up requests, window by window: when they look, what they keep, when they end."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.perf.conftest import make_window
from tpx.perf.measure.estimates import Sample
from tpx.perf.measure.rules import (
    AllWindows,
    Brief,
    LatencyLimit,
    LevelStatus,
    Precision,
    StabilityRule,
    ThreeWindows,
    leading_warmup,
    rule_for,
)
from tpx.perf.objectives import Compliance, parse_objectives
from tpx.perf.results import Window
from tpx.perf.settings import LevelSettings

SECOND_NS = 1_000_000_000
CI = LevelSettings(rule="ci", stability=0.1, max_windows=40)
(P99,) = parse_objectives("p99<1ms")


class Server:
    """Windows of a second each and their requests, whose times are even or by chance."""

    def __init__(self, *rates: int, latency_us: float = 200, even: bool = True, slow: int = 0) -> None:
        """`slow` is the number of requests of each window that take 2 ms."""
        chance = np.random.default_rng(1)
        self.windows: list[Window] = []
        self.samples: list[Sample] = []
        for number, rate in enumerate(rates):
            place = (np.arange(rate) + 0.5) / rate if even else np.sort(chance.random(rate))
            latencies = np.full(rate, int(latency_us * 1000), np.int64)
            latencies[np.linspace(0, rate - 1, slow).astype(int)] = 2_000_000
            start = number * SECOND_NS
            self.windows.append(make_window(rate, latency_us))
            self.samples.append(
                Sample(
                    start_ns=start,
                    end_ns=start + SECOND_NS,
                    ends=(start + place * SECOND_NS).astype(np.int64),
                    latencies=latencies,
                    ok=np.ones(rate, bool),
                )
            )

    def judged(self, rule: StabilityRule) -> list[LevelStatus]:
        """What a rule says after each window."""
        counts = range(1, len(self.windows) + 1)
        return [rule.status(self.windows[:count], self.samples[:count]) for count in counts]


def stable(statuses: Sequence[LevelStatus]) -> list[bool]:
    return [status.stable for status in statuses]


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (LevelSettings(rule="ci"), Precision),
        (LevelSettings(rule="pa"), ThreeWindows),
        (LevelSettings(rule="brief"), Brief),
        (LevelSettings(rule="ci", request_count=10), AllWindows),
        (LevelSettings(rule="ci", fixed_windows=2), AllWindows),
        (LevelSettings(rule="pa", latency_limit_ms=1), LatencyLimit),
    ],
)
def test_settings_choose_the_rule(settings: LevelSettings, kind: type[StabilityRule]) -> None:
    assert type(rule_for(settings)) is kind


def test_two_looks_in_a_row_find_the_intervals_narrow() -> None:
    statuses = Server(*[1000] * 5).judged(Precision(CI))
    assert stable(statuses)[:4] == [False, False, False, True]
    assert [s.kept for s in statuses[:4]] == [1, 2, 3, 4]


def test_each_look_needs_a_quarter_more_windows_than_the_last() -> None:
    """A level that could end whenever it looks steady would be chosen for looking so."""
    statuses = Server(*[200] * 13, even=False).judged(Precision(replace(CI, stability=0.001)))
    told = ["", *(s.moved for s in statuses)]
    looks = [count for count in range(1, 14) if told[count] != told[count - 1] and count > 1]
    assert looks == [3, 4, 5, 7, 9, 12]
    assert not any(stable(statuses))


def test_the_last_look_counts_alone() -> None:
    assert stable(Server(*[1000] * 3).judged(Precision(replace(CI, max_windows=3)))) == [False, False, True]
    # after looks at 3, 4 and 5 windows the next is due at 7
    by_chance = Server(*[400] * 6, even=False)
    last = by_chance.judged(Precision(replace(CI, stability=0.09, max_windows=6)))
    assert [s.moved for s in last][-1] != last[-2].moved
    wide = Server(*[200] * 3, even=False).judged(Precision(replace(CI, stability=0.001, max_windows=3)))
    assert not any(stable(wide))


def test_both_throughput_and_latency_must_be_known_to_half_the_tolerance() -> None:
    by_chance = Server(*[400] * 8, even=False)
    half_widths = Precision(replace(CI, stability=0.0)).status(by_chance.windows[:3], by_chance.samples[:3])
    assert "throughput is known to +-6.9%, latency to +-0.0%; +-0% are wanted" in half_widths.moved
    looked = {
        tolerance: Precision(replace(CI, stability=tolerance, max_windows=3)).status(
            by_chance.windows[:3], by_chance.samples[:3]
        )
        for tolerance in (0.12, 0.15)
    }
    assert {tolerance: status.stable for tolerance, status in looked.items()} == {0.12: False, 0.15: True}
    slow = Server(*[1000] * 3, slow=30)  # its mean is known to 1.7%
    for tolerance, ends in ((0.03, False), (0.04, True)):
        rule = Precision(replace(CI, stability=tolerance, max_windows=3))
        assert rule.status(slow.windows, slow.samples).stable is ends


def test_steady_windows_are_needed_and_a_window_without_answers_is_not_one() -> None:
    server = Server(*[1000] * 4)
    server.windows[1] = make_window(0, 0, failed=5)
    statuses = server.judged(Precision(CI))
    assert statuses[3].moved == "3 steady windows are needed, there were 4"
    assert not any(stable(statuses))


def test_a_trial_ends_once_its_throughput_is_known_well_enough() -> None:
    rule = Brief(LevelSettings(rule="brief", stability=0.1))
    assert stable(Server(1000).judged(rule)) == [True]
    by_chance = Server(300, 300, even=False)
    for tolerance, ends in ((0.14, [False, False]), (0.18, [False, True])):
        statuses = by_chance.judged(Brief(LevelSettings(rule="brief", stability=tolerance)))
        assert stable(statuses) == ends
        assert [s.kept for s in statuses] == [1, 2]
    by_chance.windows[0] = make_window(0, 0, failed=1)
    (failed, _) = by_chance.judged(rule)
    assert (failed.stable, failed.kept, failed.moved) == (False, 1, "a window had no valid request")


def test_with_objectives_similar_windows_are_only_the_beginning() -> None:
    objectives = LevelSettings(rule="pa", stability=0.1, objectives=(P99,))
    rates = (1000, 1000, 1000, 1000, 1500)
    alone, with_goals = (
        Server(*rates).judged(ThreeWindows(settings))
        for settings in (LevelSettings(rule="pa", stability=0.1), objectives)
    )
    assert [s.kept for s in alone] == [1, 2, 3, 3, 3]
    assert stable(alone) == [False, False, True, True, False]
    assert [s.kept for s in with_goals] == [1, 2, 3, 4, 5]
    assert stable(with_goals) == [False, False, True, True, True]
    assert alone[1].moved == "3 windows are needed, there were 2"
    assert alone[2].moved == "throughput moved by 0.0%, latency by 0.0%"
    late = Server(1000, 1500, 1500, 1500).judged(ThreeWindows(objectives))
    assert stable(late) == [False, False, False, True]


def test_the_warm_up_is_not_kept_and_is_at_most_half_of_the_windows() -> None:
    objectives = LevelSettings(rule="pa", stability=0.1, objectives=(P99,))
    last = Server(300, 1000, 1001, 1000, 999).judged(ThreeWindows(objectives))[-1]
    assert (last.warmup, last.kept) == (1, 4)
    slow = Server(300, 400, 500, 1000, 1001)
    assert leading_warmup(slow.windows, slow.samples, 0.1) <= 2
    assert leading_warmup(slow.windows[:3], slow.samples[:3], 0.1) == 0


@pytest.mark.parametrize(
    ("rate", "slow", "most", "outcomes"),
    [
        # of 3 windows: 0 of 960 requests are slow, certain at once; 0 of 600 only at the second look
        (320, 0, 10, [None, None, Compliance.MET]),
        (200, 0, 10, [None, None, Compliance.UNDECIDED, Compliance.MET]),
        # no window follows: what the last look says counts
        (200, 0, 3, [None, None, Compliance.MET]),
        (600, 0, 1, [Compliance.MET]),
        # every third request is slow, one in forty, or so few that 800 do not tell
        (200, 60, 10, [None, None, Compliance.VIOLATED]),
        (200, 5, 10, [None, None, Compliance.UNDECIDED, Compliance.VIOLATED]),
        (200, 2, 4, [None, None, Compliance.UNDECIDED, Compliance.UNDECIDED]),
    ],
)
def test_a_latency_limit_is_settled_by_certainty_or_by_two_looks_in_a_row(
    rate: int, slow: int, most: int, outcomes: list[Compliance | None]
) -> None:
    settings = LevelSettings(rule="pa", stability=0.1, latency_limit_ms=1, percentile=99.0, max_windows=most)
    statuses = Server(*[rate] * len(outcomes), slow=slow).judged(rule_for(settings))
    assert [s.limit and s.limit.outcome for s in statuses] == outcomes


def test_an_interval_without_an_upper_end_is_said_to_have_none() -> None:
    few = Server(20, 20, 20)
    status = Precision(replace(CI, percentile=99.0)).status(few.windows, few.samples)
    assert "latency to no upper end (too few requests)" in status.moved
