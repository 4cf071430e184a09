"""Turns and resources."""

from collections.abc import Mapping

import pytest

from tpx.errors import ConfigError, UsageError
from tpx.serving.backends.contract import GLOBAL, Needs
from tpx.serving.scheduling.limiter import LimitedAdmission, RateLimiter, parse_resources

R = ("R", 0)


class Hall:
    """A limiter, and who was called."""

    def __init__(self, explicit: Mapping[tuple[str, int], int] | None = None) -> None:
        self.limiter = RateLimiter(explicit or {})
        self.called: list[str] = []

    def turn(
        self, name: str, count: int = 1, priority: int = 1, resource: tuple[str, int] = R
    ) -> LimitedAdmission:
        needs = Needs(resources={resource: count} if count else {}, priority=priority)
        turn = self.limiter.admission(needs, lambda: self.called.append(name))
        turn.enter()
        return turn

    def run(self, turns: Mapping[str, LimitedAdmission], rounds: int) -> list[str]:
        """All of them always have work; who computed, in order."""
        ran = []
        for turn in turns.values():
            turn.stage()
        for _ in range(rounds):
            [(name, turn)] = [(name, turn) for name, turn in turns.items() if turn.granted]
            ran.append(name)
            turn.done(["more"])
        return ran


def test_who_needs_nothing_always_has_a_turn() -> None:
    hall = Hall()
    free = hall.turn("free", count=0)
    hungry = hall.turn("hungry", 2)
    assert hungry.stage()
    assert free.stage()


def test_of_an_unknown_amount_there_is_as_much_as_the_neediest_takes() -> None:
    hall = Hall()
    big, small, other = hall.turn("big", 4), hall.turn("small", 2), hall.turn("other", 2)
    assert small.stage()
    assert other.stage()
    assert not big.stage()


def test_an_explicit_amount_limits_what_runs_at_the_same_time() -> None:
    hall = Hall({("R", GLOBAL): 3})
    turns = [hall.turn(str(n)) for n in range(5)]
    assert [turn.stage() for turn in turns] == [True, True, True, False, False]
    turns[0].done([])
    assert hall.called == ["3"]
    assert turns[3].granted


def test_the_one_in_front_holds_back_those_that_want_the_same() -> None:
    hall = Hall({R: 4})
    one, big, late = hall.turn("one"), hall.turn("big", 4), hall.turn("late")
    assert one.stage()
    assert not big.stage()
    assert not late.stage(), "a stream of small ones would starve the big one"
    one.done([])
    assert hall.called == ["big"]
    big.done([])
    assert hall.called == ["big", "late"]


def test_the_one_in_front_does_not_hold_back_those_that_want_something_else() -> None:
    hall = Hall({R: 1})
    one, two, other = hall.turn("one"), hall.turn("two"), hall.turn("other", resource=("Q", 0))
    assert one.stage()
    assert not two.stage()
    assert other.stage()


def test_devices_have_resources_of_their_own() -> None:
    hall = Hall({("R", GLOBAL): 1})
    first, second = hall.turn("0", resource=("R", 0)), hall.turn("1", resource=("R", 1))
    assert first.stage()
    assert second.stage()


def test_turns_go_by_executions_times_priority() -> None:
    hall = Hall()
    turns = {"a": hall.turn("a", priority=1), "b": hall.turn("b", priority=3)}
    ran = hall.run(turns, 40)
    assert ran.count("a") == 30
    assert max(map(len, "".join(ran).split("b"))) <= 4, "b's turns are spread"


def test_who_comes_later_is_not_owed_what_it_missed() -> None:
    hall = Hall()
    turns = {"old": hall.turn("old"), "older": hall.turn("older")}
    hall.run(turns, 100)
    turns["new"] = hall.turn("new")
    assert sorted(hall.run(turns, 6)) == ["new", "new", "old", "old", "older", "older"]


def test_who_has_no_work_after_all_lets_the_next_one_go() -> None:
    hall = Hall()
    idle, busy = hall.turn("idle"), hall.turn("busy")
    assert idle.stage()
    assert not busy.stage()
    idle.withdraw()
    assert hall.called == ["busy"]


def test_who_withdraws_from_the_row_is_not_called() -> None:
    hall = Hall()
    busy, bored = hall.turn("busy"), hall.turn("bored")
    assert busy.stage()
    assert not bored.stage()
    bored.withdraw()
    busy.done([])
    assert not hall.called


def test_what_an_ended_instance_held_is_free_again() -> None:
    hall = Hall()
    ended, next_one = hall.turn("ended"), hall.turn("next")
    assert ended.stage()
    assert not next_one.stage()
    ended.leave()
    assert hall.called == ["next"]


def test_an_instance_that_could_never_run_is_a_configuration_error() -> None:
    limiter = RateLimiter({("R", GLOBAL): 2})
    with pytest.raises(ConfigError) as caught:
        limiter.check([Needs(resources={R: 1}), Needs(resources={R: 5})])
    assert caught.value.message == (
        'Resource count for "R" is limited to 2 which will prevent scheduling of one or more model '
        "instances, the minimum required count is 5"
    )


def test_the_amount_of_a_device_goes_before_that_of_all() -> None:
    limiter = RateLimiter({("R", GLOBAL): 2, ("R", 1): 9})
    limiter.check([Needs(resources={("R", 1): 9})])
    with pytest.raises(ConfigError):
        limiter.check([Needs(resources={("R", 0): 9})])


def test_the_device_of_a_shared_resource_means_nothing() -> None:
    RateLimiter({("R", 3): 9}).check([Needs(resources={("R", GLOBAL): 9})])


def test_a_resource_is_shared_by_all_devices_or_by_none() -> None:
    with pytest.raises(ConfigError) as caught:
        RateLimiter({}).check([Needs(resources={R: 1}), Needs(resources={("R", GLOBAL): 1})])
    assert caught.value.message == (
        'Resource "R" is present as both global and device-specific resource in the model configuration.'
    )


def test_resources_are_read_from_flags() -> None:
    assert parse_resources(["A:4", "B:2:1", "B:3:0"]) == {("A", GLOBAL): 4, ("B", 1): 2, ("B", 0): 3}


@pytest.mark.parametrize("flag", ["", "A", "A:", ":3", "A:x", "A:1:x", "A:-1", "A:1:2:3", "A:1:"])
def test_what_is_no_resource_is_refused(flag: str) -> None:
    with pytest.raises(UsageError, match="--rate-limit-resource must be <name>:<count>"):
        parse_resources([flag])


def test_two_amounts_of_one_resource_are_refused() -> None:
    with pytest.raises(UsageError, match="gives 'A' twice"):
        parse_resources(["A:1", "A:2"])
