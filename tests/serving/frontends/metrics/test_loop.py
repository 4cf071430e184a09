"""The load of the event loop, and when the log advises more processes."""

import threading
import time

import pytest
from msgspec.structs import replace

from tests.serving.frontends.metrics.pages import parse
from tpx.serving.frontends.metrics.loop import CpuTimes, LoopMetrics, cpu_times_of
from tpx.serving.frontends.metrics.text import render


class Machine:
    """Eight cores in a time of its own, of which the loop uses a part of one."""

    def __init__(self, *, advises: bool = True) -> None:
        self.now_s = 0.0
        self.times = CpuTimes(0.0, 0.0, 0.0, 0)
        self.probe = LoopMetrics(
            lambda: self.times, advises=advises, clock=lambda: self.now_s, cores=(8.0, 8.0)
        )

    def runs(self, seconds: int, loop: float, others: float = 0.0, polls: int = 0) -> float:
        """Sample each second; return the last utilization."""
        for _ in range(seconds):
            self.now_s += 1
            then = self.times
            self.times = replace(
                then,
                loop_s=then.loop_s + loop,
                process_s=then.process_s + loop,
                busy_s=then.busy_s + loop + others,
                polls=then.polls + polls,
            )
            page = parse("".join(render(self.probe.sample())))
        self.advised = page.value("tpx_advised_frontends")
        return page.value("tpx_event_loop_utilization")


def test_the_utilization_is_that_of_the_time_between_two_samples() -> None:
    machine = Machine()
    assert machine.runs(3, 0.9) == pytest.approx(0.9)
    assert machine.runs(1, 0.25) == pytest.approx(0.25)


def test_a_full_loop_beside_idle_cores_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.runs(4, 0.99)
    assert caplog.messages == []
    assert machine.advised == 0
    machine.runs(20, 0.99)
    assert machine.advised == 3
    assert caplog.messages == [
        "the event loop has filled its core for 5 s while 7 others were idle: --frontends 3 serves "
        "connections in more processes"
    ]


@pytest.mark.parametrize(
    "load",
    [{"loop": 0.9}, {"loop": 0.99, "others": 6.0}, {"loop": 0.99, "polls": 1}],
    ids=["not full", "no idle cores", "polling"],
)
def test_nothing_is_advised_where_frontends_would_not_help(
    load: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    machine, with_frontends = Machine(), Machine(advises=False)
    machine.runs(20, **load)  # type: ignore[arg-type]
    with_frontends.runs(20, 0.99)
    assert machine.advised == with_frontends.advised == 0
    assert caplog.messages == []


def test_the_advice_ends_with_the_load() -> None:
    machine = Machine()
    machine.runs(6, 0.99)
    assert machine.advised == 3
    machine.runs(1, 0.5)
    assert machine.advised == 0


def test_a_pause_begins_the_five_seconds_again(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    for _ in range(5):
        machine.runs(4, 0.99)
        machine.runs(1, 0.5)
    assert caplog.messages == []


def test_the_times_are_those_of_the_loops_thread() -> None:
    read = cpu_times_of(threading.current_thread(), lambda: 7)
    before = read()
    ends = time.thread_time() + 0.05
    while time.thread_time() < ends:
        pass
    sampled: list[CpuTimes] = []
    sampler = threading.Thread(target=lambda: sampled.append(read()))
    sampler.start()
    sampler.join()
    assert sampled[0].loop_s >= before.loop_s + 0.05
    assert sampled[0].process_s >= sampled[0].loop_s
    assert sampled[0].polls == 7
