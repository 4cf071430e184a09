"""The process that forks the processes of models which run on the server's own interpreter."""

import atexit
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tpx.protocol.json_values import JsonObject

CHILD = Path(__file__).parent / "worker" / "child.py"
_ANSWER_BYTES = 4096
_ANSWER_S = 60.0
"""Time for an answer; the first one waits for the imports."""
_READ_AT_START = ("GLIBC_", "GOTO_", "LD_", "MALLOC_", "MKL_", "NPY_", "OMP_", "OPENBLAS_", "PYTHON")
"""Beginnings of the variables that an interpreter, its C library and numpy read when they start."""


class ForkedProcess:
    """A process of a model, with what is used of `subprocess.Popen`."""

    def __init__(self, server: "ForkServer", pid: int, descriptor: int) -> None:
        """`descriptor` is readable once the process has ended; the caller closes it."""
        self.pid = pid
        self.descriptor = descriptor
        self._server = server
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the status as Popen does. Raises subprocess.TimeoutExpired."""
        if self._status is None:
            ended = select.poll()
            ended.register(self.descriptor, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(str(CHILD), timeout or 0)
            self._status = self._server.reap(self.pid)
        return self._status


class ForkServer:
    """A process that forks others, started when the first one is needed."""

    def __init__(self) -> None:
        """Start it. Raises OSError."""
        self._environment = dict(os.environ)
        self._lock = threading.Lock()
        self._orders, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.settimeout(_ANSWER_S)
        with other_end:
            self._process = subprocess.Popen(
                [sys.executable, str(CHILD), "fork", str(other_end.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[other_end.fileno()],
                start_new_session=True,  # a terminal's signals are for the server
            )
        atexit.register(self._end)

    @property
    def alive(self) -> bool:
        """Return whether it can start processes."""
        return self._process.poll() is None

    def start(self, descriptors: Sequence[int], directory: Path | None) -> ForkedProcess:
        """Start a process that serves these descriptors. Raises OSError, ConnectionError if it has ended."""
        now, then = os.environ, self._environment
        changes = {name: now.get(name) for name in {*now, *then} if now.get(name) != then.get(name)}
        order = {"directory": None if directory is None else str(directory), "environment": changes}
        answer, process = self._ask(order, [1, 2, *descriptors])
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        if not process:  # this process has no room for another descriptor
            os.kill(answer["pid"], signal.SIGKILL)
            self.reap(answer["pid"])
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return ForkedProcess(self, answer["pid"], *process)

    def reap(self, pid: int) -> int:
        """Return the status of a process that has ended; 0 if the one that started it has ended, too."""
        with suppress(OSError):
            return int(self._ask({"reap": pid})[0]["status"])
        return 0

    def _ask(self, order: JsonObject, descriptors: Sequence[int] = ()) -> tuple[JsonObject, list[int]]:
        with self._lock:
            try:
                socket.send_fds(self._orders, [json.dumps(order).encode()], descriptors)
                packet, received, _, _ = socket.recv_fds(self._orders, _ANSWER_BYTES, 1)
            except TimeoutError as exc:
                self._process.kill()  # a late answer would be taken for that to the next order
                raise ConnectionResetError("the process that starts models does not answer") from exc
        if not packet:
            raise ConnectionResetError("the process that starts models has ended")
        return json.loads(packet), received

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


class _Current:
    """The servers of this process, by the variables that are read at the start."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.servers: dict[frozenset[tuple[str, str]], ForkServer] = {}


_current = _Current()
_others: list[_Current] = []
"""Servers of the processes that this one was forked from."""


def _leave_to_parent() -> None:
    global _current
    _others.append(_current)
    _current = _Current()


os.register_at_fork(after_in_child=_leave_to_parent)


def fork_server() -> ForkServer | None:
    """Return the server for the next process, None where the system has none. Raises OSError."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return None  # no Linux, or one before 5.3
    known = frozenset(each for each in os.environ.items() if each[0].startswith(_READ_AT_START))
    with _current.lock:
        server = _current.servers.get(known)
        if server is None or not server.alive:
            server = _current.servers[known] = ForkServer()
        return server
