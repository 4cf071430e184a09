"""Alarms, on the clock of this machine; nothing here depends on how late they are."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns

import pytest

from tpx.perf.loads.schedules import Alarm, LoopAlarm, TimerfdAlarm, alarm
from tpx.perf.loops import event_loop

Make = Callable[[Callable[[], None]], Alarm]


def timerfd(callback: Callable[[], None]) -> Alarm:
    return TimerfdAlarm(asyncio.get_running_loop(), callback, 0)


def timerfd_that_spins(callback: Callable[[], None]) -> Alarm:
    return TimerfdAlarm(asyncio.get_running_loop(), callback, 500_000)


def loop_timer(callback: Callable[[], None]) -> Alarm:
    return LoopAlarm(asyncio.get_running_loop(), callback)


EACH = pytest.mark.parametrize("make", [timerfd, timerfd_that_spins, loop_timer, alarm])


class Rings:
    """What an alarm called, and when."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.rung = asyncio.Event()

    def __call__(self) -> None:
        self.times.append(perf_counter_ns())
        self.rung.set()


@EACH
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, event_loop])
def test_an_alarm_rings_once_and_never_before_its_time(
    make: Make, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def scene() -> None:
        rings = Rings()
        clock = make(rings)
        due_ns = perf_counter_ns() + 5_000_000
        clock.set(due_ns)
        await asyncio.wait_for(rings.rung.wait(), 5)
        await asyncio.sleep(0.005)
        clock.close()
        assert len(rings.times) == 1
        assert rings.times[0] >= due_ns

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene())


@EACH
async def test_an_instant_that_has_passed_rings_at_once(make: Make) -> None:
    rings = Rings()
    clock = make(rings)
    clock.set(perf_counter_ns() - 1_000_000)
    await asyncio.wait_for(rings.rung.wait(), 5)
    clock.close()


@EACH
async def test_a_new_instant_takes_the_place_of_the_old_one(make: Make) -> None:
    rings = Rings()
    clock = make(rings)
    clock.set(perf_counter_ns() + 1_000_000)
    later_ns = perf_counter_ns() + 15_000_000
    clock.set(later_ns)
    await asyncio.wait_for(rings.rung.wait(), 5)
    clock.close()
    assert rings.times[0] >= later_ns


@EACH
async def test_a_nearer_instant_leaves_nothing_of_the_one_before(make: Make) -> None:
    rings = Rings()
    clock = make(rings)
    clock.set(perf_counter_ns() + 8_000_000)
    clock.set(perf_counter_ns() + 5_000)
    await asyncio.wait_for(rings.rung.wait(), 5)
    await asyncio.sleep(0.02)
    clock.close()
    assert len(rings.times) == 1


@EACH
async def test_a_closed_alarm_is_silent(make: Make) -> None:
    rings = Rings()
    clock = make(rings)
    clock.set(perf_counter_ns() + 1_000_000)
    clock.close()
    clock.close()
    await asyncio.sleep(0.01)
    assert rings.times == []


async def test_an_alarm_can_be_set_again_from_within_its_ring() -> None:
    times: list[int] = []
    done = asyncio.Event()

    def ring() -> None:
        times.append(perf_counter_ns())
        if len(times) == 5:
            done.set()
        else:
            clock.set(perf_counter_ns() + 500_000)

    clock = alarm(ring)
    clock.set(perf_counter_ns() + 500_000)
    await asyncio.wait_for(done.wait(), 5)
    clock.close()
    assert all(b - a >= 500_000 for a, b in pairwise(times))
