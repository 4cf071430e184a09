"""`--processes N` runs the tests of several files at once.

The tests are collected once, which takes as long as a thousand of them; then processes are forked that have
them in memory. Each takes one file after another, the longest first, so that the tests of a file share their
servers. The first process alone reports.
"""

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

_APART = "tests/e2e/test_documented_commands.py"
"""Its tests share nothing, and one after another they would take longer than all others."""
_DIED = "the process that was to run this test has died"

Group = tuple[pytest.Item, ...]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--processes", type=int, default=1, help="processes that run tests, each a file at a time"
    )


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in several processes, if more than one was asked for and nothing failed before."""
    count: int = session.config.getoption("processes")
    if count == 1 or session.testsfailed or session.config.option.collectonly:
        return None
    if "hypothesis" in sys.modules:
        _make_a_text()
    groups = sorted(_groups(session.items), key=_weight, reverse=True)
    tickets, printer = os.pipe()
    os.write(printer, b"".join(number.to_bytes(2) for number in range(len(groups))))
    os.close(printer)
    workers = dict(_fork(session, groups, tickets) for _ in range(count))
    running = set(workers)
    try:
        _report(session, running)
    except session.Failed:
        for worker in running:
            os.kill(workers[worker], signal.SIGINT)
        raise
    finally:  # a terminal interrupts all processes by itself
        while os.read(tickets, 1024):
            pass
        for pid in workers.values():
            os.waitpid(pid, 0)
        os.close(tickets)
    return True


def _make_a_text() -> None:
    """Have hypothesis read what its first text needs: Unicode's tables, and the constants in all modules."""
    from hypothesis import given, settings
    from hypothesis.strategies import text

    settings(max_examples=1, database=None)(given(text())(lambda _: None))()


def _groups(items: list[pytest.Item]) -> Iterator[Group]:
    """Split the tests by file."""
    for file, tests in groupby(items, lambda item: item.nodeid.partition("::")[0]):
        if file == _APART:
            yield from ((test,) for test in tests)
        else:
            yield tuple(tests)


def _weight(group: Group) -> float:
    """Guess how long these tests take, from their marks."""
    return sum(
        0.01 + 0.2 * bool(test.get_closest_marker("e2e")) + 2 * bool(test.get_closest_marker("slow"))
        for test in group
    )


def _fork(session: pytest.Session, groups: list[Group], tickets: int) -> tuple[Connection, int]:
    """Start a process; return where it reports, and its id."""
    reports, ours = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            reports.close()
            _be_a_worker(session, groups, tickets, ours)
            atexit._run_exitfuncs()
        finally:
            if error := sys.exception():
                traceback.print_exception(error, file=sys.__stderr__)
            os._exit(0)
    ours.close()
    return reports, pid


def _be_a_worker(session: pytest.Session, groups: list[Group], tickets: int, reports: Connection) -> None:
    """Run files until none is left, or until the first process is interrupted."""
    plugins = session.config.pluginmanager
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files are those of the first process
    capture.start_global_capturing()
    writer = session.config.get_terminal_writer()
    plugins.unregister(name="terminalreporter")
    plugins.register(_Relay(session.config, writer, reports), "terminalreporter")
    tests = _taken(groups, tickets)
    test = next(tests, None)
    try:
        while test is not None:
            following = _Following(tests)
            test.ihook.pytest_runtest_protocol(item=test, nextitem=following)
            test = following.test
    except KeyboardInterrupt:
        reports.close()
    finally:
        session._setupstate.teardown_exact(None)
        capture.stop_global_capturing()


def _taken(groups: list[Group], tickets: int) -> Iterator[pytest.Item]:
    """Yield the tests of one file after another; a file that another process has taken is not among them."""
    while ticket := os.read(tickets, 2):
        yield from groups[int.from_bytes(ticket)]


class _Following:
    """Tells the end of a test what the next one shares with it; only then its file is taken."""

    def __init__(self, tests: Iterator[pytest.Item]) -> None:
        """Take it from these."""
        self._tests = tests

    @cached_property
    def test(self) -> pytest.Item | None:
        """The test, unless there is none."""
        return next(self._tests, None)

    def listchain(self) -> Sequence[object]:
        """Its file and all that it is in: what these share is kept."""
        return [] if self.test is None else self.test.listchain()


class _Relay:
    """Stands in for the terminal: sends what is to be reported, of each test at once."""

    def __init__(self, config: pytest.Config, writer: object, reports: Connection) -> None:
        """Send to the first process; `writer` is where a test that takes too long leaves its stacks."""
        self._tw = writer
        self._config = config
        self._reports = reports
        self._phases: list[dict[str, Any]] = []
        self._every_phase = config.option.durations is not None or config.option.xmlpath is not None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended; that fixtures are set up and torn down is no news."""
        if self._every_phase or report.when == "call" or not report.passed:
            data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
            self._phases.append(data)

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """A test has ended."""
        self._reports.send((nodeid, location, self._phases))
        self._phases = []


def _report(session: pytest.Session, running: set[Connection]) -> None:
    """Report until all processes have ended, and as failed what they left out."""
    hooks = session.config.hook
    missing = {test.nodeid: test.location for test in session.items}
    while running:
        for worker in wait(list(running)):
            assert isinstance(worker, Connection)
            message = _received(worker)
            if message is None:
                running.remove(worker)
                continue
            nodeid, location, phases = message
            hooks.pytest_runtest_logstart(nodeid=nodeid, location=location)
            for data in phases:
                report = hooks.pytest_report_from_serializable(config=session.config, data=data)
                hooks.pytest_runtest_logreport(report=report)
            hooks.pytest_runtest_logfinish(nodeid=nodeid, location=location)
            del missing[nodeid]
        if session.shouldfail or session.shouldstop:
            raise session.Failed(session.shouldfail or session.shouldstop)
    for nodeid, location in missing.items():
        report = pytest.TestReport(nodeid, location, {}, "failed", _DIED, "call")
        hooks.pytest_runtest_logreport(report=report)


def _received(worker: Connection) -> tuple[str, tuple[str, int | None, str], list[dict[str, Any]]] | None:
    """Return a test and the reports of its phases; None where a process has ended."""
    try:
        message: tuple[str, tuple[str, int | None, str], list[dict[str, Any]]] = worker.recv()
    except EOFError:
        return None
    return message
