"""The load generator knows when it is itself what is measured."""

import asyncio
import time

import pytest

from tpx.perf.measure.level import LoopProbe
from tpx.perf.measure.verdict import client_bound
from tpx.perf.results import ClientCheck

MS = 1_000_000


def check(cpu: float, lag_ms: float = 0.0, slip_ms: float = 0.0) -> ClientCheck:
    return ClientCheck(cpu_share=cpu, loop_lag_p99_ns=int(lag_ms * MS), slip_p99_ns=int(slip_ms * MS))


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (check(0.5), ""),
        (check(0.95), "the client was busy 95% of the time"),
        (check(0.7, lag_ms=4), "its event loop lagged (p99 4.0 ms), which is part of the latencies"),
        (check(0.7, lag_ms=0.9), ""),
        (check(0.3, lag_ms=50), ""),
        (check(0.7, slip_ms=30), "sent requests late (p99 30.0 ms)"),
        (check(0.3, slip_ms=30), ""),
    ],
)
def test_a_client_is_the_limit_when_it_is_busy_or_busy_and_late(seen: ClientCheck, reason: str) -> None:
    assert reason in client_bound(seen, 10 * MS)
    assert bool(client_bound(seen, 10 * MS)) is bool(reason)


def test_the_probe_sees_a_loop_that_is_held_up() -> None:
    async def scene() -> tuple[int, int]:
        probe = LoopProbe()
        probe.start()
        begun = time.perf_counter_ns()
        await asyncio.sleep(0.2)
        calm = probe.p99_ns(begun, time.perf_counter_ns())
        held = time.perf_counter_ns()
        for _ in range(3):
            time.sleep(0.25)  # noqa: ASYNC251 (holding up the loop is what is tested)
            await asyncio.sleep(0)
        lag = probe.p99_ns(held, time.perf_counter_ns())
        probe.stop()
        return calm, lag

    calm, lag = asyncio.run(scene())
    assert lag > 15 * MS
    assert calm < lag


def test_a_probe_that_is_stopped_looks_no_more() -> None:
    async def scene() -> int:
        probe = LoopProbe()
        probe.start()
        await asyncio.sleep(0.03)
        probe.stop()
        stopped = time.perf_counter_ns()
        await asyncio.sleep(0.05)
        return probe.p99_ns(stopped + 5 * MS, time.perf_counter_ns())

    assert asyncio.run(scene()) == 0
