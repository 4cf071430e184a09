"""How a soak notices that something is wrong."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.soak.kinds import over_http
from tests.soak.traffic import Kind, Target, Traffic, Wrong, expect

TARGET = Target(http_port=1, grpc_port=1, repository=Path())


class Client:
    """A kind of traffic that needs no server."""

    def __init__(self, answers: int = 1, problem: Exception | None = None) -> None:
        self.closed = 0
        self._answers = answers
        self._problem = problem

    def __call__(self, target: Target, rng: np.random.Generator) -> Iterator[int]:
        try:
            while True:
                yield self._answers
                if self._problem is not None:
                    raise self._problem
        finally:
            self.closed += 1


def traffic(**kinds: Kind) -> Traffic:
    return Traffic(TARGET, kinds)


def test_answers_are_counted_by_kind_and_clients_are_closed() -> None:
    one, five = Client(), Client(5)
    running = traffic(one=one, five=five)
    looks: list[float] = []
    running.run(0.05, lambda: looks.append(time.perf_counter()))
    assert running.failures == []
    assert running.counts["five"] >= 5
    assert running.counts["five"] % 5 == 0
    assert running.counts["one"] >= 1
    assert (one.closed, five.closed) == (1, 1)
    assert len(looks) == 1
    counted = running.counts["one"]
    running.run(0.05, lambda: None)
    assert running.counts["one"] > counted


@pytest.mark.parametrize("problem", [Wrong("2 x 2 is not 5"), ConnectionResetError("it hung up")])
def test_the_first_failure_ends_it_and_says_which(problem: Exception) -> None:
    running = traffic(good=Client(), bad=Client(problem=problem))
    begun = time.perf_counter()
    running.run(30, lambda: None)
    assert time.perf_counter() - begun < 10
    assert running.failures == [f"bad: {type(problem).__name__}: {problem}"]


def test_a_server_that_is_not_there_is_a_failure() -> None:
    running = traffic(http=over_http.binary)
    running.run(30, lambda: None)
    [failure] = running.failures
    assert failure.startswith("http: ConnectionRefusedError")


def test_what_is_not_so_is_told() -> None:
    expect(True, "nothing")
    with pytest.raises(Wrong, match="the sky is green"):
        expect(False, "the sky is green")


def test_a_wrong_double_is_found_among_many() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    over_http.check_double(rows * 2, rows, "test")
    wrong = rows * 2
    wrong[2, 3] += 1
    with pytest.raises(Wrong, match="test: double of"):
        over_http.check_double(wrong, rows, "test")
    with pytest.raises(Wrong):
        over_http.check_double((rows * 2)[:2], rows, "test")
