"""perf_analyzer's rule for asynchronous calls: at last, a throughput that is stable is enough."""

import pytest

from tests.perf.conftest import make_window
from tests.perf.parsing import parse
from tpx.perf.measure.rules import LATENCY_MOVES, rule_for
from tpx.perf.settings import LevelSettings

EVEN = [make_window(100, 200), make_window(101, 210), make_window(99, 205)]
LATENCY_GROWS = [make_window(100, 200), make_window(101, 400), make_window(99, 900)]
BOTH_MOVE = [make_window(100, 200), make_window(200, 400), make_window(99, 900)]


def test_the_throughput_is_enough_once_there_are_no_further_windows() -> None:
    rule = rule_for(LevelSettings(asynchronous=True, max_windows=3))
    status = rule.status(LATENCY_GROWS, [])
    assert (status.stable, status.warning) == (True, LATENCY_MOVES)


@pytest.mark.parametrize(
    "settings",
    [
        LevelSettings(asynchronous=False, max_windows=3),
        LevelSettings(asynchronous=True, max_windows=4),
    ],
)
def test_blocking_calls_and_levels_that_go_on_need_the_latency_too(settings: LevelSettings) -> None:
    assert not rule_for(settings).status(LATENCY_GROWS, []).stable


def test_a_throughput_that_moves_is_never_enough() -> None:
    rule = rule_for(LevelSettings(asynchronous=True, max_windows=3))
    assert not rule.status(BOTH_MOVE, []).stable


def test_what_is_stable_altogether_is_not_doubted() -> None:
    status = rule_for(LevelSettings(asynchronous=True, max_windows=3)).status(EVEN, [])
    assert (status.stable, status.warning) == (True, "")


@pytest.mark.parametrize(
    ("words", "sequences", "expected"),
    [
        ((), False, False),
        (("--async",), False, True),
        (("-a",), False, True),
        (("-i", "grpc", "--streaming"), False, True),
        ((), True, True),
        (("--sync",), True, False),
    ],
)
def test_streams_and_sequences_are_asynchronous_by_themselves(
    words: tuple[str, ...], sequences: bool, expected: bool
) -> None:
    config = parse(*words)
    assert config.wire.calls_asynchronously(sequences=sequences) is expected
