"""Supervisor process: starts an engine and its frontends, and restarts any of them that dies.

It has no event loop, no threads and no server state, so that no request can crash it. Children are
forked, so that a frontend is back within milliseconds. The supervisor holds the listening sockets, so
that no connection is refused meanwhile.
"""

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from tpx.errors import UsageError
from tpx.protocol.handshakes import bound_sockets
from tpx.serving.endpoints import BoundEndpoint
from tpx.serving.options import ServeConfig
from tpx.serving.processes.frontend import FrontendSpec, end_with

log = logging.getLogger(__name__)

_PAUSES_S = (0.0, 0.2, 1.0, 5.0, 30.0)
"""Delays before restarting a process that keeps ending before it has started, in seconds."""
_END_S = 0.5
"""Seconds for frontends to exit after the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Sockets and addresses of the engine process."""

    listening: socket.socket
    """Socket to which frontends connect."""
    count: int
    """Number of frontends."""
    bound: Sequence[BoundEndpoint]
    """Endpoints of the frontends."""
    metrics: Sequence[socket.socket]
    """Bound sockets of the metrics page."""
    started: int
    """File descriptor to write to when the server has started."""

    def report_started(self) -> None:
        """Report that the server has started; from now on the engine is restarted if it ends."""
        os.write(self.started, b"1")


@dataclass(slots=True)
class _Child:
    """A process to keep running."""

    name: str
    run: Callable[[], int]
    started_pipe: int
    """File descriptor to read a byte from for every time that the process has started."""
    sockets: Sequence[socket.socket] = ()
    """Sockets that it listens on; it closes those of the others."""
    pid: int = 0
    failed_starts: int = 0
    due_s: float = 0
    """Time of its next start."""

    def has_started(self) -> bool:
        """Return whether it has reported that it has started, since the last call."""
        try:
            return bool(os.read(self.started_pipe, 64))
        except BlockingIOError:
            return False

    def note_end(self) -> None:
        """Schedule its next start: at once, or after a pause if it has ended before it had started."""
        self.failed_starts = 0 if self.has_started() else self.failed_starts + 1
        self.due_s = time.monotonic() + _PAUSES_S[min(self.failed_starts, len(_PAUSES_S) - 1)]


@dataclass(slots=True)
class ProcessSupervisor:
    """Runs one engine and `count` frontends; each function is called in its own process."""

    config: ServeConfig
    engine: Callable[[EngineSpec], int]
    frontend: Callable[[FrontendSpec], int]

    def run(self) -> int:
        """Run until a signal; return the exit status, negative for a signal. Raises UsageError."""
        count = self.config.server.frontends
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind("")  # the kernel chooses an abstract address, without a file
        listening.listen(2 * count)
        sockets = self._bind_sockets(count)
        started, reports_started = os.pipe2(os.O_NONBLOCK)
        engine_spec = EngineSpec(
            listening=listening,
            count=count,
            bound=[
                BoundEndpoint(
                    service=service.name,
                    address=service.address,
                    port=sockets[service.flag][0][0].getsockname()[1],
                )
                for service in self.config.services
                if service.flag != "metrics"
            ],
            metrics=sockets["metrics"][0] if "metrics" in sockets else (),
            started=reports_started,
        )
        address = listening.getsockname()
        engine = _Child("the engine", partial(self.engine, engine_spec), started, engine_spec.metrics)
        frontends = []
        for index in range(count):
            own = {flag: each[index] for flag, each in sockets.items() if flag != "metrics"}
            started, reports_started = os.pipe2(os.O_NONBLOCK)
            spec = FrontendSpec(
                index=index, count=count, engine=address, sockets=own, started=reports_started
            )
            others = [sock for group in own.values() for sock in group]
            frontends.append(_Child(f"frontend {index}", partial(self.frontend, spec), started, others))
        every = [sock for each in sockets.values() for group in each for sock in group]
        return _ChildWatch(engine, frontends, every).run()

    def _bind_sockets(self, count: int) -> dict[str, list[list[socket.socket]]]:
        """Bind sockets for each service and frontend, without listening yet.

        Raises UsageError that names all ports in use.
        """
        out: dict[str, list[list[socket.socket]]] = {}
        taken: list[UsageError] = []
        for service in self.config.services:
            address, port = service.address, service.port
            try:
                if port and not service.reuse_port:  # SO_REUSEPORT would share it with another server
                    for sock in bound_sockets(address, port, reuse_port=False):
                        sock.close()
                groups = out[service.flag] = [bound_sockets(address, port, reuse_port=True)]
                port = port or groups[0][0].getsockname()[1]
                if service.flag != "metrics":  # only the engine serves metrics
                    groups += [bound_sockets(address, port, reuse_port=True) for _ in range(count - 1)]
            except OSError as exc:
                taken.append(service.in_use(exc))
        if taken:
            raise UsageError("; ".join(error.message for error in taken))
        return out


