"""Commands of `tpx` as processes that start from a warm interpreter.

Starting Python and importing tpx takes a second of CPU, for many tests more than what they are about. A
process of this module has imported what the commands need, and forks for each of them. What runs is the same
`main()`, in a process of its own with its own directory, environment and streams. Tests of the start itself
run the interpreter.
"""

import atexit
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

_IMPORTED = (
    *("tpx.cli.main", "tpx.cli.serve", "tpx.cli.perf", "tpx.cli.analyze", "tpx.serving.server"),
    *("tpx.serving.processes.supervisor", "tpx.serving.backends.onnxruntime.model", "uvloop"),
    *("tpx.perf.report.page", "tpx.analyzer.search.budgeted", "jinja2.environment", "encodings.idna"),
)
_MESSAGE = 1 << 20


class WarmProcess:
    """A running command, with what tests use of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], cwd: Path | None, env: Mapping[str, str]) -> None:
        """Run `tpx WORDS` in this directory and with this environment."""
        self.args = ("tpx", *words)
        self.returncode: int | None = None
        self._status, status = os.pipe()
        out, err = os.pipe(), os.pipe()
        message = {"words": words, "cwd": str(cwd or Path.cwd()), "env": dict(env)}
        with Path(os.devnull).open() as nothing:
            streams = [nothing.fileno(), out[1], err[1]]
            socket.send_fds(_starter().orders, [json.dumps(message).encode()], [*streams, status])
        for descriptor in (out[1], err[1], status):
            os.close(descriptor)
        self.stdout: IO[str] = os.fdopen(out[0], encoding="utf-8", errors="replace")
        self.stderr: IO[str] = os.fdopen(err[0], encoding="utf-8", errors="replace")
        self.pid = int(self._line())

    def _line(self) -> bytes:
        """The next line about the process: its id, then its exit status."""
        line = b""
        while not line.endswith(b"\n"):
            read = os.read(self._status, 1)
            assert read, "the process that starts others has ended"
            line += read
        return line

    def poll(self) -> int | None:
        """The exit status, or the signal as a negative number; None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raises subprocess.TimeoutExpired."""
        status = self._wait(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._line())
            os.close(self._status)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end and return what was written; on a timeout the process is killed."""
        with self.stdout, self.stderr, ThreadPoolExecutor(2) as readers:
            out, err = (readers.submit(stream.read) for stream in (self.stdout, self.stderr))
            try:
                self.wait(timeout)
            finally:
                self.kill()
            return out.result(), err.result()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Starter:
    """The process that forks commands: for these tests, and for shell scripts."""

    orders: socket.socket
    path: Path
    """A socket that takes orders of `tests/warm_command.py`."""


def shell_command() -> Mapping[str, str]:
    """The variables with which a script runs `"$PYTHON" -IS "$TPX" WORDS` as `tpx WORDS`."""
    command = Path(__file__).with_name("warm_command.py")
    return {"PYTHON": sys.executable, "TPX": str(command), "TPX_STARTER": str(_starter().path)}


@cache
def _starter() -> Starter:
    """Start it, one for the process of these tests; it ends with it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE)
    directory = tempfile.TemporaryDirectory(prefix="tpx-starter-")
    path = Path(directory.name, "socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()
    root = Path(__file__).parents[1]
    descriptors = (its.fileno(), listener.fileno())
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.warm", *map(str, descriptors)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"},
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    its.close()
    listener.close()
    for end in (directory.cleanup, process.wait, ours.close):  # the last one first
        atexit.register(end)
    return Starter(ours, path)


def _start_others(orders: socket.socket, listener: socket.socket) -> None:
    """Fork for each message until the tests have ended."""
    for name in _IMPORTED:
        __import__(name)
    gc.collect()
    gc.freeze()  # collections of a command would copy the pages of all of it
    signal.signal(signal.SIGCHLD, _reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        asking, _, _ = select.select([orders, listener], [], [])
        if orders in asking:
            message, descriptors, _, _ = socket.recv_fds(orders, _MESSAGE, 4)
            if not message:
                return
        else:
            with listener.accept()[0] as script:
                message, descriptors, _, _ = socket.recv_fds(script, _MESSAGE, 4)
        if os.fork() == 0:
            orders.close()
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _watch(json.loads(message), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _reap(_number: int, _frame: object) -> None:
    """Collect what has ended, so that its CPU time counts for the process of the tests."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _watch(order: dict[str, object], *descriptors: int) -> None:
    """Be the parent of one command: tell its id, and how it ends."""
    *streams, status = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _become(order, streams)
    for descriptor in streams:
        os.close(descriptor)
    os.write(status, b"%d\n" % pid)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _, ended = os.waitpid(pid, 0)
    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
    os._exit(0)


def _become(order: dict[str, object], streams: Sequence[int]) -> None:
    """Run the command in this process, to its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "namespaces_of" in order:
        _enter(Path("/proc", str(order["namespaces_of"]), "ns"))
    os.environ.clear()
    os.environ.update(order["env"])  # type: ignore[call-overload]
    time.tzset()
    os.chdir(str(order["cwd"]))
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = ["tpx", *order["words"]]  # type: ignore[misc]
    from tpx.cli.main import main

    try:
        main()
    except SystemExit as ended:
        _leave(ended.code)


def _leave(status: object) -> NoReturn:
    """End as an interpreter does, but keep what was imported: to free it copies the pages of all of it, which
    takes a tenth of a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    assert isinstance(status, int)
    os._exit(status)


def _enter(namespaces: Path) -> None:
    """Share the network of the process that has asked, which `unshare` gave it."""
    library = ctypes.CDLL(None, use_errno=True)
    for kind in ("user", "net"):
        with (namespaces / kind).open() as namespace:
            same = os.fstat(namespace.fileno()).st_ino == Path("/proc/self/ns", kind).stat().st_ino
            if not same and library.setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"cannot enter {namespaces / kind}")


if __name__ == "__main__":
    _start_others(*(socket.socket(fileno=int(word)) for word in sys.argv[1:]))
