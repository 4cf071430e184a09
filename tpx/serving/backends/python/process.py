"""Start and end the process of a model."""

import errno
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tpx.errors import Code, LoadError

log = logging.getLogger(__name__)

_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM))
_CHILD = Path(__file__).parent / "worker" / "child.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The Python interpreter of a model and its environment."""

    path: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the server's environment."""


class ChildProcess:
    """A worker process, the socket to it, and its lifeline.

    The lifeline is a pipe that closes when this process exits; the kernel then kills the worker, whatever its
    code is doing.
    """

    def __init__(self, interpreter: Interpreter, directory: Path) -> None:
        """Start the process; blocks until it has started. Raises LoadError."""
        with ExitStack() as theirs, ExitStack() as ours:
            try:
                self.socket, other_end = socket.socketpair()
                ours.enter_context(self.socket)
                theirs.enter_context(other_end)
                lifeline, self._lifeline = os.pipe()
                ours.callback(os.close, self._lifeline)
                theirs.callback(os.close, lifeline)
                descriptors = other_end.fileno(), lifeline
                self._process = subprocess.Popen(
                    [interpreter.path, str(_CHILD), *map(str, descriptors)],
                    stdin=subprocess.DEVNULL,
                    cwd=directory if directory.is_dir() else None,
                    env={**os.environ, **interpreter.environment},
                    pass_fds=descriptors,
                    start_new_session=True,  # a terminal's signals are for the server
                )
            except OSError as exc:
                raise LoadError(
                    f"cannot start '{interpreter.path}': {exc.strerror}", code=short_of(exc)
                ) from exc
            ours.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self, timeout_s: float) -> int:
        """Wait until the process exits, kill it after `timeout_s`, and return its status."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            lifeline, self._lifeline = self._lifeline, -1
            if lifeline >= 0:
                os.close(lifeline)

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()


def short_of(exc: OSError) -> Code | None:
    """Return a RESOURCE_EXHAUSTED error for a failure that may pass once others release resources."""
    return Code.RESOURCE_EXHAUSTED if exc.errno in _SHORTAGES else None