class _ChildWatch:
    """The supervisor's loop: signals, exits of children, and restarts."""

    def __init__(self, engine: _Child, frontends: list[_Child], sockets: Sequence[socket.socket]) -> None:
        self._engine = engine
        self._frontends = frontends
        self._sockets = sockets
        self._stopping = False
        self._started = False
        """True once the server is known to have started at least once."""
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, _ignore_signal)

    def run(self) -> int:
        for child in (self._engine, *self._frontends):
            self._start_child(child)
        while True:
            timeout_s = self._start_due()
            select.select([self._wake], [], [], timeout_s)
            self._handle_signals()
            status = self._reap_children()
            if status is not None:
                return status

    def _start_child(self, child: _Child) -> None:
        parent = os.getpid()
        child.due_s = 0
        child.pid = os.fork()
        if not child.pid:
            for sock in self._sockets:
                if sock not in child.sockets:
                    sock.close()
            _run_child(child, parent)

    def _start_due(self) -> float:
        """Start the children that are due; return the seconds until the next check."""
        now_s = time.monotonic()
        left_s = 1.0
        for child in (self._engine, *self._frontends):
            if child.pid or self._stopping:
                continue
            if child.due_s <= now_s:
                self._start_child(child)
            else:
                left_s = min(left_s, child.due_s - now_s)
        return left_s

    def _handle_signals(self) -> None:
        try:
            numbers = os.read(self._wake, 64)
        except BlockingIOError:
            return
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop_engine(number)

    def _stop_engine(self, number: int) -> None:
        """Stop the engine gracefully; it ends the frontends."""
        if not self._stopping:
            self._stopping = True
            for sock in self._sockets:
                sock.close()
        if self._engine.pid:
            os.kill(self._engine.pid, number)

    def _reap_children(self) -> int | None:
        """Handle children that have exited; return the exit status if the supervisor should end."""
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid = 0
            if not pid:
                break
            status = os.waitstatus_to_exitcode(wait_status)
            if pid == self._engine.pid:
                self._engine.pid = 0
                self._engine.note_end()
                self._started = self._started or not self._engine.failed_starts
                # not restarted if it ends before the server has started, for example because of its options
                if self._stopping or not self._started:
                    self._end_frontends()
                    return status
                _log_end(self._engine, status)
            for child in self._frontends:
                if pid == child.pid:
                    child.pid = 0
                    if not self._stopping:
                        child.note_end()
                        _log_end(child, status)
        if self._stopping and not self._engine.pid:
            self._end_frontends()
            return 0
        return None

    def _end_frontends(self) -> None:
        """Wait for the frontends, which the engine has ended, and kill those that remain."""
        ends_s = time.monotonic() + _END_S
        for child in self._frontends:
            while child.pid:
                if os.waitpid(child.pid, os.WNOHANG)[0]:
                    child.pid = 0
                elif time.monotonic() > ends_s:
                    os.kill(child.pid, signal.SIGKILL)
                    os.waitpid(child.pid, 0)
                    child.pid = 0
                else:
                    time.sleep(0.01)


def _log_end(child: _Child, status: int) -> None:
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    log.error("%s has ended %s: restarting it", child.name, how)


def _ignore_signal(number: int, frame: object) -> None:
    """Do nothing: the wake-up file descriptor reports the signal."""


def _name_process(name: str) -> None:
    """Show a child's part in `ps` and `top`, in at most 15 bytes."""
    Path("/proc/self/comm").write_text("tpx-" + name.removeprefix("the ").replace(" ", "-"))


def _run_child(child: _Child, parent: int) -> NoReturn:
    """Run the child's code; never returns to the supervisor's."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        end_with(parent)
        os.setsid()  # a terminal's signals are for the supervisor
        _name_process(child.name)
        status = child.run()
    except BaseException:
        log.exception("%s has failed", child.name)
    finally:
        logging.shutdown()
        os._exit(status)
