"""Whole runs of the load generator against a server, as a test asks for them."""

import asyncio

import psutil

from tpx.argv import from_argv
from tpx.perf.loops import event_loop
from tpx.perf.options import SessionSpec
from tpx.perf.report.model import Report
from tpx.perf.results import LevelResult
from tpx.perf.run import run


def ran(*words: str) -> Report:
    """One run with short windows."""
    config = from_argv(SessionSpec, ["--assume-shapes", "-p", "60", "-s", "900", "-r", "4", *words])
    with asyncio.Runner(loop_factory=event_loop) as runner:
        return runner.run(run(config))


def level(*words: str) -> LevelResult:
    """The one level of a run."""
    (result,) = ran(*words).levels
    return result


def workers(of: psutil.Process | None = None) -> list[int]:
    """The worker processes of a run, oldest first; one process forks them."""
    servers = [c for c in (of or psutil.Process()).children() if "forkserver" in " ".join(c.cmdline())]
    forked = [worker for server in servers for worker in server.children()]
    return [worker.pid for worker in sorted(forked, key=psutil.Process.create_time)]
