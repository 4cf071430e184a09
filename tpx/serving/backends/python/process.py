"""Starting and ending the process of a model."""

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpx.errors import LoadError

log = logging.getLogger(__name__)

_CHILD = Path(__file__).parent / "worker" / "child.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """Which Python runs the model, and with what in its environment."""

    path: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the server's own."""


class ChildProcess:
    """A process that runs the worker, and the socket to it."""

    def __init__(self, interpreter: Interpreter, directory: Path) -> None:
        """Blocks for as long as starting a process takes. Raises LoadError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [interpreter.path, str(_CHILD), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    cwd=directory if directory.is_dir() else None,
                    env={**os.environ, **interpreter.environment},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # a terminal's signals are for the server
                )
            except OSError as exc:
                ours.close()
                raise LoadError(f"cannot start '{interpreter.path}': {exc.strerror}") from exc
        self.socket = ours

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self, timeout_s: float) -> int:
        """Wait until it has ended, and make it end when the time is over; returns its status."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
