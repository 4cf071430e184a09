"""What wake-ups have to do with a latency, and waiting without them."""

import asyncio
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest

from tests.perf.conftest import PLAIN_SPEC, FakeClient, make_level, make_session, measure
from tests.perf.servers import Behaviour, grpc_server, http_server
from tpx.argv import from_argv
from tpx.errors import UsageError
from tpx.perf.levels import Level
from tpx.perf.loops import event_loop, waiting
from tpx.perf.measure import wakeups
from tpx.perf.measure.wakeups import is_local, may_dominate, processors_awake, wakeup_ns
from tpx.perf.options import SessionSpec
from tpx.perf.pace import PaceSpec
from tpx.perf.report.level_text import level_block
from tpx.perf.report.model import Report
from tpx.perf.results import WakeUps
from tpx.perf.run import run
from tpx.perf.settings import LevelSettings

QUICK = LevelSettings(request_count=20)


def test_a_wake_up_is_measured_in_microseconds_and_leaves_the_thread_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    assert 100 < wakeup_ns(50) < 100_000_000
    assert os.sched_getaffinity(0) == before


def idlers() -> list[int]:
    """Children of this process that run at idle priority."""
    children = psutil.Process().children()
    return [each.pid for each in children if os.sched_getscheduler(each.pid) == os.SCHED_IDLE]


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for something that other processes do."""
    while not is_so():
        time.sleep(0.01)


def test_processors_are_kept_awake_for_a_server_on_this_machine_until_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakeups, "usable_processors", lambda: 99.0)
    with processors_awake("localhost:8000"):
        eventually(lambda: len(idlers()) == len(os.sched_getaffinity(0)))
    assert idlers() == []


@pytest.mark.parametrize(("address", "processors"), [("gpu.example:8000", 99.0), ("localhost:8000", 0.5)])
def test_no_processor_is_kept_awake_for_a_server_elsewhere_or_within_a_limit(
    monkeypatch: pytest.MonkeyPatch, address: str, processors: float
) -> None:
    monkeypatch.setattr(wakeups, "usable_processors", lambda: processors)
    monkeypatch.setattr(subprocess, "Popen", None)
    with processors_awake(address):
        pass


def test_spinners_end_with_a_killed_parent() -> None:
    code = "import time; from tpx.perf.measure import wakeups; wakeups.usable_processors = lambda: 99\n"
    code += "with wakeups.processors_awake('localhost'): print('on', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"on\n"
        children = psutil.Process(parent.pid).children()
        assert children
        parent.kill()
    eventually(
        lambda: all(not each.is_running() or each.status() == psutil.STATUS_ZOMBIE for each in children)
    )


def test_wake_ups_are_looked_for_where_few_are_in_flight_and_answers_come_soon() -> None:
    assert may_dominate(Level("concurrency", 4), 100_000)
    assert not may_dominate(Level("concurrency", 5), 100_000)
    assert not may_dominate(Level("concurrency", 1), 2_000_000)
    assert not may_dominate(Level("request_rate", 1), 100_000)


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("localhost:8000", True),
        ("http://127.0.0.1:8000", True),
        ("[::1]:8001", True),
        ("10.0.0.7:8000", False),
        ("https://gpu.example:443", False),
    ],
)
def test_a_server_on_this_machine_is_woken_here_too(address: str, *, local: bool) -> None:
    assert is_local(address) is local


def measured(monkeypatch: pytest.MonkeyPatch, cost_ns: int, settings: LevelSettings = QUICK) -> str:
    """The first warning of a level whose requests take about half a millisecond, or nothing."""
    monkeypatch.setattr(wakeups, "SLOW_NS", 1_000_000_000)
    monkeypatch.setattr(wakeups, "wakeup_ns", lambda: cost_ns)
    client = FakeClient(service_s=0.0005)
    result = measure(make_session(client), Level("concurrency", 1), settings)
    assert (result.wake_ups is not None) is bool(result.warnings)
    return "".join(result.warnings)


def test_a_level_that_wake_ups_dominate_says_so_with_their_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    said = measured(monkeypatch, 500_000_000)
    assert said.startswith("Wake-ups dominate: a wake-up costs 500000.0 usec on this machine")
    assert "--poll busy measures without" in said
    assert not measured(monkeypatch, 1)
    assert not measured(monkeypatch, 500_000_000, replace(QUICK, with_engine=True))


def test_where_wake_ups_dominate_their_cost_stands_in_the_place_of_an_interval() -> None:
    level = make_level(wake_ups=WakeUps(cost_ns=38_000, share=0.72))
    text = level_block(level, PLAIN_SPEC)
    assert "Wake-ups dominate: a wake-up costs 38.0 usec on this machine" in text
    assert "those of a request are 72% of the p50" in text
    assert "95%" not in text


class Watched(selectors.DefaultSelector):
    """Remembers how long the loop was ready to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float | None] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.timeouts.append(timeout)
        return super().select(timeout)


def test_a_polling_loop_never_sleeps_and_sleeps_again_afterwards() -> None:
    selector = Watched()

    async def scene() -> None:
        with waiting("busy"):
            selector.timeouts.clear()
            await asyncio.sleep(0.01)
            assert set(selector.timeouts) == {0}
            assert len(selector.timeouts) > 10
        await asyncio.sleep(0.01)
        assert set(selector.timeouts) != {0}

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(scene())


def polled(protocol: str, *words: str) -> Report:
    serve = {"http": http_server, "grpc": grpc_server}[protocol]
    with serve(Behaviour()) as url:
        argv = ["-i", protocol, "-u", url, "-m", "net", "--request-count", "50", "--poll", "busy", *words]
        with asyncio.Runner(loop_factory=event_loop) as runner:
            return runner.run(run(from_argv(SessionSpec, argv)))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_that_polls_measures_and_is_not_called_busy(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpx.perf.pace.usable_processors", lambda: 2.0)
    (level,) = polled(protocol, "--concurrency-range", "2").levels
    assert (level.requests, level.failed, level.verdict.value) == (50, 0, "ok")
    assert level.wake_ups is None
    assert "not able to keep up" not in level_block(level, replace(PLAIN_SPEC, pace=PaceSpec(poll="busy")))


def test_polling_is_refused_without_a_processor_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpx.perf.pace.usable_processors", lambda: 1.5)
    with pytest.raises(UsageError, match=r"--poll busy needs a dedicated processor, .* may use 1\.5"):
        from_argv(SessionSpec, ["-m", "net", "--poll", "busy"])


def test_polling_is_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpx.perf.pace.usable_processors", lambda: 8.0)
    with pytest.raises(UsageError, match="--workers 2: --poll busy polls in one process"):
        polled("http", "--workers", "2")
