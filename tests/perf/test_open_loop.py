"""Rates over real connections: what a stall shows, and that a rate is a rate."""

import asyncio
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.perf.servers import Behaviour, grpc_server, http_server
from tpx.argv import from_argv
from tpx.perf.levels import Level
from tpx.perf.loads.base import LoadRequest, open_load
from tpx.perf.loads.rate import RateLoad
from tpx.perf.loops import event_loop
from tpx.perf.options import SessionSpec
from tpx.perf.report.model import Report
from tpx.perf.results import LevelResult
from tpx.perf.run import run
from tpx.perf.session import Session

SERVERS = {"http": http_server, "grpc": grpc_server}
BOTH = pytest.mark.parametrize("protocol", ["http", "grpc"])


def ran(protocol: str, behaviour: Behaviour, *words: str) -> Report:
    with SERVERS[protocol](behaviour) as url:
        config = from_argv(
            SessionSpec, ["-i", protocol, "-u", url, "-m", "net", "-p", "40", "-s", "500", *words]
        )
        with asyncio.Runner(loop_factory=event_loop) as runner:
            return runner.run(run(config))


def measured(protocol: str, behaviour: Behaviour, *words: str) -> LevelResult:
    (level,) = ran(protocol, behaviour, *words).levels
    return level


@pytest.mark.slow
def test_a_server_that_stalls_for_a_second_shows_it_to_those_who_wanted_to_send() -> None:
    """Service latency, which is all that perf_analyzer has, hides it: only what was in flight waited."""

    def stall(number: int) -> float:
        if number == 400:
            time.sleep(1)
        return 0.0

    words = "--request-rate-range 1000 --request-count 2500 --max-connections 8"
    level = measured("http", Behaviour(delay_s=stall), *words.split())
    assert level.latency is not None
    assert level.open_loop is not None
    assert level.requests == 2500
    assert level.latency.percentiles_ns[99.0] >= 500_000_000
    assert level.open_loop.service_latency.percentiles_ns[99.0] < 200_000_000
    assert level.open_loop.delayed > 500


@BOTH
def test_a_server_that_stalls_is_sent_all_that_is_due_meanwhile(protocol: str) -> None:
    """It takes neither requests nor connections; its listening socket queues about a hundred of these."""
    resume = threading.Event()

    def stall(_: int) -> float:
        assert resume.wait(60)
        return 0.0

    async def scene(url: str) -> tuple[int, int]:
        words = ["-i", protocol, "-u", url, "-m", "net", "--request-rate-range", "500"]
        config = from_argv(SessionSpec, words)
        async with Session(config) as session:
            level = Level("request_rate", 500)
            asked = LoadRequest(level=level, settings=session.settings)
            load = await open_load(session.connected, asked)
            assert isinstance(load, RateLoad)
            load.start(500)
            try:
                async with asyncio.timeout(30):
                    while load.in_flight < 500:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            finally:
                resume.set()
            await load.finished()
            await load.stop(5)
            return len(load.records), load.failed

    with SERVERS[protocol](Behaviour(delay_s=stall)) as url:
        assert asyncio.run(scene(url)) == (500, 0)


@BOTH
def test_a_rate_is_kept_whatever_the_answers_take(protocol: str) -> None:
    words = "--request-rate-range 60 --request-count 60"
    level = measured(protocol, Behaviour(delay_s=lambda _: 0.01), *words.split())
    assert level.open_loop is not None
    assert (level.requests, level.failed, level.level.mode) == (60, 0, "request_rate")
    assert 0 < level.throughput_infer_per_s < 62


def test_rates_are_swept_with_the_connections_that_there_are() -> None:
    report = ran("http", Behaviour(), "--request-rate-range", "100:300:100")
    assert [r.level.value for r in report.levels] == [100, 200, 300]
    assert all(r.requests for r in report.levels)


def test_intervals_of_a_file_are_sent_in_turn(tmp_path: Path) -> None:
    file = tmp_path / "gaps"
    file.write_text("1000\n3000\n")
    level = measured("http", Behaviour(), "--request-intervals", str(file), "--request-count", "40")
    assert (level.level.mode, level.level.value, level.requests) == ("custom_intervals", 500.0, 40)
    assert level.throughput_infer_per_s < 600  # a busy machine only makes it less


def test_requests_are_warmed_up_at_the_rate_and_not_counted() -> None:
    behaviour = Behaviour()
    words = "--request-rate-range 500 --request-count 20 --warmup-request-count 7"
    # perf_analyzer wants as many requests as the rate says; a list is not held to it
    level = measured("http", behaviour, *words.replace("500", "20").split())
    assert (level.requests, behaviour.infers) == (20, 27)


@pytest.mark.slow
def test_a_binary_search_finds_the_knee_of_a_server_with_one_place() -> None:
    """Answers take 4 ms one after the other: what is above 250 a second waits longer and longer."""
    free_at = [0.0]

    def one_at_a_time(_: int) -> float:
        now = time.monotonic()
        free_at[0] = max(free_at[0], now) + 0.004
        return free_at[0] - now

    words = "--request-rate-range 50:850:100 --binary-search -l 100 -p 150 -r 3"
    report = ran("http", Behaviour(delay_s=one_at_a_time), *words.split())
    assert report.answer is not None
    assert 100 <= report.answer.value <= 700


def test_slip_is_told_apart_from_latency() -> None:
    level = measured(
        "http", Behaviour(delay_s=lambda _: 0.002), "--request-rate-range", "50", "--request-count", "50"
    )
    assert level.latency is not None
    assert level.open_loop is not None
    figures = level.open_loop
    assert figures.slip.mean_ns + figures.service_latency.mean_ns == pytest.approx(
        level.latency.mean_ns, abs=2
    )
    assert np.isclose(figures.sent_per_s, level.throughput_infer_per_s)
