"""Worker processes against a real server."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest

from tests.perf.clients.running import workers
from tests.perf.conftest import FakeClient
from tests.perf.servers import Behaviour, grpc_server, http_server
from tests.waiting import eventually
from tpx.argv import from_argv
from tpx.errors import MeasurementError, UsageError, WireError
from tpx.perf.inputs.feed import RoundRobin
from tpx.perf.inputs.requests import Requests
from tpx.perf.levels import Level, LevelRange
from tpx.perf.loads.base import Loadable, LoadRequest, workers_for
from tpx.perf.loads.workers import WorkerPool
from tpx.perf.loops import event_loop
from tpx.perf.observer import Observer
from tpx.perf.options import SessionSpec
from tpx.perf.pace import PaceSpec
from tpx.perf.report.model import Report
from tpx.perf.results import DataSummary
from tpx.perf.run import run
from tpx.perf.settings import LevelSettings

SERVERS = {"http": http_server, "grpc": grpc_server}


def ran(protocol: str, behaviour: Behaviour, *words: str, observer: Observer | None = None) -> Report:
    with SERVERS[protocol](behaviour) as url:
        config = from_argv(
            SessionSpec, ["-i", protocol, "-u", url, "-m", "net", "-p", "100", "-s", "500", *words]
        )
        with asyncio.Runner(loop_factory=event_loop) as runner:
            return runner.run(run(config, observer=observer or Observer()))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_two_workers_measure_what_one_does(protocol: str) -> None:
    for count in ("1", "2"):
        behaviour = Behaviour(delay_s=lambda _: 0.1)
        words = ["--concurrency-range", "3", "--request-count", "30", "--workers", count]
        (level,) = ran(protocol, behaviour, *words).levels
        assert (behaviour.infers, level.requests, level.failed) == (30, 30, 0)
        assert level.server is not None
        assert level.server.success_count == 30
        assert level.latency is not None
        assert level.latency.min_ns >= 100_000_000
        assert 0 < level.throughput_infer_per_s <= 30
        assert level.in_flight <= 3.05


@pytest.mark.slow
def test_workers_share_a_schedule_and_sweep_levels() -> None:
    words = "--request-rate-range 50,100 --workers 2 --warmup-request-count 5 --request-distribution poisson"
    report = ran("http", Behaviour(), *words.split(), "-p", "250")
    assert [r.level.value for r in report.levels] == [50, 100]
    for level in report.levels:
        assert level.open_loop is not None
        assert level.throughput_infer_per_s > 0
        assert level.open_loop.connections >= 2
        assert 0 < level.client_busy < 1


@pytest.mark.slow
def test_failures_of_all_workers_are_counted_with_the_servers_words() -> None:
    behaviour = Behaviour(status=lambda n: 503 if n % 4 == 0 else 0)
    (level,) = ran(
        "http", behaviour, "--request-count", "40", "--concurrency-range", "2", "--workers", "2"
    ).levels
    (error,) = level.errors
    assert (error.code, error.count, level.requests) == ("HTTP 503", 10, 30)
    assert error.message == "failed on purpose with 503"


@pytest.mark.slow
def test_ctrl_c_while_workers_import_their_modules_shows_no_traceback() -> None:
    code = "import sys; from tpx.cli.perf import main; sys.exit(main(sys.argv[1:]))"
    words = ["-m", "net", "--workers", "2", "-p", "60000", "--concurrency-range", "2"]
    with http_server(Behaviour()) as url:
        command = [sys.executable, "-c", code, *words, "-u", url]
        run = psutil.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        eventually(lambda: len(workers(run)) == 2)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        _, said = run.communicate(timeout=25)
    assert run.returncode == 130
    assert "Traceback" not in said


class Empty:
    """Implements Loadable, of no requests, which no dataset lets happen."""

    client = FakeClient()
    requests = Requests(feed=RoundRobin([]), data=DataSummary())


@asynccontextmanager
async def nothing_to_send() -> AsyncIterator[Loadable]:
    yield Empty()


@pytest.mark.slow
def test_what_nobody_expected_in_a_worker_is_an_error_and_not_a_wait_for_ever() -> None:
    async def measure() -> None:
        async with WorkerPool(1, nothing_to_send) as pool:
            load = await pool.open_load(LoadRequest(level=Level("concurrency", 1), settings=LevelSettings()))
            load.start(5)
            await load.finished()

    with pytest.raises(MeasurementError, match=r"worker 1 of 1 .* ended unexpectedly \(exit code 1\)"):
        asyncio.run(asyncio.wait_for(measure(), 30))


@pytest.mark.slow
def test_a_server_that_goes_away_is_the_workers_own_error() -> None:
    class Gone(Observer):
        def level_started(self, level: Level) -> None:
            servers.pop().__exit__(None, None, None)

    server = http_server(Behaviour())
    servers = [server]
    url = server.__enter__()
    words = ["-u", url, "-m", "net", "--workers", "2", "--concurrency-range", "2"]
    config = from_argv(SessionSpec, words)
    with asyncio.Runner(loop_factory=event_loop) as runner, pytest.raises(WireError, match="cannot connect"):
        runner.run(run(config, observer=Gone()))
    assert workers() == []


@pytest.mark.parametrize(
    ("levels", "plan", "processors", "expected"),
    [
        (LevelRange(start=1), LevelSettings(), 16, 1),
        (LevelRange(start=1, end=256), LevelSettings(), 16, 2),
        (LevelRange(mode="request_rate", start=50_000), LevelSettings(), 16, 3),
        (LevelRange(mode="request_rate", start=500_000), LevelSettings(), 16, 8),
        (LevelRange(mode="request_rate", start=500_000), LevelSettings(pace=PaceSpec(max_threads=3)), 16, 3),
        (LevelRange(mode="request_rate", start=500_000), LevelSettings(), 2, 1),
        (LevelRange(start=1), LevelSettings(pace=PaceSpec(workers=5)), 2, 5),
        (LevelRange(mode="request_rate", start=500_000), LevelSettings(sequences=4), 16, 4),
        (LevelRange(start=1, end=256), LevelSettings(sequences=1), 16, 2),
    ],
)
def test_a_run_gets_as_many_workers_as_its_load_needs(
    levels: LevelRange, plan: LevelSettings, processors: int, expected: int
) -> None:
    assert workers_for(levels, plan, processors) == expected


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ("--streaming", "--periodic-concurrency-range", "1:4", "--profile-export-file", "answers.json"),
            "a periodic concurrency grows by the answers to all of its requests, which one process sees",
        ),
    ],
)
def test_what_one_process_has_to_send_is_not_divided_silently(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=f"--workers 2: {reason}"):
        ran("grpc", Behaviour(), *words, "--workers", "2")
    assert workers() == []
