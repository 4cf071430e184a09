"""When a process that has died is started again."""

from tpx.serving.backends.python.process import Restarts

S = 10**9


def test_the_first_restart_is_at_once_and_later_ones_wait_longer() -> None:
    restarts = Restarts()
    delays = [restarts.died(index * S) for index in range(5)]
    assert delays[0] is not None
    assert delays[0] < 0.1
    assert delays == sorted(delays, key=lambda delay: delay or 0)
    assert all(delay is not None and delay <= 5 for delay in delays)


def test_many_deaths_in_a_minute_are_the_end() -> None:
    restarts = Restarts()
    outcomes = [restarts.died(index * S) for index in range(6)]
    assert outcomes[-1] is None
    assert None not in outcomes[:-1]


def test_a_death_now_and_then_goes_on_for_ever() -> None:
    restarts = Restarts()
    delays = {restarts.died(index * 61 * S) for index in range(100)}
    assert len(delays) == 1


def test_what_could_not_be_started_for_want_of_something_has_not_died() -> None:
    restarts = Restarts()
    for index in range(100):
        assert restarts.died(index) is not None
        assert restarts.pardon() >= 1
