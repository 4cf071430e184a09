"""Users who begin one after another and think between requests, in virtual time."""

import re
from itertools import pairwise

import pytest

from tests.perf.measure.known_tokens import measured
from tpx.argv import from_argv
from tpx.errors import UsageError
from tpx.perf.options import SessionSpec

S = 1_000_000_000


def test_users_begin_evenly_and_think_after_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    level, streams = measured(monkeypatch, "--concurrency-range 4 --request-count 12 --think-time 8")
    first_ns = streams[0].received_ns
    assert [round((s.received_ns - first_ns) / S) for s in streams[:4]] == [0, 2, 4, 6]
    for user in range(4):
        for before, after in pairwise(streams[user::4]):
            assert after.received_ns - before.ended_ns == pytest.approx(8 * S, abs=S / 100)
    assert level.requests == 12
    assert not level.warnings  # fewer in flight than users is what is wanted


def test_think_times_differ_by_their_deviation_and_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def thought(seed: int) -> list[int]:
        words = f"--concurrency-range 1 --request-count 9 --think-time 8,sd=2 --seed {seed}"
        _, streams = measured(monkeypatch, words)
        return [after.received_ns - before.ended_ns for before, after in pairwise(streams)]

    times = thought(1)
    assert len(set(times)) == 8
    assert all(S < time < 15 * S for time in times)
    assert thought(1) == times
    assert thought(2) != times


def test_windows_begin_when_all_users_of_a_ramp_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    level, streams = measured(monkeypatch, "--concurrency-range 10 --ramp-seconds 20 -p 1000 -r 3")
    begun = [s.received_ns - streams[0].received_ns for s in streams]
    assert begun[0] == 0
    assert 2 * S in begun
    assert level.windows[0].start_ns - streams[0].received_ns == pytest.approx(20 * S, abs=S / 10)
    assert level.windows[0].requests > 30  # as many as ten users send, not those of the ramp's beginning
    assert level.stable


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--request-rate-range 5 --think-time 1", "--think-time requires --concurrency-range"),
        ("--request-rate-range 5 --ramp-seconds 1", "--ramp-seconds requires --concurrency-range"),
        ("--speed 2x", "--speed requires --fixed-schedule"),
        ("--speed fast", "a factor above 0 such as 2 or 0.5x"),
        ("--think-time 1,mean=3", "seconds above 0 such as 2 or 2,sd=0.5"),
    ],
)
def test_a_pace_that_does_not_fit_is_refused(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        from_argv(SessionSpec, ["-m", "llm", *words.split()])
