"""When a load is given up because nothing succeeds any more."""

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from tpx.perf.measure.level import HOPELESS_FAILURES, LOST_FAILURES, Liveness
from tpx.perf.records import Records

SECOND = 1_000_000_000


@dataclass
class Told:
    """As much of a load as a liveness looks at."""

    records: Records


def pulse_after(*looks: Iterable[tuple[float, bool]]) -> Liveness:
    """After rows that ended at these seconds, and succeeded or not, look by look."""
    load = Told(Records(block_rows=4))
    liveness = Liveness(load)  # type: ignore[arg-type]
    for rows in looks:
        for at_s, ok in rows:
            end = int(at_s * SECOND)
            load.records.append(end, end, end, end, end, 0 if ok else 500)
        assert isinstance(liveness.lost, str)
    return liveness


def failures(start_s: float, count: int, every_s: float) -> list[tuple[float, bool]]:
    return [(start_s + i * every_s, False) for i in range(count)]


def test_a_server_that_was_there_and_fails_for_long_is_lost() -> None:
    liveness = pulse_after([(0, True)], failures(1, 6, 1), failures(7, 5, 1))
    assert liveness.lost == "the last 11 requests failed, over 10 s"


@pytest.mark.parametrize(
    "looks",
    [
        [[(0, True)], failures(1, LOST_FAILURES - 1, 10)],
        [[(0, True)], failures(1, 1000, 0.001)],
        [[(0, True)], failures(1, 11, 1), [(13, True)], failures(14, 5, 1)],
        [[(0, True), *failures(1, 11, 1), (13, True), *failures(14, 5, 1)]],
        [failures(0, HOPELESS_FAILURES - 1, 1)],
        [[]],
    ],
    ids=["few", "short", "a success between looks", "a success within a look", "none yet", "nothing"],
)
def test_what_may_get_better_is_waited_for(looks: list[list[tuple[float, bool]]]) -> None:
    assert pulse_after(*looks).lost == ""


def test_a_server_that_never_answered_is_given_up_at_once() -> None:
    assert pulse_after(failures(0, HOPELESS_FAILURES, 0.001)).lost == "all 50 requests failed"
